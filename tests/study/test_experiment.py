"""Profiles and the jobs of a run: what is refused, what a run depends on, what a killed one leaves."""

import re
import shlex
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
import yaml
from conftest import SMALL_PROFILE, TRAINS
from safetensors.torch import load_file

from gdro.results import report
from gdro.study import experiment, profile_checks
from gdro.study.arguments import training_arguments
from gdro.study.profiles import ModelChoice, TrainChoice, load_profile, run_folder
from gdro.training.files import repository
from gdro.training.records import read_manifest, read_table

pytestmark = TRAINS
PROFILES = repository() / "profiles"
GPU_BOX = (repository() / "docs" / "gpu-box.md").read_text()
GRPO = {"method": "grpo"}
MATH = {"task": {"kind": "math"}, "model": {"source": "some/model"}}
ENGINE, VLLM = {"kind": "unsloth-lora", "fast_inference": True}, {"use_vllm": True, "max_steps": 6}
DIES = """
import os
from pathlib import Path
from gdro import Method, register

@register("dies")
class Dies(Method):
    updates = 0

    def __init__(self, flag):
        self.flag = Path(flag)

    def update(self, batch):
        self.updates += 1
        if self.updates == 5 and self.flag.exists():
            self.flag.unlink(missing_ok=True)
            os._exit(9)
"""


def profile_of(folder, **fields):
    path = folder / "small.yaml"
    path.write_text(yaml.safe_dump(SMALL_PROFILE | fields))
    return load_profile(path)


def left_by(folder):
    """Everything that must be equal bit for bit however often a training was stopped."""
    return read_table(folder / "record.jsonl"), load_file(folder / "model" / "model.safetensors")


def assert_same(folder, other):
    (record, weights), (other_record, other_weights) = left_by(folder), left_by(other)
    assert record == other_record
    assert all(weights[name].equal(other_weights[name]) for name in weights | other_weights)


# ---- runs ----


@pytest.mark.slow
def test_every_method_spends_the_same_rollouts(made):
    profile, runs, _ = made
    for variant in profile.variants:
        for seed in profile.seeds:
            manifest = read_manifest(run_folder(runs, variant, seed) / "manifest.json")
            assert manifest["rollouts"] == 6 * 8 * 4 == profile.train.budget
            assert manifest["tokens"] > 0
            assert manifest["settings"] == profile.settings_of(variant)
            parts = sum(manifest["seconds"][stage] for stage in ("generate", "score", "reward", "controller"))
            assert 0 < parts < manifest["seconds"]["train"]
    assert not list(runs.glob("*/*/checkpoints*"))
    assert read_manifest(run_folder(runs, "base", 0) / "manifest.json")["rollouts"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["while it trains", "before the model", "before the report"])
def test_a_stopped_training_resumes_to_the_same_weights(made, tmp_path, monkeypatch, moment):
    from gdro.trainer import GDROTrainer
    from gdro.training.progress import ProgressLines

    profile, runs, cache = made

    def stop(*args, **kwargs):
        raise KeyboardInterrupt

    def stop_at_step_5(callback, args, state, control, **kwargs):
        if state.global_step == 5:
            raise KeyboardInterrupt

    folder = run_folder(tmp_path, "rollout", 1)
    with monkeypatch.context() as patch:
        if moment == "while it trains":
            patch.setattr(ProgressLines, "on_step_end", stop_at_step_5)
        elif moment == "before the model":
            patch.setattr(GDROTrainer, "save_model", stop)
        else:
            patch.setattr(experiment, "replace_text", stop)
        with pytest.raises(KeyboardInterrupt):
            experiment.train_variant(profile, "rollout", 1, folder, cache)
    with pytest.raises(ValueError, match="no training with the settings of profile 'small'; train first"):
        experiment.evaluate_variant(profile, "rollout", 1, folder, cache)
    experiment.train_variant(profile, "rollout", 1, folder, cache)
    experiment.evaluate_variant(profile, "rollout", 1, folder, cache)
    assert_same(folder, run_folder(runs, "rollout", 1))
    whole = run_folder(runs, "rollout", 1) / "evaluation.jsonl"
    assert read_table(folder / "evaluation.jsonl") == read_table(whole)


