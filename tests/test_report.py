"""Tables and figures from records that a controller leaves on simulated prompts; bad folders refused."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from gdro import GDROController, paper_figures, report
from gdro.profiles import Profile, run_folder
from gdro.records import write_manifest, write_table
from gdro.style import METHODS, save, use_style

PROFILE = {
    "name": "small",
    "seeds": [0, 1],
    "train": {"max_steps": 6, "prompts_per_step": 8, "num_generations": 4},
    "evaluation": {"samples": 4, "k": 4},
    "variants": {name: {"method": name, "label": name.title()} for name in ("grpo", "prompt", "rollout")},
}
FAMILIES = np.repeat(["star", "plus"], 12)


@pytest.fixture(scope="module")
def profile():
    return Profile(**PROFILE)


@pytest.fixture(scope="module")
def runs_dir(profile, tmp_path_factory):
    """Runs as `gdro.experiment` leaves them, of prompts that are answered correctly at fixed rates."""
    folder = tmp_path_factory.mktemp("runs")
    rng, rates = np.random.default_rng(0), np.linspace(0.05, 0.95, len(FAMILIES))
    for variant in ("base", *profile.variants):
        for seed in profile.seeds[:1] if variant == "base" else profile.seeds:
            record = []
            controller = GDROController(method=variant if variant != "base" else "grpo", mean_rollouts=4)
            for step in range(0 if variant == "base" else 6):
                uids = (np.arange(8) * 3 + step) % 24
                plan = controller.plan(uids)
                group_ids = np.repeat(np.arange(8), plan.rollouts)
                rewards = (rng.random(len(group_ids)) < rates[plan.uids][group_ids]).astype(float)
                row = controller.observe(plan, group_ids, rewards).row
                record.append(row | {"rollouts_spent": len(group_ids)})
            where = run_folder(folder, variant, seed)
            evaluation = [
                {"uid": uid, "family": family, "trials": 4, "successes": int(rng.binomial(4, rates[uid]))}
                for uid, family in enumerate(FAMILIES)
            ]
            write_table(where / "record.jsonl", record)
            write_table(where / "evaluation.jsonl", evaluation[::-1])
            seconds = {"train": 10.0, "generate": 4.0, "controller": 0.1, "evaluate": 1.0}
            counts = {"rollouts": sum(row["rollouts_spent"] for row in record), "tokens": 7.0 * seed}
            manifest = {"settings": profile.settings_of(variant), "seconds": seconds} | counts
            write_manifest(where / "manifest.json", manifest)
    return folder


@pytest.fixture
def runs(profile, runs_dir):
    return report.read_runs(profile, runs_dir)


def test_every_method_spends_the_same_rollouts(profile, runs):
    assert len(runs) == 1 + 3 * 2
    spending = report.spending_table(profile, runs)
    assert set(spending["rollouts"]) == {6 * 8 * 4}
    assert spending["tokens"].tolist() == [3.5] * 3  # the mean over seeds
    runs[1]["manifest"]["rollouts"] += 1
    with pytest.raises(ValueError, match="rollouts spent differ"):
        report.spending_table(profile, runs)


def test_scores_are_those_of_the_counts(profile, runs):
    scores = report.score_table(profile, runs, resamples=200).set_index(["variant", "score"])
    rows = pd.DataFrame(
        [row | {"variant": run["variant"], "seed": run["seed"]} for run in runs for row in run["evaluation"]]
    )
    own = rows[rows.variant == "rollout"]
    assert scores.value["rollout", "mean@4"] == pytest.approx(own.successes.sum() / own.trials.sum())
    assert scores.value["rollout", "pass@4"] == pytest.approx(
        (own.successes > 0).mean()
    )  # k = n: any of them
    gain = scores.value["rollout", "mean@4"] - scores.value["grpo", "mean@4"]
    assert scores.gain["rollout", "mean@4"] == pytest.approx(gain)
    assert (scores.low <= scores.value).all()
    assert (scores.value <= scores.high).all()
    assert (scores.gain_low <= scores.gain)[scores.gain.notna()].all()
    assert ("base", "worst-bin pass@1") not in scores.index  # its own samples chose the bins
    worst = (own.successes / own.trials).groupby(own.family).mean()
    assert scores.value["rollout", "worst-family pass@1"] == pytest.approx(worst.min())
    families = report.family_table(profile, runs, resamples=50).set_index(["variant", "score"])
    assert families.value["rollout", "star"] == pytest.approx(worst["star"])


def test_small_bins_are_joined_to_the_next_easier_one(runs):
    groups = report.prompt_groups(runs, k=4)
    assert groups["family"].tolist() == FAMILIES.tolist()
    names, counts = np.unique(groups["bin"], return_counts=True)
    assert (counts[:-1] >= report.FEWEST_IN_A_BIN).all()
    assert len(names) > 1


def test_printed_tables_have_every_method_and_score(profile, runs):
    scores = report.score_table(profile, runs, resamples=50)
    families = report.family_table(profile, runs, resamples=50)
    text = report.printed_tables(profile, scores, families, report.spending_table(profile, runs))
    blocks = text.split("\n\n")
    assert [block.count("\n") + 1 for block in blocks[1::2]] == [6, 4, 6, 5]  # two lines of head each
    value = scores.set_index(["variant", "score"]).value["prompt", "mean@4"]
    assert f"{value:.3f} (" in blocks[1]
    assert "intervals that contain 0 are inconclusive" in blocks[2]
    assert "192" in blocks[7]


def test_the_best_evaluation_while_training_is_named_for_what_it_is(profile, runs):
    for place, run in enumerate(runs[1:]):
        rewards = (0.1, 0.3 + place % 2 / 10, 0.2)
        run["manifest"]["evaluations"] = [{"step": s, "reward": reward} for s, reward in enumerate(rewards)]
    spending = report.spending_table(profile, runs)
    assert spending["peak (chosen on the evaluated rows)"].tolist() == pytest.approx([0.35] * 3)
    assert spending["last evaluation"].tolist() == pytest.approx([0.2] * 3)
    tables = [report.score_table(profile, runs, 50), report.family_table(profile, runs, 50)]
    blocks = report.printed_tables(profile, *tables, spending).split("\n\n")
    assert "the table of scores is of the last checkpoint" in blocks[6]
    assert " 0.350 |" in blocks[7]
    assert "peak" not in blocks[9]


def test_figures_are_drawn_from_records(profile, runs, tmp_path):
    use_style()
    drawn = paper_figures.paper_figures(profile, runs, report.score_table(profile, runs, resamples=50))
    assert {name.split("_")[0] for name in drawn} == {"learning"} | {
        f"fig{n}" for n in (1, 3, 4, 5, 6, 7, 8, 9)
    }
    empty = drawn["fig1_overview"].axes[2]  # the weights: bins without prompts have no bar
    share = np.mean(
        [row["share"] for run in runs if run["variant"] == "prompt" for row in run["record"][-1:]], 0
    )
    for bar, of_bin in zip(empty.patches, share, strict=True):
        assert (of_bin == 0) == (not bar.get_height() > 0)
        assert bar.get_facecolor()[:3] == pytest.approx(plt.matplotlib.colors.to_rgb(METHODS["prompt"]))
    for name, figure in drawn.items():
        texts = [text for text in figure.findobj(plt.Text) if text.get_text()]
        assert min(text.get_fontsize() for text in texts) >= 7
        assert figure.get_figwidth() == 7
        assert save(figure, tmp_path, name).stat().st_size > 5_000
        assert (tmp_path / f"{name}.pdf").exists()
    assert paper_figures.one_run(runs[-1]["record"], "one").axes
    plt.close("all")


def test_smoothing_is_a_trailing_mean_that_skips_gaps():
    values = np.array([[1.0, np.nan, 3.0, 5.0]])
    np.testing.assert_allclose(paper_figures.smoothed(values, 2), [[1.0, 1.0, 3.0, 4.0]])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            lambda where: write_manifest(where / "manifest.json", {"settings": {}}),
            "other settings than profile",
        ),
        (lambda where: (where / "manifest.json").unlink(), "no manifest"),
        (lambda where: write_table(where / "record.jsonl", []), "has 0 rollouts of 192"),
    ],
)
def test_runs_that_are_not_the_profiles_are_refused(profile, runs_dir, damage, message):
    where = run_folder(runs_dir, "grpo", 0)
    kept = {file: file.read_bytes() for file in where.iterdir()}
    try:
        damage(where)
        with pytest.raises(ValueError, match=message):
            report.read_runs(profile, runs_dir)
    finally:
        for file, content in kept.items():
            file.write_bytes(content)
