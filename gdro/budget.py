"""Whole rollouts that spend a budget exactly. P prompts of a batch."""

import math

import numpy as np
from scipy.optimize import brentq

from gdro.checks import Refusal, check


def as_whole(name: str, value: float, low: int, high: float = math.inf) -> int:
    """`value` as an int in [low, high] if it is whole up to rounding: 4.1 × 30 is below 123."""
    value = check(name, value, ge=low, le=high)
    nearest = round(value)
    if abs(value - nearest) > 1e-9 * max(abs(value), 1.0):
        raise Refusal(f"{name} must be a whole number, got {value}")
    return nearest


def exact_rollouts(
    shares_P: np.ndarray, total: int, low: int, high: int, rng: np.random.Generator
) -> np.ndarray:
    """Integers in [low, high] that sum to the total, in proportion to the shares, (P,).

    The shares are clipped to the bounds, and where they then miss the total, scaled by the one
    factor that meets it. Ties between equal remainders are random.

    Args:
        shares_P: numbers ≥ 0, not all 0.
        total: of the rollouts, from P · low to P · high.
        low, high: bounds on each prompt's rollouts.
        rng: for ties.
    """
    scaled_P = np.clip(shares_P, low, high)
    if abs(scaled_P.sum() - total) > 1e-6:
        scaled_P = _scale(shares_P / shares_P.max(), total, low, high)
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


def spread_evenly(
    rollouts_P: np.ndarray, left: int, most_P: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """The rollouts with `left` more, as even as whole numbers and upper bounds allow, (P,).

    Args:
        rollouts_P: so far.
        left: ≥ 0, to add; what the bounds leave no room for is not added.
        most_P: upper bound on each.
        rng: for who gets one more.
    """
    rollouts_P = rollouts_P.copy()
    while left:
        open_P = np.flatnonzero(rollouts_P < most_P)
        if not len(open_P):
            break
        each, one_more = divmod(left, len(open_P))
        more = each + (rng.permutation(len(open_P)) < one_more)
        more = np.minimum(more, (most_P - rollouts_P)[open_P])
        rollouts_P[open_P] += more
        left -= int(more.sum())
    return rollouts_P


def _scale(share_P: np.ndarray, total: int, low: int, high: int) -> np.ndarray:
    """clip(factor × share, low, high) with the factor for which it sums to the total."""
    share_P = np.maximum(share_P, 1e-9)  # so that a share of 0 can take what others cannot

    # the sum grows with the factor, so one meets the total; shares may differ by magnitudes, so it
    # is sought by its logarithm
    def clipped(log_factor: float) -> np.ndarray:
        return np.clip(np.exp(log_factor) * share_P, low, high)

    all_low = math.log(max(low, 1e-6)) - 1.0
    all_high = math.log(high / share_P.min()) + 1.0
    return clipped(brentq(lambda x: clipped(x).sum() - total, all_low, all_high))
