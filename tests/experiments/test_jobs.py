"""The jobs of a run: what they leave, what a killed one resumes to, what is not believed."""

import json
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy
import pytest
from conftest import SMALL_PROFILE, TRAINS
from processes import gdro
from safetensors.torch import load_file
from tiny_models import save_tiny_model
from transformers import AutoTokenizer

from gdro import GDROController
from gdro.checks import Refusal
from gdro_lab.experiments import evaluation, play, report, training
from gdro_lab.experiments.blocks import EvaluationChoice, ModelChoice
from gdro_lab.experiments.play import evaluate_run, make_parts, open_training, train_run
from gdro_lab.experiments.records import read_manifest, read_result, read_table
from gdro_lab.experiments.run import run_folder
from gdro_lab.tasks import prompt_token_ids

pytestmark = TRAINS
TRAIN = SMALL_PROFILE["train"]


@pytest.fixture(scope="module")
def made(profile_of, tmp_path_factory):
    """Whole runs of two methods: (profile, runs folder, cache of bases)."""
    folder = tmp_path_factory.mktemp("runs")
    variants = {name: SMALL_PROFILE["variants"][name] for name in ("prompt", "rollout")}
    profile, cache = profile_of(variants=variants, seeds=[1]), folder / "bases"
    for variant in ["base", *variants]:
        run = profile.run(variant, 1), run_folder(folder / "runs", variant, 1), cache
        if variant != "base":
            train_run(*run)
        evaluate_run(*run)
    return profile, folder / "runs", cache


def assert_same(folder, other):
    """Equal bit for bit, however often a training was stopped."""
    assert read_table(folder / "record.jsonl") == read_table(other / "record.jsonl")
    ours, theirs = (load_file(next((f / "model").glob("*.safetensors"))) for f in (folder, other))
    assert all(ours[name].equal(theirs[name]) for name in ours | theirs)


def test_every_method_spends_the_same_rollouts(made):
    profile, runs, _ = made
    for variant in profile.variants:
        result = read_result(run_folder(runs, variant, 1))
        manifest = result["manifest"]
        assert manifest["rollouts"] == 6 * 8 * 4
        assert len(result["evaluation"]) == 6 * 4
        assert manifest["settings"] == profile.run(variant, 1).settings
        seconds = manifest["seconds"]
        assert 0 < seconds["generate"] + seconds["controller"] < seconds["train"]
    assert not list(runs.glob("*/*/checkpoints*"))
    assert read_manifest(run_folder(runs, "base", 1) / "manifest.json")["rollouts"] == 0


def test_a_stopped_training_resumes_to_the_same_weights(made, tmp_path, monkeypatch):
    """Stopped while it trains, and once more before its report."""
    profile, runs, cache = made
    choice = EvaluationChoice(samples=8, k=4, train_prompts=2)
    profile = profile.model_copy(update={"evaluation": choice})
    run = profile.run("prompt", 1), tmp_path, cache

    def stop_at_step_5(callback, args, state, control, **kwargs):
        if state.global_step == 5:
            raise KeyboardInterrupt

    def stop(*args, **kwargs):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(training.ProgressLines, "on_step_end", stop_at_step_5)
        patch.setattr(training, "write_manifest", stop)
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt):
                train_run(*run)
            with pytest.raises(ValueError, match="no training with the settings"):
                evaluate_run(*run)
            patch.setattr(training.ProgressLines, "on_step_end", lambda *_, **__: None)
    train_run(*run)
    assert_same(tmp_path, run_folder(runs, "prompt", 1))
    assert not list(tmp_path.glob("checkpoints-*"))
    held_out = [row["uid"] for row in evaluate_run(*run)]
    result = read_result(tmp_path)
    assert [row["uid"] for row in result["evaluation"]] == held_out
    families = Counter(row["family"] for row in result["seen"])
    assert (len(families), max(families.values())) == (6, 2)
    rows = report.trl_rows(profile, [{"variant": "prompt", "seed": 1, **result}])
    assert rows.train_mean[rows.family != "all"].notna().sum() == 6
    rows = rows[rows.family == "all"]
    assert rows.rollouts.tolist() == [6 * 8 * 4]
    assert rows.train_mean.between(0, 1).all()


