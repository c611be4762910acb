"""Difficulty bins: which prompts are hard (section 3.1 of the paper).

Bin 0 is the hardest (lowest pass@k), bin B − 1 the easiest; −1 means that a prompt has no estimate yet.
Axes: P prompts, B bins, D prompts seen so far.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from gdro.core.any_of_k import AnyOfK
from gdro.core.arrays import merged_visits, resized
from gdro.core.beliefs import FadingCounts
from gdro.core.checks import check_array, check_choice, check_int, check_number, option
from gdro.core.limits import LONGEST_HISTORY, MOST_BINS, MOST_K
from gdro.core.metrics import checked_counts
from gdro.core.saved import Saved
from gdro.core.uids import Uids, UidTable, as_uids

UNSEEN = -1
ROUNDING = 1e-12  # 1 − 0.9 is a little less than 0.1
ESTIMATORS: dict[str, type[FadingCounts]] = {"beta": FadingCounts, "any_of_k": AnyOfK}
TENTHS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


@dataclass(eq=False)
class DifficultyBins(Saved):
    """Online difficulty classifier: pass@k estimate (10), bins (11), symmetric hysteresis.

    The defaults are the paper's; `gdro.controller.PRESETS` has those of a controller's own bins, and why.

    Attributes:
        table: from uid to row.
        bins_D: bin of each row, with spare capacity.
        beliefs: the counts of each row, and the estimate of pass@k from them.
    """

    edges: Any = TENTHS  # array-like (B − 1,), increasing inside (0, 1); bins [a_{b−1}, a_b), 1 in the last
    k: int = option(8, check_int, 1, MOST_K)  # of pass@k; unrelated to the number of rollouts
    history: int = option(50, check_int, 1, LONGEST_HISTORY)  # visits H that an estimate rests on
    # δ by which an estimate must have crossed every boundary it moves past
    hysteresis: float = option(0.03, check_number, 0, 1, open_high=True, remedy="0 switches it off")
    estimator: str = option("beta", check_choice, tuple(ESTIMATORS))

    state = ("table", "bins_D", "beliefs")
    by_prompt = ("bins_D",)

    def __post_init__(self) -> None:
        name, remedy = f"{type(self).__name__}(edges=…)", "give B − 1 edges for B bins, five for six"
        self.edges = check_array(name, self.edges, (np.size(self.edges),), 0, 1, remedy=remedy)
        increasing = (np.diff(self.edges, prepend=0.0, append=1.0) > 0).all()
        if not (0 < self.edges.size < MOST_BINS and increasing):
            wanted = f"1 to {MOST_BINS - 1} numbers that increase inside (0, 1)"
            raise ValueError(f"{name} must be {wanted}, got {self.edges.tolist()}; {remedy}")
        super().__post_init__()
        self.beliefs = ESTIMATORS[self.estimator](self.k, self.history)
        self.table = UidTable()
        self.bins_D: np.ndarray = np.zeros(0, np.int16)

    @property
    def num_bins(self) -> int:
        return len(self.edges) + 1

    def rows(self, uids: ArrayLike | Uids) -> np.ndarray:
        """Row of each prompt, (P,): an index that never changes. A new uid gets the next one."""
        rows, capacity = self.table.add(as_uids(uids)), len(self.bins_D)
        if len(self.table) > capacity:  # an eighth more than before, so that arrays are seldom copied
            self._resize(max(len(self.table), capacity + capacity // 8, 64))
        return rows

    def _resize(self, capacity: int) -> None:
        self.beliefs.grow(capacity)
        self.bins_D = resized(self.bins_D, capacity, UNSEEN)

    def update(self, uids: ArrayLike, successes: ArrayLike, trials: ArrayLike) -> None:
        """Record one visit a prompt, `successes` of `trials` ≥ 1 rollouts correct, and move bins, (P,) each.

        A uid given twice is one visit with the counts added.
        """
        known = as_uids(uids)
        successes, trials = checked_counts(successes, trials, 1, (len(known),))
        order = known.order()  # what an estimator draws must not depend on batch order
        self.visit(self.rows(known)[order], successes[order], trials[order])

    def visit(self, rows: np.ndarray, successes: np.ndarray, trials: np.ndarray) -> None:
        """`update` by rows in the order of their keys, unchecked."""
        rows, successes, trials = merged_visits(rows, successes, trials)
        self.beliefs.add(rows, successes, trials)
        self.bins_D[rows] = self.moved(self.bins_D[rows], self.beliefs.pass_at_k(rows))

    def moved(self, bins: np.ndarray, estimate: np.ndarray) -> np.ndarray:
        """Bins (P,) after new estimates; those of `StaticGroups` do not move."""
        return move_bins(bins, estimate, self.edges, self.hysteresis)

    def pass_at_k(self, uids: ArrayLike) -> np.ndarray:
        """Estimated pass@k, (P,); NaN for a prompt without an estimate."""
        rows = self.table.find(as_uids(uids))
        estimate = np.full(len(rows), np.nan)
        estimate[rows >= 0] = self.beliefs.pass_at_k(rows[rows >= 0])
        return estimate

    def assign(self, uids: ArrayLike) -> np.ndarray:
        """Bin of each prompt, (P,); −1 for a prompt without an estimate."""
        rows = self.table.find(as_uids(uids))
        return np.append(self.bins_D, UNSEEN)[rows]  # row −1, an unknown uid, is the one that is appended

    def of_rows(self, rows: np.ndarray) -> np.ndarray:
        """Bin of each row, (P,); −1 for a prompt without an estimate."""
        return self.bins_D[rows].astype(np.int64)

    def state_dict(self) -> dict[str, Any]:
        self._resize(len(self.table))  # no spare capacity in a checkpoint
        return super().state_dict()

    def check_loaded(self) -> None:
        counts = [getattr(self.beliefs, name) for name in self.beliefs.by_prompt]
        sizes = {len(array) for array in (self.table.keys_D, self.table.rows_D, self.bins_D, *counts)}
        in_range = ((self.bins_D >= UNSEEN) & (self.bins_D < self.num_bins)).all()
        in_range &= all((count >= 0).all() for count in counts)
        if not (self.table.is_sound() and len(sizes) == 1 and in_range):
            raise ValueError("the saved uids, bins or counts do not fit together; use a whole checkpoint")


def move_bins(current: np.ndarray, estimate: np.ndarray, edges: np.ndarray, hysteresis: float) -> np.ndarray:
    """Bins after new estimates of pass@k, (11) with the margin δ, upward and downward; any shape.

    A bin is left only as far as the estimate lies beyond its boundary by `hysteresis`; NaN leaves it as it
    is. `edges` (B−1,) increase.
    """
    value = estimate + ROUNDING  # an estimate on an edge, also when rounded, belongs to the bin above
    # the bin is held between that of value − δ and that of value + δ: closer to an edge it does not move
    lowest = np.searchsorted(edges, value - hysteresis, side="right")
    # here the rounding is taken off again, so that an estimate exactly δ below an edge does move down
    highest = np.searchsorted(edges, value + max(hysteresis - 2 * ROUNDING, 0.0), side="right")
    moved = np.minimum(np.maximum(current, lowest), highest)
    if (fresh := current == UNSEEN).any():  # a first bin is that of the estimate, without a margin
        moved = np.where(fresh, np.searchsorted(edges, value, side="right"), moved)
    return np.where(np.isnan(estimate), current, moved)
