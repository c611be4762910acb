"""What `gdro.trainer` refuses before any compute, and the controller it makes of a configuration."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import datasets

from gdro.controller import GDROController
from gdro.core.checks import build
from gdro.core.groups import StaticGroups
from gdro.core.uids import as_uids
from gdro.methods import Method


def controller_of(args: Any, dataset: Any) -> GDROController:
    """The controller that a `GDROConfig` asks for."""
    options = dict(args.gdro_options or {})
    if args.group_column is not None:
        bins = options.get("bins", {})
        labels = [None if label is None else str(label) for label in dataset[args.group_column]]
        given = {"uids": dataset[args.uid_column], "labels": labels}
        options["bins"] = build("gdro_options['bins'] with group_column", StaticGroups, bins, **given)
    advantages = {name: getattr(args, name) for name in ("advantage_std", "advantage_clip", "scale_rewards")}
    if args.advantage_clip == float("inf"):
        advantages["advantage_clip"] = None
    given = {"method": args.gdro_method, "preset": args.gdro_preset, "mean_rollouts": args.num_generations}
    return build("gdro_options", GDROController, {"seed": args.seed} | advantages | options, **given)


def checked_uids(dataset: Any, args: Any) -> Any:
    """The uids of a data set; ValueError where it or they cannot be used."""
    if not isinstance(dataset, datasets.Dataset):
        raise ValueError(f"train_dataset must be a datasets.Dataset, got {type(dataset).__name__}; make one")
    for option in ("uid_column", "group_column"):
        column, known = getattr(args, option), dataset.column_names
        if column is not None and column not in known:
            remedy = "add one, for instance dataset.add_column('uid', list(range(len(dataset))))"
            raise ValueError(f"train_dataset has no column {column!r} ({option}), only {known}; {remedy}")
    uids = as_uids(values := dataset[args.uid_column])
    if repeated := [uid for uid, count in Counter(values).items() if count > 1]:
        column, uid = args.uid_column, repeated[0]
        raise ValueError(f"column {column!r} repeats {uid!r}; every prompt needs a uid of its own")
    prompts = args.generation_batch_size // args.num_generations
    if len(dataset) < prompts:  # TRL would train on none
        got = f"train_dataset has {len(dataset)} prompts, fewer than the {prompts} of one batch"
        raise ValueError(f"{got}; give more, or make batches smaller")
    return uids


def check_training(args: Any, controller: GDROController) -> None:
    """Refuse (ValueError) what cannot be resumed, grouped or generated."""
    method, name, seed = controller.method, controller.name, (args.generation_kwargs or {}).get("seed")
    period = micro_steps(args)
    saves = args.save_strategy == "steps" and args.save_steps >= 1
    row_by_row = method.moves_rollouts or args.vllm_mode == "colocate"
    if args.n_gpu > 1:  # transformers would wrap the model in DataParallel, which multiplies the batch
        why = "start it with `accelerate launch`, or set CUDA_VISIBLE_DEVICES to one"
        raise ValueError(f"this process sees {args.n_gpu} GPUs and would train on all of them as one; {why}")
    if samples_in_rounds(method) and method.needs_losses and args.beta:
        why = "weighs prompts by losses that are known only after the last round"
        raise ValueError(f"gdro_method={name!r} samples in rounds and {why}; set beta to 0")
    if args.multi_objective_aggregation != "sum_then_normalize" and name != "grpo":
        why = f"{args.multi_objective_aggregation!r} normalizes in groups of equal size"
        raise ValueError(f"multi_objective_aggregation {why}; use 'sum_then_normalize' with GDRO")
    if args.use_vllm and row_by_row and seed is not None:
        why = "which would make all rollouts of a prompt the same"
        raise ValueError(f"generation_kwargs has the seed {seed}, {why}; leave it out")
    if saves and (args.save_steps * args.gradient_accumulation_steps) % period:
        raise ValueError(
            f"save_steps={args.save_steps} would save within a generation batch; save_steps × gradient "
            f"accumulation must be a multiple of {period} (steps_per_generation × num_iterations)"
        )


def micro_steps(args: Any) -> int:
    """Micro-steps that one generation batch is used for."""
    return args.steps_per_generation * args.num_iterations


def check_rounds(controller: GDROController, dataset: Any, given: Mapping[str, Any]) -> None:
    """Refuse (ValueError) what a method that samples in rounds cannot be combined with."""
    if not samples_in_rounds(controller.method):
        return
    for name in ("tools", "rollout_func", "environment_factory", "image", "images"):
        if given.get(name) or name in dataset.column_names:
            why = "samples in rounds, which works for text alone, without tools and environments"
            raise ValueError(f"gdro_method={controller.name!r} {why}; leave out {name!r}")


def waits(method: Method) -> bool:
    """Whether a method may ask for further prompts before it lets the optimizer step."""
    return type(method).ready is not Method.ready


def samples_in_rounds(method: Method) -> bool:
    """Whether a method may sample more than once for an optimizer step."""
    return method.rounds or waits(method)
