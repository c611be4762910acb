"""Tables and figures from records on simulated prompts; bad folders are refused."""

import itertools
import shutil

import matplotlib.pyplot as plt
import nbformat
import numpy as np
import pandas as pd
import pytest
from helpers import play
from processes import REPOSITORY as ROOT
from scipy import stats

from gdro import GDROController
from gdro.checks import Refusal
from gdro_lab.experiments import figures, report
from gdro_lab.experiments.blocks import BASE
from gdro_lab.experiments.profile import Profile
from gdro_lab.experiments.records import (
    hashes_of,
    read_manifest,
    read_table,
    totals,
    write_manifest,
    write_table,
)
from gdro_lab.experiments.report import MOST, texts_before_and_after
from gdro_lab.experiments.run import run_folder
from gdro_lab.experiments.style import METHOD_COLORS, save, use_style

PROFILE = Profile(
    name="small",
    seeds=[0, 1],
    one_task=True,
    train={"max_steps": 6, "prompts_per_step": 8, "num_generations": 4},
    evaluation={"samples": 4, "k": 4},
    variants={
        name: {"method": name, "label": name.title()} for name in ("grpo", "prompt", "rollout")
    },
)
FAMILIES = np.repeat(["star", "plus"], 12)


@pytest.fixture(scope="module")
def runs_dir(tmp_path_factory):
    return write_runs(tmp_path_factory.mktemp("runs"), PROFILE)


def write_runs(folder, profile):
    """Runs as `gdro_lab.experiments.training` leaves them, of prompts with fixed pass rates."""
    rng, rates = np.random.default_rng(0), np.linspace(0.05, 0.95, len(FAMILIES))
    samples = profile.evaluation.samples
    bases = [(BASE, seed) for seed in profile.seeds[: 1 if profile.one_task else None]]
    for variant, seed in [*bases, *itertools.product(profile.variants, profile.seeds)]:
        record, where = [], run_folder(folder, variant, seed)
        if variant != BASE:
            controller = GDROController(profile.variants[variant].method, mean_rollouts=4)
            for step in range(6):
                uids = (np.arange(8) * 3 + step) % 24
                plan, batch = play(controller, 6 * seed + step, uids, rates[uids])
                spent = {"rollouts_spent": int(plan.rollouts.sum()), "tokens": 7.0 * seed}
                record.append(batch.row | spent)
        evaluation = [
            {"uid": uid if profile.one_task else f"{seed}/{uid}", "family": family}
            | {"trials": samples, "successes": int(rng.binomial(samples, rates[uid]))}
            | {"question": f"Question {uid}?", "texts": [f"{variant} says {uid}", "second"]}
            for uid, family in enumerate(FAMILIES)
        ]
        write_table(where / "record.jsonl", record)
        write_table(where / "evaluation.jsonl", evaluation[::-1])
        manifest = {
            "settings": profile.run(variant, seed).settings,
            "seconds": dict.fromkeys(report.STAGES, 1.0),
            **totals(record),
            **{"profile": profile.name, "variant": variant, "seed": seed},
            "start": "a base" if profile.one_task else f"base {seed}",
            "families": {"star": 30, "plus": 10},
            "files": hashes_of(where, ["record.jsonl", "evaluation.jsonl"]),
        }
        write_manifest(where / "manifest.json", manifest)
    return folder


@pytest.fixture
def folder(runs_dir, tmp_path):
    """A copy of the runs, to be changed."""
    return shutil.copytree(runs_dir, tmp_path / "runs")


@pytest.fixture
def runs(runs_dir):
    return report.read_runs(PROFILE, runs_dir)


def test_every_method_spends_the_same_rollouts(runs):
    assert len(runs) == 1 + 3 * 2
    spending = report.spending_table(PROFILE, runs)
    assert set(spending["rollouts"]) == {6 * 8 * 4}
    assert spending["tokens"].tolist() == [6 * 3.5] * 3  # the mean over seeds
    scores = report.score_table(PROFILE, runs, resamples=20)
    families = report.family_table(PROFILE, runs, resamples=20)
    equal = report.format_tables(PROFILE, scores, families, spending)
    runs[1]["manifest"]["rollouts"] += 1
    spending = report.spending_table(PROFILE, runs)
    unequal = report.format_tables(PROFILE, scores, families, spending)
    titles = [block for block in unequal.split("\n\n") if "not at equal budgets" in block]
    assert len(titles) == 1
    assert "not at equal budgets" not in equal


