"""The paper's estimate of pass@k, (10) as printed: how often any of k rollouts is correct."""

import numpy as np

from gdro.core.beliefs import FadingCounts


class AnyOfK(FadingCounts):
    """(10) with a fixed k: rollouts queue up, and every k of them make one outcome c_t.

    Where a block ends in the middle of a visit, it takes only some of the visit's rollouts. Their order has
    no meaning, so how many of these are correct is drawn from a hypergeometric distribution: the expectation
    of an outcome depends on k alone, not on the number of rollouts. The estimate is the mean of the last H
    outcomes, NaN before the first. The faded counts are kept too: methods read pass rates from them.
    """

    by_prompt = (*FadingCounts.by_prompt, "entries_D", "outcomes_D", "queued_D", "correct_D")
    state = (*by_prompt, "clock")

    def __init__(self, k: int, history: int) -> None:
        super().__init__(k, history)
        self.history, self.clock = history, 0
        self.entries_D, self.outcomes_D = np.zeros(0, np.uint32), np.zeros((0, history), np.uint8)
        self.queued_D, self.correct_D = np.zeros((2, 0), np.uint16)  # of the block that is not full yet

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
