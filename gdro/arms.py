"""The arms of Rollout-GDRO (section 3.3): strategies, the price, and the joint choice of all bins.

An arm is a number of rollouts that every prompt of a bin gets. Each bin has a strategy, a
distribution over the arms; the budget of the batch ties the bins together. Axes: B bins, N arms, S
problems, W rollouts spent beyond the smallest arm.
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from gdro.checks import check_array

UNREACHABLE = -(2**62)  # below any sum of keys, and far enough from overflow to add one
LEAST_LOG_PROBABILITY = -600.0  # of a whole choice of arms: no product of the bins' own underflows
LEAST_PROBABILITY = 1e-9  # an importance weight is at most its inverse, so that no score overflows


def arm_log_probabilities(losses_BN: np.ndarray, eta: float, gamma: float) -> np.ndarray:
    """log p_b(n), exponential weights over arm losses mixed with a uniform share γ. (..., B, N)."""
    scores_BN = -eta * losses_BN
    scores_BN -= scores_BN.max(axis=-1, keepdims=True)
    odds_BN = np.exp(scores_BN)
    total_B = odds_BN.sum(axis=-1, keepdims=True)
    if gamma == 0:
        return scores_BN - np.log(total_B)  # exact where the odds underflow
    return np.log((1 - gamma) * odds_BN / total_B + gamma / odds_BN.shape[-1])


def price_step(price: Any, spent: Any, mean_rollouts: float, price_lr: float) -> Any:
    """μ ← μ + α_μ (n̂ − n̄), (21), of one run or of many."""
    return price + price_lr * (spent - mean_rollouts)


def best_joint_arms(
    values_BN: ArrayLike, counts_B: ArrayLike, arms_N: ArrayLike, budget: ArrayLike
) -> tuple[np.ndarray, int | np.ndarray]:
    """Arms that maximize Σ_b values_b(n_b) among those with Σ_b c_b n_b = budget, exactly.

    Ties go to the choice nearest to an even split, of smallest Σ_b c_b (n_b − budget/Σc)². Where
    that ties too, the bins' counts and values decide, never their numbers.

    Args:
        values_BN: (B, N) of one problem or (S, B, N) of many.
        counts_B: (B,) or (S, B), prompts in each bin; a bin without prompts gets 0 rollouts.
        arms_N: (N,), consecutive integers, the same for every problem.
        budget: rollouts of the whole batch, () or (S,).

    Returns:
        Rollouts, shaped as counts_B, and how many are left over: where no choice meets the budget,
        the largest amount below it is spent.
    """
    counts_B, arms_N = np.asarray(counts_B), np.asarray(arms_N)
    counts_BS = counts_B.reshape(-1, counts_B.shape[-1]).T
    values_BNS = np.reshape(values_BN, (-1, len(counts_BS), len(arms_N))).transpose(1, 2, 0)
    # an empty bin spends nothing whatever its arm, so no arm of it may add to the sum
    values_BNS = np.where(counts_BS[:, None] > 0, values_BNS, 0.0)
    columns_S = np.arange(counts_BS.shape[1])
    spare_S = spare_rollouts(counts_BS, arms_N, np.broadcast_to(budget, columns_S.shape))
    # sorted by count, then by the values from the last arm to the first, so that numbers of bins
    # have no effect
    order_BS = np.lexsort((*values_BNS.swapaxes(0, 1), counts_BS), axis=0)
    counts_BS = counts_BS[order_BS, columns_S]
    values_BNS = values_BNS[order_BS, :, columns_S].swapaxes(1, 2)
    keys_BNS = _tie_broken_keys(values_BNS, counts_BS, spare_S)
    chosen_BS, left_S = _best_choices(keys_BNS, counts_BS, spare_S)
    rollouts_BS = np.empty_like(counts_BS)  # in the order given
    rollouts_BS[order_BS, columns_S] = arms_N[chosen_BS] * (counts_BS > 0)
    return (rollouts_BS[:, 0], int(left_S[0])) if counts_B.ndim == 1 else (rollouts_BS.T, left_S)


def spare_rollouts(counts_BS: np.ndarray, arms_N: np.ndarray, budget_S: np.ndarray) -> np.ndarray:
    """What the budget leaves once every prompt has the smallest arm, (S,)."""
    least_S = counts_BS.sum(axis=0) * int(arms_N[0])
    return check_array("budget", budget_S, least_S.shape, least_S, whole=True) - least_S


def _tie_broken_keys(
    values_BNS: np.ndarray, counts_BS: np.ndarray, spare_S: np.ndarray
) -> np.ndarray:
    """Integers whose sums rank choices by value and, where values tie, by evenness. (B, N, S).

    A sum of integers is exact in any order, where floating-point sums of equal value would differ
    by rounding. Evenness (around the mean to a quarter rollout) takes the low bits, as many as its
    largest sum needs. The value takes the rest of 60 bits, so that a sum of keys fits into 64 and
    stays above `UNREACHABLE`: with 256 prompts, values that differ by 1e-9 still differ.
    """
    prompts_S = counts_BS.sum(axis=0)
    quarters_S = np.rint(4 * spare_S / np.maximum(prompts_S, 1)).astype(np.int64)
    uneven_NS = (4 * np.arange(values_BNS.shape[1])[:, None] - quarters_S) ** 2
    # frexp returns the exponent, which for an integer is its length in bits
    low_bits_S = np.frexp(prompts_S * uneven_NS.max(axis=0))[1].astype(np.int64)
    largest_S = np.abs(values_BNS).max(axis=1).sum(axis=0)
    high_bits_S = 60 - low_bits_S - np.maximum(np.ceil(np.log2(largest_S + 1)), 1).astype(np.int64)
    keys_BNS = np.rint(values_BNS * 2.0**high_bits_S).astype(np.int64)
    return (keys_BNS << low_bits_S) - counts_BS[:, None] * uneven_NS


def _best_choices(
    keys_BNS: np.ndarray, counts_BS: np.ndarray, spare_S: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Arms of the largest sum of keys, (B, S), and what they leave over, (S,).

    Row 1 + w of a bin's table holds the largest sum of keys with which the bins up to it spend w,
    row 0 stands for negative amounts. The next bin's table is the maximum over its arms n of the
    key of arm n plus the table n · count rows further up. The choice is read off the tables from
    the last bin to the first.
    """
    columns_S, steps_N1 = np.arange(len(spare_S)), np.arange(keys_BNS.shape[1])[:, None]
    table_WS = np.full((int(spare_S.max()) + 2, len(spare_S)), UNREACHABLE)
    table_WS[1] = 0
    tables = [table_WS]
    place_WS = np.arange(table_WS.size).reshape(table_WS.shape)  # in the flat table
    block = max(1, 1024 // len(spare_S))  # rows that fit into the processor's cache
    for keys_NS, counts_S in zip(keys_BNS, counts_BS, strict=True):
        before_WS, table_WS = table_WS, np.empty_like(table_WS)
        back_N1S = (steps_N1 * counts_S * len(spare_S))[:, None]
        for start in range(0, len(table_WS), block):
            rows = slice(start, start + block)
            # a place before the start is clipped to the first, which is in the unreachable row 0
            sums_NWS = before_WS.take(place_WS[rows] - back_N1S, mode="clip")
            sums_NWS += keys_NS[:, None]
            sums_NWS.max(axis=0, out=table_WS[rows])
        table_WS[0] = UNREACHABLE  # keys were added to it as well
        tables.append(table_WS)
    # Not every amount can be spent: with two bins of three prompts each, only multiples of three.
    # Step down to the largest that can: keys added to UNREACHABLE leave it below its half.
    spent_S = spare_S
    while not (reached_S := table_WS[1 + spent_S, columns_S] > UNREACHABLE // 2).all():
        spent_S = np.where(reached_S, spent_S, spent_S - 1)
    left_S, chosen_BS = spare_S - spent_S, np.empty_like(counts_BS)
    for b in reversed(range(len(counts_BS))):
        back_NS = np.maximum(1 + spent_S - steps_N1 * counts_BS[b], 0)
        chosen_BS[b] = (tables[b][back_NS, columns_S] + keys_BNS[b]).argmax(axis=0)
        spent_S = spent_S - counts_BS[b] * chosen_BS[b]
    return chosen_BS, left_S


def exp3p_losses(
    losses_B: ArrayLike, arms_B: ArrayLike, probabilities_BN: np.ndarray, bonus: float
) -> np.ndarray:
    """EXP3.P's estimated arm losses, (1[n chosen]·L − bonus)/p, (B, N).

    Unbiased when bonus is 0; bonus > 0 keeps every arm optimistic (Auer et al. 2002, Bubeck and
    Cesa-Bianchi 2012, section 3.2). NaN in the rows of bins that played no arm, whose loss is NaN,
    and for arms that the budget makes infeasible (p = 0).
    """
    chosen_BN = np.arange(probabilities_BN.shape[1]) == np.asarray(arms_B)[:, None]
    played_B1 = np.asarray(losses_B, float)[:, None]
    gains_BN = np.where(chosen_BN, played_B1, 0.0) - bonus
    estimate_BN = gains_BN / np.maximum(probabilities_BN, LEAST_PROBABILITY)
    return np.where(np.isnan(played_B1) | ~(probabilities_BN > 0), np.nan, estimate_BN)


def sample_joint_arms(
    log_p_BN: np.ndarray,
    counts_B: ArrayLike,
    arms_N: ArrayLike,
    budget: int,
    rng: np.random.Generator,
) -> tuple[np.ndarray, int, np.ndarray]:
    """Arms drawn from Π_b p_b(n_b), given that Σ_b c_b n_b = budget.

    Forward filtering, backward sampling. A probability below e^(−600/B) is raised to that, so that
    no product of B of them underflows.

    Returns:
        Rollouts (B,), those left over as in `best_joint_arms`, and the probability of each arm
        under the distribution that was sampled, (B, N), by which an importance weight must divide.
    """
    counts_B, arms_N = np.asarray(counts_B), np.asarray(arms_N)
    (spare,) = spare_rollouts(counts_B[:, None], arms_N, np.array([budget]))
    p_BN = np.exp(np.maximum(log_p_BN, LEAST_LOG_PROBABILITY / max(int((counts_B > 0).sum()), 1)))
    # where a table has w less what arm n spends; its last entry is for amounts below 0
    back_BNW = np.arange(spare + 1) - (counts_B[:, None] * np.arange(len(arms_N)))[..., None]
    back_BNW[back_BNW < 0] = spare + 1
    ways = np.zeros(spare + 2)
    ways[0] = 1.0
    before = [ways]  # [b][w]: probability that the bins before b spend w
    for p_N, back_NW in zip(p_BN, back_BNW, strict=True):
        before.append(np.append(p_N @ before[-1][back_NW], 0.0))
    most = spent = int(np.flatnonzero(before[-1] > 0)[-1])
    # [w]: up to a factor, the probability that the bins after b spend the rest, `most` − w
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
