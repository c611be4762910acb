"""Difficulty bins (section 3.1): which prompts are hard, from their counts of correct rollouts.

`DifficultyBins` gives each uid a row, keeps counts and an estimate of pass@k in it, and from that
the bin. Axes: P prompts, D seen so far.
"""

from collections.abc import Iterable, Mapping, Sequence, Set
from itertools import pairwise
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import ArrayLike
from pydantic import Field

from gdro.checks import Float, Length, Refusal, Tries, build, check, check_array, options, short
from gdro.estimators import ESTIMATORS, resize
from gdro.metrics import check_counts
from gdro.state import Stateful
from gdro.uids import SortedUids, as_uids, merge_visits

MOST_BINS = np.iinfo(np.int16).max  # `bins_D` holds 16-bit integers
UNSEEN = -1  # bin of a prompt without an estimate
ROUNDING = 1e-12  # in floating point, 1 − 0.9 is a little less than 0.1
TENTHS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


# What `GDROController(preset=...)` takes in place of the defaults of `DifficultyBins`. Its own
# default is pass@1: pass@8 of a prompt that is solved half the time is .996, almost that of a
# solved one.
PRESETS: dict[str, dict[str, Any]] = {
    "default": {"k": 1, "history": 20},
    "paper": {"k": 8, "history": 50, "estimator": "any_of_k"},
}


