"""Knapsack RL (arXiv 2509.25849): the rollouts of a batch as items of a knapsack, valued by what they teach.

max Σ V(n_i, p_i) subject to Σ n_i = budget, V(n, p) = (1 − pⁿ − (1 − p)ⁿ) · p (1 − p)²: the probability that
the group has both outcomes, times the gain of a step on the prompt. V is concave in n, so taking the largest
marginal values one by one is optimal. p is the posterior mean. Left out: the special treatment of prompts
never or always solved (a posterior mean is neither 0 nor 1), and dividing the plan evenly among workers.
"""

import numpy as np

from gdro.methods.base import Method, Prompts, register
from gdro.methods.draws import highest


def best_rollouts(gains_PN: np.ndarray, low: int, budget: int, rng: np.random.Generator) -> np.ndarray:
    """Rollouts that take the largest marginal gains within a budget, ties at random, (P,).

    Args:
        gains_PN: what the (low + 1)-th, (low + 2)-th, … rollout of each prompt is worth; falling along N.
        low: rollouts that every prompt gets.
        budget: rollouts in all.
    """
    left = min(budget - low * len(gains_PN), gains_PN.size)
    if left <= 0:
        return np.full(len(gains_PN), low)
    taken = highest(gains_PN.ravel(), left, rng) // gains_PN.shape[1]
    return low + np.bincount(taken, minlength=len(gains_PN))


@register("knapsack")
class Knapsack(Method):
    """Rollouts by marginal value; no options."""

    def allocate(self, prompts: Prompts, budget: int, rng: np.random.Generator) -> np.ndarray:
        p_PN, n_N = prompts.rate_P[:, None], np.arange(self.run.n_min, self.run.n_max)
        both_PN = p_PN**n_N * (1 - p_PN) + (1 - p_PN) ** n_N * p_PN  # rise of the probability from n to n + 1
        return best_rollouts(both_PN * p_PN * (1 - p_PN) ** 2, self.run.n_min, budget, rng)
