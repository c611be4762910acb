"""pivotal_own_prior: pivotal whose progress is relative to a prior fitted from first visits.

The prior Beta(a, b) has the two moments of the pass rates at first visits: with K of n rollouts
correct, K/n is an unbiased estimate of p, and K (K − 1)/(n (n − 1)) one of p². Hard prompts, and
the hits that are expected of them, are then those of the posterior under it. The draw is unchanged.
"""

import numpy as np

from gdro.method import Batch, Run
from gdro.methods.pivotal import KEPT, Pivotal
from gdro.registry import register

START = np.array([8.0, 8 / 2, 8 * 3 / 8])  # Beta(½, ½), worth eight prompts
STRENGTH = (0.2, 20.0)  # bounds of a + b


@register("pivotal_own_prior")
class PivotalOwnPrior(Pivotal):
    """Pivotal with r relative to the posterior under a fitted prior."""

    state = (*Pivotal.state, "moments_M")

    def start(self, run: Run) -> None:
        super().start(run)
        self.moments_M = START.copy()  # prompts, Σ K/n, Σ K(K − 1)/n(n − 1)

    @property
    def prior(self) -> tuple[float, float]:
        """a and b."""
        count, first, second = self.moments_M
        mean = first / count
        square = second / count
        strength = (mean - square) / max(square - mean**2, 1e-9)
        strength = float(np.clip(strength, *STRENGTH))
        return mean * strength, (1 - mean) * strength

    def update(self, batch: Batch) -> None:
        a, b = self.prior
        rate_P = (batch.successes_P + a) / (batch.successes_P + batch.failures_P + a + b)
        hard_P = batch.visited_P & (rate_P < 0.5)
        expected = float((batch.trials_P * rate_P)[hard_P].sum())
        self.gained = KEPT * self.gained + float(batch.hits_P[hard_P].sum()) - expected
        self.expected = KEPT * self.expected + expected
        first_P = ~batch.visited_P & (batch.trials_P > 1)
        hits_F = batch.hits_P[first_P]
        trials_F = batch.trials_P[first_P]
        pairs_F = hits_F * (hits_F - 1) / (trials_F * (trials_F - 1))
        found = [len(hits_F), (hits_F / trials_F).sum(), pairs_F.sum()]
        self.moments_M = self.moments_M + np.array(found, float)
