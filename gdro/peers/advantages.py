"""Peers that change the advantages. P prompts, R rollouts; μ is the mean of a group's rewards."""

import numpy as np

from gdro.method import Batch, Method
from gdro.registry import register


@register("rloo")
class RLOO(Method):
    """RLOO (arXiv 2402.14740): the baseline of a rollout is the mean of the others in its group.

    A_ij = r_ij − (Σ_l r_il − r_ij)/(n_i − 1) = n_i/(n_i − 1) · (r_ij − μ_i), unbiased for any
    n_i ≥ 2; 0 at n_i = 1, which has no others. Left out: KL in the reward, and whole answers as
    single actions.
    """

    def advantages(self, batch: Batch) -> np.ndarray:
        factor_P = batch.trials_P / np.maximum(batch.trials_P - 1, 1)
        return batch.centred_R * factor_P[batch.group_ids_R]


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
