"""The arms of Rollout-GDRO (section 3.3): strategies, the price, the joint choice.

An arm is a number of rollouts. Each bin has a strategy, a probability for every arm, but the bins cannot
choose on their own: with c_b prompts in bin b, they must together spend the budget exactly, Σ_b c_b n_b =
budget. So `best_joint_arms` chooses for all bins at once, by the largest sum of values (`gdro.methods.bandit`
samples).

N arms in B bins have N^B combinations. Dynamic programming avoids listing them: of the bins decided so far,
only what they have spent matters for the rest. A table per bin holds the best value for each amount spent,
and B tables of W amounts with N arms each are cheap. Spending is counted beyond the smallest arm for every
prompt, which keeps W small. Two things make the code longer than that idea. Ties must not be decided by how
bins are numbered, so values become integers in which evenness breaks ties (`_tie_broken_keys`). And the toy
games solve thousands of problems in the same numpy calls, hence the axis S.

Axes: S problems, solved at once (the toy games' seeds and settings; a controller has one), B bins, N arms
(consecutive rollout counts), W rollouts spent beyond the smallest arm.
"""

from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike

Number = TypeVar("Number", float, np.ndarray)
UNREACHABLE = -(2**62)  # below any sum of keys, and far enough from overflow to add one


def arm_log_probabilities(losses_BN: np.ndarray, eta: float, gamma: float) -> np.ndarray:
    """log p_b(n) of exponential weights over arm losses, mixed with a uniform share γ. (..., B, N)."""
    scores_BN = -eta * losses_BN
    scores_BN -= scores_BN.max(axis=-1, keepdims=True)
    odds_BN = np.exp(scores_BN)
    total_B = odds_BN.sum(axis=-1, keepdims=True)
    if gamma == 0:
        return scores_BN - np.log(total_B)  # exact where the odds underflow
    return np.log((1 - gamma) * odds_BN / total_B + gamma / odds_BN.shape[-1])


def price_step(price: Number, spent: Number, mean_rollouts: float, price_lr: float) -> Number:
    """μ ← μ + α_μ (n̂ − n̄), (21)."""
    return price + price_lr * (spent - mean_rollouts)


def best_joint_arms(
    values_BN: ArrayLike, counts_B: ArrayLike, arms_N: ArrayLike, budget: ArrayLike
) -> tuple[np.ndarray, int | np.ndarray]:
    """Arms that maximize Σ_b values_b(n_b) among those with Σ_b c_b n_b = budget, exactly.

    Ties go to the choice that is nearest to an even split, with the smallest Σ_b c_b (n_b − budget/Σc)².
    Where that ties too, the bins' own counts and values decide: bins are sorted by them before the search, so
    that their numbering has no effect.

    Args:
        values_BN: (B, N) of one problem or (S, B, N) of many.
        counts_B: (B,) or (S, B), prompts in each bin; a bin without prompts gets 0 rollouts.
        arms_N: (N,), consecutive integers, the same for every problem.
        budget: rollouts of the whole batch, () or (S,).

    Returns:
        Rollouts, shaped as counts_B, and how many are left over: where no choice meets the budget, the
        largest amount below it is spent.
    """
    counts_B, arms_N = np.asarray(counts_B), np.asarray(arms_N)
    counts_BS = counts_B.reshape(-1, counts_B.shape[-1]).T
    values_BNS = np.reshape(values_BN, (-1, len(counts_BS), len(arms_N))).transpose(1, 2, 0)
    # an empty bin spends nothing whatever its arm, so no arm of it may add to the sum
    values_BNS = np.where(counts_BS[:, None] > 0, values_BNS, 0.0)
    columns_S = np.arange(counts_BS.shape[1])
    spare_S = spare_rollouts(counts_BS, arms_N, np.broadcast_to(budget, columns_S.shape))
    # lexsort takes its last key first: the counts, then the values from the last arm to the first
    order_BS = np.lexsort((*values_BNS.swapaxes(0, 1), counts_BS), axis=0)
    counts_BS = counts_BS[order_BS, columns_S]
    keys_BNS = _tie_broken_keys(values_BNS[order_BS, :, columns_S].swapaxes(1, 2), counts_BS, spare_S)
    rollouts_BS = np.empty_like(counts_BS)
    chosen_BS, left_S = _best_choices(keys_BNS, counts_BS, spare_S)
    rollouts_BS[order_BS, columns_S] = arms_N[chosen_BS] * (counts_BS > 0)  # back in the order given
    return (rollouts_BS[:, 0], int(left_S[0])) if counts_B.ndim == 1 else (rollouts_BS.T, left_S)


