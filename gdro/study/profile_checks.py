"""Refuses a profile whose fields do not fit together, or whose packages are not installed."""

from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.version import Version

from gdro.methods import register_from
from gdro.study.choices import BASE, BaseChoice
from gdro.tasks.reasoning_gym import GymSpec
from gdro.tasks.settings import GymChoice
from gdro.tasks.world import read_world
from gdro.training.files import repository
from gdro.training.models import check_choice_of_model

if TYPE_CHECKING:
    from gdro.study.profiles import Profile

RESERVED = {BASE, "results", "figures", "logs"}  # folders of a profile's runs


def check_profile(profile: "Profile") -> None:
    """Refuse now what would otherwise fail after hours; each variant's controller is made once."""
    labels = [profile.label(variant) for variant in profile.variants]
    if profile.evaluation.samples < profile.evaluation.k:
        k, samples = profile.evaluation.k, profile.evaluation.samples
        raise ValueError(f"evaluation.k must be at most evaluation.samples, got {k} and {samples}; lower it")
    if 0 < profile.gpus < profile.evaluation.gpus:
        raise ValueError(
            f"evaluation.data_parallel_size × tensor_parallel_size must be at most gpus, {profile.gpus}, "
            f"got {profile.evaluation.gpus}; change one of them"
        )
    if 0 < profile.gpus < profile.launch.processes and "num_machines" not in profile.launch.options:
        most, processes = profile.gpus, profile.launch.processes
        raise ValueError(f"launch.processes must be at most gpus, {most}, got {processes}; change one")
    if len(set(profile.seeds)) < len(profile.seeds):
        raise ValueError(f"seeds must differ, got {profile.seeds}; leave out what comes twice")
    if profile.task.kind == "math" and profile.model.source is None:
        raise ValueError("model.source must name a model for task.kind 'math', got None; give a folder or id")
    if profile.task.kind == "reasoning_gym":
        _check_world(profile, profile.task)
    if profile.task.kind == "math" and profile.task.train in profile.task.evaluate:
        raise ValueError(f"task.evaluate names {profile.task.train!r}, whose rows are trained on; drop it")
    if profile.launch.options and profile.launch.config is None:
        names = sorted(profile.launch.options)
        raise ValueError(f"launch.config must be given with {names}, got None; name its file")
    if taken := {"config_file", "num_processes"} & set(profile.launch.options):
        raise ValueError(f"launch may not have {sorted(taken)}; give config and processes")
    if "num_machines" in profile.launch.options and "machine_rank" not in profile.launch.options:
        raise ValueError("launch.machine_rank must be given with num_machines; each machine has its own")
    if len(set(labels)) < len(labels):
        raise ValueError(f"variants need labels of their own, got {labels}; change one")
    if RESERVED & set(profile.variants):
        raise ValueError(
            f"variants may not be called {sorted(RESERVED)}, got {list(profile.variants)}; rename one"
        )
    for name, file in {"launch.config": profile.launch.config, "methods_from": profile.methods_from}.items():
        if file is not None and not (repository() / file).is_file():
            raise ValueError(f"{name} is {file!r}, which is no file; give a path from the repository's root")
    if profile.methods_from is not None:
        register_from(repository() / profile.methods_from)
    for name in profile.variants:
        try:
            _check_variant(profile, name)
        except (ValueError, TypeError) as error:
            raise ValueError(f"correct variant {name!r}: {error}") from error


def _check_world(profile: "Profile", task: GymChoice) -> None:
    world = read_world(task.world)
    if not isinstance(world.spec, GymSpec) or world.spec.n_train == 0:
        wanted = "a world of reasoning-gym and no stream, which the arena alone plays"
        raise ValueError(f"task.world must name {wanted}, got {world.name!r}; choose another")
    if profile.base != BaseChoice(seed=profile.base.seed):
        raise ValueError("base may give no more than the seed for task.kind 'reasoning_gym'; see its world")
    if world.spec.prompt_length is None and profile.model.source is None:
        why = f"as {world.name!r} asks original questions"
        raise ValueError(f"model.source must name a model, {why}, got None; give a folder or hub id")


def _check_variant(profile: "Profile", name: str) -> None:
    variant, train, model = profile.variants[name], profile.train_of(name), profile.model_of(name)
    check_choice_of_model(**model.model_dump(exclude={"source", "gradient_checkpointing"}))
    if variant.baseline not in (*profile.variants, "grpo"):
        raise ValueError(f"baseline is {variant.baseline!r}; name one of {list(profile.variants)}")
    same, steps = (train.max_steps, train.generation_batches), profile.train.max_steps
    if same != (steps, profile.train.generation_batches):
        raise ValueError(f"max_steps must be the profile's {steps}, got {train.max_steps}; leave it out")
    if train.max_steps % (train.updates_per_step * train.num_iterations):
        unit = train.updates_per_step * train.num_iterations
        wanted = f"a multiple of updates_per_step × num_iterations, {unit}"
        raise ValueError(f"max_steps must be {wanted}, got {train.max_steps}; round it")
    if model.kind.startswith("unsloth") and Path(profile.launch.config or "ddp").stem != "ddp":
        raise ValueError(f"Unsloth needs launch.config ddp or none, got {profile.launch.config!r}; change it")
    if model.kind == "unsloth-lora" and train.use_vllm != model.fast_inference:
        got = f"use_vllm={train.use_vllm}, fast_inference={model.fast_inference}"
        raise ValueError(f"unsloth-lora needs use_vllm and fast_inference to be equal, got {got}; change one")
    if model.fast_inference and profile.launch.processes > 1:
        processes = profile.launch.processes
        raise ValueError(f"launch.processes must be 1 with fast_inference, got {processes}; set it to 1")
    if variant.groups not in ((None,) if profile.task.kind == "math" else (None, "family")):
        raise ValueError(
            f"groups may be 'family', in a task that is not math, got {variant.groups!r}; leave it out"
        )
    train.local_batch(profile.launch.processes)
    profile.controller_of(name)


def check_installed(profile: "Profile") -> None:
    """Refuse (ValueError) a profile whose packages are not installed here, or are too old for it."""
    kinds = [profile.model_of(variant).kind for variant in profile.variants]
    trainings = [profile.train_of(variant) for variant in profile.variants]
    vllm = any(train.use_vllm for train in trainings)
    needed = {"unsloth": any(kind.startswith("unsloth") for kind in kinds), "vllm": vllm}
    needed["liger_kernel"] = any((train.model_extra or {}).get("use_liger_kernel") for train in trainings)
    if missing := [name for name, is_needed in needed.items() if is_needed and find_spec(name) is None]:
        why = f"{', '.join(missing)}, which {'are' if missing[1:] else 'is'} not installed"
        raise ValueError(f"profile {profile.name!r} needs {why}; docs/gpu-box.md, 1, says how")
    is_sharded = "fsdp" in Path(profile.launch.config or "").stem
    if vllm and is_sharded and Version(version("trl")) < Version("1.16"):
        raise ValueError(
            f"profile {profile.name!r} shards its weights, and TRL before 1.16 does not bring tied ones to "
            f"vLLM then; this is {version('trl')}: install requirements/gpu.txt"
        )
