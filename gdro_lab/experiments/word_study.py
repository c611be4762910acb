"""Three figures and a table of the study on word problems, from what data/studies/smol has."""

import json
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gdro_lab.experiments.blocks import BASE
from gdro_lab.experiments.style import METHOD_COLORS, PEER, WIDTH, legend_below
from gdro_lab.experiments.table import BASELINE, METRICS, RATE_SCORES, final_rows
from gdro_lab.intervals import paired_t

NAMES = {
    "grpo": "GRPO",
    "pivotal": "pivotal",
    "bank": "pivotal with replay",
    "both": "both games",
    "prompt": "Prompt-GDRO",
    "rollout": "Rollout-GDRO",
    "prompt-share": "Prompt-GDRO, share-normalized",
    "families": "families drawn evenly",
    "prior": "pivotal with a prior",
    "pkpo": "PKPO",
    "raft": "RAFT",
}
"""Labels of the methods, in the order in which they are drawn; the others have their own names."""
MARKERS = dict(zip(NAMES, "osDv^<>PpXh", strict=True))
SHOWN = ["training_mix_mean", "mean_at_8", "pass_at_8"]
"""Scores with a panel."""


def scored_early(scores: pd.DataFrame) -> pd.DataFrame:
    """The rows of the base, and of the methods that are scored before the end as well."""
    early = scores.configuration[scores.step < scores.step.max()]
    return scores[scores.configuration.isin([BASE, *early])]


def rollout_curves(scores: pd.DataFrame) -> Figure:
    """Scores during training minus GRPO's at the end, in pairs: above 0, fewer rollouts reach it.

    All curves begin at the base, in its mean over GRPO's replicates. Vertical lines are 95%
    intervals (Student's t) where a trained method has at least three replicates.

    Args:
        scores: of one world, as `read_study` has them, each method at one learning rate.
    """
    starts = scores[scores.configuration == BASE].assign(step=0)
    ends = final_rows(scores[scores.configuration == BASELINE]).set_index("replicate")
    methods = _methods(scores)
    width = scores.rollouts.max() / 120  # between methods, so that their intervals do not overlap
    figure, axes = plt.subplots(1, len(SHOWN), figsize=(WIDTH, 2.6))
    for axis, metric in zip(axes, SHOWN, strict=True):
        axis.axhline(0, color="black", linewidth=0.8)
        for place, method in enumerate(methods):
            trained = scores[scores.configuration == method]
            rows = pd.concat([starts, trained])
            gains = rows.assign(gain=rows[metric] - rows.replicate.map(ends[metric]))
            gains = gains.dropna(subset="gain")  # replicates that GRPO has not played
            _draw_curve(axis, method, gains, width * (place - (len(methods) - 1) / 2))
        axis.set(title=METRICS[metric], xlabel="rollouts")
    axes[0].set_ylabel("difference from GRPO's end")
    figure.suptitle(_finding(scores, ends))
    legend_below(figure)
    return figure


def _draw_curve(axis: Axes, method: str, gains: pd.DataFrame, shift: float) -> None:
    """The mean gain over replicates at each checkpoint, with its interval."""
    by_step = gains.groupby("step")
    mean = by_step.gain.mean()
    # NaN at GRPO's own end, where all are 0; of two replicates, or at the base, it is too wide
    half = by_step.gain.apply(lambda gain: paired_t(gain).half)
    half = half.where((by_step.gain.count() > 2) & (mean.index > 0))
    rollouts = by_step.rollouts.mean() + shift
    axis.errorbar(rollouts, mean, yerr=half.fillna(0), capsize=2, **_line(method))


def _finding(scores: pd.DataFrame, ends: pd.DataFrame) -> str:
    """Which methods have GRPO's final scores before the end, on average and by their intervals."""
    early = final_rows(scores[scores.step < scores.step.max()]).set_index("replicate")
    part = early.rollouts.max() / scores.rollouts.max()
    reached = []
    apart = []
    for method in _methods(scores):
        if method == BASELINE:
            continue
        gains = (early[early.configuration == method][RATE_SCORES] - ends[RATE_SCORES]).dropna()
        # an equal score is enough, to the digits that are stored
        if len(gains) and (gains.mean().round(6) >= 0).all():
            reached.append(_name(method))
        tests = [paired_t(gains[score]) for score in RATE_SCORES]
        if any(test.low > 0 or test.high < 0 for test in tests):
            apart.append(_name(method))
    reach = ", ".join(reached) or "no method"
    exclude = ", ".join(apart) or "none"
    return (
        f"With {part:.0%} of its rollouts GRPO's end is reached by {reach},\n"
        f"on average over {len(ends)} replicates; 95% intervals that exclude 0: {exclude}"
    )


