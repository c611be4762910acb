"""Dr. GRPO (arXiv 2503.20783): advantages without the division by the group's standard deviation.

A_ij = r_ij − μ_i. Dividing by σ favours prompts that are nearly always or nearly never solved. Left out: the
loss over a constant length in place of each answer's own, which is the trainer's (`loss_type="dr_grpo"`).
"""

import numpy as np

from gdro.methods.base import Batch, Method, register


@register("dr_grpo")
class DrGRPO(Method):
    """Advantages by centring alone; no options."""

    def advantages(self, batch: Batch) -> np.ndarray:
        return batch.centred_R
