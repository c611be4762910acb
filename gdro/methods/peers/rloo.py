"""RLOO (arXiv 2402.14740): the baseline of a rollout is the mean of the others in its group.

A_ij = r_ij − (Σ_l r_il − r_ij)/(n_i − 1) = n_i/(n_i − 1) · (r_ij − μ_i), unbiased for any n_i ≥ 2; 0 at
n_i = 1, which has no others. Left out: KL in the reward, and whole answers as single actions.
"""

import numpy as np

from gdro.methods.base import Batch, Method, register


@register("rloo")
class RLOO(Method):
    """Advantages against the other rollouts of the group; no options."""

    def advantages(self, batch: Batch) -> np.ndarray:
        factor_P = batch.trials_P / np.maximum(batch.trials_P - 1, 1)
        return batch.centred_R * factor_P[batch.group_ids_R]
