"""PKPO (arXiv 2505.15201): rewards transformed so that the policy gradient is that of pass@k.

With c of n rollouts correct and ρ(n, c, k) = 1 − C(n − c, k)/C(n, k),

    s_ij = k/n for a correct rollout, (k/n) ρ(n − 1, c, k − 1) for a wrong one,

and Σ_j s_ij ∇ log π is unbiased for ∇ pass@k. The baseline "loo_minus_one" is what k − 1 of the other
rollouts reach: s_ij − (k/n) ρ(n − 1, c_−j, k − 1), c_−j the correct among the others. A wrong rollout then
gets 0 and a correct one k/n times the probability that it is pivotal among k. At k = 1 this would be no
baseline, and RLOO's is taken, as in the paper.

A_ij is n times this, since losses are means over rollouts where the estimator is a sum. k is held to n where
a group is smaller. Left out: continuous rewards (correct or not here) and annealing k during the run.
"""

from dataclasses import dataclass

import numpy as np

from gdro.core.checks import check_choice, check_int, option
from gdro.core.metrics import all_wrong_probability
from gdro.methods.base import Batch, Method, register


@register("pkpo")
@dataclass(eq=False)
class PKPO(Method):
    """Advantages for pass@k."""

    k: int = option(2, check_int, 1)
    baseline: str = option("loo_minus_one", check_choice, ("loo_minus_one", "none"))  # "none": the transform

    def advantages(self, batch: Batch) -> np.ndarray:
        n_R, c_R = (counts_P[batch.group_ids_R] for counts_P in (batch.trials_P, batch.hits_P))
        k_R = np.minimum(self.k, n_R)
        others_R, correct_R = n_R - 1, batch.correct_R
        rest_R = c_R - correct_R  # correct among the others
        reached_R = np.zeros(len(n_R))  # ρ(n − 1, c_−j, k − 1)
        for k in np.unique(k_R):
            at = k_R == k
            reached_R[at] = 1 - all_wrong_probability(rest_R[at], others_R[at], k - 1)
        transformed_R = k_R * np.where(correct_R, 1.0, reached_R)
        if self.baseline == "none":
            return transformed_R
        mean_R = rest_R / np.maximum(others_R, 1)
        single_R = np.where(others_R > 0, correct_R - mean_R, 0.0)
        return np.where(k_R == 1, single_R, transformed_R - k_R * reached_R)
