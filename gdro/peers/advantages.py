"""Peers that change the advantages. P prompts, R rollouts; μ is the mean of a group's rewards."""

import numpy as np

from gdro.method import Batch, Method
from gdro.registry import register


@register("maxrl")
class MaxRL(Method):
    """MaxRL (arXiv 2602.02710): A_ij = (r_ij − μ_i)/μ_i, 0 for a group without a success.

    log p = −Σ_k (1 − p)^k / k, so ∇ log p mixes the gradients of all pass@k with weights 1/k;
    n rollouts give that sum up to order n − 1. Rewards count as correct or not.
    """

    def advantages(self, batch: Batch) -> np.ndarray:
        rate_R = (batch.hits_P / batch.trials_P)[batch.group_ids_R]
        surplus_R = batch.correct_R - rate_R
        return np.divide(surplus_R, rate_R, out=np.zeros(len(rate_R)), where=rate_R > 0)