@pytest.mark.slow
def test_launched_processes_that_die_resume(made, tmp_path, capfd):
    """Two processes, and a method from a file of the profile's; test_accelerate_configs compares weights."""
    (tmp_path / "dies.py").write_text(DIES)
    flag = tmp_path / "flag"
    profile = profile_of(
        tmp_path,
        methods_from=str(tmp_path / "dies.py"),
        variants={"dies": {"method": "dies", "options": {"flag": str(flag)}}},
        launch={"processes": 2},
    )
    flag.touch()
    with pytest.raises(RuntimeError, match="the launched training failed"):
        experiment.train_variant(profile, "dies", 0, tmp_path / "died", made[2])
    assert not (tmp_path / "died" / "record.jsonl").exists()
    assert len(experiment.train_variant(profile, "dies", 0, tmp_path / "died", made[2])) == 6
    assert "dies, seed 0: 6 steps, from step 4" in capfd.readouterr().out
    assert read_manifest(tmp_path / "died" / "training.json")["processes"] == 2


@pytest.mark.slow
def test_what_other_settings_left_is_neither_resumed_nor_evaluated(made, tmp_path, capfd):
    profile, runs, cache = made
    lora = profile.model_copy(update={"model": ModelChoice(kind="lora", dtype="float32")})
    experiment.train_variant(lora, "prompt", 0, tmp_path, cache)
    assert (tmp_path / "model" / "adapter_config.json").is_file()
    with pytest.raises(ValueError, match="train first"):
        experiment.evaluate_variant(profile, "prompt", 0, tmp_path, cache)
    (tmp_path / "checkpoints-other" / "checkpoint-4").mkdir(parents=True)
    experiment.train_variant(profile, "prompt", 0, tmp_path, cache)
    assert "checkpoints-other is of other settings or data" in capfd.readouterr().out
    assert not list(tmp_path.glob("checkpoints-*"))
    assert not (tmp_path / "model" / "adapter_config.json").exists()
    assert_same(tmp_path, run_folder(runs, "prompt", 0))


OPTIONS = {
    # the schedule
    "lr_scheduler_type": "cosine", "warmup_steps": 2, "weight_decay": 0.1, "adam_beta1": 0.8,
    "adam_beta2": 0.95, "max_grad_norm": 0.5, "optim": "adafactor", "dataloader_num_workers": 1,
    # the loss
    "loss_type": "grpo", "beta": 0.1, "epsilon": 0.1, "epsilon_high": 0.3, "delta": 2.0,
    "num_iterations": 2, "importance_sampling_level": "sequence", "scale_rewards": "batch",
    "top_entropy_quantile": 0.8,
    # the sampling
    "temperature": 0.9, "top_p": 0.95, "top_k": 8, "min_p": 0.01, "repetition_penalty": 1.1,
    "mask_truncated_completions": True, "shuffle_dataset": False, "trim_batches": False,
}  # fmt: skip


@pytest.mark.slow
def test_options_known_to_resume_do(made, tmp_path):
    """As after a kill in step 5: the second run begins with the first one's checkpoint after step 4."""
    train = SMALL_PROFILE["train"] | {"num_generations": 2} | OPTIONS
    profile, checkpoint = profile_of(tmp_path, train=train), tmp_path / "checkpoint-4"
    for name in ("whole", "killed"):
        training = experiment.Training(profile, "both", 0, tmp_path / name, made[2])
        trainer = training.make_trainer()
        own = Path(trainer.args.output_dir) / checkpoint.name
        if name == "killed":
            shutil.copytree(checkpoint, own)
        trainer.train(resume_from_checkpoint=True)
        if name == "whole":
            shutil.copytree(own, checkpoint)
        training.save(trainer)
    assert_same(tmp_path / "whole", tmp_path / "killed")


@pytest.mark.slow
@pytest.mark.parametrize("altered", ["model/model.safetensors", "record.jsonl", "evaluation.jsonl"])
def test_what_was_altered_afterwards_is_not_believed(made, tmp_path, altered):
    profile, runs, cache = made
    shutil.copytree(runs, tmp_path / "runs")
    folder = run_folder(tmp_path / "runs", "prompt", 0)
    content = (folder / altered).read_bytes()
    first = content.index(b"0")  # another digit in a table, another byte in the weights
    (folder / altered).write_bytes(content[:first] + b"1" + content[first + 1 :])
    message = f"{altered} is not as it was written"
    if altered != "evaluation.jsonl":
        for job in (experiment.train_variant, experiment.evaluate_variant):
            with pytest.raises(ValueError, match=message):
                job(profile, "prompt", 0, folder, cache)
    if not altered.startswith("model"):
        with pytest.raises(ValueError, match=message):
            report.read_runs(profile, tmp_path / "runs")