def end_differences(scores: pd.DataFrame) -> Figure:
    """Final scores minus GRPO's, in pairs: small marks are replicates, large ones their mean.

    Horizontal lines are 95% intervals (Student's t) where there are at least three replicates.

    Args:
        scores: of one world, as `read_study` has them, each method at one learning rate.
    """
    ends = final_rows(scores[scores.configuration != BASE]).set_index(
        ["configuration", "replicate"]
    )[SHOWN]
    gains = (
        ends.sub(ends.loc[BASELINE], level="replicate")
        .drop(index=BASELINE, level="configuration")
        .dropna()
    )
    methods = [
        method for method in _methods(scores) if method in gains.index.unique("configuration")
    ]
    size = (WIDTH, 1.1 + 0.24 * len(methods))
    figure, axes = plt.subplots(1, len(SHOWN), figsize=size, sharey=True)
    apart = 0
    for axis, metric in zip(axes, SHOWN, strict=True):
        axis.axvline(0, color="black", linewidth=0.8)
        for place, method in enumerate(methods):
            gain = gains.loc[method][metric]
            look = _look(method)
            axis.plot(gain, [place] * len(gain), linestyle="", markersize=3, alpha=0.6, **look)
            half = 0.0
            if len(gain) > 2:
                half = float(paired_t(gain).half)
                apart += abs(gain.mean()) > half
            axis.errorbar(gain.mean(), place, xerr=half, capsize=2, markeredgecolor="black", **look)
        axis.set(title=METRICS[metric], xlabel="difference from GRPO")
        axis.locator_params(axis="x", nbins=3)
    replicates = gains.groupby("configuration").size()
    names = [f"{_name(method)} ({replicates[method]})" for method in methods]
    axes[0].set_yticks(range(len(methods)), names)
    axes[0].set_ylim(len(methods) - 0.5, -0.5)  # the first at the top
    figure.suptitle(
        f"At the end (replicates in brackets): {apart} of the intervals exclude 0, uncorrected"
    )
    return figure


def family_scores(families: pd.DataFrame) -> Figure:
    """Final mean@8 of each family, the easiest for the base first.

    Args:
        families: of one world, as `read_families` has them, each method at one learning rate. A
            method stands at GRPO's mean plus its difference from GRPO in pairs by replicate, so
            that one that was run on fewer can be compared.
    """
    scores = families.set_index(["configuration", "replicate", "family"]).mean_at_8.unstack()
    differences = (scores - scores.loc[BASELINE]).groupby("configuration").mean()
    means = (differences + scores.loc[BASELINE].mean()).T.sort_values(BASE, ascending=False)
    shares = families.groupby("family").share.mean()
    figure, axis = plt.subplots(figsize=(WIDTH, 0.9 + 0.22 * len(means)))
    places = np.arange(len(means))
    look = {"color": METHOD_COLORS[BASE], "edgecolor": "#777777", "label": "base", "zorder": 0}
    axis.barh(places, means[BASE], height=0.7, **look)
    methods = _methods(families)
    for method, offset in zip(methods, np.linspace(-0.25, 0.25, len(methods)), strict=True):
        axis.plot(means[method], places + offset, **_line(method) | {"linestyle": ""})
    axis.set_yticks(places, [f"{family}, {shares[family]:.0%}" for family in means.index])
    axis.invert_yaxis()
    axis.grid(axis="y", visible=False)
    axis.set(xlabel="mean@8, held out", ylabel="family, share of the training problems")
    ahead = [
        f"{_name(method)} in {(differences.loc[method] > 0).sum()}"
        for method in methods
        if method != BASELINE
    ]
    figure.suptitle(f"Above GRPO, of {len(means)} families: {', '.join(ahead)}")
    legend_below(figure, 5)
    return figure


def own_answers(folder: Path, draw: int) -> pd.DataFrame:
    """What the models of a draw say to our own problems: of each its first sample, right or wrong.

    Args:
        folder: of the logs, with files METHOD@RATE_drawN.json; each method at one learning rate.
        draw: N.

    Returns:
        A row a problem and a column a model, the base first; in brackets, how many of its samples
        are correct.
    """
    columns = {}
    for file in sorted(folder.glob(f"*_draw{draw}.json")):
        method = file.stem.partition("_draw")[0].partition("@")[0]
        rows = json.loads(file.read_text()).get("own", [])  # empty of the first runs
        columns[method] = {
            row["question"]: f"{' '.join(row['texts'][0].split())} "
            f"({row['successes']} of {row['trials']})"
            for row in rows
        }
    order = [name for name in (BASE, *NAMES, *sorted(columns)) if columns.get(name)]
    table = pd.DataFrame({_name(name): columns[name] for name in dict.fromkeys(order)})
    return table.rename_axis("problem")


def _methods(table: pd.DataFrame) -> list[str]:
    """The trained methods of a table, ours and the paper's first."""
    trained = set(table.configuration) - {BASE}
    return [name for name in NAMES if name in trained] + sorted(trained.difference(NAMES))


def _name(method: str) -> str:
    """What figures and tables call a method."""
    return NAMES.get(method, method)


def _look(method: str) -> dict[str, Any]:
    """Colour and marker of a method."""
    color = METHOD_COLORS.get("pivotal_replay" if method == "bank" else method, PEER)
    return {"color": color, "marker": MARKERS.get(method, "x")}


def _line(method: str) -> dict[str, Any]:
    """The look of a curve, with its label."""
    style = "--" if method == BASELINE else "-"
    return _look(method) | {"linestyle": style, "label": _name(method)}
