"""GDROConfig, and what it refuses before any compute."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from trl import GRPOConfig

from gdro.beliefs import as_uids
from gdro.bins import StaticGroups
from gdro.checks import build, check_choice, check_number
from gdro.controller import PRESETS, GDROController, make_controller
from gdro.methods import METHODS, Method


@dataclass
class GDROConfig(GRPOConfig):
    """GRPOConfig with the choices of GDRO."""

    gdro_method: str = field(
        default="both", metadata={"help": "A registered method: 'grpo', 'prompt', 'rollout', 'both', yours."}
    )
    gdro_preset: str = field(
        default="default", metadata={"help": "'default', or 'paper': every choice as in arXiv 2601.19280."}
    )
    gdro_options: dict | None = field(
        default=None,
        metadata={
            "help": "Further arguments of `GDROController` and of the method, such as {'bins': {'k': 8}, "
            "'n_max': 8}. Rewards above 'success_threshold' (default 0) count as correct: set "
            "it where a wrong answer can earn something too, such as a bonus for format."
        },
    )
    uid_column: str = field(
        default="uid", metadata={"help": "Column with one stable uid a prompt, integers or strings."}
    )
    group_column: str | None = field(
        default=None, metadata={"help": "Column whose values are the groups in place of difficulty bins."}
    )
    advantage_std: str | None = field(
        default=None,
        metadata={
            "help": "'sample' divides squares by n − 1 as TRL does (default); 'population' by n as (3) is "
            "printed (default of preset 'paper')."
        },
    )
    advantage_clip: float | None = field(
        default=None,
        metadata={"help": "Bound on |A| before weighting: None; 5 in preset 'paper' (inf: none)."},
    )

    def __post_init__(self):
        super().__post_init__()
        check_choice("gdro_method", self.gdro_method, tuple(METHODS))
        check_choice("gdro_preset", self.gdro_preset, tuple(PRESETS))
        printed = self.gdro_preset == "paper"
        self.advantage_std = self.advantage_std or ("population" if printed else "sample")
        check_choice("advantage_std", self.advantage_std, ("sample", "population"))
        if self.advantage_clip is None and printed:
            self.advantage_clip = 5.0
        if self.advantage_clip not in (None, float("inf")):
            check_number("advantage_clip", self.advantage_clip, 0, open_low=True, remedy="None clips nothing")


def controller_of(args: GDROConfig, dataset: Any) -> GDROController:
    """The controller that the configuration asks for."""
    options = dict(args.gdro_options or {})
    if args.group_column is not None:
        bins = options.get("bins", {})
        labels = [None if label is None else str(label) for label in dataset[args.group_column]]
        given = {"uids": dataset[args.uid_column], "labels": labels}
        options["bins"] = build("gdro_options['bins'] with group_column", StaticGroups, bins, **given)
    advantages = {name: getattr(args, name) for name in ("advantage_std", "advantage_clip", "scale_rewards")}
    if args.advantage_clip == float("inf"):
        advantages["advantage_clip"] = None
    return make_controller(
        args.gdro_method, args.gdro_preset, advantages | options, args.num_generations, args.seed
    )


def check_dataset(dataset: Any, args: GDROConfig) -> None:
    """Refuse a data set without a usable uid column, before the model is touched."""
    if not isinstance(args, GDROConfig):
        raise ValueError(f"args must be a GDROConfig, got {type(args).__name__}")
    if args.n_gpu > 1:  # transformers would wrap the model in DataParallel, which multiplies the batch
        remedy = "start it with `accelerate launch`, or set CUDA_VISIBLE_DEVICES to one"
        raise ValueError(
            f"this process sees {args.n_gpu} GPUs and would train on all of them as one; {remedy}"
        )
    if not hasattr(dataset, "column_names") or not hasattr(dataset, "__len__"):
        raise ValueError(
            f"train_dataset must be a datasets.Dataset and no stream, got {type(dataset).__name__}"
        )
    for option in ("uid_column", "group_column"):
        column, known = getattr(args, option), dataset.column_names
        if column is not None and column not in known:
            remedy = "add one, for instance dataset.add_column('uid', list(range(len(dataset))))"
            raise ValueError(f"train_dataset has no column {column!r} ({option}), only {known}; {remedy}")
    if args.remove_unused_columns:
        raise ValueError("remove_unused_columns must be False, or the uid would be removed")
    uids = dataset[args.uid_column]
    first, counts = np.unique(as_uids(uids).keys, return_index=True, return_counts=True)[1:]
    if (counts > 1).any():
        twice = uids[int(first[counts > 1].min())]
        raise ValueError(f"column {args.uid_column!r} repeats {twice!r}; every prompt needs a uid of its own")
    prompts = args.generation_batch_size // args.num_generations
    if len(dataset) < prompts:  # TRL would train on none
        raise ValueError(f"train_dataset has {len(dataset)} prompts, fewer than the {prompts} of one batch")


def check_cadence(args: GDROConfig, controller: GDROController) -> None:
    """Refuse what cannot be resumed, grouped or generated at once, before any compute."""
    method, name, seed = controller.method, controller.name, (args.generation_kwargs or {}).get("seed")
    if method.rounds or type(method).ready is not Method.ready:
        raise ValueError(f"gdro_method={name!r} samples in rounds, and TRL once a step; run it in gdro.loop")
    aggregation = args.multi_objective_aggregation
    if aggregation != "sum_then_normalize" and name != "grpo":  # it normalizes in groups of equal size
        raise ValueError(
            f"multi_objective_aggregation is {aggregation!r}; use 'sum_then_normalize' with GDRO"
        )
    row_by_row = controller.moves_rollouts or args.vllm_mode == "colocate"
    if args.use_vllm and row_by_row and seed is not None:
        why = "which would make all rollouts of a prompt the same; leave it out"
        raise ValueError(f"generation_kwargs has the seed {seed}, {why}")
    period = micro_steps(args)
    saves = args.save_strategy == "steps" and args.save_steps >= 1
    if saves and (args.save_steps * args.gradient_accumulation_steps) % period:
        raise ValueError(
            f"save_steps={args.save_steps} would save within a generation batch; save_steps × gradient "
            f"accumulation must be a multiple of {period} (steps_per_generation × num_iterations)"
        )


def micro_steps(args: GDROConfig) -> int:
    """Micro-steps that one generation batch is used for."""
    return args.steps_per_generation * args.num_iterations
