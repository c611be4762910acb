"""Closed forms of section 4 and appendix B: soft worst case, square-root law, staircase, regret.

Pure functions of arrays. Axes: B bins, N arms, S anything in front (seeds, settings); bins are
the last axis unless a docstring says otherwise. Shares q̂ are fractions of the batch and sum to
one along B; rollouts are counts per prompt.
"""

import numpy as np
from scipy.special import logsumexp, softmax


def soft_worst_case(losses, eta):
    """Entropy-regularized worst case over the bins and the q that attains it, (22)–(24).

    max_q {Σ q_b L_b + H(q)/η} = (1/η) log Σ exp(η L_b), attained by q = softmax(η L).

    losses: (..., B). eta: positive. Returns (value (...), q (..., B)).
    Raises ValueError if eta is not positive and finite or a loss is not finite.
    """
    losses = _finite(losses, "losses")
    _check_eta(eta)
    return logsumexp(eta * losses, axis=-1) / eta, softmax(eta * losses, axis=-1)


def soft_worst_case_bounds(losses, eta):
    """max L ≤ R_η ≤ max L + log(B)/η, (25). Returns (lower (...), upper (...))."""
    losses = _finite(losses, "losses")
    _check_eta(eta)
    worst = losses.max(axis=-1)
    return worst, worst + np.log(losses.shape[-1]) / eta


def mixture_gradient(losses, gradients, eta):
    """Gradient of the soft worst case: the bins' gradients mixed by softmax(η L), (26).

    losses: (..., B). gradients: (..., B, D). Returns (..., D).
    """
    _, q = soft_worst_case(losses, eta)
    return np.einsum("...b,...bd->...d", q, np.asarray(gradients, float))


def duality_gap_bound(regret_theta, regret_q, horizon):
    """Bound on the duality gap of the time-averaged play, (27)."""
    if not horizon > 0:
        raise ValueError(f"horizon must be positive, got {horizon}; give the number of steps played")
    return (np.asarray(regret_theta, float) + regret_q) / horizon


def hedge_regret_bound(num_arms, horizon, loss_range=1.0):
    """Regret of exponential weights at its best fixed step size, full information.

    range · √(T log N / 2), for losses in an interval of length `loss_range`.
    """
    return loss_range * np.sqrt(np.asarray(horizon, float) * np.log(num_arms) / 2)


def exp3p_regret_bound(num_arms, horizon, delta=0.05, loss_range=1.0):
    """High-probability regret of EXP3.P under bandit feedback.

    range · 5.15 √(T N log(N/δ)), with probability 1 − δ (Bubeck and Cesa-Bianchi 2012, thm 3.3).
    """
    horizon = np.asarray(horizon, float)
    return loss_range * 5.15 * np.sqrt(horizon * num_arms * np.log(num_arms / delta))


def variance_proxy(variances, shares, rollouts):
    """VarProxy(n) = Σ_b q̂_b v_b / n_b, (28). All (..., B); returns (...)."""
    return np.sum(np.asarray(shares) * np.asarray(variances) / np.asarray(rollouts), axis=-1)


def square_root_allocation(variances, shares, mean_rollouts):
    """Minimizer of the variance proxy at a fixed mean, n_b* = n̄ √v_b / Σ_j q̂_j √v_j, (30).

    variances, shares: (..., B), variances ≥ 0 and not all zero where shares are positive.
    Returns real-valued rollouts (..., B); Σ_b q̂_b n_b* = n̄.
    Raises ValueError for negative or all-zero variances and for shares that do not sum to one.
    """
    root_v, shares = _root_variances(variances, shares)
    _positive_mean(mean_rollouts)
    return mean_rollouts * root_v / np.sum(shares * root_v, axis=-1, keepdims=True)


def shadow_price(variances, shares, mean_rollouts):
    """The price at which the bins' own demand (31) meets the budget: μ* = (Σ_j q̂_j √v_j / n̄)².

    Units: variance per rollout. Arguments as in `square_root_allocation`; returns (...).
    """
    root_v, shares = _root_variances(variances, shares)
    _positive_mean(mean_rollouts)
    return (np.sum(shares * root_v, axis=-1) / mean_rollouts) ** 2


def demand_at_price(variances, price):
    """Rollouts a bin buys at price μ, n_b(μ) = √(v_b/μ), (31). Real-valued, (..., B)."""
    if not np.all(np.asarray(price) > 0):
        raise ValueError(f"price must be positive, got {price}; at price 0 demand has no bound")
    return np.sqrt(np.asarray(variances, float) / price)


def staircase(variances, price, arms):
    """Demand when only the arms can be bought: argmin_n v_b/n + μ n, the smaller n on a tie.

    variances: (..., B). price: scalar or (...) against them. arms: (N,), increasing.
    Returns rollouts (..., B), a decreasing step function of the price.
    """
    arms_N = np.asarray(arms)
    variances = np.asarray(variances, float)[..., None]
    cost = variances / arms_N + np.asarray(price, float)[..., None, None] * arms_N
    return arms_N[cost.argmin(axis=-1)]


def _check_eta(eta):
    if not 0 < eta < np.inf:
        raise ValueError(f"eta must be positive and finite, got {eta}; its limit at ∞ is max(losses)")


def _finite(values, name):
    values = np.asarray(values, float)
    if values.ndim == 0 or not np.isfinite(values).all():
        raise ValueError(
            f"{name} must be finite with bins on the last axis, got {values!r}; "
            "leave out the bins that have no loss yet"
        )
    return values


def _root_variances(variances, shares):
    variances, shares = np.asarray(variances, float), np.asarray(shares, float)
    if (variances < 0).any() or not (np.sum(shares * variances, axis=-1) > 0).all():
        raise ValueError(
            f"variances must be ≥ 0 and positive in some bin that has a share, got {variances}; "
            "with no variance anywhere every allocation is optimal"
        )
    if (shares < 0).any() or not np.allclose(shares.sum(axis=-1), 1.0):
        raise ValueError(
            f"shares must be ≥ 0 and sum to one over the bins, got {shares}; "
            "divide the bin counts by the number of prompts"
        )
    return np.sqrt(variances), shares


def _positive_mean(mean_rollouts):
    if not np.all(np.asarray(mean_rollouts) > 0):
        raise ValueError(f"mean_rollouts must be positive, got {mean_rollouts}; it is n̄ of (19)")
