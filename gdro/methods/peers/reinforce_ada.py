"""Reinforce-Ada (arXiv 2510.04996): sample a prompt in rounds until both a correct and a wrong rollout came.

Each round gives `pilot` more rollouts to every prompt whose outcomes so far are all the same, up to n_max,
while the budget lasts; when it does not last for all of them, prompts in random order get theirs. Left out:
cutting each prompt's rollouts down to a group of fixed size with both signs (all rollouts are trained on, so
the group mean is the paper's global statistic), and its other exit rules (one correct; half of each).
"""

import numpy as np

from gdro.methods.base import Batch, register
from gdro.methods.peers.rounds import Pilot


@register("reinforce_ada")
class ReinforceAda(Pilot):
    """Rollouts in rounds of `pilot` a prompt."""

    def extend(self, batch: Batch, left: int, rng: np.random.Generator) -> np.ndarray | None:
        same_P = (batch.hits_P == 0) | (batch.hits_P == batch.trials_P)
        room_P = np.where(same_P, self.run.n_max - batch.rollouts_P, 0)
        wanted_P = np.clip(room_P, 0, self.pilot)
        if not wanted_P.any():
            return None
        order_P = rng.permutation(len(batch))
        reached_P = np.minimum(wanted_P[order_P].cumsum(), left)  # spent when each prompt had its turn
        further_P = np.zeros(len(batch), np.int64)
        further_P[order_P] = np.diff(reached_P, prepend=0)
        return further_P
