"""Peers that draw the prompts. P prompts, D prompts of the data set.

Where a docstring writes p̂ it is the posterior mean of a prompt's pass rate, and P_i the weight of
prompt i in a draw without replacement.
"""

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any

import numpy as np

from gdro.budget import exact_rollouts
from gdro.checks import (
    PositiveShare,
    Refusal,
    Share,
    Tries,
    check_array,
    options,
)
from gdro.draws import highest, mostly_in_proportion
from gdro.method import Batch, Method, Prompts, Run
from gdro.registry import register

# For comparison only: what knowing the truth would be worth.


@register("oracle")
@options
class Oracle(Method):
    """The pivotal draw with true pass rates: how much knowing them exactly would be worth.

    P_i = (1 − ε) p_i (1 − p_i)^(k−1) / Σ p (1 − p)^(k−1) + ε/D, with p from the caller. Weights and
    advantages are GRPO's, so that the draw alone is compared.
    """

    rates: Callable[[np.ndarray], np.ndarray] | None = None
    """From uids (D,) in increasing order to the pass rates (D,) now; may also be set later."""
    k: Tries = 5
    """The draw favours pass rates about 1/k, as that of `pivotal`."""
    epsilon: PositiveShare = 0.1
    """Share of the draw that is even over the data."""
    even: bool = False
    """Divide P_i by the size of the prompt's bin, so that rare groups count as much as others."""

    def draw(self, pool: Prompts, size: int, rng: np.random.Generator) -> np.ndarray:
        if self.rates is None:
            raise Refusal("rates must be set before drawing, got None; give a function of uids")
        p_D = check_array("rates", self.rates(pool.uids_P), pool.uids_P.shape, 0, 1)
        value_D = p_D * (1 - p_D) ** (self.k - 1)
        if self.even:
            bins_D = pool.bins_P + 1
            value_D = value_D / np.bincount(bins_D)[bins_D]
        return mostly_in_proportion(value_D, self.epsilon, size, rng)


@register("family_even")
@options
class FamilyEven(Method):
    """Families drawn evenly, as by a curriculum that knows which prompts need which skill.

    The bins are the families, which `StaticGroups` names. A batch has equally many of each family,
    as far as possible, at random within a family. With
    `shares` it has these instead, in whole prompts by largest remainder: what a family lacks in one
    batch is owed to it in the next, so that it is never off by a whole prompt. Prompts of a family
    smaller than its part of the batch come again.
    """

    shares: Mapping[str, Share] = field(default_factory=dict)
    """Share of each of F families in a batch, by name, such as {"hard": 0.5, "easy": 0.5}; by
    default all are equal."""

    @property
    def state(self) -> tuple[str, ...]:  # type: ignore[override]
        return ("owed_F",) if self.shares else ()

    def __post_init__(self) -> None:
        if self.shares and abs(sum(self.shares.values()) - 1) > 1e-9:
            raise ValueError(f"shares must sum to 1, got {dict(self.shares)}")
        self.shares = dict(sorted(self.shares.items()))  # so is `owed_F`, also of a resumed run

    def start(self, run: Run) -> None:
        self.owed_F = np.zeros(len(self.shares))  # prompts, over all batches so far

    def families(self, prompts: Prompts) -> list[Any]:
        """Name of each prompt's group; its bin where nothing names groups, −1 if it has none."""
        names = self.run.bin_names
        return [names[b] if self.run.has_groups else b for b in prompts.bins_P.tolist()]

    def draw(self, pool: Prompts, size: int, rng: np.random.Generator) -> np.ndarray:
        if self.shares:
            return self._draw_shares(pool, size, rng)
        _, family_D = np.unique(self.families(pool), return_inverse=True)
        shuffled = np.lexsort((rng.random(len(pool)), family_D))  # by family, at random within
        starts = np.bincount(family_D).cumsum() - np.bincount(family_D)
        turn_D = (shuffled.argsort() - starts[family_D]).astype(float)
        return highest(-turn_D, size, rng)  # all firsts of the families, then all seconds, …

    def _draw_shares(self, pool: Prompts, size: int, rng: np.random.Generator) -> np.ndarray:
        names = self.families(pool)
        if set(names) != self.shares.keys():
            present = sorted(set(names))
            raise ValueError(
                f"shares must name the families of the data, {present}, got {sorted(self.shares)}: "
                "give StaticGroups for bins (in TRL a group_column)"
            )
        wanted_F = np.maximum(self._part_of(size) + self.owed_F, 0)
        counts_F = exact_rollouts(wanted_F, size, 0, size, rng)
        drawn = []
        for name, count in zip(self.shares, counts_F, strict=True):
            members = np.flatnonzero(np.equal(names, name))
            if count:
                drawn.append(members[highest(np.zeros(len(members)), count, rng)])
        return rng.permutation(np.concatenate(drawn))

    def update(self, batch: Batch) -> None:
        if self.shares:
            names = self.families(batch)
            counts_F = np.array([names.count(name) for name in self.shares])
            self.owed_F = self.owed_F + self._part_of(len(batch)) - counts_F

    def _part_of(self, prompts: int) -> np.ndarray:
        """What each family's share of so many prompts is, (F,), before rounding."""
        return prompts * np.array(list(self.shares.values()))
