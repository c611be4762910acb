"""Pivotal: prompts are drawn where one more success in k would count, and taught by pass@2.

**The draw.** A prompt with pass rate p has the value p (1 − p)^(k−1), the probability that one
rollout is *pivotal*: the only correct one among k, at a given place. It peaks at p = 1/k. Its
posterior mean under Beta(α, β), τ = α + β, is

    c = α · Π_{j<k−1} (β + j) / Π_{j<k} (τ + j).

**The advantages** are PKPO's for pass@2 (arXiv 2505.15201, with its leave-one-out baseline). Of n
rollouts with c correct, each correct one gets 2 (n − c)/(n − 1), twice the share of the others that
are wrong, and a wrong one gets 0. Their mean step is 2 (1 − p) ∇p. A group without a success
teaches nothing.

**What both ascend.** No importance weights undo the draw. So, but for the normalization of c and
the even share of the draw, the mean step is in proportion to Σ p (1 − p)^k ∇p, the gradient of P(at
least two successes in k + 2 tries): not pass@k, but a success that can be repeated.

**k follows progress.** A large k seeks hard prompts. That pays where hard prompts are being
learned, and wastes rollouts where they are not, for instance where a rare success is a guess among
few answers. What separates the two is whether hard prompts do better than their own past says. Over
prompts seen before whose posterior mean p̂ is below ½, with h hits in n rollouts,

    progress r = Σ (h − n p̂) / Σ n p̂,    k = 3 + 6 r, clipped to 3 … 12,

in sums over about the last ten batches: 0 where nothing is learned, and 1 where hard prompts
succeed twice as often as before.

Axes: P prompts, R rollouts, D prompts of the data set.
"""

from typing import Any, ClassVar

import numpy as np

from gdro.checks import PositiveShare, Tries, options
from gdro.draws import mostly_in_proportion
from gdro.method import Batch, Method, Prompts, Run
from gdro.registry import register

# of k where it follows progress
LEAST_K = 3
MOST_K = 12
SLOPE = 6.0
KEPT = 0.9  # part of the sums that a batch leaves to the next
START = 1 / 3  # progress before any is measured: k = 5
START_EVIDENCE = 5.0  # the weight of this start, in expected hits


def pivotal_value(alpha: np.ndarray, beta: np.ndarray, k: int) -> np.ndarray:
    """E[p (1 − p)^(k−1)] for p ~ Beta(alpha, beta); any shape."""
    total = alpha + beta
    value = alpha / (total + k - 1)
    for j in range(k - 1):
        value = value * (beta + j) / (total + j)
    return value


@register("pivotal")
@options
class Pivotal(Method):
    """Draw by pivotal value, with advantages for pass@2.

    Rewards count as correct or not, whatever their size.
    """

    k: Tries | None = None
    """The draw favours pass rates about 1/k; None lets k follow progress. It is not the k of the
    bins' pass@k, nor that of a method that optimizes pass@k."""
    epsilon: PositiveShare = 0.1
    """Share of the draw that is even over the data."""

    state: ClassVar[tuple[str, ...]] = ("gained", "expected")

    def start(self, run: Run) -> None:
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
        return self.k or round(min(max(LEAST_K + SLOPE * self.progress, LEAST_K), MOST_K))

    def draw(self, pool: Prompts, size: int, rng: np.random.Generator) -> np.ndarray:
        value_D = pivotal_value(pool.alpha_P, pool.beta_P, self.k_now)
        return mostly_in_proportion(value_D, self.epsilon, size, rng)

    def advantages(self, batch: Batch) -> np.ndarray:
        others_P = np.maximum(batch.trials_P - 1, 1)
        wrong_P = (batch.trials_P - batch.hits_P) / others_P
        return np.where(batch.correct_R, 2 * wrong_P[batch.group_ids_R], 0.0)

    def update(self, batch: Batch) -> None:
        # of hard prompts that were visited before
        hard_P = batch.visited_P & (batch.rate_P < 0.5)
        expected = float((batch.trials_P * batch.rate_P)[hard_P].sum())
        self.gained = KEPT * self.gained + float(batch.hits_P[hard_P].sum()) - expected
        self.expected = KEPT * self.expected + expected

    def report(self) -> dict[str, Any]:
        return {"k": self.k_now, "progress": self.progress}
