"""F-GRPO (arXiv 2602.06717): a focal weight on a prompt's advantages, so that solved prompts count less.

Advantages (3) times (1 − p̂_i)^γ, p̂_i the share of the group that is correct. Small groups miss rare correct
answers and sharpen what is common; the weight takes from the prompts where that happens. Left out: nothing
but the other objectives (DAPO, CISPO) that the paper puts the weight on.
"""

from dataclasses import dataclass

import numpy as np

from gdro.core.checks import check_number, option
from gdro.methods.base import Batch, Method, register


@register("f_grpo")
@dataclass(eq=False)
class FGRPO(Method):
    """Weights by the group's failure rate."""

    gamma: float = option(0.5, check_number, 0, remedy="0 weighs all prompts equally, as GRPO")

    def weights(self, batch: Batch) -> np.ndarray:
        return (1 - batch.hits_P / batch.trials_P) ** self.gamma
