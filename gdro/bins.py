"""Difficulty bins (section 3.1): which prompts are hard, from their counts of correct rollouts.

`DifficultyBins` gives each uid a row, keeps counts and an estimate of pass@k in it, and from that
the bin. Axes: P prompts, D seen so far.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import ArrayLike
from pydantic import Field

from gdro.checks import Count, Float, check_array, need, options
from gdro.estimators import ESTIMATORS, resize
from gdro.metrics import check_counts
from gdro.state import Saved


def as_uids(uids: ArrayLike | Sequence[str], name: str = "uids") -> np.ndarray:
    """Uids, all integers or all strings, as an array of integers or of Python's strings, (P,)."""
    if isinstance(uids, np.ndarray) and uids.dtype.kind == "i" and uids.ndim == 1:
        return uids
    values = uids.tolist() if hasattr(uids, "tolist") else list(uids)  # type: ignore[arg-type]
    kinds = set(map(type, values))
    if all(issubclass(kind, str) for kind in kinds):
        return np.array(values, object)
    if all(issubclass(kind, int | np.integer) and kind is not bool for kind in kinds):
        return np.array(values, np.int64)
    raise ValueError(f"{name} must be all integers or all strings, got {values!s:.80}")


def merge_visits(
    rows: np.ndarray, successes: np.ndarray, trials: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Merge adjacent visits of the same row: their counts are added."""
    if not (rows[1:] == rows[:-1]).any():
        return rows, successes, trials
    rows, place_P = np.unique(rows, return_inverse=True)
    successes, trials = (np.bincount(place_P, n).astype(np.int64) for n in (successes, trials))
    return rows, successes, trials


UNSEEN = -1  # bin of a prompt without an estimate
ROUNDING = 1e-12  # 1 − 0.9 is a little less than 0.1
TENTHS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


@options
class DifficultyBins(Saved):
    """Online difficulty classifier: pass@k estimate (10), bins (11), symmetric hysteresis.

    The defaults are the paper's but for the estimator; `gdro.controller.PRESETS` has others.

    Attributes:
        row_of: from uid to row. A row never changes.
        bins_D: bin of each row, with spare capacity.
        beliefs: the counts of each row, and the estimate of pass@k from them.
    """

    # array-like (B − 1,), increasing inside (0, 1): bins [a_{b−1}, a_b), the last with 1
    edges: Any = TENTHS
    k: Count = 8  # of pass@k, whatever the number of rollouts
    history: Count = 50  # visits H that an estimate rests on
    # δ by which an estimate must have crossed every boundary it moves past; 0 switches it off
    hysteresis: Annotated[Float, Field(ge=0, lt=1)] = 0.03
    estimator: Literal["beta", "any_of_k"] = "beta"

    state = ("bins_D", "beliefs")

    def __post_init__(self) -> None:
        self.edges = check_array("edges", self.edges, (max(np.size(self.edges), 1),))
        rising = (np.diff(self.edges, prepend=0.0, append=1.0) > 0).all()
        need(rising, f"edges must increase inside (0, 1), got {self.edges.tolist()}")
        self.beliefs = ESTIMATORS[self.estimator](self.k, self.history)
        self.row_of: dict[int | str, int] = {}
        self.bins_D: np.ndarray = np.zeros(0, np.int16)

    @property
    def num_bins(self) -> int:
        return len(self.edges) + 1

    def rows(self, uids: ArrayLike | Sequence[str]) -> np.ndarray:
        """Row of each prompt, (P,). New uids get the next ones, in the order of the uids."""
        values = as_uids(uids).tolist()
        if new := set(values).difference(self.row_of):
            # sorted, so that rows do not depend on the order of the batch
            self.row_of |= {uid: len(self.row_of) + n for n, uid in enumerate(sorted(new))}
            capacity = len(self.bins_D)
            if len(self.row_of) > capacity:  # an eighth more, so that arrays are seldom copied
                self._resize(max(len(self.row_of), capacity + capacity // 8, 64))
        return np.fromiter(map(self.row_of.__getitem__, values), np.int64, len(values))

    def _resize(self, rows: int) -> None:
        self.beliefs.grow(rows)
        self.bins_D = resize(self.bins_D, rows, UNSEEN)

    def update(self, uids: ArrayLike, successes: ArrayLike, trials: ArrayLike) -> None:
        """Record a visit of each prompt: `successes` of `trials` ≥ 1 rollouts correct, (P,)."""
        uids = as_uids(uids)
        successes, trials = check_counts(successes, trials, 1, uids.shape)
        order = uids.argsort(kind="stable")  # what an estimator draws must not depend on the batch
        self.visit(self.rows(uids)[order], successes[order], trials[order])

    def visit(self, rows: np.ndarray, successes: np.ndarray, trials: np.ndarray) -> None:
        """`update` by rows in the order of their uids, unchecked."""
        rows, successes, trials = merge_visits(rows, successes, trials)
        self.beliefs.add(rows, successes, trials)
        self.bins_D[rows] = self.next_bins(self.bins_D[rows], self.beliefs.pass_at_k(rows))

    def next_bins(self, bins: np.ndarray, estimate: np.ndarray) -> np.ndarray:
        """Bins (P,) after new estimates; those of `StaticGroups` do not move."""
        return move_bins(bins, estimate, self.edges, self.hysteresis)

    def pass_at_k(self, uids: ArrayLike) -> np.ndarray:
        """Estimated pass@k, (P,); NaN for a prompt without an estimate."""
        rows = self._find(uids)
        estimate = np.full(len(rows), np.nan)
        estimate[rows >= 0] = self.beliefs.pass_at_k(rows[rows >= 0])
        return estimate

    def assign(self, uids: ArrayLike) -> np.ndarray:
        """Bin of each prompt, (P,); −1 for a prompt without an estimate."""
        rows = self._find(uids)
        return np.append(self.bins_D, UNSEEN)[rows]  # row −1, an unknown uid, is the one appended

    def _find(self, uids: ArrayLike) -> np.ndarray:
        """Row of each prompt, (P,); −1 for an unknown uid."""
        return np.array([self.row_of.get(uid, -1) for uid in as_uids(uids).tolist()], np.int64)

    def of_rows(self, rows: np.ndarray) -> np.ndarray:
        """Bin of each row, (P,); −1 for a prompt without an estimate."""
        return self.bins_D[rows].astype(np.int64)

    def state_dict(self) -> dict[str, Any]:
        self._resize(len(self.row_of))  # no spare capacity in a checkpoint
        return super().state_dict() | {"uids": list(self.row_of)}  # in the order of their rows

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.row_of = {uid: row for row, uid in enumerate(state["uids"])}


def move_bins(
    current: np.ndarray, estimate: np.ndarray, edges: np.ndarray, hysteresis: float
) -> np.ndarray:
    """Bins after new estimates of pass@k, (11) with the margin δ, upward and downward; any shape.

    A bin is left only as far as the estimate lies beyond its boundary by `hysteresis`.
    """
    # an estimate on an edge, also when rounded, belongs to the bin above
    value = estimate + ROUNDING
    # The bin is held between that of value − δ and that of value + δ. In the second the rounding is
    # taken off again, so that an estimate exactly δ below an edge does move down.
    lowest = np.searchsorted(edges, value - hysteresis, side="right")
    highest = np.searchsorted(edges, value + max(hysteresis - 2 * ROUNDING, 0.0), side="right")
    moved = np.minimum(np.maximum(current, lowest), highest)
    if (fresh := current == UNSEEN).any():  # a first bin is that of the estimate, without a margin
        moved = np.where(fresh, np.searchsorted(edges, value, side="right"), moved)
    return np.where(np.isnan(estimate), current, moved)
