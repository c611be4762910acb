"""Peers that divide the rollouts by what is known of the prompts. P prompts, N rollouts."""

from typing import Annotated

import numpy as np
from pydantic import Field
from scipy.special import expit
from scipy.stats import beta

from gdro.budget import spread_evenly
from gdro.checks import Length, Positive, Share, check, options
from gdro.draws import highest
from gdro.method import Batch, Method, Prompts, Run
from gdro.registry import register
from gdro.uids import merge_visits


def best_rollouts(
    gains_PN: np.ndarray, low: int, budget: int, rng: np.random.Generator
) -> np.ndarray:
    """Rollouts that take the largest marginal gains within a budget, ties at random, (P,).

    `gains_PN` say what the (low + 1)-th, … rollout of each prompt is worth, falling along N; every
    prompt gets `low`.
    """
    left = min(budget - low * len(gains_PN), gains_PN.size)
    if left <= 0:
        return np.full(len(gains_PN), low)
    taken = highest(gains_PN.ravel(), left, rng) // gains_PN.shape[1]
    return low + np.bincount(taken, minlength=len(gains_PN))


@register("knapsack")
@options
class Knapsack(Method):
    """Knapsack RL (arXiv 2509.25849): the rollouts of a batch as items, valued by what they teach.

    max Σ V(n_i, p_i) subject to Σ n_i = budget, V(n, p) = (1 − pⁿ − (1 − p)ⁿ) · p (1 − p)²: the
    probability that the group has both outcomes, times the gain of a step on the prompt. p is the
    share of correct rollouts at the prompt's last visit; where it is 0 or 1, prompts get n_min, and
    those not seen yet n̄. The fallback: for each prompt in between, log(1 − confidence)/log max(p,
    1 − p) rollouts are set aside beside its n_min; what the budget has beyond that goes evenly to
    the prompts with p = 0, or, without any, to those with p = 1 or not seen yet.

    Source: the paper and its public code, with n_min 2 and n_max 128 (`n_max=128` sets it here).
    Left out: dividing the plan evenly among workers. In its fallback that code counts prompts not
    seen yet among those with p = 0, as its array of rates starts at 0; here they are not.
    """

    confidence: Annotated[Share, Field(lt=1)] = 0.9
    """Probability that a prompt in between gives a signal, for the fallback."""

    state = ("share_D",)

    def start(self, run: Run) -> None:
        self.share_D = np.zeros(0)  # of correct rollouts at the last visit, by row

    def update(self, batch: Batch) -> None:
        self.share_D = self.grow(self.share_D, batch.rows_P)
        rows, hits, trials = merge_visits(batch.rows_P, batch.hits_P, batch.trials_P)
        self.share_D[rows] = hits / trials

    def allocate(self, prompts: Prompts, budget: int, rng: np.random.Generator) -> np.ndarray:
        low = self.run.n_min
        high = self.run.n_max
        # not `has_bin_P`: groups give prompts a bin before any visit
        trials_P = prompts.successes_P + prompts.failures_P
        seen_P = trials_P > 0
        p_P = self.grow(self.share_D, prompts.rows_P)[prompts.rows_P]
        p_P = np.where(prompts.visited_P, p_P, prompts.successes_P / np.maximum(trials_P, 1))
        mixed_P = seen_P & (p_P > 0) & (p_P < 1)
        unsolved_P = seen_P & (p_P == 0)
        rollouts_P = np.where(seen_P, low, max(low, int(self.run.mean_rollouts)))
        p_Q = p_P[mixed_P]  # Q: prompts that had both outcomes
        needed_Q = np.log(1 - self.confidence) / np.log(np.maximum(p_Q, 1 - p_Q))
        needed = int(np.minimum(needed_Q, high).astype(int).sum())
        # first the fallback, with what the prompts in between do not need
        most_P = np.where(unsolved_P if unsolved_P.any() else ~mixed_P, high, rollouts_P)
        spare = max(budget - int(rollouts_P.sum()) - needed, 0)
        rollouts_P = spread_evenly(rollouts_P, spare, most_P, rng)
        if mixed_P.any():
            n_N = np.arange(low, high)
            p_Q1 = p_Q[:, None]
            # rise of the probability of both outcomes from n to n + 1
            both_QN = p_Q1**n_N * (1 - p_Q1) + (1 - p_Q1) ** n_N * p_Q1
            left = budget - int(rollouts_P[~mixed_P].sum())
            rollouts_P[mixed_P] = best_rollouts(both_QN * p_Q1 * (1 - p_Q1) ** 2, low, left, rng)
        left = budget - int(rollouts_P.sum())
        return spread_evenly(rollouts_P, left, np.full(len(p_P), high), rng)


@register("coba")
@options
class CoBA(Method):
    """CoBA-RL (arXiv 2602.03048): rollouts to pass rates that the model's capability prefers.

    max Σ V(n_i, p_i) subject to Σ n_i = budget, V(n, p) = (1 − exp(−n p (1 − p)/τ)) · Beta(p; α, β)
    (9). The shape follows the failure rate of the batches: F̄ is its mean over the last steps,
    F̃ = F̄ where that is above ½ and 1/(1 + exp(−10 (F̄ − ½))) otherwise (6), and
    α = clip(α_min + λF̃, α_min, α_max), β = κ − α (7): easy prompts first, hard ones as the model
    improves. p is the posterior mean.

    Source: the paper's section 2 and appendices; κ = 11, 2 to 128 rollouts a prompt (`n_max=128`
    sets it here). The text does not give τ, the number of steps, λ, α_min and α_max. Ours: τ = 1,
    ten steps, λ = α_max − α_min, and α from 1.5 to 9.5, so that its figures' 7.26, 4.50 and 2.54
    lie within.
    """

    tau: Positive = 1.0
    """τ: rollouts, times p(1 − p), until value saturates."""
    alpha_min: Positive = 1.5
    """α while nothing fails."""
    alpha_max: Positive = 9.5
    """α while everything fails; below kappa."""
    kappa: Positive = 11.0
    """κ = α + β, how sharp the preference is."""
    window: Length = 10
    """Steps over which the failure rate is averaged."""

    state = ("steps", "failure_rates")

    def start(self, run: Run) -> None:
        check("alpha_max", self.alpha_max, float, ge=self.alpha_min, lt=self.kappa)
        self.steps = 0
        self.failure_rates = np.zeros(self.window)  # failure rates of the last steps, in turn

    @property
    def alpha(self) -> float:
        """First shape of the preference at the next step; at the start as with F̄ = 1."""
        mean = self.failure_rates[: self.steps].mean() if self.steps else 1.0
        failing = mean if mean > 0.5 else expit(10 * (mean - 0.5))
        alpha = self.alpha_min + (self.alpha_max - self.alpha_min) * failing
        return float(np.clip(alpha, self.alpha_min, self.alpha_max))

    def update(self, batch: Batch) -> None:
        self.failure_rates[self.steps % self.window] = 1 - np.mean(batch.hits_P / batch.trials_P)
        self.steps += 1

    def allocate(self, prompts: Prompts, budget: int, rng: np.random.Generator) -> np.ndarray:
        low = self.run.n_min
        high = self.run.n_max
        speed_P1 = (prompts.rate_P * (1 - prompts.rate_P) / self.tau)[:, None]
        worth_P = beta.pdf(prompts.rate_P, self.alpha, self.kappa - self.alpha)
        gains_PN = np.exp(-speed_P1 * np.arange(low, high)) * (1 - np.exp(-speed_P1))
        return best_rollouts(gains_PN * worth_P[:, None], low, budget, rng)
