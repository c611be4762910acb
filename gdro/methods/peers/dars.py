"""DARS (arXiv 2508.13755): after a pilot, more rollouts for hard prompts, until their advantages catch up.

The advantages of n rollouts at accuracy a sum to S = Σ|A| = 2 n a (1 − a) in the mean. A pilot of n rollouts
measures a; where a < ½, rollouts are added until S reaches

    "equal":    that of a prompt at a = ½, n/2, so that Δ = n (1/(4 a (1 − a)) − 1);
    "hardness": 2 (1 − a) times as much, so that Δ = n (1/(2a) − 1);

n_max rollouts where a = 0, none where a ≥ ½. Here the Δ are scaled to what the pilot left of the budget,
where the paper adds them on top. Left out: large batches in full-batch epochs (its "breadth").
"""

from dataclasses import dataclass

import numpy as np

from gdro.core.checks import check_choice, option
from gdro.methods.base import Batch, register
from gdro.methods.peers.rounds import Pilot


@register("dars")
@dataclass(eq=False)
class DARS(Pilot):
    """Rollouts in two rounds."""

    schedule: str = option("equal", check_choice, ("equal", "hardness"))

    def extend(self, batch: Batch, left: int, rng: np.random.Generator) -> np.ndarray | None:
        accuracy_P = batch.hits_P / batch.trials_P
        known_P = np.maximum(accuracy_P, 1e-9)  # a = 0 wants without bound, and is held to n_max below
        factor_P = 1 / (4 * known_P * (1 - np.minimum(known_P, 0.5)))
        if self.schedule == "hardness":
            factor_P = 1 / (2 * known_P)
        wanted_P = np.where(accuracy_P < 0.5, batch.trials_P * (factor_P - 1), 0.0)
        return self.rest(batch, np.minimum(wanted_P, self.run.n_max - self.pilot), left, rng)
