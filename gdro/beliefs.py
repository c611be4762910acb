"""What is known of each prompt: counts of correct and wrong rollouts by uid, and estimates of pass@k.

State is keyed by uid, not by batch position. A uid table maps uids to rows; an estimator holds one entry a
row. Axes: P prompts, D all rows.
"""

from collections.abc import Sequence
from hashlib import blake2b
from typing import ClassVar, NamedTuple, cast

import numpy as np
from numpy.typing import ArrayLike

from gdro.metrics import all_wrong_probability
from gdro.saved import Saved


class Uids(NamedTuple):
    """Uids ready for look-up: 64-bit keys (P,) and their kind, "integer" or "string"."""

    keys: np.ndarray
    kind: str

    def __len__(self) -> int:
        return len(self.keys)


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
    plain_array = isinstance(uids, np.ndarray) and uids.dtype != object
    types = {values.dtype.type} if plain_array else set(map(type, given))
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


def resized(array: np.ndarray, size: int, fill: int = 0) -> np.ndarray:
    """A copy with `size` rows."""
    new = np.full((size, *array.shape[1:]), fill, array.dtype)
    new[: len(array)] = array[:size]
    return new


class UidTable(Saved):
    """From uid to row in 12 bytes a prompt: sorted keys beside their rows, which never change."""

    state = ("kind", "keys_D", "rows_D")
    resizes = True

    def __init__(self) -> None:
        self.kind = ""
        self.keys_D = np.zeros(0, np.int64)
        self.rows_D = np.zeros(0, np.int32)

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
        position = self.keys_D.searchsorted(uids.keys)
        position[position == len(self)] = 0
        return np.where(self.keys_D[position] == uids.keys, self.rows_D[position], -1)

    def add(self, uids: Uids) -> np.ndarray:
        """Rows (P,) of the uids, giving the next free rows to new ones in the order of their keys."""
        rows = self.find(uids)
        if (rows < 0).any():
            self.kind = uids.kind
            new = np.unique(uids.keys[rows < 0])
            position = np.searchsorted(self.keys_D, new)
            new_rows = np.arange(len(self), len(self) + len(new))
            self.keys_D = np.insert(self.keys_D, position, new)
            self.rows_D = np.insert(self.rows_D, position, new_rows)
            rows = self.find(uids)
        return rows


class Estimator(Saved):
    """Arrays with one entry a row: `numbers` of the types named, and `rings` of the last H bytes."""

    state = ("clock", "arrays")
    resizes = True
    numbers: ClassVar[dict[str, type]] = {"entries": np.uint32}
    rings: tuple[str, ...] = ()

    def __init__(self, k: int, history: int) -> None:
        self.k, self.history = k, history
        self.clock = 0  # calls of add so far: seeds what an estimator draws at random
        self.arrays: dict[str, np.ndarray] = {n: np.zeros(0, dtype) for n, dtype in self.numbers.items()}
        self.arrays |= {name: np.zeros((0, history), np.uint8) for name in self.rings}

    def add(self, rows: np.ndarray, successes: np.ndarray, trials: np.ndarray) -> None:
        """Record one visit to each (distinct) row: `successes` of `trials` rollouts were correct, (P,)."""
        raise NotImplementedError

    def pass_at_k(self, rows: np.ndarray) -> np.ndarray:
        """Estimated pass@k of each row, (P,); NaN where there is no data yet."""
        raise NotImplementedError

    def push(self, rows: np.ndarray, *values: np.ndarray) -> None:
        """One value more in each ring of each row, in place of its oldest."""
        slot = self.arrays["entries"][rows] % self.history
        for name, values_P in zip(self.rings, values, strict=True):
            self.arrays[name][rows, slot] = values_P
        self.arrays["entries"][rows] += 1

    def sums(self, rows: np.ndarray) -> list[np.ndarray]:
        """Sum of each ring, (P,)."""
        return [self.arrays[name][rows].sum(axis=1, dtype=np.int64) for name in self.rings]

    def grow(self, capacity: int) -> None:
        """Make room for `capacity` rows."""
        self.arrays = {name: resized(array, capacity) for name, array in self.arrays.items()}