@pytest.mark.slow
def test_a_complete_training_is_not_repeated(made, monkeypatch):
    profile, runs, cache = made
    folder = run_folder(runs, "prompt", 0)
    monkeypatch.setattr(experiment.Training, "run", None)
    (folder / "checkpoints-x" / "checkpoint-6").mkdir(parents=True)  # left by a kill just before the end
    assert len(experiment.train_variant(profile, "prompt", 0, folder, cache)) == 6
    assert not list(folder.glob("checkpoints-*"))


@pytest.mark.slow
def test_several_updates_share_a_generation_batch(made, tmp_path):
    train = SMALL_PROFILE["train"] | {"updates_per_step": 2, "max_grad_norm": 0.5, "logging_steps": 1}
    profile = profile_of(tmp_path, train=train)
    record = experiment.train_variant(profile, "both", 0, tmp_path / "run", made[2])
    assert len(record) == 3
    assert profile.train.budget == 3 * 8 * 4


@pytest.mark.slow
def test_evaluations_while_training_reach_the_report_and_not_the_controller(made, tmp_path, monkeypatch):
    evaluated = {"eval_strategy": "steps", "eval_steps": 2, "eval_prompts": 8}
    profile = profile_of(tmp_path, train=SMALL_PROFILE["train"] | evaluated)
    trainers, run = [], (profile, "both", 0, tmp_path / "run", made[2])

    def stop(training, trainer):
        trainers.append(trainer)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(experiment.Training, "save", stop)
        with pytest.raises(KeyboardInterrupt):
            experiment.train_variant(*run)
    [trainer] = trainers
    held_out = trainer.eval_dataset["uid"]
    known = trainer.controller.bins.table.state_dict()["keys_D"]
    assert (len(held_out), len(known)) == (8, 6 * 8)
    assert set(known.tolist()) <= set(trainer.train_dataset["uid"]) - set(held_out)
    assert len(set(trainer.eval_dataset["family"])) == 6  # of all that is held out
    assert len(experiment.train_variant(*run)) == 6  # with nothing left to train
    rows = read_manifest(tmp_path / "run" / "training.json")["evaluations"]
    logged = [row for row in trainer.state.log_history if "eval_reward" in row]
    assert [(row["step"], row["reward"]) for row in rows] == [
        (s, logged[s // 2 - 1]["eval_reward"]) for s in (2, 4, 6)
    ]


def test_two_trainings_in_one_folder_are_refused(tmp_path):
    held = "import sys, pathlib; from gdro.training.lifetime import only_process_in\n"
    held += "with only_process_in(pathlib.Path(sys.argv[1])): print(1, flush=True); sys.stdin.read()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", held, tmp_path], **pipes) as other:
        assert other.stdout.read(1) == b"1"
        with pytest.raises(ValueError, match="another process works in"):
            experiment.train_variant(load_profile("tiny"), "grpo", 0, tmp_path)
        other.stdin.close()


# ---- what a run depends on ----


@pytest.mark.parametrize(
    ("fields", "evaluated", "trained"),
    [
        ({"title": "T", "seeds": [3], "variants": {"a": {"method": "both", "label": "A"}}}, False, False),
        ({"variants": {"a": {"method": "both", "baseline": "a"}}}, False, False),
        ({"evaluation": {"samples": 8, "k": 4}}, True, False),
        ({"train": SMALL_PROFILE["train"] | {"max_grad_norm": 0.5}}, True, True),
        ({"variants": {"a": {"method": "both", "options": {"averaging": "prompt"}}}}, True, True),
        ({"base": {"steps": 61}}, True, True),
    ],
)
def test_a_run_depends_on_what_it_uses_only(tmp_path, fields, evaluated, trained):
    variants = {"variants": {"a": {"method": "both"}}}
    before, after = profile_of(tmp_path, **variants), profile_of(tmp_path, **variants | fields)
    assert (before.settings_of("a") != after.settings_of("a")) == evaluated
    of_training = [profile.settings_of("a", evaluated=False) for profile in (before, after)]
    assert (of_training[0] != of_training[1]) == trained


# ---- profiles ----


