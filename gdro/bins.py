"""Difficulty bins (section 3.1): which prompts are hard, from their counts of correct rollouts.

`DifficultyBins` gives each uid a row, keeps counts and an estimate of pass@k in it, and from that
the bin. Axes: P prompts, D seen so far.
"""

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike
from pydantic import Field

from gdro.checks import Count, Float, check_array, options
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


def resize(array: np.ndarray, size: int, fill: int = 0) -> np.ndarray:
    """A copy with `size` rows; new ones hold `fill`."""
    new = np.full((size, *array.shape[1:]), fill, array.dtype)
    new[: len(array)] = array[:size]
    return new


def merge_visits(
    rows: np.ndarray, successes: np.ndarray, trials: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Visits of distinct rows: where one comes twice, side by side, its counts are added."""
    if not (rows[1:] == rows[:-1]).any():
        return rows, successes, trials
    rows, place_P = np.unique(rows, return_inverse=True)
    successes, trials = (np.bincount(place_P, n).astype(np.int64) for n in (successes, trials))
    return rows, successes, trials


class FadingCounts(Saved):
    """Beta posterior over a prompt's pass rate p, on counts that fade by 1 − 1/H at each visit.

    pass@k is E[1 − (1−p)^k] = 1 − Π_{i<k} (β+i)/(α+β+i) with α, β = ½ + the faded successes and
    failures: its expectation does not depend on how many rollouts a visit had.
    """

    state: ClassVar[tuple[str, ...]] = ("successes_D", "failures_D")
    by_row: ClassVar[tuple[str, ...]] = state  # arrays with a row for each prompt
    prior = 0.5  # Jeffreys: pass@k of a new prompt is broad, not extreme

    def __init__(self, k: int, history: int) -> None:
        self.k, self.keep = k, np.float32(1.0 - 1.0 / history)  # float32, as the counts are
        self.successes_D, self.failures_D = np.zeros(0, np.float32), np.zeros(0, np.float32)

    def grow(self, rows: int) -> None:
        """Resize to a number of rows."""
        for name in self.by_row:
            setattr(self, name, resize(getattr(self, name), rows))

    def add(self, rows: np.ndarray, successes: np.ndarray, trials: np.ndarray) -> None:
        """Record a visit to each of some distinct rows: successes and trials are (P,) integers."""
        self.successes_D[rows] = self.keep * self.successes_D[rows] + successes
        self.failures_D[rows] = self.keep * self.failures_D[rows] + (trials - successes)

    def counts(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Faded successes and failures, (P,) each."""
        return self.successes_D[rows].astype(float), self.failures_D[rows].astype(float)

    def pass_at_k(self, rows: np.ndarray) -> np.ndarray:
        """Estimate of pass@k, (P,); NaN where there is no data yet."""
        successes, failures = self.counts(rows)
        beta, total = self.prior + failures, 2 * self.prior + successes + failures
        all_wrong = np.ones(len(beta))
        for i in range(self.k):
            all_wrong *= (beta + i) / (total + i)
        return np.where(successes + failures > 0, 1.0 - all_wrong, np.nan)


class AnyOfK(FadingCounts):
    """The paper's estimate of pass@k, (10) as printed: how often any of k rollouts is correct.

    Rollouts queue up, and every k of them make one outcome c_t; the estimate is the mean of the
    last H outcomes, NaN before the first. Where a block ends in the middle of a visit, it takes
    only some of the visit's rollouts. How many of these are correct is drawn from a hypergeometric
    distribution, because their order has no meaning. Methods read pass rates from the faded counts,
    which are kept too.
    """

    by_row = (*FadingCounts.by_row, "entries_D", "outcomes_D", "queued_D", "correct_D")
    state = (*by_row, "clock")

    def __init__(self, k: int, history: int) -> None:
        super().__init__(k, history)
        self.history, self.clock = history, 0
        self.entries_D, self.outcomes_D = np.zeros(0, np.uint32), np.zeros((0, history), np.uint8)
        # of the block that is not full yet
        self.queued_D, self.correct_D = np.zeros(0, np.uint16), np.zeros(0, np.uint16)

    def add(self, rows: np.ndarray, successes: np.ndarray, trials: np.ndarray) -> None:
        super().add(rows, successes, trials)
        self.clock += 1
        rng = np.random.default_rng(self.clock)  # saved, so that a resumed run draws the same
        correct, left = successes.copy(), trials.copy()  # of this visit, not queued yet
        while left.any():
            take = np.minimum(self.k - self.queued_D[rows].astype(np.int64), left)
            hits = rng.hypergeometric(correct, left - correct, take)
            self.correct_D[rows] += hits.astype(np.uint16)
            self.queued_D[rows] += take.astype(np.uint16)
            correct, left = correct - hits, left - take
            full = rows[self.queued_D[rows] == self.k]
            self.outcomes_D[full, self.entries_D[full] % self.history] = self.correct_D[full] > 0
            self.entries_D[full] += 1
            self.queued_D[full] = self.correct_D[full] = 0

    def pass_at_k(self, rows: np.ndarray) -> np.ndarray:
        entries = np.minimum(self.entries_D[rows], self.history).astype(float)
        hits = self.outcomes_D[rows].sum(axis=1)
        return np.divide(hits, entries, out=np.full(len(rows), np.nan), where=entries > 0)


UNSEEN = -1  # bin of a prompt without an estimate
ROUNDING = 1e-12  # 1 − 0.9 is a little less than 0.1
ESTIMATORS: dict[str, type[FadingCounts]] = {"beta": FadingCounts, "any_of_k": AnyOfK}
TENTHS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


@options
class DifficultyBins(Saved):
    """Online difficulty classifier: pass@k estimate (10), bins (11), symmetric hysteresis.

    The defaults are the paper's; `gdro.controller.PRESETS` has those of a controller's own bins.

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
        steps = np.diff(self.edges, prepend=0.0, append=1.0)
        check_array("steps between 0, edges and 1", steps, low=0, open_low=True)
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


class StaticGroups(DifficultyBins):
    """Groups that the data set names, such as levels or subjects, in place of difficulty bins.

    A prompt's group never changes; its pass@k record is kept all the same.

    Args:
        uids, labels: (D,) one stable uid a prompt, and the name of its group, str or int.
        groups: the names in the order of their bins, hardest first; sorted by default.
    """

    def __init__(
        self,
        uids: ArrayLike | Sequence[str],
        labels: Sequence[Any],
        groups: Sequence[Any] | None = None,
        k: int = 8,
        history: int = 50,
        estimator: str = "beta",
    ) -> None:
        super().__init__(k=k, history=history, estimator=estimator)
        labels = as_uids(labels, "labels").tolist()
        self.groups = list(dict.fromkeys(sorted(set(labels)) if groups is None else groups))
        bin_of = {name: b for b, name in enumerate(self.groups)}
        bins = [bin_of[label] for label in labels]
        uids = as_uids(uids)
        self.labels = sorted([uid, b] for uid, b in zip(uids.tolist(), bins, strict=True))
        rows = self.rows(uids)  # makes room in `bins_D`
        self.bins_D[rows] = bins

    @property
    def num_bins(self) -> int:
        return len(self.groups)

    def next_bins(self, bins: np.ndarray, estimate: np.ndarray) -> np.ndarray:
        return bins

    def settings(self) -> dict[str, Any]:
        return super().settings() | {"groups": self.groups, "labels": self.labels}
