"""Profiles: what may be in one, what is refused, what a run depends on, what reaches TRL."""

import math
import re
from contextlib import nullcontext
from dataclasses import asdict

import pytest
import yaml
from conftest import SMALL_PROFILE, TRAINS

from gdro_lab.experiments import play
from gdro_lab.experiments.profile import PROFILES, load_profile, repository
from gdro_lab.experiments.training import Lengths, training_arguments

pytestmark = TRAINS
GPU_BOX = (repository() / "docs" / "gpu-box.md").read_text()
NAMES = sorted(path.stem for path in PROFILES.glob("*.yaml"))
GRPO = {"method": "grpo"}
MATH = ("math_verify", "pebble")
VLLM = {"use_vllm": True, "max_steps": 6}
INF = float("inf")


@pytest.mark.parametrize("name", NAMES)
def test_shipped_profiles_are_valid_from_anywhere(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    profile = load_profile(name)
    assert profile.name == name
    for variant in profile.variants:
        args = training_arguments(profile.run(variant, 0), "unused", Lengths(1, 1))
        # "grpo" has no savings by default, and seconds would then favour all others
        assert args.trim_batches


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"variants": {"a": GRPO, "b": GRPO | {"label": "a"}}}, "labels"),
        ({"variants": {"base": GRPO}}, "labels"),
        ({"variants": {"a": GRPO | {"options": {"advantage_clip": math.inf}}}}, "variants.a"),
        ({"variants": {"a": GRPO | {"train": {"max_steps": 3}}}}, "max_steps"),
        ({"train": {"max_steps": 7, "updates_per_step": 2}}, "max_steps"),
        ({"train": {"max_steps": 6, "num_iterations": 2, "save_steps": 3}}, "save_steps"),
        ({"evaluation": {"samples": 2, "k": 4}}, "evaluation.k"),
        ({"evaluation": {"at": [0.5]}}, "evaluation.at"),
        ({"variants": {"a": GRPO | {"train": {"num_generations": 32}}}}, "num_generations"),
        ({"one_task": False}, "evaluation.samples"),
        ({"one_task": False, "seeds": [0], "task": {"kind": "embedded", "seed": 1}}, "task.seed"),
        ({"launch": {"processes": 3}}, "3 processes"),
        ({"model": {"kind": "unsloth-lora"}, "train": VLLM}, "fast_inference"),
        ({"model": {"kind": "unsloth-lora"}, "launch": {"config": "fsdp2"}}, "fsdp2"),
        ({"task": {"kind": "math"}}, "model.source"),
    ],
)
def test_what_would_fail_late_is_refused_by_name(profile_of, fields, named):
    with pytest.raises(ValueError, match=re.escape(named)):
        profile_of(**fields)


def test_a_profile_may_be_like_another(tmp_path):
    """Its blocks are laid over the other's field by field; variants replace the other's."""
    path = tmp_path / "own.yaml"
    text = "like: gpu-8b\nseeds: [5]\ntrain: {beta: 0}\nvariants: {grpo: {method: grpo}}\n"
    path.write_text(text)
    own, other = load_profile(path), load_profile("gpu-8b")
    assert (own.name, own.seeds, list(own.variants)) == ("own", [5], ["grpo"])
    assert own.train.model_dump() == other.train.model_dump() | {"beta": 0}
    assert asdict(own.model) == asdict(other.model)
    assert (own.launch, own.task) == (other.launch, other.task)
    (tmp_path / "child.yaml").write_text(f"like: {path}\n")
    path.write_text(f"name: parent\n{text}")
    names = load_profile(path).name, load_profile(tmp_path / "child.yaml").name
    assert names == ("parent", "child")  # they do not share a folder of runs


def test_one_threshold_says_what_is_correct(profile_of):
    high = {"method": "grpo", "options": {"success_threshold": 0.5}}
    profile = profile_of(variants={"a": high, "b": high | {"label": "other"}})
    assert profile.success_threshold == 0.5
    assert profile.run("base", 0).settings != profile_of().run("base", 0).settings
    with pytest.raises(ValueError, match="success_threshold"):
        profile_of(variants={"a": high, "b": GRPO})


TRAIN = SMALL_PROFILE["train"]


