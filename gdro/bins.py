"""Difficulty bins: who is hard (section 3.1 of the paper).

Axes: P prompts, B bins, D all rows. Bin 0 is the hardest (lowest pass@k), bin B−1 the easiest, −1 not seen
yet.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from gdro.beliefs import ESTIMATORS, FadingCounts, Uids, UidTable, as_uids, resized
from gdro.checks import check_choice, check_int, check_number
from gdro.metrics import checked_counts
from gdro.saved import Saved

UNSEEN = -1
ROUNDING = 1e-12  # 1 − 0.9 is a little less than 0.1
TENTHS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


@dataclass(eq=False)
class DifficultyBins(Saved):
    """Online difficulty classifier: pass@k estimate (10), bins (11), symmetric hysteresis."""

    edges: Any = TENTHS  # increasing, inside (0, 1); bins [a_{b−1}, a_b), 1 in the last
    k: int = 8  # of pass@k; unrelated to the number of rollouts
    history: int = 50  # visits H that an estimate rests on
    hysteresis: float = 0.03  # δ by which an estimate must have crossed every boundary it moves past
    estimator: str = "beta"  # a name in `gdro.beliefs.ESTIMATORS`

    state = ("table", "bins_D", "records")
    resizes = True

    def __post_init__(self) -> None:
        self.edges = _checked_edges(self.edges)
        check_int("k", self.k, 1)
        check_int("history", self.history, 1)
        check_number("hysteresis", self.hysteresis, 0, 1, open_high=True, remedy="0 switches it off")
        check_choice("estimator", self.estimator, tuple(ESTIMATORS))
        # faded counts are kept whatever the estimator: methods read pass rates from them
        self.beliefs = FadingCounts(self.k, self.history)
        own = self.estimator == "beta"
        # what `pass_at_k` reads
        self.record = self.beliefs if own else ESTIMATORS[self.estimator](self.k, self.history)
        # the record is the first to see a visit, which it may refuse
        self.records = {"beliefs": self.beliefs} if own else {"record": self.record, "beliefs": self.beliefs}
        self.table = UidTable()
        self.bins_D: np.ndarray = np.zeros(0, np.int8 if self.num_bins <= 127 else np.int32)

    @property
    def num_bins(self) -> int:
        return len(self.edges) + 1

    def __len__(self) -> int:
        """Number of prompts seen so far."""
        counts = self.beliefs.arrays
        return int((counts["successes"] + counts["failures"] > 0).sum())

    def rows(self, uids: ArrayLike | Uids) -> np.ndarray:
        """Row of each prompt, (P,): an index that never changes, given on first mention."""
        rows = self.table.add(as_uids(uids))
        capacity = len(self.bins_D)
        if len(self.table) > capacity:
            self._resize(max(len(self.table), capacity + capacity // 2, 64))
        return rows

    def _resize(self, capacity: int) -> None:
        for record in self.records.values():
            record.grow(capacity)
        self.bins_D = resized(self.bins_D, capacity, UNSEEN)

    def update(self, uids: ArrayLike, successes: ArrayLike, trials: ArrayLike) -> None:
        """Record one visit a prompt and move bins.

        Args:
            uids: (P,) integers or strings; a uid given twice is one visit with the counts added.
            successes, trials: (P,) correct rollouts, and all rollouts, at least 1.
        """
        known = as_uids(uids)
        successes, trials = checked_counts(successes, trials)
        if successes.shape != known.keys.shape:
            raise ValueError(
                f"successes and trials must be one per uid ({len(known)}), got {successes.shape}"
            )
        if (trials < 1).any():
            raise ValueError("trials must be at least 1, got 0; leave out prompts without rollouts")
        order = known.keys.argsort(kind="stable")  # what an estimator draws must not depend on batch order
        self.visit(self.rows(known)[order], successes[order], trials[order])

    def visit(self, rows: np.ndarray, successes: np.ndarray, trials: np.ndarray) -> None:
        """`update` by rows in the order of their keys, unchecked."""
        if (rows[1:] == rows[:-1]).any():
            rows, inverse = np.unique(rows, return_inverse=True)
            successes, trials = (
                np.bincount(inverse, counts).astype(np.int64) for counts in (successes, trials)
            )
        for record in self.records.values():
            record.add(rows, successes, trials)
        estimate = self.record.pass_at_k(rows)
        self.bins_D[rows] = move_bins(self.bins_D[rows], estimate, self.edges, self.hysteresis)

    def pass_at_k(self, uids: ArrayLike) -> np.ndarray:
        """Estimated pass@k, (P,); NaN for a prompt without an estimate."""
        rows = self.table.find(as_uids(uids))
        estimate = np.full(len(rows), np.nan)
        estimate[rows >= 0] = self.record.pass_at_k(rows[rows >= 0])
        return estimate

    def assign(self, uids: ArrayLike) -> np.ndarray:
        """Bin of each prompt, (P,); −1 for a prompt without an estimate."""
        rows = self.table.find(as_uids(uids))
        # of what is not known there may be no row at all
        return np.where(rows < 0, UNSEEN, self.of_rows(rows)) if len(self.table) else rows

    def of_rows(self, rows: np.ndarray) -> np.ndarray:
        """Bin of each row, (P,); −1 for a prompt without an estimate."""
        return self.bins_D[rows].astype(np.int64)

    def nbytes(self) -> int:
        """Bytes held for the prompts seen (spare capacity included)."""
        arrays = [array for record in self.records.values() for array in record.arrays.values()]
        return sum(array.nbytes for array in (self.bins_D, self.table.keys_D, self.table.rows_D, *arrays))

    def state_dict(self) -> dict[str, Any]:
        self._resize(len(self.table))  # no spare capacity in a checkpoint
        return super().state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        size, kinds = len(self.table), ("integer", "string") if len(self.table) else ("",)
        check_choice("the saved kind of uid", self.table.kind, kinds)
        records = [array for record in self.records.values() for array in record.arrays.values()]
        sound = (
            np.array_equal(np.sort(self.table.rows_D), np.arange(size))
            and (np.diff(self.table.keys_D) > 0).all()
            # groups keep difficulty bins as well
            and ((self.bins_D >= UNSEEN) & (self.bins_D <= len(self.edges))).all()
            and all(len(array) == size for array in (self.bins_D, *records))
            and all((array >= 0).all() for array in records)
        )
        if not sound:
            raise ValueError("the saved uids, bins or counts do not fit together; use a whole checkpoint")


class StaticGroups(DifficultyBins):
    """Groups that the data set names, such as levels or subjects, in place of difficulty bins.

    A prompt's group never changes; its pass@k record is kept all the same, for the figures.

    Args:
        uids: (D,) one stable uid a prompt.
        labels: (D,) name of each prompt's group.
        groups: the names in the order of their bins, hardest first where there is such an order; sorted by
            default.
        k, history, estimator: of the record that `pass_at_k` reads, as in `DifficultyBins`.
    """

    def __init__(
        self,
        uids: ArrayLike,
        labels: Sequence[Any],
        groups: Sequence[Any] | None = None,
        k: int = 8,
        history: int = 50,
        estimator: str = "beta",
    ) -> None:
        known, labels = as_uids(uids), list(labels)
        if not labels or len(known) != len(labels):
            raise ValueError(f"labels must be one group name per uid ({len(known)}), got {len(labels)}")
        named = labels[0] is not None and isinstance(labels[0], Hashable)
        if not named or len({type(label) for label in labels}) > 1:
            raise ValueError(f"labels must be of one kind, such as str, got {labels[:4]}…; convert them")
        self.groups = list(dict.fromkeys(groups)) if groups is not None else sorted(set(labels))
        if unknown := sorted(set(labels) - set(self.groups)):
            raise ValueError(
                f"labels must be among the groups {self.groups}, got {unknown}; add them to `groups`"
            )
        super().__init__(k=k, history=history, hysteresis=0.0, estimator=estimator)
        order_D = np.argsort(known.keys)  # rows follow the order of the keys
        # kept under these names as settings that a saved state must agree on
        self.uids = known.keys[order_D]
        self.labels = np.array([self.groups.index(label) for label in labels])[order_D]
        if (np.diff(self.uids) == 0).any():
            raise ValueError("uids must differ, got one twice; every prompt needs a uid of its own")
        self.rows(known)

    @property
    def num_bins(self) -> int:
        return len(self.groups)

    def of_rows(self, rows: np.ndarray) -> np.ndarray:
        """Group of each row, (P,); −1 for a uid that was not named at the start."""
        named = rows < len(self.labels)
        return np.where(named, self.labels[np.where(named, rows, 0)], UNSEEN)


def move_bins(current: np.ndarray, estimate: np.ndarray, edges: np.ndarray, hysteresis: float) -> np.ndarray:
    """Bins after new estimates, (11) with the margin δ, upward and downward.

    Args:
        current: bins, −1 for none yet, any shape.
        estimate: pass@k, the same shape; NaN leaves the bin as it is.
        edges: (B−1,) increasing.
        hysteresis: a bin is left only as far as the estimate lies beyond its boundary by this margin.
    """
    known = ~np.isnan(estimate)
    value = np.where(known, estimate, 0.0) + ROUNDING  # on an edge, also when rounded: in the bin above
    fresh = np.searchsorted(edges, value, side="right")
    # past a boundary only by the margin: up as far as value − δ reaches, down as value + δ
    lowest = np.searchsorted(edges, value - hysteresis, side="right")
    highest = np.searchsorted(edges, value + max(hysteresis - 2 * ROUNDING, 0.0), side="right")
    moved = np.where(current == UNSEEN, fresh, np.minimum(np.maximum(current, lowest), highest))
    return np.where(known, moved, current)


def _checked_edges(edges: Sequence[float]) -> np.ndarray:
    values = np.asarray(edges, float)
    ladder = np.concatenate([[0.0], values.ravel(), [1.0]])  # NaN fails the comparison too
    if values.ndim != 1 or not values.size or not (np.diff(ladder) > 0).all():
        raise ValueError(
            f"edges must be increasing numbers inside (0, 1), at least one, got {values.tolist()}; "
            "B bins have B − 1 edges: six bins have five"
        )
    return values
