"""Scores and diagnostics of a run: what is correct, pass@k, shares of bins, lead–lag, WSE.

Axes: P prompts, B bins (0 hardest); "..." is anything in front. All functions are pure.
"""

from collections.abc import Iterable

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import entr

from gdro.checks import check, check_array


def is_correct(rewards: ArrayLike, threshold: float = 0.0) -> np.ndarray:
    """Whether rollouts with these rewards count as correct: above the threshold; any shape.

    NaN is not, nor is the threshold itself: .1 is .10000000149 where it went through float32.
    """
    with np.errstate(over="ignore"):
        return np.asarray(rewards, np.float32) > np.float32(threshold)


def count_distinct(texts: Iterable[str], correct: Iterable[bool]) -> int:
    """Different texts among the correct completions of a prompt, compared without outer spaces."""
    return len({text.strip() for text, is_right in zip(texts, correct, strict=True) if is_right})


def pass_at_k(successes: ArrayLike, trials: ArrayLike, k: int) -> np.ndarray:
    """Unbiased pass@k of c successes in n ≥ k trials, 1 − C(n−c, k)/C(n, k) (Chen et al. 2021)."""
    check("k", k, int, ge=1)
    successes, trials = check_counts(successes, trials, k)
    return 1.0 - all_wrong_probability(successes, trials, k)


def all_wrong_probability(successes: np.ndarray, trials: np.ndarray, k: int) -> np.ndarray:
    """C(n−c, k)/C(n, k) as the product of k ratios, exact at 0 and 1; arguments are not checked."""
    trials = np.asarray(trials, float)
    wrong = trials - successes
    probability = np.ones(wrong.shape)
    for i in range(k):
        probability = probability * np.maximum(wrong - i, 0.0) / (trials - i)
    return probability


def mean_bin_index(shares: ArrayLike) -> np.ndarray:
    """Σ_b b·share_b, the y-axis of the paper's figures 4 and 8. (..., B) → (...)."""
    return np.asarray(shares) @ np.arange(np.shape(shares)[-1])


def effective_number(probabilities: ArrayLike) -> np.ndarray:
    """exp(entropy): bins of an even distribution with the same entropy. (..., B) → (...)."""
    return np.exp(entr(np.asarray(probabilities)).sum(axis=-1))  # 0·log 0 = 0


def lead_lag(weights: ArrayLike, shares: ArrayLike) -> np.ndarray:
    """Δμ(t) = Σ_b b·ŵ_t(b) − Σ_b b·q_t(b), (32), with ŵ the weights ≥ 0 normalized over the bins.

    Negative: the adversary's mean bin is harder than that of the data. (..., B) → (...).
    """
    weights = np.asarray(weights)
    total = weights.sum(axis=-1, keepdims=True)
    return mean_bin_index(weights / total) - mean_bin_index(shares)


def weighted_standard_error(
    deviations: ArrayLike, shares: ArrayLike, rollouts: ArrayLike
) -> np.ndarray:
    """WSE(t) = Σ_b q_t(b) σ̂_b / √n_b(t), (33). (..., B) → (...).

    Like (28), it is about a mean in which every prompt counts once, however many rollouts it has.
    Bins with share 0 do not count; shares may sum to less than one, as new prompts have no bin.
    """
    q, sigma, n = np.broadcast_arrays(shares, deviations, rollouts)
    errors = np.divide(q * sigma, np.sqrt(n), out=np.zeros(q.shape), where=q > 0)
    return errors.sum(axis=-1)


def check_counts(
    successes: ArrayLike, trials: ArrayLike, needed: int, shape: tuple[int, ...] | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Integer arrays of one shape with 0 ≤ successes ≤ trials and trials ≥ needed."""
    trials = check_array("trials", trials, shape, needed, whole=True)
    successes = check_array("successes", successes, trials.shape, 0, trials, whole=True)
    return successes, trials
