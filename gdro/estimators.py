"""Estimates of pass@k from a prompt's visits: a posterior on fading counts, or the paper's window.

Axes: P prompts, D seen so far.
"""

from typing import ClassVar

import numpy as np

from gdro.state import Stateful


def resize(array: np.ndarray, size: int, fill: int = 0) -> np.ndarray:
    """A copy with `size` rows; new ones hold `fill`."""
    new = np.full((size, *array.shape[1:]), fill, array.dtype)
    new[: len(array)] = array[:size]
    return new


class FadingCounts(Stateful):
    """Beta posterior over a prompt's pass rate p, on counts that fade by 1 − 1/H at each visit.

    pass@k is E[1 − (1−p)^k] = 1 − Π_{i<k} (β+i)/(α+β+i) with α, β = ½ + the faded successes and
    failures. The estimate is pulled towards the prior, less so the more rollouts a prompt has had.
    """

    state: ClassVar[tuple[str, ...]] = ("successes_D", "failures_D")
    by_row: ClassVar[tuple[str, ...]] = state  # arrays with a row for each prompt
    prior = 0.5  # Jeffreys' prior, under which pass@k of a new prompt can be almost anything

    def __init__(self, k: int, history: int) -> None:
        self.k = k
        self.keep = np.float32(1.0 - 1.0 / history)  # float32, as the counts are
        self.successes_D = np.zeros(0, np.float32)
        self.failures_D = np.zeros(0, np.float32)

    def grow(self, rows: int) -> None:
        """Resize to a number of rows."""
        for name in self.by_row:
            setattr(self, name, resize(getattr(self, name), rows))

    def add(self, rows: np.ndarray, successes: np.ndarray, trials: np.ndarray) -> None:
        """Record a visit to each of some distinct rows: successes of trials, (P,) each."""
        self.successes_D[rows] = self.keep * self.successes_D[rows] + successes
        self.failures_D[rows] = self.keep * self.failures_D[rows] + (trials - successes)

    def counts(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Faded successes and failures, (P,) each."""
        return self.successes_D[rows].astype(float), self.failures_D[rows].astype(float)

    def pass_at_k(self, rows: np.ndarray) -> np.ndarray:
        """Estimate of pass@k, (P,); NaN where there is no data yet."""
        successes, failures = self.counts(rows)
        beta = self.prior + failures
        total = self.prior + successes + beta
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
        self.history = history
        self.clock = 0  # calls of `add`
        self.entries_D = np.zeros(0, np.uint32)  # blocks that were completed
        self.outcomes_D = np.zeros((0, history), np.uint8)
        # of the block that is not full yet
        self.queued_D = np.zeros(0, np.uint16)
        self.correct_D = np.zeros(0, np.uint16)

    def add(self, rows: np.ndarray, successes: np.ndarray, trials: np.ndarray) -> None:
        super().add(rows, successes, trials)
        self.clock += 1
        # bins know no seed of a run; the calls so far are saved, so a resumed run draws the same
        rng = np.random.default_rng(self.clock)
        # of this visit, not queued yet; a pass rate that was measured before may give fractions
        correct = np.rint(successes).astype(np.int64)
        left = trials.copy()
        while left.any():
            take = np.minimum(self.k - self.queued_D[rows].astype(np.int64), left)
            hits = rng.hypergeometric(correct, left - correct, take)
            self.correct_D[rows] += hits.astype(np.uint16)
            self.queued_D[rows] += take.astype(np.uint16)
            correct = correct - hits
            left = left - take
            full = rows[self.queued_D[rows] == self.k]
            # a ring: the outcome after the last H takes the place of the oldest
            self.outcomes_D[full, self.entries_D[full] % self.history] = self.correct_D[full] > 0
            self.entries_D[full] += 1
            self.queued_D[full] = 0
            self.correct_D[full] = 0

    def pass_at_k(self, rows: np.ndarray) -> np.ndarray:
        entries = np.minimum(self.entries_D[rows], self.history).astype(float)
        hits = self.outcomes_D[rows].sum(axis=1)
        return np.divide(hits, entries, out=np.full(len(rows), np.nan), where=entries > 0)


ESTIMATORS: dict[str, type[FadingCounts]] = {"beta": FadingCounts, "any_of_k": AnyOfK}
