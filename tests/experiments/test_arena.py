"""The arena: spelled methods, a small contest that resumes, and tables worked out by hand."""

import numpy as np
import pandas as pd
import pytest
from processes import gdro
from scipy import stats
from transformers import AutoModelForCausalLM, AutoTokenizer

from gdro.uids import as_uids
from gdro_lab import loop
from gdro_lab.experiments import table as arena_report
from gdro_lab.experiments.loop_runs import draw_base
from gdro_lab.experiments.oracles import Oracle, loop_controller, make_oracle
from gdro_lab.experiments.profile import Profile, make_profile
from gdro_lab.experiments.records import read_manifest, write_rows
from gdro_lab.experiments.runner import check_loops, make_report
from gdro_lab.experiments.scores import COLUMNS, score_families
from gdro_lab.experiments.spelling import read_spelling
from gdro_lab.tasks import embedded
from gdro_lab.tasks.base import ALL
from gdro_lab.tasks.world import BaseSettings, TaskWorld

OWN = """
from gdro import Method, register
@register("first-prompts")
class FirstPrompts(Method):
    def draw(self, pool, size, rng):
        return rng.permutation(len(pool))[:size]
"""


def test_a_method_is_spelled_with_its_options():
    variant = read_spelling("prompt:bins.k=5:prompts=8@2e-4")
    assert variant.train == {"learning_rate": 2e-4, "prompts_per_step": 8}
    controller = loop_controller(variant, 4, seed=3)
    assert (controller.name, controller.bins.k) == ("prompt", 5)
    oracle = Oracle({7: "hash", 3: "star", 5: "star"}, np.zeros_like)
    bins = loop_controller(read_spelling("both:groups=family"), 4, 0, oracle).bins
    assert (bins.groups, bins.k, bins.history) == (["hash", "star"], 1, 20)
    assert bins.assign([3, 5, 7]).tolist() == [1, 1, 0]


def test_scores_by_hand():
    families = (
        embedded.EmbeddedFamily("a", "*", 5, 0.75, 0.5),
        embedded.EmbeddedFamily("b", "+", 5, 0.25, 0.5),
    )
    task = embedded.EmbeddedSpec(families, 3, 40, 2).draw(0)
    names = [row["family"] for row in task.eval]
    found = score_families(names, np.array([16, 8, 0, 1]), np.full(4, 16), task.shares)
    first = {"mean_at_8": 0.75, "pass_at_8": 1 - 0.5 / 12870, "share": 0.75}
    assert found["families"]["a"] == pytest.approx(first)
    assert found["families"]["b"] == {"mean_at_8": 1 / 32, "pass_at_8": 0.25, "share": 0.25}
    assert found["worst_family"] == 1 / 32
    assert found["mean_at_8"] == pytest.approx((0.75 + 1 / 32) / 2)
    assert found["training_mix_mean"] == pytest.approx(0.75 * 0.75 + 0.25 / 32)
    # pass@8: 1, 1 − C(8, 8)/C(16, 8), 0, ½
    assert found["pass_at_8"] == pytest.approx(((1 + 1 - 1 / 12870) / 2 + 0.25) / 2)
    others = score_families(names, np.array([16, 8, 0, 1]), np.full(4, 16), {"a": 0.5, "c": 0.5})
    assert np.isnan(others["training_mix_mean"])  # c was trained on and is not held out


def test_an_oracle_knows_families_and_pass_rates(tmp_path):
    families = (
        embedded.EmbeddedFamily("a", "*", 5, 0.9, 0.9),
        embedded.EmbeddedFamily("b", "+", 5, 0.1, 0.9),
    )
    base = BaseSettings(steps=60, batch_size=32)
    world = TaskWorld(name="w", spec=embedded.EmbeddedSpec(families, 2, 20, 2), base=base)
    task, base = draw_base(world, 0, tmp_path)
    model = AutoModelForCausalLM.from_pretrained(base)
    tokenizer = AutoTokenizer.from_pretrained(base)
    oracle = make_oracle(task, model, tokenizer)
    uids = [row["uid"] for row in task.train]
    rates = oracle.rates(as_uids(uids))
    counts = loop.evaluate(model, tokenizer, task.train, embedded.reward, 2000, 6, seed=0)
    assert rates.max() > 0.05
    np.testing.assert_allclose(counts.successes_P / 2000, rates, atol=5 * (0.25 / 2000) ** 0.5)
    controller = loop_controller(read_spelling("family_even"), 4, 0, oracle)
    families = [task.train[d]["family"] for d in controller.draw(uids, 4)]
    assert sorted(families) == ["a", "a", "b", "b"]


