"""What a training writes down: its times, rows of its record, and what it adds to TRL's log."""

import logging
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor

from gdro.rounds import Samples
from gdro.trl.config import GDROConfig
from gdro.trl.step import Step
from gdro.trl.values import LossInputs, Signal, learned_mask

logger = logging.getLogger(__name__)
SILENT_BATCHES = 10  # warn if over so many, nearly all rollouts are correct or nearly all wrong
NEARLY_NONE = 0.01


class Clock:
    """Seconds of a training, and of generation and controller within it."""

    def __init__(self) -> None:
        self.seconds = {"train": 0.0, "generate": 0.0, "controller": 0.0}
        self.since = 0.0  # when the seconds of the training were last added up

    def start(self) -> None:
        self.since = time.perf_counter()

    def tick(self) -> None:
        """Add the time since the last call to the seconds of the training."""
        now = time.perf_counter()
        self.seconds["train"] += now - self.since
        self.since = now

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Add the time of a block to the seconds of a stage."""
        began = time.perf_counter()
        yield
        self.seconds[stage] += time.perf_counter() - began


class Silence:
    """Warns once if nearly all rollouts of recent batches were correct, or nearly all wrong."""

    def __init__(self, threshold: float) -> None:
        self.threshold = threshold
        self.rates: deque[float] = deque(maxlen=SILENT_BATCHES)  # of correct rollouts
        self.has_warned = False

    def see(self, scored: Samples) -> None:
        """Add a batch of rollouts with a reward."""
        self.rates.append(float(scored.correct_R.mean()))
        rate = float(np.mean(self.rates))
        is_mixed = NEARLY_NONE <= rate <= 1 - NEARLY_NONE
        if self.has_warned or is_mixed or len(self.rates) < SILENT_BATCHES:
            return
        self.has_warned = True
        logger.warning(
            f"{rate:.1%} of the rollouts of the last {SILENT_BATCHES} batches were above "
            f"success_threshold={self.threshold}, rewards of the last from "
            f"{scored.rewards_R.min():g} to {scored.rewards_R.max():g}. Set success_threshold in "
            "gdro_options, or success_reward, or take other prompts"
        )


def warn_of_rewards(args: GDROConfig, names: Sequence[str]) -> None:
    """Warn where the sum of several rewards says what is correct."""
    is_chosen = "success_threshold" in (args.gdro_options or {})
    if len(names) < 2 or args.success_reward or is_chosen or args.gdro_method == "grpo":
        return
    logger.warning(
        f"A rollout is correct where the weighted sum of {names} is above 0, so a right format "
        "alone may do: name the reward of the answer in success_reward, or set success_threshold "
        "in gdro_options"
    )


def with_costs(
    row: Mapping[str, Any], global_step: int, rollouts: int, tokens: int, signal: Signal
) -> dict[str, Any]:
    """The row of a batch in the trainer's record: the controller's, with the costs of the batch."""
    return {
        **row,
        "global_step": global_step,
        "rollouts_spent": rollouts,
        "tokens": tokens,
        "signal": float(np.mean(signal.advantages_R != 0)),
    }


def log_advantages(logs: Mapping[str, Any], metrics: Mapping[str, list], signal: Signal) -> None:
    """Replace what TRL has just logged of advantages, which supposes groups of equal size."""
    metrics["frac_reward_zero_std"][-1] = float(np.mean(signal.is_flat_R))
    # of single rollouts; `Step.group_has_signal_R` is true for all of a group
    metrics["gdro/has_signal"].append(float(np.mean(signal.advantages_R != 0)))
    # a deque of one generation batch, so that these push TRL's own out
    logs["advantages"].extend(signal.advantages_R.astype(np.float32).tolist())


def log_groups(
    extra: Mapping[str, deque],
    uids: Sequence[int | str],
    groups_R: np.ndarray,
    is_discarded_R: np.ndarray | None = None,
) -> None:
    """Add to TRL's table of completions which rollouts are of one group, and not trained on."""
    if is_discarded_R is None:
        is_discarded_R = np.zeros(len(uids), bool)
    extra["uid"].extend(map(str, uids))  # of one type with the None of evaluations
    extra["rollout_group"].extend(groups_R.tolist())
    extra["discarded"].extend(is_discarded_R.tolist())


def log_evaluated(extra: Mapping[str, deque], size: int) -> None:
    """Add as many rollouts of an evaluation, which belong to no group."""
    extra["uid"].extend([None] * size)
    extra["rollout_group"].extend([-1] * size)
    extra["discarded"].extend([False] * size)


def log_step(
    logs: dict[str, Any], step: Step, reward_names: Sequence[str], is_discarded_R: np.ndarray
) -> None:
    """Fill TRL's table of completions with all rollouts of a step, the discarded ones too."""
    column: Callable[..., deque] = partial(deque, maxlen=len(step.rollouts))
    logs["prompt"] = column(rollout.prompt for rollout in step.rollouts)
    logs["completion"] = column(rollout.completion for rollout in step.rollouts)
    logs["advantages"] = column(step.advantages_R.tolist())
    for place, name in enumerate(reward_names):
        logs["rewards"][name] = column(step.rewards_RF[:, place].tolist())
    names = sorted({name for rollout in step.rollouts for name in rollout.extra})
    logs["extra"] = defaultdict(column)
    for name in names:
        logs["extra"][name].extend(rollout.extra.get(name) for rollout in step.rollouts)
    log_groups(logs["extra"], step.uids, step.groups_R, is_discarded_R)


def trained_tokens(output: LossInputs) -> Tensor:
    """Tokens of this process's completions that have an advantage."""
    trains_R = output["advantages"] != 0
    tokens_R = learned_mask(output).sum(dim=1)
    return (tokens_R * trains_R).sum()