def test_what_other_settings_left_is_neither_resumed_nor_evaluated(made, tmp_path, capfd):
    profile, runs, cache = made
    lora = profile.model_copy(update={"model": ModelChoice(kind="lora", dtype="float32")})
    train_run(lora.run("prompt", 1), tmp_path, cache)
    assert (tmp_path / "model" / "adapter_config.json").is_file()
    with pytest.raises(ValueError, match="no training with the settings"):
        evaluate_run(profile.run("prompt", 1), tmp_path, cache)
    (tmp_path / "checkpoints-other" / "checkpoint-4").mkdir(parents=True)
    train_run(profile.run("prompt", 1), tmp_path, cache)
    assert "checkpoints-other" in capfd.readouterr().out
    assert not list(tmp_path.glob("checkpoints-*"))
    assert_same(tmp_path, run_folder(runs, "prompt", 1))


@pytest.mark.parametrize(
    "altered", ["model/model.safetensors", "model/adapter_config.json", "record.jsonl"]
)
def test_what_was_altered_or_added_afterwards_is_not_believed(made, tmp_path, altered):
    profile, runs, cache = made
    shutil.copytree(runs, tmp_path / "runs")
    folder = run_folder(tmp_path / "runs", "prompt", 1)
    content = (folder / altered).read_bytes() if (folder / altered).exists() else b"0"
    first = content.index(b"0")  # another digit in a table, another byte in the weights
    (folder / altered).write_bytes(content[:first] + b"1" + content[first + 1 :])
    for job in (train_run, evaluate_run):
        with pytest.raises(Refusal, match=Path(altered).name):
            job(profile.run("prompt", 1), folder, cache)
    if altered == "record.jsonl":
        with pytest.raises(Refusal, match=altered):
            report.read_runs(profile, tmp_path / "runs")


def test_a_training_of_another_seed_is_not_evaluated(made, tmp_path):
    profile, runs, cache = made
    folder = shutil.copytree(run_folder(runs, "prompt", 1), tmp_path / "run")
    with pytest.raises(Refusal, match="seed 2"):
        evaluate_run(profile.run("prompt", 2), folder, cache)


def test_a_base_that_was_changed_in_its_folder_is_another_one(made, profile_of, tmp_path):
    """An adapter belongs to the weights that it had."""
    source = shutil.copytree(next(made[2].glob("*")), tmp_path / "m")
    changes = {"model": {"source": str(source), "kind": "lora"}, "train": TRAIN | {"max_steps": 2}}
    profile = profile_of(variants={"grpo": {"method": "grpo"}}, **changes)
    run = profile.run("grpo", 0), tmp_path / "run", tmp_path / "bases"
    train_run(*run)
    file = source / "generation_config.json"
    before = file.read_text()
    file.write_text(json.dumps(json.loads(before) | {"top_k": 1}))
    for job in (evaluate_run, train_run):
        with pytest.raises(Refusal, match="another base"):
            job(*run)
    file.write_text(before)
    assert len(evaluate_run(*run)) == 6 * 4


def test_another_environment_evaluates_a_training_with_its_own_base(made, tmp_path, monkeypatch):
    """Other versions of the packages would make another base, under another name."""
    profile, runs, cache = made
    folder = shutil.copytree(run_folder(runs, "prompt", 1), tmp_path / "run")
    own = read_manifest(folder / "manifest.json")["start"]
    (folder / "manifest.json").unlink()
    monkeypatch.setattr(numpy, "__version__", "0")
    bases = sorted(cache.iterdir())
    evaluate_run(profile.run("prompt", 1), folder, cache)
    assert sorted(cache.iterdir()) == bases
    assert read_manifest(folder / "manifest.json")["start"] == own


def test_other_held_out_problems_are_evaluated_again(made, tmp_path, monkeypatch):
    """As when the file that holds them was edited: settings have only its path."""
    profile, runs, cache = made
    folder = shutil.copytree(run_folder(runs, "base", 1), tmp_path / "run")
    parts = make_parts(profile.run("base", 1), cache, held_out=True)
    rows = [row | {"uid": f"new/{row['uid']}"} for row in parts.data.rows]
    changed = parts._replace(data=replace(parts.data, rows=rows))
    monkeypatch.setattr(play, "make_parts", lambda *_, **__: changed)
    found = evaluate_run(profile.run("base", 1), folder, cache)
    assert [row["uid"] for row in found] == [row["uid"] for row in rows]
    # other problems are left to train on now
    monkeypatch.setattr(play, "load_split", lambda *_, **__: changed.data)
    with pytest.raises(Refusal, match="data"):
        evaluate_run(profile.run("prompt", 1), run_folder(runs, "prompt", 1), cache)


