"""Peers that keep successes and train on them again, as `gdro.methods.replay`.

Axes: P prompts, R rollouts, D prompts of the data set.
"""

import numpy as np

from gdro.checks import Natural, options
from gdro.method import Batch, Method, Prompts
from gdro.registry import register


@register("raft")
@options
class RAFT(Method):
    """RAFT (arXiv 2304.06767): supervised training on one correct text of a prompt, no more.

    Wrong rollouts have no part in the loss. Its authors train on the best of the K rollouts of the
    prompts at hand, and then sample again. Here a prompt's latest success is kept, and in every
    step `replayed` of the buffer are drawn evenly and trained on with weight 1. With `replayed=0`
    nothing is replayed and each correct rollout has weight 1. What differs: they take many steps
    on one batch of data, we take one; the reward is correct or not, so the best of K is
    any correct one; their supervised loss divides by tokens of kept texts alone, ours by those of
    rollouts and kept texts, which a learning rate makes up for.
    """

    replayed: Natural = 64
    """Prompts that are replayed in a step; 0 for none."""

    kept_texts = 1

    @property
    def replays(self) -> bool:
        return self.replayed > 0

    def advantages(self, batch: Batch) -> np.ndarray:
        if self.replayed:  # only kept texts are trained on
            return np.zeros(len(batch.correct_R))
        return batch.correct_R.astype(float)

    def replay(
        self, banked: Prompts, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray] | None:
        size = min(self.replayed, len(banked))
        return rng.choice(len(banked), size, replace=False), np.ones(size)