@options
class DifficultyBins(Stateful):
    """Online difficulty classifier: pass@k estimate (10), bins (11), symmetric hysteresis.

    The defaults are the paper's but for the estimator. A `GDROController` that makes its own bins
    takes k and history from `PRESETS` instead: 1 and 20 by default.

    Attributes:
        row_of: from uid to row. A row never changes.
        bins_D: bin of each row, with spare capacity.
        beliefs: the counts of each row, and the estimate of pass@k from them.
    """

    edges: Any = TENTHS
    """Array-like (B − 1,), increasing inside (0, 1): bins [a_{b−1}, a_b), the last with 1."""
    k: Tries = 8
    """The k of the pass@k by which prompts are sorted into bins, whatever the number of rollouts.
    It is neither the k of `pivotal` nor that of a method that optimizes pass@k."""
    history: Length = 50
    """H, the number of visits that an estimate depends on."""
    hysteresis: Annotated[Float, Field(ge=0, lt=1)] = 0.03
    """δ by which an estimate must cross each boundary that it moves past; 0 switches it off."""
    estimator: Literal["beta", "any_of_k"] = "beta"
    """"beta" is `FadingCounts`, "any_of_k" is (10) as printed, `AnyOfK` of `gdro.estimators`."""

    state = ("bins_D", "beliefs")
    are_named = False  # whether the data name the bins, as in `StaticGroups`

    def __post_init__(self) -> None:
        self.edges = check_array("edges", self.edges, (max(np.size(self.edges), 1),))
        if (np.diff(self.edges, prepend=0.0, append=1.0) <= 0).any():
            raise ValueError(f"edges must increase inside (0, 1), got {short(self.edges.tolist())}")
        check("number of edges", len(self.edges), int, lt=MOST_BINS)
        self.beliefs = ESTIMATORS[self.estimator](self.k, self.history)
        self.row_of: dict[int | str, int] = {}
        self.bins_D: np.ndarray = np.zeros(0, np.int16)
        self.pass_rates: dict[int | str, float] = {}
        self.measured_D = np.zeros(0, bool)  # whether all that is known is a given pass rate
        self.in_use = False  # by a controller

    @property
    def num_bins(self) -> int:
        return len(self.edges) + 1

    @property
    def names(self) -> list[str]:
        """A name for each bin: its range of pass@k."""
        return [f"{low:g}-{high:g}" for low, high in pairwise([0.0, *self.edges, 1.0])]

    def rows(self, uids: ArrayLike | Sequence[str]) -> np.ndarray:
        """Row of each prompt, (P,). New uids get the next ones, in the order of the uids."""
        values = as_uids(uids).tolist()
        self.add(set(values).difference(self.row_of))
        return np.fromiter(map(self.row_of.__getitem__, values), np.int64, len(values))

    def add(self, new: Set[int | str]) -> None:
        """Give rows to uids that have none."""
        if not new:
            return
        in_order = sorted(new)  # so that rows do not depend on the order of the batch
        check_kind("uids", in_order[0], self.row_of)
        check_kind("uids", in_order[0], self.pass_rates)
        self.row_of |= {uid: len(self.row_of) + n for n, uid in enumerate(in_order)}
        capacity = len(self.bins_D)
        if len(self.row_of) > capacity:  # an eighth more, so that arrays are seldom copied
            self._resize(max(len(self.row_of), capacity + capacity // 8, 64))
        self._start_from_pass_rates(in_order)

    def _resize(self, rows: int) -> None:
        self.beliefs.grow(rows)
        self.bins_D = resize(self.bins_D, rows, UNSEEN)
        self.measured_D = resize(self.measured_D, rows)

    def start_from(self, pass_rates: Mapping[Any, float | None], rollouts: int) -> None:
        """Start prompts without a visit from pass rates that were measured before.

        Args:
            pass_rates: by uid, in [0, 1]; None or NaN, like a uid that is left out, for unknown.
            rollouts: how many rollouts each is worth as evidence.
        """
        pass_rates = check("pass_rates", pass_rates, Mapping)
        uids = as_uids(list(pass_rates), "uids of pass_rates").tolist()
        rates = check_array(
            "pass_rates", list(pass_rates.values()), (len(uids),), 0, 1, missing=True
        )
        self.pass_rate_rollouts = check("pass_rate_rollouts", rollouts, Length)
        given = zip(uids, rates.tolist(), strict=True)
        self.pass_rates = {uid: rate for uid, rate in given if not np.isnan(rate)}
        if uids and not self.pass_rates:
            raise Refusal(f"pass_rates must have a number, got none for all {len(uids)} prompts")
        for uid in uids[:1]:
            check_kind("uids of pass_rates", uid, self.row_of)
        self._start_from_pass_rates(self.row_of)

    def _start_from_pass_rates(self, uids: Iterable[int | str]) -> None:
        """Give prompts without counts those of their measured pass rates, and the bin of these."""
        uids = [uid for uid in uids if uid in self.pass_rates]
        rows = np.array([self.row_of[uid] for uid in uids], np.int64)
        rates = np.array([self.pass_rates[uid] for uid in uids])
        has_none = np.add(*self.beliefs.counts(rows)) == 0
        rows = rows[has_none]
        if not len(rows):
            return
        trials = np.full(len(rows), self.pass_rate_rollouts)
        self.beliefs.add(rows, rates[has_none] * trials, trials)
        self.bins_D[rows] = self.next_bins(self.bins_D[rows], self.beliefs.pass_at_k(rows))
        self.measured_D[rows] = True

    def sort(self, uids_P: np.ndarray) -> SortedUids:
        """Sort uids, and give rows to new ones."""
        order_P = uids_P.argsort(kind="stable")
        return SortedUids(uids_P[order_P], self.rows(uids_P)[order_P], order_P)

    def update(self, uids: ArrayLike, successes: ArrayLike, trials: ArrayLike) -> None:
        """Record a visit of each prompt: `successes` of `trials` ≥ 1 rollouts correct, (P,)."""
        uids = as_uids(uids)
        successes, trials = check_counts(successes, trials, 1, uids.shape)
        order = uids.argsort(kind="stable")  # estimators draw in this order
        self.visit(self.rows(uids)[order], successes[order], trials[order])

    def visit(self, rows: np.ndarray, successes: np.ndarray, trials: np.ndarray) -> None:
        """As `update`, for rows in the order of their uids; nothing is checked."""
        rows, successes, trials = merge_visits(rows, successes, trials)
        self.beliefs.add(rows, successes, trials)
        self.bins_D[rows] = self.next_bins(self.bins_D[rows], self.beliefs.pass_at_k(rows))
        self.measured_D[rows] = False

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
        state = super().state_dict() | {"uids": list(self.row_of)}  # in the order of their rows
        if self.measured_D.any():
            state["measured_D"] = self.measured_D.copy()
        return state

    def check_state(self, state: Mapping[str, Any]) -> None:
        super().check_state(state)
        if "uids" not in state:
            raise ValueError(f"state of DifficultyBins must have 'uids', got only {sorted(state)}")

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.measured_D = np.array(state.get("measured_D", np.zeros(len(state["uids"]))), bool)
        self.row_of = {uid: row for row, uid in enumerate(state["uids"])}


def check_kind(name: str, uid: int | str, known: Iterable[int | str]) -> None:
    """Refuse integers beside strings, which would silently be other prompts."""
    first = next(iter(known), uid)
    if isinstance(first, str) != isinstance(uid, str):
        kind = "strings" if isinstance(first, str) else "integers"
        raise ValueError(f"{name} must be {kind}, as {first!r} is, got {uid!r}")


def make_bins(bins: DifficultyBins | Mapping[str, object] | None, preset: str) -> DifficultyBins:
    """The given bins, or new ones from arguments and a preset.

    ValueError for bins in use, as two controllers would mix their histories.
    """
    if isinstance(bins, DifficultyBins):
        if bins.in_use:
            raise ValueError("bins must be new, got those of another controller: make them again")
        return bins
    if bins is not None and not isinstance(bins, Mapping):
        raise ValueError(f"bins must be a DifficultyBins or its arguments, got {short(bins)}")
    return build("bins", DifficultyBins, PRESETS[preset] | dict(bins or {}))


def move_bins(
    current: np.ndarray, estimate: np.ndarray, edges: np.ndarray, hysteresis: float
) -> np.ndarray:
    """Bins after new estimates of pass@k, (11) with the margin δ, upward and downward; any shape.

    A bin is left only as far as the estimate lies beyond its boundary by `hysteresis`.
    """
    # an estimate on an edge, also when rounded, belongs to the bin above
    value = estimate + ROUNDING
    # The bin is clipped to those of value − δ and value + δ. In the second the rounding is
    # subtracted again, so that an estimate exactly δ below an edge does move down.
    lowest = np.searchsorted(edges, value - hysteresis, side="right")
    highest = np.searchsorted(edges, value + max(hysteresis - 2 * ROUNDING, 0.0), side="right")
    moved = np.minimum(np.maximum(current, lowest), highest)
    is_new = current == UNSEEN
    if is_new.any():  # a first bin is that of the estimate, without a margin
        moved = np.where(is_new, np.searchsorted(edges, value, side="right"), moved)
    return np.where(np.isnan(estimate), current, moved)