class FadingCounts(Estimator):
    """Beta posterior over a prompt's pass rate p, on counts that fade by 1 − 1/H at each visit.

    pass@k is E[1 − (1−p)^k] = 1 − Π_{i<k} (β+i)/(α+β+i) with α, β = ½ + the faded successes and failures.
    Its expectation does not depend on how many rollouts a visit had. Eight bytes a prompt.
    """

    numbers: ClassVar = {"successes": np.float32, "failures": np.float32}
    prior = 0.5  # Jeffreys: pass@k of a new prompt is broad, not extreme

    def add(self, rows: np.ndarray, successes: np.ndarray, trials: np.ndarray) -> None:
        keep = np.float32(1.0 - 1.0 / self.history)
        for name, counts in (("successes", successes), ("failures", trials - successes)):
            self.arrays[name][rows] = keep * self.arrays[name][rows] + counts

    def counts(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Faded successes and failures, (P,) each."""
        return self.arrays["successes"][rows].astype(float), self.arrays["failures"][rows].astype(float)

    def pass_at_k(self, rows: np.ndarray) -> np.ndarray:
        successes, failures = self.counts(rows)
        beta, total = self.prior + failures, 2 * self.prior + successes + failures
        all_wrong = np.ones(len(beta))
        for i in range(self.k):
            all_wrong *= (beta + i) / (total + i)
        return np.where(successes + failures > 0, 1.0 - all_wrong, np.nan)


class UnbiasedPassAtK(Estimator):
    """1 − C(n−c, k)/C(n, k) on the counts of the last H visits, two bytes a visit; NaN below k rollouts."""

    rings = ("successes", "trials")

    def add(self, rows: np.ndarray, successes: np.ndarray, trials: np.ndarray) -> None:
        if trials.max(initial=0) > 255:
            raise ValueError(
                f"trials must be at most 255 a visit with estimator 'unbiased', got {trials.max()}; "
                "use estimator 'beta'"
            )
        self.push(rows, successes, trials)

    def pass_at_k(self, rows: np.ndarray) -> np.ndarray:
        successes, trials = self.sums(rows)
        enough = trials >= self.k
        estimate = 1.0 - all_wrong_probability(successes, np.where(enough, trials, self.k), self.k)
        return np.where(enough, estimate, np.nan)


class AnyOfN(Estimator):
    """One outcome a visit, "any of the n allotted is correct", as released: it moves with the allocation.

    Kept for notebook 01, which shows what that does.
    """

    rings = ("outcomes",)

    def add(self, rows: np.ndarray, successes: np.ndarray, trials: np.ndarray) -> None:
        self.push(rows, successes > 0)

    def pass_at_k(self, rows: np.ndarray) -> np.ndarray:
        outcomes = np.minimum(self.arrays["entries"][rows], self.history).astype(float)
        (hits,) = self.sums(rows)
        return np.divide(hits, outcomes, out=np.full(len(rows), np.nan), where=outcomes > 0)


class AnyOfK(AnyOfN):
    """(10) with a fixed k: rollouts queue up, and every k of them make one outcome c_t.

    A visit may end a block part of the way through its rollouts. These are exchangeable, so the number of
    successes before the cut is hypergeometric (drawn with seed `clock`): the expectation of an outcome
    depends on k alone, never on n. Keeps the last H outcomes; NaN until the first block is full.
    """

    numbers: ClassVar = {"entries": np.uint32, "queued_successes": np.uint16, "queued_trials": np.uint16}

    def add(self, rows: np.ndarray, successes: np.ndarray, trials: np.ndarray) -> None:
        self.clock += 1
        rng = np.random.default_rng(self.clock)
        correct, left = successes.copy(), trials.copy()  # of this visit, not queued yet
        queue, queued_correct = self.arrays["queued_trials"], self.arrays["queued_successes"]
        while left.any():
            take = np.minimum(self.k - queue[rows].astype(np.int64), left)
            hits = rng.hypergeometric(correct, left - correct, take)
            queued_correct[rows] += hits.astype(np.uint16)
            queue[rows] += take.astype(np.uint16)
            correct, left = correct - hits, left - take
            full = rows[queue[rows] == self.k]
            self.push(full, queued_correct[full] > 0)
            queue[full] = queued_correct[full] = 0


ESTIMATORS: dict[str, type[Estimator]] = {
    "beta": FadingCounts,
    "unbiased": UnbiasedPassAtK,
    "any_of_k": AnyOfK,
    "any_of_n": AnyOfN,
}
