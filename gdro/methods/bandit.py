"""The arms of Rollout-GDRO as a bandit, as printed: only the arm that was played is seen.

`gdro.methods.arms` has what every utility needs; here is what "loss" adds, arms that are sampled and losses
that are divided by the probability of sampling them. Axes: B bins, N arms, W rollouts spent beyond the
smallest arm.
"""

import numpy as np
from numpy.typing import ArrayLike

from gdro.methods.arms import spare_rollouts

LEAST_LOG_PROBABILITY = -600.0  # of a whole choice of arms: no product of the bins' own underflows
LEAST_PROBABILITY = 1e-9  # an importance weight is at most its inverse, so that no score overflows


def exp3p_losses(
    losses_B: ArrayLike, arms_B: ArrayLike, probabilities_BN: np.ndarray, bonus: float
) -> np.ndarray:
    """EXP3.P's estimated arm losses, (1[n chosen]·L − bonus)/p, (B, N).

    Dividing by p makes the estimate unbiased when bonus is 0; bonus > 0 keeps every arm optimistic
    (Auer et al. 2002, Bubeck and Cesa-Bianchi 2012, section 3.2). NaN in the rows of bins that played no
    arm, whose loss is NaN, and for arms that the budget makes infeasible (p = 0).
    """
    chosen_BN = np.arange(probabilities_BN.shape[1]) == np.asarray(arms_B)[:, None]
    played_B1 = np.asarray(losses_B, float)[:, None]
    gains_BN = np.where(chosen_BN, played_B1, 0.0) - bonus
    estimate_BN = gains_BN / np.maximum(probabilities_BN, LEAST_PROBABILITY)
    return np.where(np.isnan(played_B1) | ~(probabilities_BN > 0), np.nan, estimate_BN)


def sample_joint_arms(
    log_p_BN: np.ndarray, counts_B: ArrayLike, arms_N: ArrayLike, budget: int, rng: np.random.Generator
) -> tuple[np.ndarray, int, np.ndarray]:
    """Arms drawn from Π_b p_b(n_b), given that Σ_b c_b n_b = budget.

    Forward filtering, backward sampling. A probability below e^(−600/B) is raised to that, so that no product
    of B of them underflows to "unreachable".

    Returns:
        Rollouts (B,), those left over as in `gdro.methods.arms.best_joint_arms`, and the probability of each
        arm under the very distribution that was sampled, (B, N), by which an importance weight must divide.
    """
    counts_B, arms_N = np.asarray(counts_B), np.asarray(arms_N)
    (spare,) = spare_rollouts(counts_B[:, None], arms_N, np.array([budget]))
    p_BN = np.exp(np.maximum(log_p_BN, LEAST_LOG_PROBABILITY / max(int((counts_B > 0).sum()), 1)))
    # where to look up "the bins before spent w less what arm n spends"; the last entry of a table is for
    # amounts below 0, which have probability 0
    back_BNW = np.arange(spare + 1) - (counts_B[:, None] * np.arange(len(arms_N)))[..., None]
    back_BNW[back_BNW < 0] = spare + 1
    ways = np.zeros(spare + 2)
    ways[0] = 1.0
    before = [ways]  # [b][w]: probability that the bins before b spend w
    for p_N, back_NW in zip(p_BN, back_BNW, strict=True):
        before.append(np.append(p_N @ before[-1][back_NW], 0.0))
    most = spent = int(np.flatnonzero(before[-1] > 0)[-1])
    # [w]: up to a factor, the probability that the bins after b spend what is missing from w to `most`
    after_W = np.arange(spare + 2) == most
    chosen_B, given_BN = np.empty(len(counts_B), np.int64), np.empty_like(p_BN)
    for b in reversed(range(len(counts_B))):
        ladder_N = (p_BN[b] * before[b][back_BNW[b, :, spent]]).cumsum()
        chosen_B[b] = ladder_N.searchsorted(rng.random() * ladder_N[-1], side="right")
        spent -= counts_B[b] * chosen_B[b]
        joint_NW = p_BN[b][:, None] * after_W[: spare + 1]
        given_BN[b] = (joint_NW * before[b][back_BNW[b]]).sum(axis=1)
        after_W = np.bincount(back_BNW[b].ravel(), joint_NW.ravel(), spare + 2)
        after_W[-1] = 0.0
    given_BN /= given_BN.sum(axis=1, keepdims=True)
    return arms_N[chosen_B] * (counts_B > 0), int(spare - most), given_BN
