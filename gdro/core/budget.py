"""Whole rollouts within bounds that spend a budget exactly. Axes: P prompts."""

import math

import numpy as np
from scipy.optimize import brentq


def as_whole(value: float) -> int | None:
    """`value` as an int if it is whole up to rounding error (4.1 × 30 comes out below 123), else None."""
    nearest = round(value)
    return nearest if abs(value - nearest) <= 1e-9 * max(abs(value), 1.0) else None


def exact_rollouts(
    wanted_P: np.ndarray, total: int, low: int, high: int, rng: np.random.Generator
) -> np.ndarray:
    """Integers in [low, high] that sum to the total and are nearest to what was wanted, (P,).

    `wanted_P` are numbers ≥ 0, not all 0. They are clipped to the bounds, and where they then miss the total,
    scaled by the one factor that meets it. Ties between equal remainders are random.
    """
    scaled_P = np.clip(wanted_P, low, high)
    if abs(scaled_P.sum() - total) > 1e-6:
        scaled_P = _scaled(wanted_P / wanted_P.max(), total, low, high)
    floor_P = np.floor(scaled_P + 1e-9)  # 3.9999… is 4
    rollouts_P = floor_P.astype(np.int64)
    left = total - int(rollouts_P.sum())
    if left == 0:
        return rollouts_P
    rest_P = np.round(scaled_P - floor_P, 9)  # equal remainders stay equal, whatever their rounding
    by_rest_P = np.lexsort((rng.random(len(rest_P)), -rest_P))  # largest first, ties at random
    step = 1 if left > 0 else -1
    while left:  # a second pass only where the bounds leave no other way
        within_P = rollouts_P < high if step > 0 else rollouts_P > low
        chosen = by_rest_P[within_P[by_rest_P]][: abs(left)]
        rollouts_P[chosen] += step
        left -= step * len(chosen)
    return rollouts_P


def _scaled(share_P: np.ndarray, total: int, low: int, high: int) -> np.ndarray:
    """clip(factor × share, low, high) with the factor for which it sums to the total."""
    share_P = np.maximum(share_P, 1e-9)  # what is wanted least can still take the rest

    # the sum grows with the factor, so one meets the total; logarithms, as shares may differ by magnitudes
    def clipped(log_factor: float) -> np.ndarray:
        return np.clip(np.exp(log_factor) * share_P, low, high)

    bottom, top = math.log(max(low, 1e-6)) - 1.0, math.log(high / share_P.min()) + 1.0  # all low, all high
    if clipped(bottom).sum() >= total:
        return clipped(bottom)
    if clipped(top).sum() <= total:
        return clipped(top)
    return clipped(brentq(lambda log_factor: clipped(log_factor).sum() - total, bottom, top))
