"""Pivotal draws: prompts are drawn by the probability that a rollout is the only correct one among k.

Give the data adversary of Lemma 4.1 the payoff log(1 − p) and let its entropy be relative to the data shares
ρ: max_q {Σ q S − KL(q‖ρ)/η} = (1/η) log Σ ρ (1 − p)^η, which at η = k is mean pass@k in another scale. A
prompt's gradient ∇p then has the weight ω = (1 − p)^(k−1). Estimating Σ ω ∇p with least variance takes
rollouts in proportion to ω σ(p); the importance weight that this leaves, 1/σ, is GRPO's own where n is large
(at n = 4 it hardly acts, so this is a guide and no identity). With v = p(1 − p) in place of σ, which falls
faster for prompts that are never solved, a prompt's value is p (1 − p)^(k−1). Its posterior mean, under
Beta(α, β) with τ = α + β, is

    c = α · Π_{j<k−1} (β + j) / Π_{j<k} (τ + j).

A large k seeks what is hardly ever solved. That pays where little of it is left, and can waste rollouts where
most of the data is beyond reach. So k follows the run, as the shadow price of (21) follows the spending: it
rises while more than a share s of the rollout groups hold a success, and falls while fewer do.

Axes: P prompts, R rollouts, D prompts of the data set.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from gdro.core.checks import check_int, check_number, option
from gdro.methods.base import Batch, Method, Prompts, Run, register
from gdro.methods.draws import mostly_in_proportion

START, LEAST, MOST, STEP = 5.0, 2.0, 16.0, 0.1  # of k where it follows the run
FLOOR = 0.01  # under the variance of an outcome, so that a sure prompt's surprise stays bounded


def pivotal_value(alpha: np.ndarray, beta: np.ndarray, k: int) -> np.ndarray:
    """E[p (1 − p)^(k−1)] for p ~ Beta(alpha, beta); any shape."""
    total = alpha + beta
    value = alpha / (total + k - 1)
    for j in range(k - 1):
        value = value * (beta + j) / (total + j)
    return value


def _bounded(strength: float) -> float:
    return float(min(max(strength, LEAST), MOST))


@register("pivotal_before")
@dataclass(eq=False)
class PivotalBefore(Method):
    """Draw by pivotal value, and read a prompt's past as its baseline.

    Rewards count as correct or not, whatever their size.
    """

    # of pass@k; the draw favours pass rates about 1/k. None starts at 5 and follows the run between 2 and 16,
    # k ← k exp(0.1 (share of groups with a success − s))
    k: int | None = option(None, check_int, 1, also=[None], remedy="None lets it follow the run")
    # share of the draw that is even over the data
    epsilon: float = option(0.1, check_number, 0, 1, open_low=True, remedy="1 draws evenly")
    # weight (1 − q)^γ, q the prompt's pass rate with this visit, over its mean in the batch
    gamma: float = option(0.0, check_number, 0, remedy="0 weighs all prompts equally")
    # most earlier rollouts m that count in a prompt's baseline; 0 leaves the advantages of (3). With them,
    # b_ij = (K_i − r_ij + m p̂_i)/(n_i − 1 + m) leaves rollout j out, so that it is unbiased, and
    # A_ij = (r_ij − b_ij)/√(q_i (1 − q_i) + 0.01). Groups in which all are correct then teach too. Those
    # without a success do not, at the price of a bias: with nothing to push up, pushing down all that was
    # sampled loses skills
    pool: float = option(4.0, check_number, 0, remedy="0 leaves the advantages of (3)")
    # s, the share of groups that should hold a success; no effect where k is given
    success: float = option(0.55, check_number, 0, 1, remedy="it is a share of the groups")

    state = ("strength",)
    strength = START  # k before it is bounded and rounded, where it follows the run

    def start(self, run: Run) -> None:
        super().start(run)
        self.strength = START

    @property
    def k_now(self) -> int:
        """k of the next draw."""
        return self.k or round(_bounded(self.strength))

    def draw(self, pool: Prompts, size: int, rng: np.random.Generator) -> np.ndarray:
        value_D = pivotal_value(pool.alpha_P, pool.beta_P, self.k_now)
        return mostly_in_proportion(value_D, self.epsilon, size, rng)

    def update(self, batch: Batch) -> None:
        share = np.mean(batch.hits_P > 0)
        self.strength = _bounded(self.strength * np.exp(STEP * (share - self.success)))

    def report(self) -> dict[str, Any]:
        return {"k": self.k_now}

    def weights(self, batch: Batch) -> np.ndarray:
        weights_P = (1 - self._pooled_rates(batch)) ** self.gamma
        mean = weights_P.mean()
        return weights_P / mean if mean > 0 else np.ones(len(batch))

    def advantages(self, batch: Batch) -> np.ndarray:
        if self.pool == 0:
            return batch.group_advantages_R
        groups_R = batch.group_ids_R
        past_P = self._past(batch)
        others_P = batch.trials_P - 1 + past_P
        known_P = batch.hits_P + past_P * batch.rate_P
        # a single rollout without a past has no baseline: it teaches nothing
        baseline_R = (known_P[groups_R] - batch.correct_R) / np.maximum(others_P, 1e-9)[groups_R]
        rates_P = self._pooled_rates(batch)
        scale_P = np.sqrt(rates_P * (1 - rates_P) + FLOOR)
        teaches_P = (batch.hits_P > 0) & (others_P > 0)
        advantages_R = (batch.correct_R - baseline_R) / scale_P[groups_R]
        return np.where(teaches_P[groups_R], advantages_R, 0.0)

    def _past(self, batch: Batch) -> np.ndarray:
        """Earlier rollouts that count in a prompt's baseline, at most `pool`, (P,)."""
        return np.minimum(self.pool, batch.successes_P + batch.failures_P)

    def _pooled_rates(self, batch: Batch) -> np.ndarray:
        """Pass rates from this visit and the past that counts, (P,)."""
        past_P = self._past(batch)
        return (batch.hits_P + past_P * batch.rate_P) / (batch.trials_P + past_P)
