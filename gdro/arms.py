"""The arms of Rollout-GDRO (section 3.3): strategies, the price, and the joint choice of all bins.

An arm is a number of rollouts that every prompt of a bin gets. Each bin has a strategy, a
distribution over the arms; the budget of the batch ties the bins together. Axes: B bins, N arms, W
rollouts spent beyond the smallest arm.
"""

import math

import numpy as np
from numpy.typing import ArrayLike

from gdro.checks import check_array

UNREACHABLE = -(2**62)  # below any sum of keys, and far enough from overflow to add one
LEAST_LOG_PROBABILITY = -600.0  # of a whole choice of arms: no product of the bins' own underflows
LEAST_PROBABILITY = 1e-9  # an importance weight is at most its inverse, so that no score overflows


def arm_log_probabilities(losses_BN: np.ndarray, eta: float, gamma: float) -> np.ndarray:
    """log p_b(n), exponential weights over arm losses mixed with a uniform share γ. (..., B, N)."""
    scores_BN = -eta * losses_BN
    scores_BN -= scores_BN.max(axis=-1, keepdims=True)  # a common factor cancels, none overflows
    odds_BN = np.exp(scores_BN)
    total_B = odds_BN.sum(axis=-1, keepdims=True)
    if gamma == 0:
        return scores_BN - np.log(total_B)  # exact where the odds underflow
    return np.log((1 - gamma) * odds_BN / total_B + gamma / odds_BN.shape[-1])


def best_joint_arms(
    values_BN: ArrayLike, counts_B: ArrayLike, arms_N: ArrayLike, budget: int
) -> tuple[np.ndarray, int]:
    """Arms that maximize Σ_b values_b(n_b) among those with Σ_b c_b n_b = budget, exactly.

    Ties go to the choice nearest to an even split, of smallest Σ_b c_b (n_b − budget/Σc)². Where
    these tie as well, the bins' counts and values decide, never their order.

    Args:
        values_BN: (B, N).
        counts_B: (B,), prompts in each bin; a bin without prompts gets 0 rollouts.
        arms_N: (N,), consecutive integers.
        budget: rollouts of the whole batch.

    Returns:
        Rollouts (B,), and how many are left over: where no choice meets the budget, the largest
        amount below it is spent.
    """
    counts_B = np.asarray(counts_B)
    arms_N = np.asarray(arms_N)
    spare = spare_rollouts(counts_B, arms_N, budget)
    # an empty bin spends nothing whatever its arm, so no arm of it may add to the sum
    values_BN = np.where(counts_B[:, None] > 0, values_BN, 0.0)
    # sorted by count, then by the values from the last arm to the first, so that the numbering of
    # the bins has no effect
    order_B = np.lexsort((*values_BN.T, counts_B))
    keys_BN = _tie_broken_keys(values_BN[order_B], counts_B[order_B], spare)
    chosen_B, left = _best_choices(keys_BN, counts_B[order_B], spare)
    rollouts_B = np.empty_like(counts_B)  # in the order given
    rollouts_B[order_B] = arms_N[chosen_B] * (counts_B[order_B] > 0)
    return rollouts_B, left


def spare_rollouts(counts_B: np.ndarray, arms_N: np.ndarray, budget: int) -> int:
    """What the budget leaves once every prompt has the smallest arm."""
    least = int(counts_B.sum() * arms_N[0])
    return int(check_array("budget", budget, (), least, whole=True)) - least


def _tie_broken_keys(values_BN: np.ndarray, counts_B: np.ndarray, spare: int) -> np.ndarray:
    """Integers whose sums rank choices by value and, where values tie, by evenness, (B, N).

    A sum of integers is exact in any order, where floating-point sums of equal value would differ
    by rounding. Evenness (around the mean to a quarter rollout) takes the low bits, as many as its
    largest sum needs. The value takes the rest of 60 bits, so that a sum of keys fits into 64 and
    stays above `UNREACHABLE`: with 256 prompts, values that differ by 1e-9 still differ.
    """
    prompts = int(counts_B.sum())
    uneven_N = (4 * np.arange(values_BN.shape[1]) - round(4 * spare / max(prompts, 1))) ** 2
    low_bits = (prompts * int(uneven_N.max())).bit_length()
    largest = np.abs(values_BN).max(axis=1).sum()
    high_bits = 60 - low_bits - max(math.ceil(math.log2(largest + 1)), 1)
    keys_BN = np.rint(values_BN * 2.0**high_bits).astype(np.int64)
    return (keys_BN << low_bits) - counts_B[:, None] * uneven_N


