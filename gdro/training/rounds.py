"""Sampling in rounds: what is sampled for one optimizer step, and which of it trains.

A method may ask for further rollouts of the prompts it has (`extend`), or for further prompts (`ready`). TRL
knows neither: it samples once, and trains on exactly one batch of a fixed size. So the rollouts of a step are
collected here first, the same on every process, and TRL is then given as many as its batch holds.

Axes: D prompts of the data set, P prompts of a batch, R rollouts of a step, F reward functions.
"""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike


class Rollout(NamedTuple):
    """A completion on its way to the batch that trains."""

    row: dict[str, Any]  # of the data set
    prompt_ids: list[int]
    completion_ids: list[int]
    completion: Any  # text or messages
    logprobs: list[float] | None  # by the engine that sampled it


class Chosen(NamedTuple):
    """A batch of TRL's size, out of the rollouts of a step."""

    places_R: np.ndarray  # among the rollouts of the step, in increasing order but for the fillers
    is_filler_R: np.ndarray  # rows that only fill the batch: their tokens count for nothing


@dataclass(eq=False)
class Step:
    """All rollouts of one optimizer step, from all processes, with their rewards and advantages."""

    rollouts: list[Rollout] = field(default_factory=list)
    rewards_RF: list[torch.Tensor] = field(default_factory=list)
    advantages_R: np.ndarray = field(default_factory=lambda: np.zeros(0))
    has_signal_R: np.ndarray = field(default_factory=lambda: np.zeros(0, bool))  # of the whole group

    def add_batch(self, advantages: ArrayLike, group_ids_R: np.ndarray) -> None:
        """Add what the controller made of one batch, whose rollouts were added before."""
        advantages_R = np.asarray(advantages)
        has_signal_P = np.bincount(group_ids_R, np.abs(advantages_R)) > 0
        self.advantages_R = np.append(self.advantages_R, advantages_R)
        self.has_signal_R = np.append(self.has_signal_R, has_signal_P[group_ids_R])

    def chosen(self, size: int) -> Chosen:
        """`size` rollouts: groups with a signal first, in the order of sampling, then the others.

        Where fewer than `size` were sampled, the shortest is repeated as a filler.
        """
        order_R = np.argsort(~self.has_signal_R, kind="stable")[:size]
        places_R, missing = np.sort(order_R), size - len(order_R)
        shortest = min(range(len(self.rollouts)), key=lambda r: len(self.rollouts[r].completion_ids))
        is_filler_R = np.arange(size) >= len(places_R)
        return Chosen(np.append(places_R, np.full(missing, shortest)), is_filler_R)


def prompts_of_batch(number: int, size: int, total: int, seed: int, shuffled: bool = True) -> np.ndarray:
    """Positions in the data set of the prompts of batch `number` (from 0), (size,).

    Epoch follows epoch, each in an order of its own; what is left over at its end is dropped. Depends on
    nothing but its arguments, so that a resumed run goes on with the prompts of one never stopped.
    """
    epoch, batch = divmod(number, total // size)
    order_D = np.random.default_rng((seed, epoch)).permutation(total) if shuffled else np.arange(total)
    return order_D[batch * size : (batch + 1) * size]