CONTEST = """
backend: loop
worlds: [own.yaml]
methods: [grpo, first-prompts@1e-3]
learning_rates: [1.0e-4]
seeds: [0, 1]
train: {max_steps: 5, prompts_per_step: 4, num_generations: 4}
methods_from: own.py
"""


def command(folder, *words):
    """What a command prints that ends well."""
    ended = gdro(folder, *words, "--runs=out", "--cache-dir=bases")
    assert ended.exit_code == 0, ended.output
    return ended.output


def written(out):
    return {(file, file.stat().st_mtime_ns) for file in out.glob("runs/*/*.json")}


def test_a_contest_resumes_by_the_short_command_too(tmp_path):
    (tmp_path / "contest.yaml").write_text(CONTEST)
    (tmp_path / "own.py").write_text(OWN)
    (tmp_path / "own.yaml").write_text(
        'name: own\nn_train: 40\nn_eval_per_family: 3\nfamilies:\n  - {name: a, operator: "*", '
        "n_digits: 5, share: 1, teacher_accuracy: 0.5}\nbase: {steps: 8, batch_size: 16}\n"
    )
    out = tmp_path / "out"
    first = command(tmp_path, "run", "contest.yaml", "--cores=2")
    assert "mean@8" in first

    rows = pd.read_csv(out / "runs.csv")
    assert list(rows.columns) == COLUMNS
    scores = rows[rows.family == ALL]
    rates = set(zip(scores.configuration, scores.learning_rate, strict=True))
    assert rates == {("grpo", 1e-4), ("first-prompts", 1e-3), ("base", 0)}
    trained = scores[scores.configuration != "base"]
    of_run = trained.groupby(["configuration", "replicate"])
    assert of_run.step.apply(list).tolist() == 4 * [[1, 2, 3, 4, 5]]
    assert (trained.rollouts == 16 * trained.step).all()
    base = scores[scores.configuration == "base"]
    assert (len(base), set(base.step), set(base.rollouts)) == (2, {5}, {0})
    families = rows[rows.family != ALL].set_index("configuration")
    assert len(families) == 6
    assert families.memorization_gap.notna().all()
    assert (families.memorization_gap["base"] == 0).all()
    assert scores.memorization_gap.isna().all()
    assert "Memorization gap by family" in first

    # one run is lost: it alone is played again, to the same scores
    lost = out / "runs" / "own" / "grpo_lr0.0001_replicate1.json"
    kept = written(out) - {(lost, lost.stat().st_mtime_ns)}
    before = read_manifest(lost)["rows"]
    lost.unlink()
    short = ["arena", "own.yaml", "--methods=grpo@1e-4,first-prompts@1e-3", "--replicates=2"]
    short += ["--steps=5", "--prompts=4", "--methods-from=own.py", "--cores=1"]
    command(tmp_path, *short)
    assert written(out) - {(lost, lost.stat().st_mtime_ns)} == kept
    for row, other in zip(before, read_manifest(lost)["rows"], strict=True):
        assert all(row[key] == other[key] for key in row if "seconds" not in key)


def test_a_folder_keeps_one_setting_and_one_meaning_of_a_world(tmp_path):
    def profile(world, n_train, **fields):
        text = f"n_train: {n_train}\nn_eval_per_family: 3\nfamilies:\n"
        text += '  - {name: a, operator: "*", n_digits: 5, share: 1, teacher_accuracy: 0.5}\n'
        (tmp_path / f"{world}.yaml").write_text(text)
        fields = {"name": "p", "backend": "loop", "methods": ["grpo"], "seeds": [0]} | fields
        return Profile(worlds=[str(tmp_path / f"{world}.yaml")], **fields)

    out = tmp_path / "out"
    one = profile("a", 40)
    for run in one.runs():
        write_rows(run.file(out), run.settings, [])
    check_loops(one.runs(), out)
    check_loops(profile("b", 50).runs(), out)
    with pytest.raises(ValueError, match="runs must have the same world"):
        check_loops(profile("a", 50).runs(), out)
    other = profile("a", 40, train={"num_generations": 2})
    with pytest.raises(ValueError, match="runs must have the same train"):
        make_report(other, out)
    # of a world that the profile does not have, too
    for place, size in (("x.json", 40), ("y.json", 50)):
        settings = profile("c", size).runs()[0].settings
        write_rows(out / "runs" / "c" / place, settings, [])
    with pytest.raises(ValueError, match="runs must have the same world"):
        check_loops(one.runs(), out)


