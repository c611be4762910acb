"""What the two games share: scores of the bins, and which rollouts count. P prompts, B bins."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from gdro.core.checks import check_choice, option
from gdro.methods.base import Batch, Method


def bin_means(
    bin_ids_P: ArrayLike, values_P: ArrayLike, num_bins: int, weights_P: ArrayLike | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Mean value by bin, ℓ̄_t(b) of (13): (means (B,), NaN where absent; counts (B,)).

    Bin −1 (not seen yet) and NaN are left out; `weights_P` say how much each prompt counts.
    """
    bin_ids_P, values_P = np.asarray(bin_ids_P), np.asarray(values_P, float)
    counted = (bin_ids_P >= 0) & ~np.isnan(values_P)
    bins, values = bin_ids_P[counted], values_P[counted]
    counts_B = np.bincount(bins, minlength=num_bins)
    weights = np.ones(len(bins)) if weights_P is None else np.asarray(weights_P, float)[counted]
    totals_B = np.bincount(bins, weights, num_bins)
    sums_B = np.bincount(bins, weights * values, num_bins)
    return sums_B / np.where(totals_B > 0, totals_B, np.nan), counts_B


def ema_scores(scores: np.ndarray, means: np.ndarray, ema: float) -> np.ndarray:
    """S_t(b) = (1−β) S_{t−1}(b) + β ℓ̄_t(b), (12); a bin without a mean (NaN) keeps its score."""
    return np.where(np.isnan(means), scores, (1 - ema) * scores + ema * means)


def debiased(ema_scores: np.ndarray, visits: np.ndarray, ema: float, bin_axis: int = 0) -> np.ndarray:
    """Scores freed of their start at 0: EMA / (1 − (1−β)^visits).

    What was never visited gets the mean of the visited bins (0 if there are none), so that it is neither
    favoured nor starved. `ema_scores` and `visits` have one shape, with bins along `bin_axis`.
    """
    correction = 1.0 - (1.0 - ema) ** visits  # the part of a score that is not its start
    if visits.all():
        return ema_scores / correction
    visited = visits > 0
    scores = np.divide(ema_scores, correction, out=np.zeros(correction.shape), where=visited)
    mean = scores.sum(bin_axis, keepdims=True) / np.maximum(visited.sum(bin_axis, keepdims=True), 1)
    return np.where(visited, scores, mean)


@dataclass(eq=False)
class BinGame(Method):
    """A method that sees prompts by their bins alone."""

    # What counts equally in the means (17) and in the gradient. "rollout": every rollout, as in TRL's loss.
    # "prompt": every prompt, however many rollouts it has, as printed. Then moving rollouts changes the noise
    # of a prompt's gradient and not its size.
    averaging: str = option("rollout", check_choice, ("rollout", "prompt"))

    def counts(self, batch: Batch) -> np.ndarray | None:
        """How much each prompt counts in the mean of its bin, (P,); None for equally."""
        return batch.trials_P if self.averaging == "rollout" else None

    def weights(self, batch: Batch) -> np.ndarray:
        if self.averaging == "rollout" or not self.moves_rollouts:
            return np.ones(len(batch))
        return self.run.mean_rollouts / batch.trials_P