def test_shipped_profiles_are_valid():
    names = [path.stem for path in (repository() / "profiles").glob("*.yaml")]
    assert {"tiny", "smoke"} <= set(names)
    for name in names:
        profile = load_profile(name)
        assert profile.name == name
        arguments = [training_arguments(profile, v, 0, "unused", (1, 1)) for v in profile.variants]
        # GDROConfig leaves the savings out for "grpo" alone, and seconds would then favour all others
        assert all(args.trim_batches for args in arguments)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"train": {"max_steps": True}}, "max_steps"),
        ({"train": {"loss_type": "dapoo"}}, "loss_type"),
        ({"variants": {"a": {"method": "gpro"}}}, "method must be one of"),
        ({"variants": {}}, "variants"),
        ({"variants": {"x$(touch F)": GRPO}}, "should match pattern"),
        ({"variants": {"a\n": GRPO}}, "should match pattern"),
        ({"name": "a b"}, "should match pattern"),
        ({"variants": {"a": {"method": "grpo", "preset": "papre"}}}, "preset must be one of"),
        ({"variants": {"a": {"method": "rollout", "options": {"rollout": 3}}}}, "variant 'a'"),
        ({"variants": {"a": {"method": "both", "options": {"rollout": {"n_min": 9}}}}}, "n_min"),
        ({"variants": {"a": {"method": "grpo", "train": {"max_steps": 3}}}}, "the profile's 6, got 3"),
        ({"variants": {"a": GRPO, "b": GRPO | {"label": "a"}}}, "labels of their own"),
        ({"gpus": 1, "launch": {"processes": 2}}, "launch.processes must be at most gpus, 1, got 2"),
        ({"gpus": 1, "evaluation": {"data_parallel_size": 2}}, "must be at most gpus, 1, got 2"),
        ({"launch": {"processes": 3}}, "32 completions cannot be split among 3 processes"),
        ({"model": {"lora": {"r": 8}}}, "lora"),
        ({"model": {"kind": "unsloth-lora"}, "train": VLLM}, "unsloth-lora needs use_vllm and"),
        ({"model": ENGINE, "train": VLLM, "launch": {"processes": 2}}, "launch.processes must be 1 with"),
        ({"model": {"fast_inference": True}}, "fast_inference needs kind 'unsloth-lora', got 'full'"),
        (MATH | {"task": {"kind": "math", "evaluate": ["dapo"]}}, "'dapo', whose rows are trained on"),
        (MATH | {"task": {"kind": "math", "evaluate": ["math5000"]}}, "task.math.evaluate.0"),
        (MATH | {"variants": {"a": GRPO | {"groups": "level"}}}, "groups may be 'family'.*got 'level'"),
    ],
)
def test_misspelt_and_invalid_profiles_are_refused(tmp_path, fields, message):
    with pytest.raises(ValueError, match=message):
        profile_of(tmp_path, **fields)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("train: {max_steps: 12, max_steps: 99}", 'duplicate key "max_steps"'),
        ("train: {max_steps: 1:30}", "max_steps"),
        ("train: {temperature: .inf}", "temperature"),
        ("seeds: [true]", "seeds"),
        ("- a", "must hold fields"),
        ("a: [", "cannot be read"),
        ("[" * 5000, "cannot be read"),
    ],
)
def test_yaml_that_could_mean_something_else_is_refused(tmp_path, text, message):
    path = tmp_path / "bad.yaml"
    path.write_text(f"{text}\nvariants: {{grpo: {{method: grpo}}}}\n" if text[0] not in "-[" else text)
    with pytest.raises(ValueError, match=message):
        load_profile(path)


def test_a_profile_may_be_like_another(tmp_path):
    """Its blocks are laid over the other's field by field; variants replace the other's as a whole."""
    path = tmp_path / "own.yaml"
    path.write_text("like: gpu-8b\nseeds: [5]\ntrain: {beta: 0}\nvariants: {grpo: {method: grpo}}\n")
    own, other = load_profile(path), load_profile("gpu-8b")
    assert (own.name, own.seeds, list(own.variants)) == ("own", [5], ["grpo"])
    assert own.train.model_dump() == other.train.model_dump() | {"beta": 0}
    assert (own.model, own.launch, own.task) == (other.model, other.launch, other.task)
    path.write_text(f"like: {path}\n")
    with pytest.raises(ValueError, match="is like itself"):
        load_profile(path)


