"""What is known of each prompt: counts of correct and wrong rollouts by uid, and estimates of pass@k.

What is known belongs to a uid, not to a place in a batch. A `UidTable` gives each uid a row that never
changes, and an estimator holds one entry for each row. Axes: P prompts, D prompts seen so far.
"""

from collections.abc import Sequence
from hashlib import blake2b
from typing import ClassVar, NamedTuple, cast

import numpy as np
from numpy.typing import ArrayLike

from gdro.core.saved import Saved


class Uids(NamedTuple):
    """Uids ready for look-up: 64-bit keys (P,) and their kind, "integer" or "string"."""

    keys: np.ndarray
    kind: str

    def __len__(self) -> int:
        return len(self.keys)

    def order(self) -> np.ndarray:
        """Positions in the order of the keys, equal ones as given, (P,)."""
        order_P = self.keys.argsort()  # four times as fast as a stable sort, needed only for equal keys
        sorted_P = self.keys[order_P]
        return self.keys.argsort(kind="stable") if (sorted_P[1:] == sorted_P[:-1]).any() else order_P


def as_uids(uids: ArrayLike | Sequence[str] | Uids) -> Uids:
    """Keys of uids; whatever takes uids takes the result too, so hash a large pool once.

    Integers are their own keys. Strings are hashed (BLAKE2b, 64 bits): the probability that two of ten
    million collide is below 1 in 300,000.
    """
    if isinstance(uids, Uids):
        return uids
    values, given = np.asarray(uids), cast(Sequence, uids)
    if values.ndim != 1:
        raise ValueError(f"uids must be a flat sequence, got shape {values.shape}; give one uid a prompt")
    if values.size == 0:
        return Uids(np.zeros(0, np.int64), "")
    # numpy turns a list of integers with a True in it into integers, so look at the list itself
    typed = isinstance(uids, np.ndarray) and uids.dtype != object
    types = {values.dtype.type} if typed else set(map(type, given))
    if all(issubclass(kind, str) for kind in types):
        digests = b"".join(blake2b(uid.encode(), digest_size=8).digest() for uid in given)
        return Uids(np.frombuffer(digests, "<i8").astype(np.int64), "string")
    fits = values.dtype.kind == "i" or (values.dtype.kind == "u" and values.max() < 2**63)
    if fits and not any(issubclass(kind, bool | np.bool_) for kind in types):
        return Uids(values.astype(np.int64), "integer")
    raise ValueError(
        f"uids must be all integers (64 bit) or all strings, got {list(given)[:4]!r}…; "
        "give every prompt one stable uid"
    )


def merged_visits(
    rows: np.ndarray, successes: np.ndarray, trials: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Visits of distinct rows: a row that comes twice, side by side, is one visit with the counts added."""
    if not (rows[1:] == rows[:-1]).any():
        return rows, successes, trials
    rows, place_P = np.unique(rows, return_inverse=True)
    successes, trials = (np.bincount(place_P, n).astype(np.int64) for n in (successes, trials))
    return rows, successes, trials


def resized(array: np.ndarray, size: int, fill: int = 0) -> np.ndarray:
    """A copy with `size` rows."""
    new = np.full((size, *array.shape[1:]), fill, array.dtype)
    new[: len(array)] = array[:size]
    return new


class UidTable(Saved):
    """From uid to row: the known keys in increasing order, each with its row. 12 bytes a prompt."""

    state = ("kind", "keys_D", "rows_D")
    by_prompt = ("keys_D", "rows_D")

    def __init__(self) -> None:
        self.kind = ""
        self.keys_D, self.rows_D = np.zeros(0, np.int64), np.zeros(0, np.int32)

    def __len__(self) -> int:
        return len(self.keys_D)

    def find(self, uids: Uids) -> np.ndarray:
        """Rows (P,), −1 where a uid is unknown; ValueError for uids of another kind than those known."""
        if uids.kind and self.kind and uids.kind != self.kind:
            raise ValueError(
                f"uids are {uids.kind}s, but the prompts seen so far have {self.kind}s; "
                "keep to one kind of uid in a run"
            )
        if not len(self):
            return np.full(len(uids), -1)
        place_P = np.minimum(self.keys_D.searchsorted(uids.keys), len(self) - 1)
        return np.where(self.keys_D[place_P] == uids.keys, self.rows_D[place_P].astype(np.int64), -1)

    def add(self, uids: Uids) -> np.ndarray:
        """Rows (P,) of the uids, giving the next free rows to new ones in the order of their keys."""
        rows_P = self.find(uids)
        if (new_P := rows_P < 0).any():
            keys = np.unique(uids.keys[new_P])
            place, size = self.keys_D.searchsorted(keys), len(self)
            self.kind, self.keys_D = uids.kind, np.insert(self.keys_D, place, keys)
            self.rows_D = np.insert(self.rows_D, place, np.arange(size, size + len(keys)))
            rows_P = self.find(uids)
        return rows_P


class FadingCounts(Saved):
    """Beta posterior over a prompt's pass rate p, on counts that fade by 1 − 1/H at each visit.

    pass@k is E[1 − (1−p)^k] = 1 − Π_{i<k} (β+i)/(α+β+i) with α, β = ½ + the faded successes and failures.
    Its expectation does not depend on how many rollouts a visit had. Eight bytes a prompt.
    """

    state: ClassVar[tuple[str, ...]] = ("successes_D", "failures_D")
    by_prompt: ClassVar[tuple[str, ...]] = state
    prior = 0.5  # Jeffreys: pass@k of a new prompt is broad, not extreme

    def __init__(self, k: int, history: int) -> None:
        self.k, self.keep = k, np.float32(1.0 - 1.0 / history)
        self.successes_D, self.failures_D = np.zeros(0, np.float32), np.zeros(0, np.float32)

    def grow(self, capacity: int) -> None:
        """Make room for `capacity` rows."""
        for name in self.by_prompt:
            setattr(self, name, resized(getattr(self, name), capacity))

    def add(self, rows: np.ndarray, successes: np.ndarray, trials: np.ndarray) -> None:
        """Record a visit to each of some distinct rows, `successes` of `trials` rollouts correct, (P,)."""
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
    """(10) with a fixed k: rollouts queue up, and every k of them make one outcome c_t.

    A visit may end a block part of the way through its rollouts. These are exchangeable, so the number of
    successes before the cut is hypergeometric (drawn with seed `clock`): the expectation of an outcome
    depends on k alone, never on n. Keeps the last H outcomes; NaN until the first block is full. The faded
    counts are kept too: methods read pass rates from them.
    """

    by_prompt = (*FadingCounts.by_prompt, "entries_D", "outcomes_D", "queued_D", "correct_D")
    state = (*by_prompt, "clock")

    def __init__(self, k: int, history: int) -> None:
        super().__init__(k, history)
        self.history, self.clock = history, 0
        self.entries_D, self.outcomes_D = np.zeros(0, np.uint32), np.zeros((0, history), np.uint8)
        self.queued_D, self.correct_D = np.zeros((2, 0), np.uint16)

    def add(self, rows: np.ndarray, successes: np.ndarray, trials: np.ndarray) -> None:
        super().add(rows, successes, trials)
        self.clock += 1
        rng = np.random.default_rng(self.clock)
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


ESTIMATORS: dict[str, type[FadingCounts]] = {"beta": FadingCounts, "any_of_k": AnyOfK}
