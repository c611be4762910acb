"""Families drawn evenly, as by a curriculum that knows which prompts need which skill. For reference only.

Each batch has the same number of prompts of each family, as far as whole numbers and the families' sizes
allow, chosen at random within a family.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from gdro.core.uids import Uids, UidTable, as_uids
from gdro.methods.base import Method, Prompts, Run, register
from gdro.methods.draws import highest


@register("family_even")
@dataclass(eq=False)
class FamilyEven(Method):
    """Draws families evenly."""

    # from uid to family; by default the bins are the families, which `StaticGroups` names
    groups: Mapping[Any, Any] | None = None

    def start(self, run: Run) -> None:
        if self.groups is not None:
            known, names = as_uids(list(self.groups)), sorted(set(self.groups.values()), key=str)
            self.table, self.family_D = UidTable(), np.empty(len(known), int)
            self.family_D[self.table.add(known)] = [names.index(name) for name in self.groups.values()]

    def families(self, pool: Prompts) -> np.ndarray:
        """Number of each prompt's family, (D,)."""
        if self.groups is None:
            return pool.bins_P  # −1, not seen yet, is a family too
        rows_D = self.table.find(Uids(pool.keys_P, self.table.kind))
        if (rows_D < 0).any():
            raise ValueError(
                "groups must name a family for every uid of the data set, got fewer; add the rest"
            )
        return self.family_D[rows_D]

    def draw(self, pool: Prompts, size: int, rng: np.random.Generator) -> np.ndarray:
        _, family_D = np.unique(self.families(pool), return_inverse=True)
        shuffled = np.lexsort((rng.random(len(pool)), family_D))  # by family, at random within
        starts = np.bincount(family_D).cumsum() - np.bincount(family_D)
        turn_D = np.empty(len(pool))
        turn_D[shuffled] = np.arange(len(pool)) - starts[family_D[shuffled]]
        return highest(-turn_D, size, rng)  # all firsts of the families, then all seconds, …
