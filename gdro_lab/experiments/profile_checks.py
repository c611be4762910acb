"""What is refused of a profile's blocks that are right one by one, and do not go together."""

from collections.abc import Sequence
from typing import Any

from gdro.checks import Refusal
from gdro_lab.experiments.blocks import (
    BASE,
    BaseChoice,
    EvaluationChoice,
    LaunchChoice,
    ModelChoice,
    TrainChoice,
    Variant,
)
from gdro_lab.experiments.scores import K
from gdro_lab.tasks import EmbeddedChoice, GymChoice, MathChoice
from gdro_lab.tasks.cold_start import ColdStart
from gdro_lab.tasks.reasoning_gym import STREAM_SIZE, GymSpec
from gdro_lab.tasks.world import TaskWorld, read_world

LOOP_TRAIN = ("max_steps", "prompts_per_step", "num_generations", "lr_scheduler_type")
"""The fields of `train` that the loop knows."""

RESERVED = {BASE, "results", "figures", "logs"}
"""Folders of a profile's runs."""


def check_loop_train(train: TrainChoice) -> None:
    """Refuse (Refusal) what the loop does not know."""
    unknown = sorted((train.model_fields_set | set(train.model_extra or {})) - set(LOOP_TRAIN))
    if unknown:
        raise Refusal(f"train must have no other fields than {LOOP_TRAIN}, got {unknown}")
    if train.lr_scheduler_type not in ("constant", "linear"):
        raise Refusal(
            "train.lr_scheduler_type must be 'constant' or 'linear' in the loop, "
            f"got {train.lr_scheduler_type!r}"
        )
    # with fewer, two of the five checkpoints would be the same step
    if train.max_steps < 5:
        raise Refusal(f"train.max_steps must be at least 5 in the loop, got {train.max_steps}")


def check_names(variants: Sequence[str], labels: Sequence[str]) -> None:
    """Refuse (Refusal) variants that cannot be told apart, in folders or in tables."""
    if not variants:
        raise Refusal("variants must name what is compared, got {}")
    if RESERVED & set(variants):
        raise Refusal(f"variants may not be called {sorted(RESERVED)}, got {variants}")
    if len(set(labels)) != len(labels):
        raise Refusal(f"labels of variants must differ, got {labels}")


def check_worlds(worlds: Sequence[TaskWorld], steps: int, prompts: int) -> None:
    """Refuse (Refusal) worlds of one name, without a tiny base, or of too few prompts."""
    names = [world.name for world in worlds]
    if len(set(names)) != len(names):
        raise Refusal(f"worlds must have names of their own, got {names}")
    for world in worlds:
        size = world.spec.n_train
        if not world.has_tiny_base:
            raise Refusal(
                f"worlds must have a tiny base in the loop, got {world.name!r} with its original "
                "questions"
            )
        if 0 < size < prompts:
            raise Refusal(
                f"prompts must be at most the {size} of n_train in {world.name!r}, got {prompts}"
            )
        if size == 0 and steps * prompts > STREAM_SIZE:
            raise Refusal(
                f"steps × prompts must be at most {STREAM_SIZE} in the stream {world.name!r}, "
                f"got {steps * prompts}"
            )


def check_seeds(seeds: Sequence[int], evaluation: EvaluationChoice, *drawn: Any) -> None:
    """Refuse (Refusal) too few samples for the paired table, and seeds in what the seeds draw.

    drawn: the profile's task, base and cold start.
    """
    if len(seeds) > 1 and evaluation.samples < K:
        raise Refusal(
            f"evaluation.samples must be at least {K} where each seed draws its own task (or "
            f"one_task must be true), got {evaluation.samples}"
        )
    for name, part in zip(("task", "base", "cold_start"), drawn, strict=True):
        if part is not None and "seed" in part.model_fields_set:
            raise Refusal(
                f"{name}.seed must be left out, since the profile's seeds draw it, or one_task be "
                f"true, got {part.seed}"
            )


