"""NSR (arXiv 2506.01347): learn mostly from what is wrong, and little from what is correct.

A_ij = positive for a correct rollout and −1 for a wrong one, without a baseline: "W-REINFORCE", which keeps
pass@k up by moving probability away from mistakes rather than towards one answer; positive = 0 is pure
negative-sample reinforcement. Nothing of the rule is left out. Note that a group without a success pushes
down all that was sampled and nothing up.
"""

from dataclasses import dataclass

import numpy as np

from gdro.core.checks import check_number, option
from gdro.methods.base import Batch, Method, register


@register("nsr")
@dataclass(eq=False)
class NSR(Method):
    """Advantages by sign."""

    # of a correct rollout
    positive: float = option(0.1, check_number, 0, 1, remedy="1 is REINFORCE with rewards ±1")

    def advantages(self, batch: Batch) -> np.ndarray:
        return np.where(batch.correct_R, self.positive, -1.0)