def test_scores_are_those_of_the_counts_and_printed(runs):
    scores = report.score_table(PROFILE, runs, resamples=200)
    families = report.family_table(PROFILE, runs, resamples=50)
    of = scores.set_index(["variant", "score"])
    own = pd.concat(pd.DataFrame(run["evaluation"]) for run in runs if run["variant"] == "rollout")
    worst = (own.successes / own.trials).groupby(own.family).mean()
    wanted = {"mean@4": own.successes.sum() / own.trials.sum(), "worst-family pass@1": worst.min()}
    wanted["pass@4"] = (own.successes > 0).mean()  # k = n: any of them
    assert of.value["rollout"][list(wanted)].to_dict() == pytest.approx(wanted)
    gain = of.value["rollout", "mean@4"] - of.value["grpo", "mean@4"]
    assert of.gain["rollout", "mean@4"] == pytest.approx(gain)
    assert ((of.low <= of.value) & (of.value <= of.high)).all()
    assert (of.gain_low <= of.gain)[of.gain.notna()].all()
    assert ("base", "worst-bin pass@1") not in of.index  # its own samples chose the bins
    by_family = families.set_index(["variant", "score"]).value
    assert by_family["rollout", "star"] == pytest.approx(worst["star"])

    blocks = report.format_tables(PROFILE, scores, families, report.spending_table(PROFILE, runs))
    blocks = blocks.split("\n\n")
    # two lines of head each
    assert [block.count("\n") + 1 for block in blocks[1::2]] == [6, 4, 6, 5]
    assert f"{of.value['prompt', 'mean@4']:.3f} (" in blocks[1]
    assert "192" in blocks[7]
    seconds = report.seconds_table(report.spending_table(PROFILE, runs))
    assert seconds.count("1.0") == 3 * len(report.STAGES)


def test_small_bins_are_joined_and_a_worst_group_without_spread_has_no_interval(runs):
    groups = report.prompt_groups(runs, k=4)
    assert groups["family"].tolist() == FAMILIES.tolist()
    names, counts = np.unique(groups["bin"], return_counts=True)
    assert (counts[:-1] >= report.FEWEST_IN_A_BIN).all()
    assert len(names) > 1
    for row in runs[0]["evaluation"]:
        row["successes"] = 2
    runs[0]["evaluation"][3]["successes"] = row["trials"]
    assert len(np.unique(report.prompt_groups(runs, k=4)["bin"])) == 1
    values = np.array([[0.5, 0.5, 0.9, 0.7, 1], [0.3, 0.3, 0.9, 0.7, 1]])
    parts = report._worst_parts(values, np.array(["a", "a", "b", "b", "b"]))
    np.testing.assert_allclose(parts, [[0.5] * 5, [0.3] * 5])


def test_figures_are_drawn_from_records(runs, tmp_path):
    use_style()
    drawn = figures.paper_figures(PROFILE, runs, report.score_table(PROFILE, runs, resamples=50))
    numbers = {f"fig{n}" for n in (1, *range(3, 10))}
    assert {name.split("_")[0] for name in drawn} == {"learning"} | numbers
    bars = drawn["fig1_overview"].axes[2].patches  # the weights: bins without prompts have no bar
    share = sum(np.array(run["record"][-1]["share"]) for run in runs if run["variant"] == "prompt")
    assert [round(bar.get_center()[0]) for bar in bars] == np.flatnonzero(share).tolist()
    colors = {plt.matplotlib.colors.to_hex(bar.get_facecolor()) for bar in bars}
    assert colors == {METHOD_COLORS["prompt"]}
    for name, figure in drawn.items():
        assert save(figure, tmp_path, name).stat().st_size > 5_000
        assert (tmp_path / f"{name}.pdf").exists()
    assert figures.one_run(runs[-1]["record"], "one").axes
    plt.close("all")


def test_notebook_06_shows_the_measured_table():
    text = (ROOT / "data/studies/tiny/table.md").read_text("utf-8")
    scores = text.split("\n\nmean@8 by family")[0]
    cells = nbformat.read(ROOT / "notebooks/06_results.ipynb", as_version=4).cells
    outputs = [output.get("data", {}) for cell in cells for output in cell.get("outputs", [])]
    assert sum(scores in output.get("text/markdown", "") for output in outputs) == 1


def test_runs_that_were_evaluated_on_other_problems_are_refused(folder):
    changed = run_folder(folder, "rollout", 1)
    manifest = read_manifest(changed / "manifest.json")
    rows = read_table(changed / "evaluation.jsonl")
    write_table(changed / "evaluation.jsonl", [row | {"uid": row["uid"] + 1} for row in rows])
    manifest["files"] |= hashes_of(changed, ["evaluation.jsonl"])
    write_manifest(changed / "manifest.json", manifest)
    with pytest.raises(ValueError, match="evaluated on the problems"):
        report.read_runs(PROFILE, folder)