def _best_choices(keys_BN: np.ndarray, counts_B: np.ndarray, spare: int) -> tuple[np.ndarray, int]:
    """Arms of the largest sum of keys, (B,), and what they leave over.

    Entry 1 + w of a bin's table holds the largest sum of keys with which the bins up to it spend w,
    entry 0 stands for negative amounts. The next bin's table is the maximum over its arms n of the
    key of arm n plus the table n · count entries further down. The choice is read off the tables
    from the last bin to the first.
    """
    steps_N = np.arange(keys_BN.shape[1])
    places_W = np.arange(spare + 2)
    table_W = np.full(spare + 2, UNREACHABLE)
    table_W[1] = 0
    tables = [table_W]
    for keys_N, count in zip(keys_BN, counts_B, strict=True):
        back_NW = np.maximum(places_W - steps_N[:, None] * count, 0)
        # what is left for the bins before, where this bin plays arm n
        table_W = (tables[-1][back_NW] + keys_N[:, None]).max(axis=0)
        table_W[0] = UNREACHABLE  # keys were added to it as well
        tables.append(table_W)
    # Not every amount can be spent: with two bins of three prompts each, only multiples of three.
    # Take the largest that can: keys added to UNREACHABLE leave it below its half.
    spent = int(np.flatnonzero(table_W > UNREACHABLE // 2)[-1]) - 1
    left = spare - spent
    chosen_B = np.empty_like(counts_B)
    for b in reversed(range(len(counts_B))):
        back_N = np.maximum(1 + spent - steps_N * counts_B[b], 0)
        chosen_B[b] = (tables[b][back_N] + keys_BN[b]).argmax()
        spent -= int(counts_B[b] * chosen_B[b])
    return chosen_B, left


def exp3p_losses(
    losses_B: ArrayLike, arms_B: ArrayLike, probabilities_BN: np.ndarray, bonus: float
) -> np.ndarray:
    """EXP3.P's estimated arm losses, (1[n chosen]·L − bonus)/p, (B, N).

    `arms_B` are indices of the chosen arms, from 0, not their rollouts. Unbiased when bonus is 0;
    bonus > 0 keeps every arm optimistic (Auer et al. 2002, Bubeck and Cesa-Bianchi 2012, section
    3.2). NaN in the rows of bins that played no arm, whose loss is NaN, and for arms that the
    budget makes infeasible (p = 0).
    """
    chosen_BN = np.arange(probabilities_BN.shape[1]) == np.asarray(arms_B)[:, None]
    losses_B1 = np.asarray(losses_B, float)[:, None]
    gains_BN = np.where(chosen_BN, losses_B1, 0.0) - bonus
    estimate_BN = gains_BN / np.maximum(probabilities_BN, LEAST_PROBABILITY)
    return np.where(np.isnan(losses_B1) | ~(probabilities_BN > 0), np.nan, estimate_BN)


def sample_joint_arms(
    log_p_BN: np.ndarray,
    counts_B: ArrayLike,
    arms_N: ArrayLike,
    budget: int,
    rng: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray]:
    """Arms drawn from Π_b p_b(n_b), given that Σ_b c_b n_b = budget.

    Forward filtering, backward sampling. A probability below e^(−600/B) is raised to that, so that
    no product of B of them underflows. Where no choice meets the budget, the largest amount below
    it is spent.

    Returns:
        Rollouts (B,), and the probability of each arm under the distribution that was sampled,
        (B, N), by which an importance weight must divide.
    """
    counts_B = np.asarray(counts_B)
    arms_N = np.asarray(arms_N)
    spare = spare_rollouts(counts_B, arms_N, budget)
    p_BN = np.exp(np.maximum(log_p_BN, LEAST_LOG_PROBABILITY / max(int((counts_B > 0).sum()), 1)))
    # place in a table of w less what arm n spends; amounts below 0 have the last place
    back_BNW = np.arange(spare + 1) - (counts_B[:, None] * np.arange(len(arms_N)))[..., None]
    back_BNW[back_BNW < 0] = spare + 1
    ways = np.zeros(spare + 2)
    ways[0] = 1.0
    before = [ways]  # [b][w]: probability that the bins before b spend w
    for p_N, back_NW in zip(p_BN, back_BNW, strict=True):
        before.append(np.append(p_N @ before[-1][back_NW], 0.0))
    spent = int(np.flatnonzero(before[-1] > 0)[-1])  # the most that some choice spends
    # [w]: up to a factor, the probability that the bins after b spend all of that but w
    after_W = np.arange(spare + 2) == spent
    chosen_B = np.empty(len(counts_B), np.int64)
    # of each arm, given the budget
    conditional_BN = np.empty_like(p_BN)
    # from the last bin to the first: each arm is drawn given what the bins after it have spent
    for b in reversed(range(len(counts_B))):
        ladder_N = (p_BN[b] * before[b][back_BNW[b, :, spent]]).cumsum()
        # "right", so that an arm of probability 0 is not taken where the random number is 0
        chosen_B[b] = ladder_N.searchsorted(rng.random() * ladder_N[-1], side="right")
        spent -= counts_B[b] * chosen_B[b]  # what the bins before b have spent
        joint_NW = p_BN[b][:, None] * after_W[: spare + 1]
        conditional_BN[b] = (joint_NW * before[b][back_BNW[b]]).sum(axis=1)
        after_W = np.bincount(back_BNW[b].ravel(), joint_NW.ravel(), spare + 2)
        after_W[-1] = 0.0
    conditional_BN /= conditional_BN.sum(axis=1, keepdims=True)
    return arms_N[chosen_B] * (counts_B > 0), conditional_BN
