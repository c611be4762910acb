"""GDROConfig, the controller that it asks for, and what is refused before any compute."""

import math
from dataclasses import dataclass
from typing import Any

import datasets
from transformers.hf_argparser import HfArg
from trl import GRPOConfig

from gdro.checks import build, need
from gdro.controller import GDROController
from gdro.groups import StaticGroups
from gdro.method import Method
from gdro.registry import find_method


@dataclass
class GDROConfig(GRPOConfig):
    """GRPOConfig with the choices of GDRO; the help of each field says what it means.

    β, the loss and its clip are TRL's own `beta`, `loss_type` and `epsilon_high`.
    """

    _VALID_DICT_FIELDS = [*GRPOConfig._VALID_DICT_FIELDS, "gdro_options"]  # noqa: RUF012

    gdro_method: str = HfArg(
        default="",
        help='Name of a method: "grpo", "prompt", "rollout", "both", "pivotal", or another of '
        "docs/methods.md. It must be named: none is better than the others everywhere.",
    )
    gdro_preset: str = HfArg(
        default="default",
        help='"default", or "paper": every choice of the controller as in arXiv 2601.19280.',
    )
    gdro_options: dict | str | None = HfArg(  # noqa: RUF009
        default=None,
        help="Further arguments of GDROController and of the method, such as "
        '{"bins": {"k": 8}, "n_max": 8}; on a command line as JSON. A rollout is correct if its '
        'reward is above "success_threshold" (default 0).',
    )
    success_reward: str | None = HfArg(
        default=None,
        help="Name of the reward function whose value says whether a rollout is correct; by "
        "default the weighted sum of all does.",
    )
    uid_column: str = HfArg(
        default="uid",
        help="Column with one stable uid for each prompt, integers or strings. Where it is "
        "missing, a hash of the row's columns is the uid, and equal rows are numbered.",
    )
    group_column: str | None = HfArg(
        default=None, help="Column whose values are the groups in place of difficulty bins."
    )
    advantage_std: str | None = HfArg(
        default=None,
        help='"sample" divides squares by n − 1 as TRL does (default); "population" by n as (3) '
        'is printed (default of preset "paper").',
    )
    advantage_clip: float | None = HfArg(
        default=None,
        help='Bound on |A| before weighting; by default none, and 5 in preset "paper" (inf: none).',
    )
    trim_batches: bool | None = HfArg(
        default=None,
        help="Leave rollouts whose advantage is 0 out of forward and backward (where beta is 0), "
        "and cut micro-batches to their longest texts: the same gradient, to rounding. TRL's logs "
        "of entropy and clipping are then those of the rollouts left. Default: on, except for "
        'method "grpo", which stays TRL\'s bit for bit. With Unsloth only rows are left out.',
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        find_method(self.gdro_method)
        printed = self.gdro_preset == "paper"
        self.advantage_std = self.advantage_std or ("population" if printed else "sample")
        if self.trim_batches is None:
            self.trim_batches = self.gdro_method != "grpo"
        if self.advantage_clip is None and printed:
            self.advantage_clip = 5.0


def make_controller(args: GDROConfig, dataset: Any = None) -> GDROController:
    """The controller that a `GDROConfig` asks for; with a group_column, its bins are the groups."""
    options = {"seed": args.seed, "scale_rewards": args.scale_rewards}
    options |= {"advantage_std": args.advantage_std, "advantage_clip": args.advantage_clip}
    options |= args.gdro_options or {}  # type: ignore[arg-type]
    if options["advantage_clip"] == math.inf:
        options["advantage_clip"] = None
    if (column := args.group_column) is not None:
        known = getattr(dataset, "column_names", None) or []
        need(column in known, f"group_column must be one of {known}, got {column!r}")
        plain = dataset.with_format(None)
        labels = [None if label is None else str(label) for label in plain[column]]
        name, given = "gdro_options['bins'] with group_column", options.get("bins", {})
        uids = list(plain[args.uid_column])
        options["bins"] = build(name, StaticGroups, given, uids=uids, labels=labels)
    given = {"method": args.gdro_method, "preset": args.gdro_preset}
    given["mean_rollouts"] = args.num_generations
    return build("gdro_options", GDROController, options, **given)


def waits_for_prompts(method: Method) -> bool:
    """Whether a method may ask for further prompts before it lets the optimizer step."""
    return method.waits


def samples_in_rounds(method: Method) -> bool:
    """Whether a method may sample more than once for an optimizer step."""
    return method.in_rounds or method.waits


def check_training(args: GDROConfig, controller: GDROController) -> None:
    """Refuse (ValueError) what cannot be resumed, grouped or generated."""
    method, name = controller.method, f"gdro_method={controller.name!r}"
    need(  # transformers would wrap the model in DataParallel
        args.n_gpu <= 1,
        f"this process sees {args.n_gpu} GPUs; use `accelerate launch` or CUDA_VISIBLE_DEVICES",
    )
    need(  # losses are known only after the last round
        not (samples_in_rounds(method) and method.needs_losses and args.beta),
        f"beta must be 0 with {name}, which samples in rounds, got {args.beta}",
    )
    need(  # others normalize in groups of equal size
        args.multi_objective_aggregation == "sum_then_normalize" or controller.name == "grpo",
        f"multi_objective_aggregation must be 'sum_then_normalize' with {name}",
    )
    seed = (args.generation_kwargs or {}).get("seed")
    row_by_row = args.use_vllm and (method.moves_rollouts or args.vllm_mode == "colocate")
    same = f"generation_kwargs has the seed {seed}, which makes all rollouts of a prompt the same"
    need(not row_by_row or seed is None, same)


def check_data(args: GDROConfig, method: Method, dataset: Any, given: dict[str, Any]) -> None:
    """Refuse (ValueError) data that the method cannot use; `given` are arguments of GRPOTrainer."""
    name, kind = f"gdro_method={args.gdro_method!r}", type(dataset).__name__
    if samples_in_rounds(method) or method.replays:
        known = {*(getattr(dataset, "column_names", None) or ()), *(n for n in given if given[n])}
        beyond = known & {"tools", "rollout_func", "environment_factory", "image", "images"}
        need(not beyond, f"{name} works with text alone; leave out {sorted(beyond)}")
    if isinstance(dataset, datasets.Dataset):
        size, prompts = len(dataset), args.generation_batch_size // args.num_generations
        few = f"train_dataset has {size} prompts, fewer than the {prompts} of one batch"
        need(size >= prompts, few)  # TRL would train on none
    else:
        needs_all = method.draws or waits_for_prompts(method) or args.group_column is not None
        need(not needs_all, f"{name} needs train_dataset to be a datasets.Dataset, got {kind}")
