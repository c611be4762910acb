"""PKPO's advantages for pass@k, alone and with the rollouts of `rollout_prompts`. R rollouts."""

import numpy as np

from gdro.checks import Tries, options
from gdro.method import Batch, Method
from gdro.methods.rollout_prompts import RolloutPrompts
from gdro.metrics import all_wrong_probability
from gdro.registry import register


@register("pkpo")
@options
class PKPO(Method):
    """PKPO (arXiv 2505.15201): rewards transformed so that the policy gradient is that of pass@k.

    With ρ(n, c, k) = 1 − C(n − c, k)/C(n, k),

        s_ij = k/n for a correct rollout, (k/n) ρ(n − 1, c, k − 1) for a wrong one,

    and Σ_j s_ij ∇ log π is unbiased for ∇ pass@k. Its baseline "loo minus one" is what k − 1 of the
    other rollouts reach, (k/n) ρ(n − 1, c_−j, k − 1), c_−j the correct among the others. At k = 1
    this would be no baseline, and RLOO's is taken, as in the paper. A_ij is n times this, since
    losses are means over rollouts where the estimator is a sum. k is clipped to n where a group is
    smaller. Left out: continuous rewards (correct or not here) and annealing k during the run.
    """

    k: Tries = 2
    """The k of the pass@k that is optimized."""

    def advantages(self, batch: Batch) -> np.ndarray:
        n_R = batch.trials_P[batch.group_ids_R]
        c_R = batch.hits_P[batch.group_ids_R]
        k_R = np.minimum(self.k, n_R)
        others_R = n_R - 1
        correct_R = batch.correct_R
        rest_R = c_R - correct_R  # correct among the others
        reached_R = np.zeros(len(n_R))  # ρ(n − 1, c_−j, k − 1)
        for k in np.unique(k_R):
            at = k_R == k
            reached_R[at] = 1 - all_wrong_probability(rest_R[at], others_R[at], k - 1)
        single_R = np.where(others_R > 0, correct_R - rest_R / np.maximum(others_R, 1), 0.0)
        transformed_R = k_R * np.where(correct_R, 1.0, reached_R)
        return np.where(k_R == 1, single_R, transformed_R - k_R * reached_R)


@register("pkpo_rollouts")
@options
class PKPORollouts(PKPO, RolloutPrompts):
    """PKPO's advantages, and rollouts by the reward variance of each prompt."""