def test_evaluations_while_training_reach_the_report_and_not_the_controller(
    made, profile_of, tmp_path
):
    """With two updates of each generation batch, too."""
    extra = {"updates_per_step": 2, "eval_strategy": "steps", "eval_steps": 2, "eval_prompts": 8}
    profile = profile_of(train=TRAIN | extra)
    run = open_training(profile.run("both", 0), tmp_path, made[2])
    trainer = run.make_trainer()
    trainer.train()
    run.save(trainer)
    assert len(set(trainer.eval_dataset["uid"])) == 8
    assert set(trainer.controller.bins.row_of) <= set(trainer.train_dataset["uid"])
    assert len(set(trainer.eval_dataset["family"])) == 6  # of all that is held out
    assert len(run.record()) == 3
    assert read_manifest(tmp_path / "training.json")["rollouts"] == 3 * 8 * 4
    log = read_table(tmp_path / "log_history.jsonl")
    assert [row["step"] for row in log if "eval_reward" in row] == [2, 4, 6]


def test_arguments_of_the_chat_template_reach_lengths_and_evaluation(
    profile_of, tmp_path, monkeypatch
):
    source = save_tiny_model("Qwen3", tmp_path / "model")
    tokenizer = AutoTokenizer.from_pretrained(source)
    tokenizer.chat_template = "{{ 'a' * (9 if think else 2) }}{{ messages[0]['content'] }}"
    tokenizer.save_pretrained(source)
    profile = profile_of(
        task={"kind": "reasoning_gym", "world": "smol"},
        model={"source": str(source)},
        base={},
        train=TRAIN | {"chat_template_kwargs": {"think": True}},
    )
    data = make_parts(profile.run("grpo", 1), tmp_path).data
    prompts = [row["prompt"] for row in data.rows]
    asked = prompt_token_ids(tokenizer, prompts, {"think": True})
    assert data.max_prompt_tokens == max(map(len, asked))
    sampled = []

    def by_stub(choice, model, tokenizer, ids, *, max_new_tokens, seed, dtype):
        sampled.extend(ids)
        return [[[tokenizer.eos_token_id]] * choice.samples for _ in ids]

    monkeypatch.setattr(evaluation, "_by_transformers", by_stub)
    evaluate_run(profile.run("base", 0), tmp_path / "run", tmp_path)
    assert all(tokenizer.decode(ids).startswith("a" * 9) for ids in sampled)


def test_some_steps_are_tried_and_leave_nothing(made, profile_of, tmp_path, monkeypatch):
    profile = profile_of(train=TRAIN | {"updates_per_step": 2})
    (tmp_path / "own.yaml").write_text(profile.model_dump_json(exclude_unset=True))  # JSON is YAML
    monkeypatch.setattr("gdro_lab.machine.set_up_process", lambda: None)
    words = ["train", "own.yaml", "both", "--try=2", f"--cache-dir={made[2]}"]
    ended = gdro(tmp_path, *words)
    assert ended.exit_code == 0, ended.output
    assert "step 6/6" in ended.output  # one batch to warm up, two that count
    assert "a generation batch" in ended.output
    assert [path.name for path in tmp_path.iterdir()] == ["own.yaml"]


def test_a_controller_starts_from_the_pass_rates_that_evaluate_writes(
    made, profile_of, tmp_path, monkeypatch
):
    profile = profile_of(seeds=[1], evaluation={"samples": 8, "train_prompts": 10**6})
    (tmp_path / "own.yaml").write_text(profile.model_dump_json(exclude_unset=True))  # JSON is YAML
    monkeypatch.setattr("gdro_lab.machine.set_up_process", lambda: None)
    words = ["evaluate", "own.yaml", "base", f"--cache-dir={made[2]}", "--folder=run"]
    ended = gdro(tmp_path, *words, "--pass-rates=new/rates.jsonl")
    assert ended.exit_code == 0, ended.output
    counts = {row["uid"]: row for row in read_table(tmp_path / "run" / "evaluation.jsonl")}
    rows = read_table(tmp_path / "new" / "rates.jsonl")
    assert [row["uid"] for row in rows] == list(counts)
    assert all(row["rollouts"] == 8 for row in rows)
    measured = {row["uid"]: row["pass_rate"] for row in rows}
    trained = [row["uid"] for row in make_parts(profile.run("grpo", 1), made[2]).data.rows]
    assert set(trained) < set(measured)
    assert max(measured[uid] for uid in trained) > 0  # so that there is something to start from
    controller = GDROController("pivotal", pass_rates=measured, pass_rate_rollouts=8)
    controller.plan(trained)
    successes, failures = controller.bins.beliefs.counts(controller.bins.rows(trained))
    assert successes.tolist() == [counts[uid]["successes"] for uid in trained]
    assert (successes + failures == 8).all()