def check_comparison(
    variant: Variant, known: Sequence[str], train: TrainChoice, of_profile: TrainChoice
) -> None:
    """Refuse (Refusal) a variant that has nothing to be compared with, or not at equal rollouts."""
    if variant.baseline not in known:
        raise Refusal(f"baseline must be one of {known}, got {variant.baseline}")
    ours, wanted = (
        f"{one.max_steps} steps in {one.generation_batches} batches of "
        f"{one.prompts_per_step * one.num_generations} rollouts"
        for one in (train, of_profile)
    )
    if ours != wanted:
        raise Refusal(
            "max_steps, updates_per_step, num_iterations and prompts_per_step × num_generations "
            f"must give the profile's {wanted}, got {ours}"
        )


def check_task(
    task: EmbeddedChoice | GymChoice | MathChoice,
    source: str | None,
    base: BaseChoice,
    cold_start: ColdStart | None,
) -> None:
    """Refuse (Refusal) a task or a cold start without the model, or the base, that it needs."""
    if task.kind == "math" and source is None:
        raise Refusal("model.source must be given for task.kind 'math', got None")
    if task.kind == "reasoning_gym":
        world = read_world(task.world)
        if not isinstance(world.spec, GymSpec) or world.spec.n_train == 0:
            raise Refusal(f"task.world must be a finite one of reasoning-gym, got {task.world!r}")
        if source is None and not world.has_tiny_base:
            raise Refusal(f"model.source must be given for task.world {task.world!r}, got None")
        changed = sorted(base.model_fields_set - {"seed"})
        if changed:
            raise Refusal(f"base must be the world's, but for its seed, got {changed}")
    if cold_start is not None and (source is None or task.kind == "embedded"):
        raise Refusal(
            "cold_start needs model.source and a task of kind math or reasoning_gym, "
            f"got {source!r} and {task.kind!r}"
        )


def check_training(
    train: TrainChoice, model: ModelChoice, launch: LaunchChoice, evaluation: EvaluationChoice
) -> None:
    """Refuse (Refusal) what cannot be trained together, or not be resumed."""
    if evaluation.k > evaluation.samples:
        raise Refusal(
            f"evaluation.k must be at most the {evaluation.samples} samples, got {evaluation.k}"
        )
    unit = train.updates_per_step * train.num_iterations
    if train.max_steps % unit != 0:
        raise Refusal(
            f"max_steps must be a multiple of {unit} updates a batch, got {train.max_steps}"
        )
    if train.save_steps < train.max_steps and train.save_steps % unit != 0:
        # a checkpoint within a batch does not resume to the same weights
        raise Refusal(
            f"save_steps must be a multiple of {unit} updates a batch, got {train.save_steps}"
        )
    if model.is_unsloth and launch.shards:
        raise Refusal(f"launch.config must not shard the weights of Unsloth, got {launch.config!r}")
    if model.kind == "unsloth-lora" and train.use_vllm != model.fast_inference:
        raise Refusal(
            "use_vllm and fast_inference must be equal for unsloth-lora, "
            f"got {train.use_vllm} and {model.fast_inference}"
        )
    if model.fast_inference and launch.processes != 1:
        raise Refusal(f"launch.processes must be 1 with fast_inference, got {launch.processes}")
    if evaluation.at:
        if len(evaluation.steps(train.max_steps)) < len(evaluation.at):
            raise Refusal(
                "evaluation.at must name different steps between the first and the last of "
                f"{train.max_steps}, got {evaluation.at}"
            )
        is_like = train.use_vllm == (evaluation.engine == "vllm")
        options = train.model_extra or {}
        sleeps = options.get("vllm_enable_sleep_mode") or options.get("vllm_mode") == "server"
        if not is_like or sleeps or launch.processes > 1 or model.is_unsloth:
            raise Refusal(
                "evaluation.at needs one process without Unsloth, whose engine is that of the "
                f"evaluation and stays awake, got {evaluation.at}"
            )
    train.local_batch(launch.processes)
