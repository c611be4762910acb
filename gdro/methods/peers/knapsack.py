"""Knapsack RL (arXiv 2509.25849): the rollouts of a batch as items of a knapsack, valued by what they teach.

max Σ V(n_i, p_i) subject to Σ n_i = budget, V(n, p) = (1 − pⁿ − (1 − p)ⁿ) · p (1 − p)²: the probability that
the group has both outcomes, times the gain of a step on the prompt. V is concave in n, so taking the largest
marginal values one by one is optimal. p is the share of correct rollouts at the prompt's last visit, so
prompts with p = 0 and p = 1 have no value: they get n_min, and those not seen yet n̄. The fallback: prompts
in between are expected to need log(.1)/log max(p, 1 − p) rollouts each (a signal with probability .9); what
the budget has beyond that goes to the prompts with p = 0 evenly, without any to those with p = 1.

Source: the paper and its public code, with n_min 2 and n_max 128 (`n_max=128` sets it here; prompts got up to
93). Left out: dividing the plan evenly among workers.
"""

from typing import ClassVar

import numpy as np

from gdro.methods.base import Batch, Method, Prompts, Run, register
from gdro.methods.draws import highest
from gdro.methods.peers.rounds import spread_evenly

CONFIDENCE = 0.9  # that a prompt in between gives a signal, for the fallback


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

    state = ("share_D",)
    by_prompt: ClassVar[tuple[str, ...]] = ("share_D",)

    def start(self, run: Run) -> None:
        self.share_D = np.zeros(0)  # of correct rollouts at the last visit, by row

    def update(self, batch: Batch) -> None:
        self.share_D = self.at_least(self.share_D, batch.rows_P)
        self.share_D[batch.rows_P] = batch.hits_P / batch.trials_P

    def allocate(self, prompts: Prompts, budget: int, rng: np.random.Generator) -> np.ndarray:
        low, high = self.run.n_min, self.run.n_max
        seen_P = prompts.seen_P
        p_P = self.at_least(self.share_D, prompts.rows_P)[prompts.rows_P]
        mixed_P, unsolved_P = seen_P & (p_P > 0) & (p_P < 1), seen_P & (p_P == 0)
        rollouts_P = np.where(seen_P, low, max(low, int(self.run.mean_rollouts)))
        left = budget - int(rollouts_P.sum())
        p = p_P[mixed_P]
        needed = int(
            np.minimum(np.log(1 - CONFIDENCE) / np.log(np.maximum(p, 1 - p)), high).astype(int).sum()
        )
        rest_P = unsolved_P if unsolved_P.any() else ~mixed_P
        most_P = np.where(rest_P, high, rollouts_P)
        before = int(rollouts_P.sum())
        rollouts_P = spread_evenly(rollouts_P, max(left - needed, 0), most_P, rng)
        left -= int(rollouts_P.sum()) - before
        if mixed_P.any():
            n_N, p_QN = np.arange(low, high), p[:, None]
            both_QN = p_QN**n_N * (1 - p_QN) + (1 - p_QN) ** n_N * p_QN  # rise of the probability, n to n + 1
            gains_QN = both_QN * p_QN * (1 - p_QN) ** 2
            rollouts_P[mixed_P] = best_rollouts(gains_QN, low, left + low * len(p), rng)
        return spread_evenly(rollouts_P, budget - int(rollouts_P.sum()), np.full(len(p_P), high), rng)