def test_a_seed_draws_the_task_too_unless_all_share_one(profile_of):
    fresh = profile_of(one_task=False, evaluation={"samples": 8, "k": 4})
    drawn = fresh.drawn(1)
    assert (drawn.task.seed, drawn.base.seed) == (1, 1)
    assert drawn.drawn(2) == drawn
    assert profile_of().drawn(1).task.seed == 0
    assert [(run.configuration, run.replicate) for run in fresh.runs() if run.variant is None] == [
        ("base", 0),
        ("base", 1),
    ]
    assert [run.replicate for run in profile_of().runs() if run.variant is None] == [0]


@pytest.mark.parametrize(
    ("fields", "evaluation", "training"),
    [
        ({"title": "T", "seeds": [3], "hours": 9.0}, False, False),
        ({"variants": {"a": {"method": "both", "label": "A", "baseline": "a"}}}, False, False),
        ({"train": TRAIN | {"vllm_gpu_memory_utilization": 0.2}}, False, False),
        ({"train": TRAIN | {"vllm_enable_sleep_mode": True}}, False, False),
        ({"evaluation": {"samples": 8, "k": 4}}, True, False),
        ({"train": TRAIN | {"max_grad_norm": 0.5}}, True, True),
        ({"train": TRAIN | {"chat_template_kwargs": {"a": 1}}}, True, True),
        ({"variants": {"a": {"method": "both", "options": {"averaging": "prompt"}}}}, True, True),
    ],
)
def test_a_run_depends_on_what_it_computes_alone(profile_of, fields, evaluation, training):
    variants = {"variants": {"a": {"method": "both"}}}
    before, after = profile_of(**variants), profile_of(**variants | fields)
    assert (before.run("a", 0).settings != after.run("a", 0).settings) == evaluation
    of_training = [profile.run("a", 0).of_training for profile in (before, after)]
    assert (of_training[0] != of_training[1]) == training


@pytest.mark.parametrize("block", re.findall("```yaml\n(.*?)```", GPU_BOX, re.DOTALL))
def test_what_the_guide_to_the_gpu_box_says_of_profiles_is_valid(tmp_path, block):
    fields = yaml.safe_load((PROFILES / "gpu-8b.yaml").read_text())
    changes = yaml.safe_load(block)
    for name, change in changes.items():
        fields[name] = fields.get(name, {}) | change if isinstance(change, dict) else change
    (tmp_path / "guide.yaml").write_text(yaml.safe_dump(fields))
    profile = load_profile(tmp_path / "guide.yaml")
    args = training_arguments(profile.run("prompt", 0), "unused", Lengths(1024, 3072))
    assert all(getattr(args, name) == value for name, value in changes.get("train", {}).items())


@pytest.mark.parametrize(
    ("name", "here", "trl", "named"),
    [
        ("gpu-1.7b", MATH, "1.16.0", "unsloth, vllm, liger_kernel"),
        ("gpu-4b", ("vllm",), "1.16.0", "math_verify, pebble"),
        ("gpu-4b", ("vllm", *MATH), "1.14.2", "TRL 1.16"),
        ("gpu-4b", ("vllm", *MATH), "1.16.0", None),
        ("tiny", (), "1.14.2", None),
    ],
)
def test_packages_that_a_profile_needs_are_asked_for_first(monkeypatch, name, here, trl, named):
    monkeypatch.setattr(play, "find_spec", lambda name: name in here or None)
    monkeypatch.setattr(play, "version", lambda name: trl)
    profile = load_profile(name)
    with pytest.raises(ValueError, match=named) if named else nullcontext():
        play.check_installed([profile.run(variant, 0) for variant in profile.variants])


def test_a_changed_file_of_methods_makes_other_runs_of_these_alone(profile_of, tmp_path):
    file = tmp_path / "mine.py"
    code = """from gdro import Method, register
@register("mine_by_file")
class Mine(Method):
    def weights(self, batch):
        return super().weights(batch)
"""
    file.write_text(code)
    profile = profile_of(
        methods_from=str(file), variants={"a": {"method": "mine_by_file"}, "grpo": GRPO}
    )
    before = {name: profile.run(name, 0).settings for name in ("a", "grpo")}
    file.write_text(code + "# changed\n")
    assert profile.run("a", 0).settings != before["a"]
    assert profile.run("grpo", 0).settings == before["grpo"]
