"""Closed forms of section 4 and appendix B: soft worst case, square-root law, staircase.

Pure functions of arrays. Axes: B bins, the last unless a docstring says otherwise, N arms; "..." is
anything in front (seeds, settings). Shares q̂ are fractions of the batch and sum to one over the
bins; rollouts are counts per prompt.
"""

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import logsumexp, softmax


def soft_worst_case(losses: ArrayLike, eta: float) -> tuple[np.ndarray, np.ndarray]:
    """Entropy-regularized worst case over the bins, (...), and the q that attains it, (22)–(24).

    max_q {Σ q_b L_b + H(q)/η} = (1/η) log Σ exp(η L_b), attained by q = softmax(η L), (..., B), by
    which its gradient mixes those of the losses, (26).
    """
    scaled = eta * np.asarray(losses)
    return logsumexp(scaled, axis=-1) / eta, softmax(scaled, axis=-1)


def soft_worst_case_bounds(losses: ArrayLike, eta: float) -> tuple[np.ndarray, np.ndarray]:
    """max L ≤ R_η ≤ max L + log(B)/η, (25), as (lower, upper), each (..., B) → (...)."""
    worst = np.max(losses, axis=-1)
    return worst, worst + np.log(np.shape(losses)[-1]) / eta


def variance_proxy(variances: ArrayLike, shares: ArrayLike, rollouts: ArrayLike) -> np.ndarray:
    """VarProxy(n) = Σ_b q̂_b v_b / n_b, (28). (..., B) → (...).

    It stands for the variance of a gradient in which every prompt counts once
    (`averaging="prompt"`), not of one in which every rollout does.
    """
    return np.sum(np.asarray(shares) * np.asarray(variances) / np.asarray(rollouts), axis=-1)


def square_root_allocation(
    variances: ArrayLike, shares: ArrayLike, mean_rollouts: float
) -> np.ndarray:
    """Minimizer of the variance proxy at Σ_b q̂_b n_b = n̄, n_b* = n̄ √v_b / Σ_j q̂_j √v_j, (30).

    (..., B); NaN where no bin with a share has any variance: then every allocation is optimal.
    """
    return demand_at_price(variances, shadow_price(variances, shares, mean_rollouts)[..., None])


def shadow_price(variances: ArrayLike, shares: ArrayLike, mean_rollouts: float) -> np.ndarray:
    """Price at which demand (31) meets the budget, μ* = (Σ_j q̂_j √v_j / n̄)², (..., B) → (...)."""
    return (np.sum(np.asarray(shares) * np.sqrt(variances), axis=-1) / mean_rollouts) ** 2


def demand_at_price(variances: ArrayLike, price: ArrayLike) -> np.ndarray:
    """Rollouts a bin buys at price μ, n_b(μ) = √(v_b/μ), (31). Real-valued, (..., B)."""
    return np.sqrt(np.asarray(variances) / np.asarray(price))


def staircase(variances: ArrayLike, price: ArrayLike, arms: ArrayLike) -> np.ndarray:
    """Demand when only the arms can be bought: argmin_n v_b/n + μ n, the smaller n on a tie.

    Variances and the result are (..., B), the price is ≥ 0, a number or (...), and the arms are
    (N,), positive and increasing.
    """
    arms_N = np.asarray(arms)
    cost_BN = (
        np.asarray(variances)[..., None] / arms_N + np.asarray(price)[..., None, None] * arms_N
    )
    return arms_N[cost_BN.argmin(axis=-1)]
