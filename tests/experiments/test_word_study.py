"""Figures and table of the study on word problems, from rows made here."""

import json

import numpy as np
import pandas as pd
import pytest

from gdro_lab.experiments import word_study
from gdro_lab.experiments.table import METRICS

ROLLOUTS = {36: 2304, 60: 3840}


@pytest.fixture
def scores():
    """Three draws: pivotal has GRPO's final scores at step 36, both games at the end alone."""
    finals = {"grpo": (0.08, 0.1), "pivotal": (0.11, 0.12), "both": (0.09, 0.11)}
    rows = []
    for draw in (1, 2, 3):
        shift = 0.01 * draw  # draws differ by more than the methods do
        rows.append({"configuration": "base", "step": 60, "rollouts": 0, "value": 0.05 + shift})
        rows[-1]["replicate"] = draw
        for method, values in finals.items():
            for (step, rollouts), value in zip(ROLLOUTS.items(), values, strict=True):
                row = {
                    "configuration": method,
                    "step": step,
                    "rollouts": rollouts,
                    "replicate": draw,
                }
                rows.append(row | {"value": value + shift})
    table = pd.DataFrame(rows)
    return table.assign(**dict.fromkeys(METRICS, table.value))


def curves_of(figure):
    """The first panel's curves by label."""
    return {
        curve.get_label(): np.asarray(curve.lines[0].get_ydata(), float)
        for curve in figure.axes[0].containers
    }


def test_curves_are_differences_to_the_end_of_grpo_in_pairs(scores):
    curves = curves_of(word_study.rollout_curves(scores))
    np.testing.assert_allclose(curves["GRPO"], [-0.05, -0.02, 0.0], atol=1e-12)
    np.testing.assert_allclose(curves["pivotal"], [-0.05, 0.01, 0.02], atol=1e-12)
    # a method that was played on fewer draws is compared on those
    fewer = scores[(scores.configuration != "pivotal") | (scores.replicate == 3)]
    again = curves_of(word_study.rollout_curves(fewer))
    np.testing.assert_allclose(again["pivotal"], curves["pivotal"], atol=1e-12)


def test_the_title_names_the_methods_that_reach_the_scores_early(scores):
    title = word_study.rollout_curves(scores).get_suptitle()
    assert "60%" in title
    assert "pivotal" in title
    assert "both games" not in title


def test_ends_are_differences_to_grpo_in_pairs(scores):
    late = scores[(scores.configuration != "both") | (scores.replicate == 2)]
    late = late[(late.configuration != "both") | (late.step == 60)]
    late = late.assign(
        mean_at_8=late.value + (late.configuration == "pivotal") * 0.001 * late.replicate
    )
    first = word_study.end_differences(late).axes[word_study.SHOWN.index("mean_at_8")]
    means = {bar.lines[0].get_ydata()[0]: bar.lines[0].get_xdata()[0] for bar in first.containers}
    assert means == pytest.approx({0: 0.022, 1: 0.01})
    names = [label.get_text() for label in first.figure.axes[0].get_yticklabels()]
    assert names == ["pivotal (3)", "both games (1)"]
    # what is scored at the end alone has no curve
    assert set(word_study.scored_early(late).configuration) == {"base", "grpo", "pivotal"}


def test_families_are_compared_in_pairs(scores):
    ends = scores[scores.step == 60]
    families = pd.concat([ends.assign(family=name, share=0.5) for name in ("add", "div")])
    families = families.assign(mean_at_8=families.value)
    lower = (families.configuration == "pivotal") & (families.family == "div")
    families.loc[lower, "mean_at_8"] -= 0.05
    fewer = families[(families.configuration != "pivotal") | (families.replicate == 3)]
    figure = word_study.family_scores(fewer)
    assert "pivotal in 1, both games in 2" in figure.get_suptitle()
    dots = {line.get_label(): line.get_xdata() for line in figure.axes[0].lines}
    np.testing.assert_allclose(sorted(dots["pivotal"] - dots["GRPO"]), [-0.03, 0.02], atol=1e-12)


def test_answers_show_the_first_sample_and_the_count(tmp_path):
    own = [{"question": "1 + 1?", "texts": ["2\n", "3"], "successes": 1, "trials": 2}]
    files = {"grpo@2.5e-6_draw2": {"own": own}, "base_draw2": {"own": own}, "both@5e-6_draw2": {}}
    for name, log in files.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(log))
    table = word_study.own_answers(tmp_path, 2)
    assert list(table) == ["base", "GRPO"]  # a run without texts has no column
    assert table.loc["1 + 1?", "GRPO"] == "2 (1 of 2)"
