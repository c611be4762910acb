"""Scores of bins or arms: batch means, their moving averages, the correction for the start at 0.

Bins are the last axis, behind any others (seeds, settings), but in `debias`, where they are the
first. P prompts, B bins.
"""

import numpy as np
from numpy.typing import ArrayLike


def bin_means(
    bin_ids_P: ArrayLike, values_P: ArrayLike, num_bins: int, weights_P: ArrayLike | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Mean value by bin, ℓ̄_t(b) of (13): (means (B,), NaN where absent; counts (B,)).

    Bin −1 (not seen yet) and NaN are left out; `weights_P` say how much each prompt counts.
    """
    bin_ids_P = np.asarray(bin_ids_P, np.int64)
    values_P = np.asarray(values_P, float)
    counted = (bin_ids_P >= 0) & ~np.isnan(values_P)
    bins = bin_ids_P[counted]
    values = values_P[counted]
    counts_B = np.bincount(bins, minlength=num_bins)
    weights = np.ones(len(bins)) if weights_P is None else np.asarray(weights_P, float)[counted]
    totals_B = np.bincount(bins, weights, num_bins)
    sums_B = np.bincount(bins, weights * values, num_bins)
    return sums_B / np.where(totals_B > 0, totals_B, np.nan), counts_B


def ema_scores(scores: np.ndarray, means: np.ndarray, ema: float) -> np.ndarray:
    """S_t(b) = (1−β) S_{t−1}(b) + β ℓ̄_t(b), (12); a bin without a mean (NaN) keeps its score."""
    return np.where(np.isnan(means), scores, (1 - ema) * scores + ema * means)


def debias(ema_scores: np.ndarray, visits: np.ndarray, ema: float) -> np.ndarray:
    """Scores without the pull of their start at 0: EMA / (1 − (1−β)^visits), bins along axis 0.

    What was never visited gets the mean of the visited bins (0 if there are none), so that it is
    neither favoured nor starved.
    """
    correction = 1.0 - (1.0 - ema) ** visits  # the part of a score that is not its start
    visited = visits > 0
    scores = np.divide(ema_scores, correction, out=np.zeros(correction.shape), where=visited)
    return np.where(visited, scores, scores.sum(axis=0) / np.maximum(visited.sum(axis=0), 1))
