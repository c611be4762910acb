"""GDROConfig, the controller that it asks for, and what is refused before any compute."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import datasets
import numpy as np
from trl import GRPOConfig, GRPOTrainer

from gdro.advantages import preset_options
from gdro.checks import build, check, short
from gdro.controller import GDROController
from gdro.groups import StaticGroups, make_groups
from gdro.method import Method
from gdro.registry import find_method

# what cannot be passed on to TRL by a method that samples in rounds
IMAGES = {"image", "images"}
BEYOND_TEXT = {"tools", "rollout_func", "environment_factory", *IMAGES}


@dataclass
class GDROConfig(GRPOConfig):
    """GRPOConfig with the choices of GDRO.

    All options of GRPOConfig keep their meaning; methods with advantages of their own, such as
    pivotal, do not use `scale_rewards` and `advantage_std`. β, the loss and its clip are TRL's own
    `beta`, `loss_type` and `epsilon_high`; n̄, the rollouts of a prompt on average, is
    `num_generations`. Options are checked when the trainer is made.
    """

    # what depends on other options is derived when a trainer is made, and never written here:
    # options may be changed until then
    _VALID_DICT_FIELDS = [*GRPOConfig._VALID_DICT_FIELDS, "gdro_options"]  # noqa: RUF012

    gdro_method: str = ""
    """Name of a method: "grpo", "prompt", "rollout", "both", "pivotal", or another of
    docs/peers.md. It must be named: none is better than the others everywhere."""
    gdro_preset: str = "default"
    """Either "default", or "paper": every choice of the controller as in arXiv 2601.19280."""
    gdro_options: dict | str | None = None
    """Further arguments of GDROController and of the method, such as {"bins": {"k": 8}, "n_max":
    8}; on a command line as JSON. A rollout is correct if its reward is above "success_threshold"
    (default 0)."""
    success_reward: str | None = None
    """Name of the reward function whose value says whether a rollout is correct; by default, and
    where it gives None, the weighted sum of all does."""
    uid_column: str = "uid"
    """Column with one stable uid for each prompt, integers or strings. Where it is missing, a hash
    of the row's columns is the uid, and equal rows are numbered."""
    group_column: str | None = None
    """Column whose values are the groups in place of difficulty bins. Counts then fade as with
    these, by the k and history of the preset."""
    pass_rate_column: str | None = None
    """Column with the pass rate of each prompt, in [0, 1], that was measured before; rows may lack
    it. Bins, draws and rollouts use it from the first step."""
    pass_rate_rollouts: int = 8
    """How many rollouts each of these pass rates is worth as evidence."""
    advantage_std: str | None = None
    """Deviation that advantages are divided by: "sample" divides squares by n − 1 as TRL does
    (default); "population" by n as (3) is printed (default of preset "paper")."""
    advantage_clip: float | None = None
    """Bound on |A| of rollouts in every method, before weighting; by default none, and 5 in preset
    "paper"."""
    trim_batches: bool = True
    """Compute nothing that cannot change the gradient, which stays TRL's to rounding: rollouts
    whose advantage is 0 (where beta is 0), padding, and prompts again for each of their rollouts.
    TRL's logs of entropy and clipping are then those of the rollouts left. False: TRL bit for bit.
    What is off for some models and settings is in docs/trainer.md, and the trainer says it once."""

    log_bins: bool = False
    """Log the numbers of each bin too, some forty a step; `GDROTrainer.record` always has them."""

    def __post_init__(self) -> None:
        # transformers 5.24 renames this option, and would warn of TRL's default by its old name
        if getattr(self, "activation_checkpointing", False) is None:
            self.activation_checkpointing = self.gradient_checkpointing
        super().__post_init__()
        options_of(self)
        find_method(self.gdro_method)


