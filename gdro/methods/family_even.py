"""Families drawn evenly, as by a curriculum that knows which prompts need which skill. For reference only.

Each batch has the same number of prompts of each family, as far as whole numbers and the families' sizes
allow, chosen at random within a family.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from gdro.beliefs import as_uids
from gdro.methods.base import Method, Prompts, register
from gdro.methods.draws import highest


@register("family_even")
class FamilyEven(Method):
    """Draws families evenly.

    Args:
        groups: from uid to family; by default the bins are the families, which `StaticGroups` names.
    """

    def __init__(self, groups: Mapping[Any, Any] | None = None) -> None:
        self.keys_D: np.ndarray | None = None
        if groups is not None:
            keys_D = as_uids(list(groups)).keys
            names = sorted(set(groups.values()), key=str)
            family_D = np.array([names.index(family) for family in groups.values()])
            self.keys_D, self.family_D = np.sort(keys_D), family_D[keys_D.argsort()]

    def families(self, pool: Prompts) -> np.ndarray:
        """Number of each prompt's family, (D,)."""
        if self.keys_D is None:
            return pool.bins_P  # −1, not seen yet, is a family too
        position_D = np.minimum(self.keys_D.searchsorted(pool.keys_P), len(self.keys_D) - 1)
        if (self.keys_D[position_D] != pool.keys_P).any():
            raise ValueError(
                "groups must name a family for every uid of the data set, got fewer; add the rest"
            )
        return self.family_D[position_D]

    def draw(self, pool: Prompts, size: int, rng: np.random.Generator) -> np.ndarray:
        _, family_D = np.unique(self.families(pool), return_inverse=True)
        shuffled = np.lexsort((rng.random(len(pool)), family_D))  # by family, at random within
        starts = np.bincount(family_D).cumsum() - np.bincount(family_D)
        turn_D = np.empty(len(pool))
        turn_D[shuffled] = np.arange(len(pool)) - starts[family_D[shuffled]]
        return highest(-turn_D, size, rng)  # all firsts of the families, then all seconds, …
