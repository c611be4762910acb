"""Sampling in rounds: what is sampled for one optimizer step, and which of it trains.

A method may ask for further rollouts of the prompts it has (`extend`), or for further prompts (`ready`). TRL
samples once a step and trains on a batch of fixed size. So the rollouts of a step are collected here first,
with the same content on every process, and TRL then gets as many of them as its batch holds.

Axes: D prompts of the data set, P prompts of a batch, R rollouts of a step or of TRL's batch, F rewards.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike

from gdro.core.advantages import group_advantages
from gdro.training.trl_names import generated


@dataclass(eq=False)
class Chosen:
    """As many rollouts of a step as TRL's batch holds."""

    rows: list[dict[str, Any]]  # of the data set, those of this process
    sampled: list[tuple]  # of this process: prompt ids, completion ids, completion, log-probs or None
    is_filler: list[bool]  # of this process: rows that only fill the batch, whose tokens do not count
    rewards_RF: torch.Tensor  # of all processes, as are the next two
    advantages_R: np.ndarray
    is_flat_R: np.ndarray  # whether all rewards of the rollout's group are equal; True for fillers

    def generated(self) -> tuple:
        """What `_generate` returns, as if these rollouts had been sampled by it."""
        tool_mask = None  # 0 for tokens that neither train nor count in the loss
        if any(self.is_filler):
            rows = zip(self.sampled, self.is_filler, strict=True)
            tool_mask = [[int(not is_filler)] * len(ids) for (_, ids, *_), is_filler in rows]
        return generated(self.sampled, tool_mask)


class Step:
    """All rollouts of one optimizer step, of all processes, with rewards and advantages."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.sampled: list[tuple] = []
        self.spent = 0  # rollouts, with those that were dropped
        self.rewards_RF = torch.zeros(0, 0)
        self.advantages_R = np.zeros(0)
        self.is_flat_R = np.zeros(0, bool)  # whether all rewards of the rollout's group are equal
        self.group_has_signal_R = np.zeros(0, bool)  # whether an advantage in the rollout's group is not 0

    def add_rollouts(
        self, rows: list[dict[str, Any]], sampled: list[tuple], rewards_RF: torch.Tensor
    ) -> None:
        """Add a rollout of each row; what was sampled beyond that is dropped."""
        self.rows += rows
        self.sampled += sampled[: len(rows)]
        new_RF = rewards_RF[: len(rows)].cpu()
        self.rewards_RF = torch.cat([self.rewards_RF, new_RF]) if len(self.rewards_RF) else new_RF

    def add_batch(self, advantages: ArrayLike, rewards_R: np.ndarray, group_ids_R: np.ndarray) -> None:
        """Add what the controller made of one batch, whose rollouts were added before."""
        advantages_R = np.asarray(advantages)
        has_signal_P = np.bincount(group_ids_R, advantages_R != 0) > 0
        self.advantages_R = np.append(self.advantages_R, advantages_R)
        self.group_has_signal_R = np.append(self.group_has_signal_R, has_signal_P[group_ids_R])
        self.is_flat_R = np.append(self.is_flat_R, ~has_spread(rewards_R, group_ids_R))

    def chosen(self, size: int, mine: slice) -> Chosen:
        """`size` rollouts, `mine` those of this process: groups with a signal first, in sampling order.

        Where fewer were sampled, the shortest fills the rest: with advantage 0, and no token that counts.
        """
        places_R = np.sort(np.argsort(~self.group_has_signal_R, kind="stable")[:size])
        is_filler_R = np.arange(size) >= len(places_R)
        shortest = min(range(len(self.sampled)), key=lambda r: len(self.sampled[r][1]))
        places_R = np.append(places_R, np.full(size - len(places_R), shortest))
        return Chosen(
            rows=[dict(self.rows[r]) for r in places_R[mine]],
            sampled=[self.sampled[r] for r in places_R[mine]],
            is_filler=is_filler_R[mine].tolist(),
            rewards_RF=self.rewards_RF[places_R],
            advantages_R=np.where(is_filler_R, 0.0, self.advantages_R[places_R]),
            is_flat_R=is_filler_R | self.is_flat_R[places_R],
        )


def own_share(rows: Sequence[Any], accelerator: Any) -> list[Any]:
    """The rows that this process samples, equally many on each: where they do not divide, some come twice."""
    share = -(-len(rows) // accelerator.num_processes)
    first = accelerator.process_index * share
    return [rows[r % len(rows)] for r in range(first, first + share)]


def has_spread(rewards_R: np.ndarray, group_ids_R: np.ndarray) -> np.ndarray:
    """Whether the rewards of each rollout's group differ, (R,)."""
    centred_R = group_advantages(rewards_R, group_ids_R, int(group_ids_R.max()) + 1, scale="none")
    return (np.bincount(group_ids_R, centred_R**2) > 1e-12)[group_ids_R]


def prompts_of_batch(number: int, size: int, total: int, seed: int, shuffled: bool) -> np.ndarray:
    """Positions in the data set of the prompts of batch `number` (from 0), (size,).

    Each epoch has an order of its own; what is left over at its end is dropped. Nothing but the arguments
    matters, so that a resumed run takes the same prompts as one that was never stopped.
    """
    epoch, batch = divmod(number, total // size)
    order_D = np.random.default_rng((seed, epoch)).permutation(total) if shuffled else np.arange(total)
    return order_D[batch * size : (batch + 1) * size]
