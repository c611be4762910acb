"""MC-GRPO (arXiv 2601.22582): the median of a group in place of its mean.

A_ij = (r_ij − median_i)/(MAD_i + 1e-3), MAD_i the median of |r_ij − median_i|. The paper makes n + 1
rollouts, so that one of an odd group is the median: it is not trained on, and has advantage 0 here. In an
even group the lower middle value is the median, as in PyTorch. With 0/1 rewards an odd group's MAD is 0, so
that the rarer outcome has ±1000 and the other 0; with gradients clipped to norm 1, only how prompts compare
matters.

Source: the paper, and its public code, which also divides a group's advantages by the share of them that is
not 0 (`rescale=true`). To compare at equal rollouts, give 4 + 1 of them to fewer prompts:
`mc_grpo:prompts=25` in the arena. Left out: leaving the median's tokens out of the mean over tokens.
"""

from dataclasses import dataclass

import numpy as np

from gdro.core.checks import check_choice, option
from gdro.methods.base import Batch, Method, register

MAD_FLOOR = 1e-3


def group_medians(values_R: np.ndarray, group_ids_R: np.ndarray, sizes_P: np.ndarray) -> np.ndarray:
    """Lower median of each group's values, (P,)."""
    sorted_R = values_R[np.lexsort((values_R, group_ids_R))]
    return sorted_R[sizes_P.cumsum() - sizes_P + (sizes_P - 1) // 2]


@register("mc_grpo")
@dataclass(eq=False)
class MCGRPO(Method):
    """Advantages against the group's median."""

    # whether advantages are divided by the share of the group's that are not 0, as the public code does
    rescale: bool = option(False, check_choice, (False, True))

    def advantages(self, batch: Batch) -> np.ndarray:
        groups_R, sizes_P = batch.group_ids_R, batch.trials_P
        surplus_R = batch.rewards_R - group_medians(batch.rewards_R, groups_R, sizes_P)[groups_R]
        scale_P = group_medians(np.abs(surplus_R), groups_R, sizes_P) + MAD_FLOOR
        if self.rescale:
            scale_P = scale_P * np.maximum(batch.sums(surplus_R != 0), 1) / sizes_P
        return surplus_R / scale_P[groups_R]
