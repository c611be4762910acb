"""The interval of a paired difference, Student's t over replicates, with Holm's correction.

`bootstrap_interval`, over seeds and prompts, is that of the table of `make run`, which has two
seeds. Axes: S seeds or replicates, P held-out prompts.
"""

from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy import stats

from gdro.checks import check_array


class Interval(NamedTuple):
    """A mean, half of its 95% interval, and p of the hypothesis that it is 0."""

    mean: np.ndarray
    half: np.ndarray
    p: np.ndarray

    @property
    def low(self) -> np.ndarray:
        """The lower end."""
        return self.mean - self.half

    @property
    def high(self) -> np.ndarray:
        """The upper end."""
        return self.mean + self.half


def paired_t(differences_S: ArrayLike) -> Interval:
    """Student's t over replicates, the last axis.

    There is no interval (NaN) where these are fewer than two, or all the same.
    """
    differences_S = np.asarray(differences_S, float)
    count = differences_S.shape[-1]
    if count < 2:
        mean = differences_S.sum(axis=-1) if count else np.nan * differences_S.sum(axis=-1)
        return Interval(mean, np.nan * mean, np.nan * mean)
    mean = differences_S.mean(axis=-1)
    deviation = differences_S.std(axis=-1, ddof=1)
    # differences that should be equal differ by rounding
    error = np.where(deviation > 1e-12, deviation, np.nan) / np.sqrt(count)
    half = stats.t.ppf(0.975, count - 1) * error
    return Interval(mean, half, 2 * stats.t.sf(np.abs(mean) / error, count - 1))


def holm(p: pd.Series) -> pd.Series:
    """Holm's correction of these p-values; NaN stays and is not counted."""
    known = p.dropna().sort_values()
    # cummax: once a test is not rejected, none after it is
    corrected = (known * np.arange(len(known), 0, -1)).cummax().clip(upper=1)
    return corrected.reindex(p.index)


def bootstrap_interval(
    values_SP: ArrayLike, rng: np.random.Generator, resamples: int = 2000
) -> tuple[float, float]:
    """95% percentile bootstrap interval of the mean over seeds and prompts, drawn independently.

    Redrawing S seeds reproduces only 1 − 1/S of their variance, so the seeds' means are first moved
    apart by √(S/(S−1)). With two seeds the interval is still too narrow; with one it does not cover
    other seeds. `values_SP` are finite: every seed is evaluated on the same prompts.
    """
    values_SP = np.atleast_2d(check_array("values_SP", values_SP))
    num_seeds = len(values_SP)
    if num_seeds > 1:
        deviation_S = values_SP.mean(axis=1) - values_SP.mean()
        values_SP = values_SP + (np.sqrt(num_seeds / (num_seeds - 1)) - 1) * deviation_S[:, None]

    def redraw(size: int) -> np.ndarray:
        """The fraction of each resample's draws that fell on each seed, or on each prompt."""
        drawn = rng.integers(size, size=(resamples, size))
        return np.apply_along_axis(np.bincount, 1, drawn, minlength=size) / size

    seed_weights, prompt_weights = map(redraw, np.shape(values_SP))
    means = ((seed_weights @ values_SP) * prompt_weights).sum(axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)
