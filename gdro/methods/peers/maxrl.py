"""MaxRL (arXiv 2602.02710): advantages divided by the mean, which maximizes log-likelihood as n grows.

A_ij = (r_ij − μ_i)/μ_i, 0 for a group without a success. log p = −Σ_k (1 − p)^k / k, so ∇ log p mixes the
gradients of all pass@k with weights 1/k; n rollouts give that sum up to order n − 1. Rewards count as correct
or not. Nothing else is left out.
"""

import numpy as np

from gdro.methods.base import Batch, Method, register


@register("maxrl")
class MaxRL(Method):
    """Advantages over the group's success rate; no options."""

    def advantages(self, batch: Batch) -> np.ndarray:
        rate_R = (batch.hits_P / batch.trials_P)[batch.group_ids_R]
        return np.divide(batch.correct_R - rate_R, rate_R, out=np.zeros(len(rate_R)), where=rate_R > 0)
