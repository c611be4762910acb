"""Two rules for pivotal's k that were measured beside a fixed k; methods of a profile.

`pivotal_follows` was `pivotal` itself until its k became fixed: rows of `pivotal` in older tables
are of this method.

A large k seeks hard prompts. That pays where hard prompts are being learned, and wastes rollouts
where a rare success is a guess among few answers. What separates the two is whether hard prompts do
better than their own past says. Over prompts seen before whose posterior mean p̂ is below ½, with h
hits in n rollouts,

    progress r = Σ (h − n p̂) / Σ n p̂,    k = 3 + 6 r, clipped to 3 … 12,

in sums over about the last ten batches: 0 where nothing is learned, and 1 where hard prompts
succeed twice as often as before.
"""

from typing import Any, ClassVar

import numpy as np

from gdro.draws import mostly_in_proportion
from gdro.method import Batch, Prompts, Run
from gdro.methods.pivotal import Pivotal, pivotal_value
from gdro.registry import register

LEAST_K = 3
MOST_K = 12
SLOPE = 6.0
KEPT = 0.9  # part of the sums that a batch leaves to the next
START = 1 / 3  # progress before any is measured: k = 5
START_EVIDENCE = 5.0  # hits that the start is worth

START_MOMENTS = np.array([8.0, 8 / 2, 8 * 3 / 8])  # Beta(½, ½), worth eight prompts
STRENGTH = (0.2, 20.0)  # bounds of a + b


@register("pivotal_follows")
class PivotalFollows(Pivotal):
    """Pivotal with a k that follows progress."""

    state: ClassVar[tuple[str, ...]] = ("gained", "expected")

    def start(self, run: Run) -> None:
        super().start(run)
        # fading sums over hard prompts
        self.gained = 0.0  # of h − n p̂
        self.expected = 0.0  # of n p̂

    @property
    def progress(self) -> float:
        """r: how much more often hard prompts succeed than their past says, 0 for no more often."""
        return (self.gained + START * START_EVIDENCE) / (self.expected + START_EVIDENCE)

    @property
    def k_now(self) -> int:
        """k of the next draw."""
        return round(min(max(LEAST_K + SLOPE * self.progress, LEAST_K), MOST_K))

    def draw(self, pool: Prompts, size: int, rng: np.random.Generator) -> np.ndarray:
        value_D = pivotal_value(pool.alpha_P, pool.beta_P, self.k_now)
        return mostly_in_proportion(value_D, self.epsilon, size, rng)

    def update(self, batch: Batch) -> None:
        self.add_progress(batch, batch.rate_P)

    def add_progress(self, batch: Batch, rate_P: np.ndarray) -> None:
        """Count the hard prompts that were visited before, by their pass rates before the visit."""
        hard_P = batch.visited_P & (rate_P < 0.5)
        expected = float((batch.trials_P * rate_P)[hard_P].sum())
        self.gained = KEPT * self.gained + float(batch.hits_P[hard_P].sum()) - expected
        self.expected = KEPT * self.expected + expected

    def report(self) -> dict[str, Any]:
        return {"k": self.k_now, "progress": self.progress}


@register("pivotal_own_prior")
class PivotalOwnPrior(PivotalFollows):
    """r is relative to the posterior under a prior that is fitted from first visits.

    The prior Beta(a, b) has the two moments of the pass rates at first visits: with K of n rollouts
    correct, K/n is an unbiased estimate of p, and K (K − 1)/(n (n − 1)) one of p². Hard prompts,
    and the hits that are expected of them, are then those of the posterior under it. The draw keeps
    its prior.
    """

    state = (*PivotalFollows.state, "moments_M")

    def start(self, run: Run) -> None:
        super().start(run)
        self.moments_M = START_MOMENTS.copy()  # prompts, Σ K/n, Σ K(K − 1)/n(n − 1)

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
        self.add_progress(batch, rate_P)
        first_P = ~batch.visited_P & (batch.trials_P > 1)
        hits_F = batch.hits_P[first_P]
        trials_F = batch.trials_P[first_P]
        pairs_F = hits_F * (hits_F - 1) / (trials_F * (trials_F - 1))
        found = [len(hits_F), (hits_F / trials_F).sum(), pairs_F.sum()]
        self.moments_M = self.moments_M + np.array(found, float)
