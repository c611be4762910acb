"""Profiles, runs, the table and the figures: from a real (tiny) run's records, and bad input."""

import json
import shutil

import matplotlib
import numpy as np
import pandas as pd
import pytest
import torch
import yaml

from gdro import experiment, figures, results
from gdro.profiles import LaunchChoice, ModelChoice, load_profile, repository, run_folder
from gdro.progress import ProgressLines
from gdro.records import read_table, write_manifest, write_table
from gdro.trainer import whole_checkpoints

matplotlib.use("Agg")
pytestmark = pytest.mark.filterwarnings(
    "ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning"
)

PROFILE = {
    "seeds": [0, 1],
    "task": {"n_train": 60, "n_eval_per_family": 4},
    "base": {"steps": 60, "batch_size": 32},
    "train": {"steps": 6, "prompts_per_step": 8, "save_steps": 2},
    "evaluation": {"samples": 4, "k": 4},
    "variants": {
        "grpo": {"method": "grpo"},
        "prompt": {"method": "prompt", "label": "Prompt-GDRO"},
        "rollout": {"method": "rollout", "label": "Rollout-GDRO"},
    },
}
MATH = {"task": {"kind": "math"}, "model": {"source": "some/model"}}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Every run of a small profile, really trained: (profile, runs folder, cache)."""
    folder = tmp_path_factory.mktemp("experiment")
    path = folder / "small.yaml"
    path.write_text(yaml.safe_dump(PROFILE))
    profile = load_profile(path)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    for variant in ["base", *profile.variants]:
        for seed in [0] if variant == "base" else profile.seeds:
            where = run_folder(folder / "runs", variant, seed)
            run = experiment.Run(profile, variant, seed, where, cache_dir=folder / "bases")
            run.train()
            run.evaluate()
            write_manifest(where / "manifest.json", run.manifest())
    torch.set_num_threads(threads)
    return profile, folder / "runs", folder / "bases"


@pytest.mark.slow
def test_every_method_spends_the_same_rollouts(made):
    profile, folder, _ = made
    runs = results.read_runs(profile, folder)
    assert len(runs) == 1 + 3 * 2
    spending = results.spending_table(profile, runs)
    assert set(spending["rollouts"]) == {6 * 8 * 4}
    assert (spending["tokens"] > 0).all()
    assert not list(folder.glob("*/*/checkpoints"))


@pytest.mark.slow
def test_unequal_spending_is_refused(made):
    profile, folder, _ = made
    runs = results.read_runs(profile, folder)
    runs[1]["manifest"]["rollouts"] += 1
    with pytest.raises(ValueError, match="rollouts spent differ"):
        results.spending_table(profile, runs)


@pytest.mark.slow
def test_scores_are_those_of_the_counts(made):
    profile, folder, _ = made
    runs = results.read_runs(profile, folder)
    scores = results.score_table(profile, runs, resamples=200).set_index(["variant", "score"])
    evaluations = [run["evaluation"] for run in runs if run["variant"] == "rollout"]
    right = sum(row["successes"] for table in evaluations for row in table)
    total = sum(row["trials"] for table in evaluations for row in table)
    assert scores.value["rollout", "mean@4"] == pytest.approx(right / total)
    solved = [row["successes"] > 0 for table in evaluations for row in table]  # k = n: any of them
    assert scores.value["rollout", "pass@4"] == pytest.approx(np.mean(solved))
    gain = scores.value["rollout", "mean@4"] - scores.value["grpo", "mean@4"]
    assert scores.gain["rollout", "mean@4"] == pytest.approx(gain)
    assert (scores.low <= scores.value).all()
    assert (scores.value <= scores.high).all()
    assert ("base", "worst-bin pass@1") not in scores.index  # its own samples chose the bins
    worst = scores.loc[("prompt", "worst-family pass@1")]
    families = {row["uid"]: row["family"] for row in evaluations[0]}
    means = pd.Series(
        {
            family: np.mean(
                [
                    row["successes"] / row["trials"]
                    for run in runs
                    if run["variant"] == "prompt"
                    for row in run["evaluation"]
                    if families[row["uid"]] == family
                ]
            )
            for family in set(families.values())
        }
    )
    assert worst.value == pytest.approx(means.min())
    assert worst.gain_low <= worst.gain <= worst.gain_high


@pytest.mark.slow
def test_figures_are_drawn_from_records(made, tmp_path):
    profile, folder, _ = made
    runs = results.read_runs(profile, folder)
    reported = pd.read_csv("data/paper/results.csv")
    other = pd.read_csv("data/paper/other.csv")
    scores = results.score_table(profile, runs, resamples=100)
    figures.use_style()
    drawn = {
        "1": figures.results_overview(profile, runs, scores, reported),
        "3": figures.prompt_heatmaps(profile, runs, "prompt"),
        "4": figures.adversary_trends(profile, runs, "prompt"),
        "5": figures.bin_snapshots(profile, runs, "prompt"),
        "6": figures.lead_lag_and_error(profile, runs, "prompt", "rollout", other),
        "7": figures.rollout_heatmaps(profile, runs, "rollout"),
        "8": figures.budget_trends(profile, runs, "rollout"),
        "9": figures.data_against_budget(profile, runs, "rollout"),
    }
    for name, figure in drawn.items():
        for axis in figure.axes:
            assert axis.get_title() or axis.get_xlabel() or axis.get_label() == "<colorbar>"
        assert figures.save(figure, tmp_path, f"fig{name}").stat().st_size > 5_000


@pytest.mark.slow
def test_a_stopped_run_goes_on_and_leaves_the_same_record(made, tmp_path):
    profile, folder, cache = made

    class Stop(Exception):
        pass

    def stop(self, args, state, control, **kwargs):
        if state.global_step == 5:
            raise Stop

    where = tmp_path / "rollout" / "seed1"
    run = experiment.Run(profile, "rollout", 1, where, cache_dir=cache)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ProgressLines, "on_step_end", stop)
        with pytest.raises(Stop):
            run.train()
    assert not (where / "record.jsonl").exists()
    (checkpoints,) = where.glob("checkpoints-*")
    assert whole_checkpoints(checkpoints)
    again = experiment.Run(profile, "rollout", 1, where, cache_dir=cache)
    again.train()
    again.evaluate()
    for name in ("record.jsonl", "evaluation.jsonl"):
        assert read_table(where / name) == read_table(folder / "rollout" / "seed1" / name)


@pytest.mark.slow
def test_a_run_killed_after_its_training_is_not_trained_on(made, tmp_path):
    profile, folder, cache = made
    where = tmp_path / "prompt" / "seed0"
    experiment.Run(profile, "prompt", 0, where, cache_dir=cache).train()  # killed before it is evaluated
    again = experiment.Run(profile, "prompt", 0, where, cache_dir=cache)
    assert len(again.train()) == profile.train.steps
    again.evaluate()
    for name in ("record.jsonl", "evaluation.jsonl"):
        assert read_table(where / name) == read_table(folder / "prompt" / "seed0" / name)


@pytest.mark.slow
def test_a_launched_run_goes_on_too(made, tmp_path):
    profile, _, cache = made
    profile = profile.model_copy(update={"launch": LaunchChoice(processes=2)})
    where = tmp_path / "rollout" / "seed0"
    record = experiment.Run(profile, "rollout", 0, where, cache_dir=cache).train()
    (checkpoints,) = where.glob("checkpoints-*")
    shutil.rmtree(checkpoints / "checkpoint-6")  # as if it had been killed in the last two steps
    (where / "training.json").unlink()
    again = experiment.Run(profile, "rollout", 0, where, cache_dir=cache)
    assert again.train() == record
    assert again.manifest()["processes"] == 2


@pytest.mark.slow
def test_checkpoints_of_other_settings_are_not_taken_up(made, tmp_path):
    profile, _, cache = made
    where = tmp_path / "grpo" / "seed0"
    experiment.Run(profile, "grpo", 0, where, cache_dir=cache).train()
    train = profile.train.model_copy(update={"learning_rate": 5e-4})
    other = experiment.Run(profile.model_copy(update={"train": train}), "grpo", 0, where, cache_dir=cache)
    other.train()
    assert len(list(where.glob("checkpoints-*"))) == 2


@pytest.mark.slow
def test_what_another_training_left_in_the_folder_is_not_evaluated(made, tmp_path):
    profile, _, cache = made
    where = tmp_path / "grpo" / "seed0"
    lora = profile.model_copy(update={"model": ModelChoice(kind="lora", dtype="float32")})
    experiment.Run(lora, "grpo", 0, where, cache_dir=cache).train()
    assert (where / "model" / "adapter_config.json").is_file()
    run = experiment.Run(profile, "grpo", 0, where, cache_dir=cache)
    run.train()
    assert not (where / "model" / "adapter_config.json").exists()
    assert run._whole_model() == str(where / "model")


@pytest.mark.slow
def test_seconds_of_a_stopped_run_add_up(made, tmp_path):
    profile, _, cache = made
    where = tmp_path / "grpo" / "seed0"
    first = experiment.Run(profile, "grpo", 0, where, cache_dir=cache)
    first.train()
    (where / "training.json").unlink()  # killed before all was left
    (checkpoints,) = where.glob("checkpoints-*")
    shutil.rmtree(checkpoints / "checkpoint-6")
    again = experiment.Run(profile, "grpo", 0, where, cache_dir=cache)
    again.train()
    stages = ("generate", "score", "reward", "controller")
    for run in (first, again):
        assert 0 < sum(run.seconds[stage] for stage in stages) < run.seconds["train"]
    assert again.seconds["generate"] > 0.5 * first.seconds["generate"]  # four of six steps were the first's


@pytest.mark.slow
def test_runs_that_are_missing_or_of_another_profile_are_refused(made, tmp_path):
    profile, folder, _ = made
    copy = tmp_path / "runs"
    shutil.copytree(folder, copy)
    changed = copy / "grpo" / "seed0" / "manifest.json"
    manifest = json.loads(changed.read_text())
    manifest["settings"]["train"]["learning_rate"] = 1.0
    changed.write_text(json.dumps(manifest))
    with pytest.raises(ValueError, match="other settings than profile"):
        results.read_runs(profile, copy)
    changed.unlink()
    with pytest.raises(ValueError, match="no manifest"):
        results.read_runs(profile, copy)


def test_a_run_depends_on_its_own_variant_only(tmp_path):
    path = tmp_path / "small.yaml"
    path.write_text(yaml.safe_dump(PROFILE))
    before = load_profile(path).settings_of("rollout")
    path.write_text(yaml.safe_dump(PROFILE | {"variants": {"rollout": {"method": "rollout", "label": "R"}}}))
    assert load_profile(path).settings_of("rollout") == before
    changed = {"method": "rollout", "options": {"averaging": "prompt"}}
    path.write_text(yaml.safe_dump(PROFILE | {"variants": {"rollout": changed}}))
    assert load_profile(path).settings_of("rollout") != before


def test_shipped_profiles_are_valid():
    names = [path.stem for path in (repository() / "profiles").glob("*.yaml")]
    assert {"tiny", "smoke"} <= set(names)
    for name in names:
        assert load_profile(name).name == name


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"trian": {}}, "trian"),
        ({"train": {"learning_rte": 1}}, "learning_rte"),
        ({"train": {"learning_rate": -1}}, "learning_rate"),
        ({"variants": {"a": {"method": "gpro"}}}, "method"),
        ({"variants": {"a": {"method": "grpo", "train": {"stps": 3}}}}, "stps"),
        ({"seeds": []}, "seeds"),
        ({"seeds": [0, 0]}, "seeds must differ"),
        ({"seeds": [-1]}, "seeds must differ and be ≥ 0"),
        ({"variants": {}}, "variants"),
        ({"variants": {"base": {"method": "grpo"}}}, "may not be called base"),
        ({"variants": {"a": {"method": "grpo", "preset": "papre"}}}, "preset must be one of"),
        ({"variants": {"a": {"method": "grpo", "options": {"promt": {}}}}}, "promt"),
        (
            {"variants": {"a": {"method": "both", "options": {"rollout": {"n_min": 9}}}}},
            "mean_rollouts must lie",
        ),
        ({"variants": {"a": {"method": "grpo", "train": {"steps": 3}}}}, "must have the profile's 6 steps"),
        ({"evaluation": {"samples": 4, "k": 8}}, "needs as many samples"),
        ({"train": {"loss_type": "dapoo"}}, "loss_type"),
        ({"launch": {"processes": 2, "config": "fsdp3"}}, "launch.config is 'fsdp3'"),
        ({"launch": {"processes": 3}}, "32 completions cannot be split among 3 processes"),
        ({"model": {"lora": {"r": 8}}}, "lora is given for kind 'full'"),
        ({"model": {"kind": "unsloth-lora", "attention": "eager"}}, "Unsloth brings its own"),
        (
            {"model": {"kind": "unsloth-lora"}, "train": PROFILE["train"] | {"vllm": {}}},
            "needs train.vllm null",
        ),
        ({"variants": {"a": {"method": "both", "groups": "level"}}}, "groups='level'.*'family'"),
        ({"variants": {"a": {"method": "both", "baseline": "b"}}}, "baseline 'b'"),
        ({"train": PROFILE["train"] | {"vllm": {"mode": "server"}}}, "give the url"),
        ({"task": {"kind": "math"}}, "model.source must name a model"),
        (MATH | {"task": {"kind": "math", "train": "math500"}}, "'math500', which is for evaluation"),
        (MATH | {"task": {"kind": "math", "evaluate": ["dapo"]}}, "'dapo', whose rows are trained on"),
        (MATH | {"task": {"kind": "math", "evaluate": ["math5000"]}}, "math5000"),
        (MATH | {"variants": {"a": {"method": "both", "groups": "level"}}}, "groups='level'"),
    ],
)
def test_misspelt_and_unfit_profiles_are_refused(tmp_path, fields, message):
    path = tmp_path / "bad.yaml"
    path.write_text(yaml.safe_dump(PROFILE | fields))
    with pytest.raises(ValueError, match=message):
        load_profile(path)


def test_unknown_profile_and_variant(tmp_path):
    with pytest.raises(ValueError, match=r"profile must be one of .*'tiny'.* got 'tniy'"):
        load_profile("tniy")
    with pytest.raises(ValueError, match=r"variant must be one of .*'rollout'.* got 'rolout'"):
        load_profile("tiny").train_of("rolout")


def test_smoothing_is_a_trailing_mean_that_skips_gaps():
    values = np.array([[1.0, np.nan, 3.0, 5.0]])
    np.testing.assert_allclose(figures.smoothed(values, 2), [[1.0, 1.0, 3.0, 4.0]])


def test_tables_survive(tmp_path):
    write_table(tmp_path / "t.jsonl", [{"a": [0.1, None]}])
    assert read_table(tmp_path / "t.jsonl") == [{"a": [0.1, None]}]