def contest(finals, steps=(50, 100)):
    """Scores of one world: each method climbs to its final mean@8 of a draw; pass@8 is ½ higher."""
    rows = [
        {"world": "w", "configuration": method, "learning_rate": rate, "replicate": draw}
        | {"step": step, "family": ALL}
        | {"rollouts": 10 * step, "tokens": 5 * step}
        | {"mean_at_8": final * step / 100, "pass_at_8": 0.5 + final * step / 100}
        | {"worst_family": final / 2, "training_mix_mean": final}
        for (method, rate), finals_of_draws in finals.items()
        for draw, final in enumerate(finals_of_draws)
        for step in steps
    ]
    return pd.DataFrame(rows)


def test_differences_are_paired_by_draw_at_each_methods_best_rate():
    good, base = np.array([0.30, 0.42, 0.37, 0.5]), np.array([0.2, 0.35, 0.33, 0.4])
    arms = {("grpo", 1e-4): base, ("grpo", 2e-4): base - 0.1}
    arms |= {("new", 2e-4): good, ("new", 1e-4): base}
    table = arena_report.compare(contest(arms)).set_index(["configuration", "metric"])
    new = table.loc[("new", "mean_at_8")]
    expected = stats.ttest_rel(good, base)
    assert (new.learning_rate, table.loc[("grpo", "mean_at_8")].learning_rate) == (2e-4, 1e-4)
    assert new.difference == pytest.approx((good - base).mean())
    np.testing.assert_allclose([new.low, new.high], expected.confidence_interval())
    # four equal p values: Holm makes each four times as large
    np.testing.assert_allclose(table.loc["new"].p_holm, 4 * expected.pvalue)
    assert np.isnan(table.loc[("grpo", "mean_at_8")].p_holm)


def test_holm_corrects_for_all_that_was_looked_at():
    """Two methods, one of them at two rates, four metrics, and a base: twelve comparisons."""
    rng = np.random.default_rng(0)
    base = rng.random(6)
    arms = {("grpo", 1e-4): base, ("new", 1e-4): base, ("new", 2e-4): base, ("other", 1e-4): base}
    scores = contest(arms | {("base", 0.0): base - 0.3})
    for metric in arena_report.METRICS:
        noise = rng.normal(0.01, 0.02, len(scores)) * (scores.configuration != "grpo")
        scores[metric] += noise - 0.1 * (scores.learning_rate == 2e-4)
    table = arena_report.compare(scores).set_index(["configuration", "metric"])
    ends = scores[scores.step == 100]
    grpo = ends[ends.configuration == "grpo"]
    others = ends[~ends.configuration.isin(["grpo", "base"])].groupby(
        ["configuration", "learning_rate"]
    )
    p = {
        (*arm, metric): stats.ttest_rel(end[metric], grpo[metric]).pvalue
        for arm, end in others
        for metric in arena_report.METRICS
    }
    corrected, largest = {}, 0.0
    for place, key in enumerate(sorted(p, key=p.get)):
        largest = max(largest, (len(p) - place) * p[key])
        corrected[key] = min(largest, 1)
    assert len(p) == 12
    assert len(table) == 16  # GRPO's and the base's own four among them
    assert table.loc["base"].p_holm.isna().all()
    for method in ("new", "other"):
        for metric in arena_report.METRICS:
            expected = corrected[method, 1e-4, metric]
            assert table.loc[(method, metric)].p_holm == pytest.approx(expected)


def test_draws_that_not_all_have_played_decide_nothing():
    """At 2e-4 GRPO has played the two easy draws alone, where 1e-4 is better."""
    base = [0.1, 0.1, 0.5, 0.5]
    arms = {("grpo", 1e-4): base, ("grpo", 2e-4): np.array(base) - 0.05, ("same", 1e-4): base}
    scores = contest(arms)
    few = (scores.learning_rate == 2e-4) | (scores.configuration == "same")
    scores = scores[~few | (scores.replicate > 1)]
    assert set(arena_report.at_best_rate(scores).learning_rate) == {1e-4}


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"methods": ["grpo:prompts=129"]}, "prompts"),
        ({"methods": ["grpo:groups=level"]}, "groups"),
        ({"seeds": [1, 1]}, "seeds"),
        ({"worlds": ["steps"], "train": {"prompts_per_step": 1201}}, "steps"),
        ({"worlds": ["gym-text"]}, "worlds"),
    ],
)
def test_profiles_of_the_loop_that_cannot_run_are_refused(fields, named):
    whole = {"name": "w", "backend": "loop", "methods": ["grpo"], "seeds": [0]}
    with pytest.raises(ValueError, match=named):
        make_profile("w", whole | fields)
