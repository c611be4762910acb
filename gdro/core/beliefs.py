"""What is known of each prompt: counts of correct and wrong rollouts, and from them an estimate of pass@k.

What is known belongs to a uid, not to a place in a batch: `gdro.core.uids` gives each uid a row that never
changes, and the counts have one entry for each row. Axes: P prompts, D prompts seen so far.
"""

from typing import ClassVar

import numpy as np

from gdro.core.arrays import resized
from gdro.core.saved import Saved


class FadingCounts(Saved):
    """Beta posterior over a prompt's pass rate p, on counts that fade by 1 − 1/H at each visit.

    pass@k is E[1 − (1−p)^k] = 1 − Π_{i<k} (β+i)/(α+β+i) with α, β = ½ + the faded successes and failures.
    Its expectation does not depend on how many rollouts a visit had. Eight bytes a prompt.
    """

    state: ClassVar[tuple[str, ...]] = ("successes_D", "failures_D")
    by_prompt: ClassVar[tuple[str, ...]] = state
    prior = 0.5  # Jeffreys: pass@k of a new prompt is broad, not extreme

    def __init__(self, k: int, history: int) -> None:
        self.k, self.keep = k, np.float32(1.0 - 1.0 / history)  # float32, as the counts are
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