def test_a_copied_run_is_not_a_second_seed(folder):
    shutil.rmtree(run_folder(folder, "rollout", 1))
    shutil.copytree(run_folder(folder, "rollout", 0), run_folder(folder, "rollout", 1))
    with pytest.raises(Refusal, match="seed1"):
        report.read_runs(PROFILE, folder)


def test_runs_from_different_bases_are_not_compared(folder):
    path = run_folder(folder, "rollout", 1) / "manifest.json"
    write_manifest(path, read_manifest(path) | {"start": "another base"})
    with pytest.raises(Refusal, match="another base"):
        report.read_runs(PROFILE, folder)


def test_a_report_that_fails_leaves_the_last_one(folder, monkeypatch):
    for name in ("table.md", "runs.csv"):
        (folder / "results").mkdir(exist_ok=True)
        (folder / "results" / name).write_text("the last one")

    def fails(*arguments):
        raise RuntimeError

    monkeypatch.setattr(report, "paper_figures", fails)
    with pytest.raises(RuntimeError):
        report.write_report(PROFILE, folder)
    assert {path.read_text() for path in (folder / "results").iterdir()} == {"the last one"}


def test_where_each_seed_has_its_own_problems_differences_are_in_pairs_by_seed(tmp_path):
    fields = {"one_task": False, "evaluation": {"samples": 8, "k": 4}}
    profile = Profile(**PROFILE.model_dump(exclude_unset=True) | fields)
    text = report.write_report(profile, write_runs(tmp_path, profile))
    rows = pd.read_csv(tmp_path / "results" / "runs.csv")
    rows = rows[rows.family == "all"].set_index(["configuration", "replicate"])
    difference = rows.loc["prompt"].mean_at_8 - rows.loc["grpo"].mean_at_8
    assert f"{difference.mean():+.3f}" in text
    assert len(rows) == 4 * 2
    without = profile.model_copy(update={"variants": {"prompt": profile.variants["prompt"]}})
    assert f"{rows.loc['prompt'].mean_at_8.mean():.3f}" in report.write_report(without, tmp_path)


@pytest.fixture
def eight(tmp_path):
    """Profile and runs with eight samples, and a method with another baseline."""
    variants = {name: {"method": name} for name in ("grpo", "prompt")}
    variants["own"] = {"method": "rollout", "baseline": "prompt"}
    train = {"max_steps": 6, "prompts_per_step": 8}
    profile = Profile(name="eight", seeds=[0, 1, 2], one_task=True, train=train, variants=variants)
    return profile, report.read_runs(profile, write_runs(tmp_path, profile))


def test_trainings_in_trl_have_rows_and_paired_tables_as_the_loop_has(eight):
    profile, runs = eight
    rows = report.trl_rows(profile, runs)
    assert set(rows.family) == {"all", "star", "plus"}
    rows = rows[rows.family == "all"].set_index(["configuration", "replicate"])
    prompts = pd.DataFrame(runs[1]["evaluation"])
    by_family = (prompts.successes / prompts.trials).groupby(prompts.family).mean()
    first = rows.loc["grpo", 0]
    assert first.mean_at_8 == pytest.approx(by_family.mean())
    assert first.worst_family == pytest.approx(by_family.min())
    mix = 0.75 * by_family["star"] + 0.25 * by_family["plus"]
    assert first.training_mix_mean == pytest.approx(mix)
    any_correct = (prompts.successes > 0).groupby(prompts.family).mean()
    assert first.pass_at_8 == pytest.approx(any_correct.mean())
    tables = report.paired_tables(profile, report.trl_rows(profile, runs))
    for method, baseline in (("prompt", "grpo"), ("own", "prompt")):
        difference = rows.loc[method].mean_at_8 - rows.loc[baseline].mean_at_8
        low, high = stats.ttest_1samp(difference, 0).confidence_interval()
        assert f"{difference.mean():+.3f}: {low:+.3f} … {high:+.3f}" in tables


def test_texts_are_those_of_the_questions_that_the_base_solves_least(eight):
    profile, runs = eight
    text = texts_before_and_after(profile, runs)
    by_difficulty = sorted(runs[0]["evaluation"], key=lambda row: row["successes"])
    for place, row in enumerate(by_difficulty):
        for variant in (BASE, *profile.variants):
            assert (f"{variant} says {row['uid']}\n" in text) == (place < MOST)
    assert "second" not in text
    for run in runs:
        for row in run["evaluation"]:
            del row["texts"], row["question"]
    assert texts_before_and_after(profile, runs) == ""