@pytest.mark.parametrize(
    ("train", "message"),
    [
        ({"learning_rte": 1}, "learning_rte"),
        ({"save_only_model": True}, "save_only_model is no option with which a killed run is known to resu"),
        ({"adam_beta1": 2.0}, r"adam_beta1 must be a number in \[0, 1\]"),
        ({"max_grad_norm": True}, "max_grad_norm is True: Input should be a valid number"),
        ({"num_completions_to_print": 1.5}, "num_completions_to_print is 1.5"),
        ({"load_best_model_at_end": True}, "load_best_model_at_end follows from the rest"),
        ({"advantage_std": "smaple"}, "advantage_std must be one of"),
        ({"lr_scheduler_type": "constnat"}, "constnat"),
        ({"prompts_per_step": 8, "updates_per_step": 2, "save_steps": 3}, "within a generation batch"),
    ],
)
def test_training_options_are_trls_own_and_of_their_types(train, message):
    profile = load_profile("smoke").model_copy(update={"train": TrainChoice(**train)})
    with pytest.raises(ValueError, match=message):
        experiment.training_arguments(profile, "grpo", 0, "unused", (1, 1))


def test_training_options_reach_trl():
    profile = load_profile("gpu-8b")
    args = experiment.training_arguments(profile, "paper-prompt", 1, "unused", (1024, 3072))
    assert args.vllm_importance_sampling_mode == "token_truncate"
    assert args.vllm_max_model_length == 4096
    assert (args.loss_type, args.advantage_clip) == ("grpo", 5.0)
    assert args.accelerator_config.gradient_accumulation_kwargs == {"sync_each_batch": True}
    assert args.gradient_accumulation_steps * args.per_device_train_batch_size == 256 * 4


@pytest.mark.parametrize("block", re.findall("```yaml\n(.*?)```", GPU_BOX, re.DOTALL))
def test_what_the_guide_to_the_gpu_box_says_of_profiles_is_valid(tmp_path, block):
    fields, changes = (yaml.safe_load(text) for text in ((PROFILES / "gpu-8b.yaml").read_text(), block))
    for name, change in changes.items():
        fields[name] = fields.get(name, {}) | change if isinstance(change, dict) else change
    (tmp_path / "guide.yaml").write_text(yaml.safe_dump(fields))
    profile = load_profile(tmp_path / "guide.yaml")
    args = experiment.training_arguments(profile, "prompt", 0, "unused", (1024, 3072))
    assert all(getattr(args, name) == value for name, value in changes.get("train", {}).items())


def test_packages_that_a_profile_needs_are_asked_for_first(monkeypatch):
    monkeypatch.setattr(profile_checks, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"'gpu-1\.7b' needs unsloth, vllm, liger_kernel, which are not"):
        profile_checks.check_installed(load_profile("gpu-1.7b"))
    with pytest.raises(ValueError, match="'gpu-8b' needs vllm, which is not installed"):
        profile_checks.check_installed(load_profile("gpu-8b"))
    profile_checks.check_installed(load_profile("tiny"))
    monkeypatch.setattr(profile_checks, "find_spec", lambda name: "here")
    for installed, profile in (("1.14.2", "gpu-1.7b"), ("1.16.0", "gpu-4b")):
        monkeypatch.setattr(profile_checks, "version", lambda name, installed=installed: installed)
        profile_checks.check_installed(load_profile(profile))
    monkeypatch.setattr(profile_checks, "version", lambda name: "1.14.2")
    with pytest.raises(ValueError, match=r"TRL before 1\.16 does not bring tied ones"):
        profile_checks.check_installed(load_profile("gpu-4b"))


def test_the_guides_vllm_server_is_trls():
    from trl.scripts.vllm_serve import ScriptArguments, build_command

    [text] = re.findall(r"vllm serve (Qwen.*)", GPU_BOX)
    model, *options = shlex.split(text)
    trls = build_command(ScriptArguments(model, tensor_parallel_size=8, max_model_len=4096))
    pairs = list(pairwise(trls))
    assert all(pair in pairs for pair in zip(options[::2], options[1::2], strict=True))
    imposed = {"--weight-transfer-config", "--logprobs-mode", "--max-logprobs"}
    assert imposed <= set(options)


def test_the_base_is_not_trained(tmp_path):
    with pytest.raises(ValueError, match="variant must be one of"):
        experiment.train_variant(load_profile("tiny"), "base", 0, tmp_path)
