"""Pilot-Commit (arXiv 2605.26606): a pilot decides which prompts get the rest of the rollouts.

Prompts with low ≤ p̂ ≤ high in the pilot share what is left evenly; easier ones are skipped, harder ones wait
for a later visit. Without any in the range the rest is not spent. Left out: the queue of deferred prompts
(they return when the trainer or the draw brings them) and drawing on until a batch of committed prompts is
full. With 0/1 rewards, groups left at the pilot teach only if their outcomes differ.
"""

from dataclasses import dataclass

import numpy as np

from gdro.core.checks import check_number, option
from gdro.methods.base import Batch, register
from gdro.methods.peers.rounds import Pilot


@register("pilot_commit")
@dataclass(eq=False)
class PilotCommit(Pilot):
    """Rollouts in two rounds; the pilot is 16 of 64 in the paper."""

    # pass rates in the pilot between which a prompt is worth more rollouts
    low: float = option(0.125, check_number, 0, 1)
    high: float = 0.75

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("PilotCommit(high=…)", self.high, self.low, 1, remedy="raise it, or lower low")

    def extend(self, batch: Batch, left: int, rng: np.random.Generator) -> np.ndarray | None:
        rate_P = batch.hits_P / batch.trials_P
        committed_P = (rate_P >= self.low) & (rate_P <= self.high)
        return self.rest(batch, committed_P.astype(float), left, rng)