def spare_rollouts(counts_BS: np.ndarray, arms_N: np.ndarray, budget_S: np.ndarray) -> np.ndarray:
    """What the budget leaves once every prompt has the smallest arm, (S,)."""
    prompts_S = counts_BS.sum(axis=0)
    spare_S = budget_S - prompts_S * int(arms_N[0])
    if (spare_S < 0).any():
        s = int(spare_S.argmin())
        raise ValueError(
            f"budget must cover the smallest arm {arms_N[0]} for each of {prompts_S[s]} prompts, "
            f"got {budget_S[s]}; raise mean_rollouts or lower n_min"
        )
    return spare_S


def _tie_broken_keys(values_BNS: np.ndarray, counts_BS: np.ndarray, spare_S: np.ndarray) -> np.ndarray:
    """Integers whose sums rank choices by value and, where values tie, by evenness. (B, N, S).

    In floating point, two choices of equal value differ by rounding error, which depends on the order of the
    bins. A sum of integers is exact in any order. Evenness (around the mean to a quarter rollout) takes the
    low bits, as many as its largest sum needs. The value takes the rest of 60 bits, so that a sum of keys
    fits into 64 and stays above `UNREACHABLE`. With 256 prompts, values that differ by 1e-9 still differ as
    integers.
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

    Row 1 + w of a bin's table holds the largest sum of keys with which the bins up to it spend w. Row 0
    stands for all negative amounts, which cannot be reached. The next bin's table is the maximum over its
    arms n of the key of arm n plus the table n · count rows further up. The choice is read off the tables
    from the last bin to the first.
    """
    columns_S, steps_N1 = np.arange(len(spare_S)), np.arange(keys_BNS.shape[1])[:, None]
    table_WS = np.full((int(spare_S.max()) + 2, len(spare_S)), UNREACHABLE)
    table_WS[1] = 0
    tables = [table_WS]
    rows_W1 = np.arange(len(table_WS))[:, None]
    for keys_NS, counts_S in zip(keys_BNS, counts_BS, strict=True):
        spent_NWS = np.maximum(rows_W1 - (steps_N1 * counts_S)[:, None], 0)  # by the bins before, as a row
        before_NWS = table_WS[spent_NWS, columns_S]
        table_WS = (before_NWS + keys_NS[:, None]).max(axis=0)
        table_WS[0] = UNREACHABLE  # keys were added to it as well
        tables.append(table_WS)
    # Not every amount can be spent: with two bins of three prompts each, only multiples of three. Step down
    # to the largest that can. (Keys added to UNREACHABLE leave it below its half; sums of keys are above.)
    spent_S = spare_S
    while not (reached_S := table_WS[1 + spent_S, columns_S] > UNREACHABLE // 2).all():
        spent_S = np.where(reached_S, spent_S, spent_S - 1)
    left_S, chosen_BS = spare_S - spent_S, np.empty_like(counts_BS)
    for b in reversed(range(len(counts_BS))):
        back_NS = np.maximum(1 + spent_S - steps_N1 * counts_BS[b], 0)
        chosen_BS[b] = (tables[b][back_NS, columns_S] + keys_BNS[b]).argmax(axis=0)
        spent_S = spent_S - counts_BS[b] * chosen_BS[b]
    return chosen_BS, left_S