def options_of(args: GDROConfig) -> dict[str, Any]:
    """`gdro_options`; ValueError where it is no dictionary."""
    # transformers takes text for JSON only where it begins with a brace
    if not isinstance(args.gdro_options, dict | None):
        raise ValueError(
            "gdro_options must be a dictionary, on a command line as JSON, got "
            f"{args.gdro_options!r}"
        )
    return args.gdro_options or {}


def choices_of(args: GDROConfig) -> dict[str, str]:
    """The options that a trainer reads once, as text: what is in `gdro_options` may change too."""
    read_again = ("trim_batches", "log_bins")
    read_once = [name for name in GDROConfig.__annotations__ if name not in read_again]
    return {name: repr(getattr(args, name)) for name in read_once}


def follow(trainer: GRPOTrainer) -> None:
    """Take over what TRL reads anew in each step; ValueError for any other change."""
    run = trainer.controller.run
    if "scale_rewards" not in options_of(trainer.args):
        kind = Literal["group", "batch", "none"]
        run.scale_rewards = check("scale_rewards", trainer.scale_rewards, kind)
    now = choices_of(trainer.args) | {"num_generations": repr(trainer.num_generations)}
    then = trainer._choices | {"num_generations": repr(int(run.mean_rollouts))}
    for name, value in now.items():
        if value != then[name]:
            raise ValueError(
                f"{name} was changed from {then[name]} to {value} after the trainer was made: "
                "make another trainer"
            )


def make_controller(
    args: GDROConfig,
    dataset: datasets.Dataset | datasets.IterableDataset | None = None,
    uids_D: np.ndarray | None = None,
) -> GDROController:
    """The controller that a `GDROConfig` asks for; with a group_column, its bins are the groups.

    ValueError for options that the controller, the bins or the method do not take.
    """
    chosen: dict[str, Any] = {"seed": args.seed, "scale_rewards": args.scale_rewards}
    chosen |= preset_options(args.gdro_preset)
    if args.advantage_std:
        chosen["advantage_std"] = args.advantage_std
    if args.advantage_clip is not None:
        chosen["advantage_clip"] = args.advantage_clip
    chosen |= options_of(args)
    uids = [] if uids_D is None else uids_D.tolist()  # a stream has none, and is refused below
    if args.group_column is not None:
        chosen["bins"] = groups_of_column(args, dataset, uids, chosen.get("bins", {}))
    measured: dict[str, Any] = {"pass_rate_rollouts": args.pass_rate_rollouts}
    if args.pass_rate_column is not None:
        _, rates = read_column("pass_rate_column", args.pass_rate_column, dataset)
        measured["pass_rates"] = dict(zip(uids, rates, strict=True))
    controller = build(
        "gdro_options",
        GDROController,
        chosen,
        method=args.gdro_method,
        preset=args.gdro_preset,
        mean_rollouts=args.num_generations,
        **measured,
    )
    known = controller.bins.pass_rates
    if uids and known and known.keys().isdisjoint(uids):
        raise ValueError(f"pass_rates must have uids of train_dataset, got {short(list(known))}")
    return controller


def read_column(
    option: str, column: str, dataset: datasets.Dataset | datasets.IterableDataset | None
) -> tuple[object, list[Any]]:
    """Type and values of the column that an option names, as they are stored; else ValueError."""
    if not isinstance(dataset, datasets.Dataset):
        raise ValueError(f"{option} needs a datasets.Dataset, got {type(dataset).__name__}")
    if column not in dataset.column_names:
        raise ValueError(f"{option} must be one of {dataset.column_names}, got {column!r}")
    stored = dataset.with_format(None)
    return stored.features[column], list(stored[column])


