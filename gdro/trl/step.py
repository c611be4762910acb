"""What a step samples, and what of it TRL trains on.

A method may ask for further rollouts or further prompts before an optimizer step, where TRL samples
once a step and trains on a batch of fixed size. So the rollouts of a step are collected in a `Step`
first, with the same content on every process, and TRL gets as many as its batch holds.

Axes: P prompts of a batch, R rollouts of a step or of TRL's batch, F reward functions.
"""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor

from gdro.plans import Plan
from gdro.trl.values import Row, Signal


class Rollout(NamedTuple):
    """One of the rollouts that TRL's `_generate` returned."""

    prompt_ids: list[int]
    completion_ids: list[int]
    prompt: str | list[dict[str, Any]]
    """Text, or messages."""
    completion: str | list[dict[str, Any]]
    """Text, or messages."""
    logprobs: list[float] | None
    extra: dict[str, Any]
    """Columns of the table of completions, from `log_extra`."""


def split_rollouts(sampled: list, extras: dict[str, list]) -> list[Rollout]:
    """Split prompts and what `_generate` made of them, and columns `extras`, by rollout."""
    prompts, prompt_ids, completion_ids, _, completions, logprobs, *_ = sampled
    size = len(prompt_ids)
    # a column of another length cannot be told apart by rollout
    columns = {name: values for name, values in extras.items() if len(values) == size}
    return [
        Rollout(
            prompt_ids=prompt_ids[r],
            completion_ids=completion_ids[r],
            prompt=prompts[r],
            completion=completions[r],
            logprobs=logprobs[r] if logprobs else None,
            extra={name: values[r] for name, values in columns.items()},
        )
        for r in range(size)
    ]


@dataclass(eq=False)
class TrainBatch:
    """As many rollouts of a step as TRL's batch holds."""

    rollouts: list[Rollout]
    """Those of this process."""
    is_filler: list[bool]
    """Which of them only fill the batch: their tokens do not count."""
    rewards_RF: Tensor
    """Rewards of the rollouts of all processes."""
    signal: Signal
    """Advantages of the rollouts of all processes."""
    is_discarded_R: np.ndarray
    """Which rollouts of the step are left out, (R,)."""

    def rows(self) -> list[Row]:
        """The rows that TRL is given, of this process."""
        return [{"prompt": rollout.prompt} for rollout in self.rollouts]

    def generated(self) -> tuple:
        """The rollouts in the form in which TRL's `_generate` returns text without tools."""
        completion_ids = [rollout.completion_ids for rollout in self.rollouts]
        logprobs = [rollout.logprobs for rollout in self.rollouts]
        tool_mask = None  # 0 for tokens that neither train nor count in the loss
        if any(self.is_filler):
            pairs = zip(completion_ids, self.is_filler, strict=True)
            tool_mask = [[int(not is_filler)] * len(ids) for ids, is_filler in pairs]
        return (
            [rollout.prompt_ids for rollout in self.rollouts],
            completion_ids,
            tool_mask,
            [rollout.completion for rollout in self.rollouts],
            None if logprobs[0] is None else logprobs,
            {},  # fields of a rollout_func
            None,  # images
            [],  # images of tools
        )


class Step:
    """All rollouts of one optimizer step, of all processes, with rewards and advantages.

    Attributes:
        uids: of the rollouts' prompts, (R,).
        rollouts: (R,).
        spent: rollouts, with those that were dropped.
        rewards_RF: on the CPU.
        groups_R: a number of each rollout's group, which no other of the training has.
        advantages_R: weighted.
        is_flat_R: whether all rewards of the rollout's group are equal.
        group_has_signal_R: whether an advantage in the rollout's group is not 0.
    """

    def __init__(self) -> None:
        self.uids: list[int | str] = []
        self.rollouts: list[Rollout] = []
        self.spent = 0
        self.rewards_RF = torch.zeros(0, 0)
        self.groups_R = np.zeros(0, int)
        self.advantages_R = np.zeros(0)
        self.is_flat_R = np.zeros(0, bool)
        self.group_has_signal_R = np.zeros(0, bool)

    def add_rollouts(
        self, uids: list[int | str], rollouts: list[Rollout], rewards_RF: Tensor
    ) -> None:
        """Add a rollout of each of these prompts; what was sampled beyond that is dropped."""
        self.uids += uids
        self.rollouts += rollouts[: len(uids)]
        new_RF = rewards_RF[: len(uids)].cpu().clone()
        self.rewards_RF = torch.cat([self.rewards_RF, new_RF]) if len(self.rewards_RF) else new_RF

    def add_signal(self, signal: Signal, group_ids_R: np.ndarray, plan: Plan) -> None:
        """Add what the controller made of one batch, whose rollouts were added before."""
        has_signal_P = np.bincount(group_ids_R, signal.advantages_R != 0) > 0
        self.groups_R = np.append(self.groups_R, plan.numbered(group_ids_R))
        self.advantages_R = np.append(self.advantages_R, signal.advantages_R)
        self.group_has_signal_R = np.append(self.group_has_signal_R, has_signal_P[group_ids_R])
        self.is_flat_R = np.append(self.is_flat_R, signal.is_flat_R)

    def train_batch(self, size: int, local_rows: slice) -> TrainBatch:
        """`size` rollouts, of all processes, in the order in which they were sampled.

        Where more were sampled, those of groups with a signal are taken before others.
        Where fewer were sampled, the shortest fills the rest: with advantage 0, no reward, and no
        token that counts.
        """
        # whole groups are not kept together: a group cut by `size` trains with the advantages that
        # all of it has given
        places_R = np.sort(np.argsort(~self.group_has_signal_R, kind="stable")[:size])
        is_filler_R = np.arange(size) >= len(places_R)
        is_discarded_R = np.ones(len(self.rollouts), bool)
        is_discarded_R[places_R] = False
        # the cheapest rows, since TRL's batch must be full
        lengths = [len(rollout.completion_ids) for rollout in self.rollouts]
        fillers = np.full(size - len(places_R), np.argmin(lengths))
        places_R = np.append(places_R, fillers)
        signal = Signal(
            advantages_R=np.where(is_filler_R, 0.0, self.advantages_R[places_R]),
            is_flat_R=is_filler_R | self.is_flat_R[places_R],
            ready=True,
        )
        rewards_RF = self.rewards_RF[places_R]
        rewards_RF[is_filler_R] = torch.nan  # so that TRL's means do not count them
        return TrainBatch(
            rollouts=[self.rollouts[r] for r in places_R[local_rows]],
            is_filler=is_filler_R[local_rows].tolist(),
            rewards_RF=rewards_RF,
            signal=signal,
            is_discarded_R=is_discarded_R,
        )


def own_share(items_R: np.ndarray, accelerator: Accelerator) -> np.ndarray:
    """The items that this process samples. All sample equally many, so some may come twice."""
    share = math.ceil(len(items_R) / accelerator.num_processes)
    first = accelerator.process_index * share
    return items_R[np.arange(first, first + share) % len(items_R)]