def groups_of_column(
    args: GDROConfig,
    dataset: datasets.Dataset | datasets.IterableDataset | None,
    uids: list,
    given: Mapping[str, Any],
) -> StaticGroups:
    """The groups that the column `args.group_column` names, with further options of the bins."""
    kind, values = read_column("group_column", str(args.group_column), dataset)
    row = next((n for n, value in enumerate(values) if value is None or value != value), None)
    if row is not None:
        raise ValueError(f"group_column must have a value in each row, got none in row {row}")
    if isinstance(kind, datasets.ClassLabel):  # which is stored as numbers
        values = kind.int2str(values)
    labels = list(map(str, values))
    name = "gdro_options['bins'] with group_column"
    return make_groups(name, given, args.gdro_preset, uids, labels)


def check_training(args: GDROConfig, controller: GDROController) -> None:
    """Refuse settings with which a training could not be resumed, grouped or generated."""
    method = controller.method
    choice = f"gdro_method={controller.name!r}"
    if args.n_gpu > 1:  # transformers would wrap the model in DataParallel
        raise ValueError(
            f"this process sees {args.n_gpu} GPUs; use `accelerate launch` or CUDA_VISIBLE_DEVICES"
        )
    if method.replays:
        raise ValueError(f"{choice} replays kept answers, which only the laboratory's loop does")
    # losses are known only after the last round
    if method.samples_again and method.needs_losses and args.beta:
        raise ValueError(f"beta must be 0 with {choice}, which samples in rounds, got {args.beta}")
    # the controller's advantages are of the weighted sum of rewards
    sums_first = args.multi_objective_aggregation == "sum_then_normalize"
    if not sums_first and not controller.is_trainers_own(args.scale_rewards):
        raise ValueError(
            f"multi_objective_aggregation must be 'sum_then_normalize' with {choice}, got "
            f"{args.multi_objective_aggregation!r}"
        )
    seed = (args.generation_kwargs or {}).get("seed")
    is_alone = samples_row_by_row(method) or args.vllm_mode == "colocate"
    if args.use_vllm and is_alone and seed is not None:
        raise ValueError(
            f"generation_kwargs has the seed {seed}, which makes all rollouts of a prompt the same"
        )


def samples_row_by_row(method: Method) -> bool:
    """Whether each row is sampled for itself.

    A vLLM server takes every n-th row and samples n completions of it, since TRL lays the rows of a
    prompt side by side. Where groups may be unequal, that would be wrong.
    """
    return method.moves_rollouts or method.samples_again


def check_success_reward(args: GDROConfig, names: Sequence[str]) -> None:
    """Raise ValueError unless `success_reward` is None or the name of just one of these rewards."""
    named = args.success_reward
    if named is not None and names.count(named) != 1:  # closures and lambdas have one name
        raise ValueError(
            f"success_reward must be the name of one reward and no other of {list(names)}, got "
            f"{named!r}"
        )


def check_data(
    args: GDROConfig,
    method: Method,
    dataset: datasets.Dataset | datasets.IterableDataset | None,
    arguments: Mapping[str, object],
) -> None:
    """Refuse data that the method cannot use; `arguments` are further ones of GRPOTrainer."""
    choice = f"gdro_method={args.gdro_method!r}"
    refused: set[str] = set()
    if method.samples_again:
        refused = BEYOND_TEXT
    elif method.needs_losses and args.beta:  # the policy is scored again, from text alone
        refused = IMAGES
        choice += f" and beta={args.beta}"
    columns = getattr(dataset, "column_names", None) or ()
    names = {*columns, *(name for name, value in arguments.items() if value)}
    if names & refused:
        raise ValueError(f"{choice} works only with text; leave out {sorted(names & refused)}")
    if not isinstance(dataset, datasets.Dataset):
        if method.draws or method.waits:
            raise ValueError(
                f"{choice} needs train_dataset to be a datasets.Dataset, got "
                f"{type(dataset).__name__}"
            )
        return
    prompts = args.generation_batch_size // args.num_generations
    if len(dataset) < prompts:  # TRL would train on none
        raise ValueError(
            f"train_dataset has {len(dataset)} prompts, fewer than the {prompts} of one batch"
        )
