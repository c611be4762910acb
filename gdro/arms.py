"""The arms of Rollout-GDRO (section 3.3): strategies, estimated losses, the price, the joint choice.

Axes: S problems, B bins, N arms (consecutive rollout counts), W rollouts spent beyond the smallest
arm. Every function takes (B, N) and (B,) arrays, or the same with axes in front (seeds, settings),
and then solves all problems at once: the controller has one, the toy thousands.
"""

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

UNREACHABLE = -(2**62)  # below any sum of keys, and far enough from overflow to add one
LEAST_LOG_PROBABILITY = -600.0  # of a whole choice of arms: no product of the bins' own underflows
LEAST_PROBABILITY = 1e-9  # an importance weight is at most its inverse, so that no score overflows


def arm_log_probabilities(losses_BN: ArrayLike, eta: float, gamma: float) -> np.ndarray:
    """log p_b(n) of exponential weights over arm losses, mixed with a uniform share γ. (..., B, N)."""
    scores_BN = -eta * np.asarray(losses_BN, float)
    scores_BN -= scores_BN.max(axis=-1, keepdims=True)
    odds_BN = np.exp(scores_BN)
    total_B = odds_BN.sum(axis=-1, keepdims=True)
    if gamma == 0:
        return scores_BN - np.log(total_B)  # exact where the odds underflow
    return np.log((1 - gamma) * odds_BN / total_B + gamma / odds_BN.shape[-1])


def exp3p_losses(
    chosen_losses_B: ArrayLike, chosen_arms_B: ArrayLike, probabilities_BN: np.ndarray, bonus: float
) -> np.ndarray:
    """EXP3.P's estimated arm losses, (1[n chosen]·L − bonus)/p, (..., B, N).

    Dividing by p makes the estimate unbiased when bonus is 0; bonus > 0 keeps every arm optimistic
    (Auer et al. 2002, Bubeck and Cesa-Bianchi 2012, section 3.2). NaN in the rows of bins that played no
    arm, whose loss is NaN, and for arms that the budget makes infeasible (p = 0).
    """
    chosen_BN = np.arange(probabilities_BN.shape[-1]) == np.asarray(chosen_arms_B)[..., None]
    played_B1 = np.asarray(chosen_losses_B, float)[..., None]
    losses_BN = (np.where(chosen_BN, played_B1, 0.0) - bonus) / np.maximum(
        probabilities_BN, LEAST_PROBABILITY
    )
    return np.where(np.isnan(played_B1) | ~(probabilities_BN > 0), np.nan, losses_BN)


def price_step(price: Any, spent: Any, mean_rollouts: float, price_lr: float) -> Any:
    """μ ← μ + α_μ (n̂ − n̄), (21)."""
    return price + price_lr * (spent - mean_rollouts)


def best_joint_arms(
    values_BN: ArrayLike, counts_B: ArrayLike, arms_N: ArrayLike, budget: ArrayLike
) -> tuple[np.ndarray, int | np.ndarray]:
    """Arms that maximize Σ_b values_b(n_b) among those with Σ_b c_b n_b = budget, exactly.

    Dynamic programming over bins × budget. Ties go to the choice nearest to an even split, smallest
    Σ_b c_b (n_b − budget/Σc)². What ties even then is decided by the bins' own counts and values: the
    bins are put in the order of those before the search, so their numbering has no say.

    Args:
        values_BN: (..., B, N).
        counts_B: (..., B), prompts in each bin; a bin without prompts gets 0 rollouts.
        arms_N: (N,), consecutive integers, the same for every problem.
        budget: rollouts of the whole batch, one for each problem.

    Returns:
        Rollouts (..., B), and those left over: where no choice meets the budget, the most below it is spent.
    """
    values_BNS, counts_BS, spare_S, shape = _problems(values_BN, counts_B, arms_N, budget)
    values_BNS = np.where(counts_BS[:, None] > 0, values_BNS, 0.0)
    # counts first, then the values from the last arm to the first
    order_BS = np.lexsort((*values_BNS.swapaxes(0, 1), counts_BS), axis=0)
    counts_BS = np.take_along_axis(counts_BS, order_BS, 0)
    values_BNS = np.take_along_axis(values_BNS, order_BS[:, None], 0)
    keys_BNS = _tie_broken_keys(values_BNS, counts_BS, spare_S)
    if len(spare_S) == 1:
        chosen_B, left_over = _best_choice(keys_BNS[..., 0], counts_BS[:, 0].tolist(), int(spare_S[0]))
        chosen_BS, left_S = chosen_B[:, None], np.array([left_over])
    else:
        chosen_BS, left_S = _best_choices(keys_BNS, counts_BS, spare_S)
    rollouts_BS = np.empty_like(chosen_BS)
    np.put_along_axis(rollouts_BS, order_BS, np.asarray(arms_N)[chosen_BS] * (counts_BS > 0), 0)
    return _returned(rollouts_BS, left_S, shape)


def sample_joint_arms(
    log_p_BN: ArrayLike,
    counts_B: ArrayLike,
    arms_N: ArrayLike,
    budget: ArrayLike,
    rng: np.random.Generator | ArrayLike,
) -> tuple[np.ndarray, int | np.ndarray, np.ndarray]:
    """Arms drawn from Π_b p_b(n_b), given that Σ_b c_b n_b = budget.

    As `best_joint_arms`, with sums in place of maxima (forward filtering, backward sampling). A
    probability below e^(−600/B) is raised to that, so that no product of B of them underflows to
    "unreachable".

    Args:
        log_p_BN: (..., B, N), log-probabilities of the strategies.
        rng: a `numpy.random.Generator`, or the uniform numbers themselves, one for each bin, (..., B).

    Returns:
        Rollouts (..., B), the rollouts left over, and the probability of each arm under the very
        distribution that was sampled, (..., B, N), which is what an importance weight must divide by.
    """
    log_p_BNS, counts_BS, spare_S, shape = _problems(log_p_BN, counts_B, arms_N, budget)
    bins_S = np.maximum((counts_BS > 0).sum(axis=0), 1)
    p_BNS = np.exp(np.maximum(log_p_BNS, LEAST_LOG_PROBABILITY / bins_S))
    draw = getattr(rng, "random", None)
    numbers_BS = draw(counts_BS.T.shape).T[::-1] if draw else np.asarray(rng).reshape(counts_BS.T.shape).T
    tables, start_BNS = _spend_tables(p_BNS, counts_BS, spare_S, np.multiply, np.add, 1.0, 0.0)
    spent_S = most_S = _most_spent(tables[-1], start_BNS[-1], spare_S, 0.0)
    # after[w]: probability, up to a factor, that the bins after b bring w up to `spent`
    after_WS = np.zeros_like(tables[0])
    after_WS[spent_S, np.arange(len(spent_S))] = 1.0
    p_given_BNS, chosen_BS = np.empty_like(p_BNS), np.empty_like(counts_BS)
    size = int(spare_S.max()) + 1
    pad = len(tables[0]) - size
    for b in range(len(counts_BS) - 1, -1, -1):
        ladder_NS = (p_BNS[b] * _before(tables[b], spent_S + start_BNS[b])).cumsum(axis=0)
        chosen_BS[b] = (ladder_NS <= numbers_BS[b] * ladder_NS[-1]).sum(axis=0)
        spent_S = spent_S - counts_BS[b] * chosen_BS[b]
        order_S, runs = _by_count(counts_BS[b])
        after_WS, before_WS = after_WS.take(order_S, axis=1), tables[b][pad:].take(order_S, axis=1)
        p_NS, ways_NS = p_BNS[b].take(order_S, axis=1), np.zeros_like(p_BNS[b])
        earlier_WS = np.zeros_like(after_WS)
        for count, run in runs:
            view_NWS = _shifted(after_WS, -count, run, np.size(arms_N), 0, size)
            fits = len(view_NWS)
            ways_NS[:fits, run] = np.einsum("ws,nws->ns", before_WS[:, run], view_NWS)
            earlier_WS[:size, run] = np.einsum("nws,ns->ws", view_NWS, p_NS[:fits, run])
        p_given_BNS[b][:, order_S], after_WS[:, order_S] = p_NS * ways_NS, earlier_WS
    p_given_BNS /= p_given_BNS.sum(axis=1, keepdims=True)
    rollouts_BS = np.asarray(arms_N)[chosen_BS] * (counts_BS > 0)
    p_given_BN = np.moveaxis(p_given_BNS, -1, 0).reshape(np.shape(log_p_BN))
    return *_returned(rollouts_BS, spare_S - most_S, shape), p_given_BN


def _problems(values_BN, counts_B, arms_N, budget):
    """Values (B, N, S), counts (B, S) and spare rollouts (S,), and the leading axes they came with."""
    counts_B, values_BN = np.asarray(counts_B, np.int64), np.asarray(values_BN, float)
    shape = counts_B.shape[:-1]
    counts_BS = counts_B.reshape(-1, counts_B.shape[-1]).T
    values_BNS = np.moveaxis(values_BN.reshape(-1, *values_BN.shape[-2:]), 0, -1)
    prompts_S = counts_BS.sum(axis=0)
    spare_S = np.broadcast_to(np.asarray(budget, np.int64), shape).ravel() - prompts_S * int(arms_N[0])
    if (spare_S < 0).any():
        s = int(spare_S.argmin())
        raise ValueError(
            f"budget must cover the smallest arm {arms_N[0]} for each of {prompts_S[s]} prompts, "
            f"got {spare_S[s] + prompts_S[s] * arms_N[0]}; raise mean_rollouts or lower n_min"
        )
    return np.ascontiguousarray(values_BNS), np.ascontiguousarray(counts_BS), spare_S, shape


def _returned(rollouts_BS, left_over_S, shape):
    """Results with the leading axes that were given; without any, what is left over is an int."""
    left_over = left_over_S.reshape(shape) if shape else int(left_over_S[0])
    return rollouts_BS.T.reshape(*shape, -1), left_over


def _tie_broken_keys(values_BNS, counts_BS, spare_S):
    """Integers whose sums order choices by value and, where that ties, by evenness. (B, N, S).

    In integers a sum is exact in any order, so a tie is an equality and not a matter of rounding.
    Evenness takes the low bits (mean to a quarter rollout), the value all that remain of 60: with
    256 prompts a grid of about 1e-9.
    """
    prompts_S = counts_BS.sum(axis=0)
    quarters_S = np.rint(4 * spare_S / np.maximum(prompts_S, 1)).astype(np.int64)
    uneven_NS = (4 * np.arange(values_BNS.shape[1])[:, None] - quarters_S) ** 2
    # the exponent of an integer is its bit length
    low_bits_S = np.frexp(prompts_S * uneven_NS.max(axis=0))[1].astype(np.int64)
    largest_S = np.abs(values_BNS).max(axis=1).sum(axis=0)
    high_bits_S = 60 - low_bits_S - np.maximum(np.ceil(np.log2(largest_S + 1)), 1).astype(np.int64)
    keys_BNS = np.rint(values_BNS * 2.0**high_bits_S).astype(np.int64)
    return (keys_BNS << low_bits_S) - counts_BS[:, None] * uneven_NS


def _best_choice(keys_BN, counts, spare):
    """Arms of the largest sum of keys, (B,), and what they leave over, for one problem.

    `_best_choices` does the same for many, and would take twice as long for one: the controller waits for it.
    """
    steps_N = np.arange(keys_BN.shape[1])
    pad, reach, word = counts[-1] * int(steps_N[-1]), 0, np.dtype(np.int64).itemsize
    table = np.full(pad + spare + 1, UNREACHABLE)  # [pad + w]: key of the best arms that spend w
    table[pad] = 0
    tables = [table]
    for keys_N, count in zip(keys_BN, counts, strict=True):
        reach = min(spare, reach + count * int(steps_N[-1]))
        fits = min(len(steps_N), spare // count + 1) if count else 1
        # a view whose row n reads the table n · count places back
        view_NW = np.ndarray((fits, reach + 1), np.int64, table, pad * word, (-count * word, word))
        table = table.copy()
        np.maximum.reduce(view_NW + keys_N[:fits, None], out=table[pad : pad + reach + 1])
        tables.append(table)
    spent = int(np.flatnonzero(table[pad:] > UNREACHABLE // 2)[-1])
    left_over, chosen_B = spare - spent, np.empty(len(counts), np.int64)
    for b in reversed(range(len(counts))):
        chosen_B[b] = (tables[b][pad + spent - counts[b] * steps_N] + keys_BN[b]).argmax()
        spent -= counts[b] * int(chosen_B[b])
    return chosen_B, left_over


def _best_choices(keys_BNS, counts_BS, spare_S):
    """Arms of the largest sum of keys, (B, S), and what they leave over, (S,)."""
    tables, start_BNS = _spend_tables(keys_BNS, counts_BS, spare_S, np.add, np.maximum, 0, UNREACHABLE)
    spent_S = most_S = _most_spent(tables[-1], start_BNS[-1], spare_S, UNREACHABLE // 2)
    chosen_BS = np.empty_like(counts_BS)
    for b in range(len(counts_BS) - 1, -1, -1):
        chosen_BS[b] = (_before(tables[b], spent_S + start_BNS[b]) + keys_BNS[b]).argmax(axis=0)
        spent_S = spent_S - counts_BS[b] * chosen_BS[b]
    return chosen_BS, spare_S - most_S


def _spend_tables(gains_BNS, counts_BS, spare_S, extend, combine, unit, nothing):
    """[b][pad + w]: combination over the choices of the bins before b that spend w, `nothing` if none does.

    The pad, filled with `nothing`, is the most that one bin spends. Returns also the row from which each
    arm leads to spending 0, (B, N, S).
    """
    num_arms, most = gains_BNS.shape[1], int(spare_S.max()) + 1
    steps_BNS = counts_BS[:, None] * np.arange(num_arms)[:, None]
    pad, size = min(int(steps_BNS.max()), most), 1
    tables = [np.full((pad + most, len(spare_S)), nothing)]
    tables[0][pad] = unit
    for gains_NS, counts_S in zip(gains_BNS[:-1], counts_BS[:-1], strict=True):
        size = min(size + int(counts_S.max()) * (num_arms - 1), most)
        order_S, runs = _by_count(counts_S)
        before_WS, gains_NS = tables[-1].take(order_S, axis=1), gains_NS.take(order_S, axis=1)
        reached_WS = np.empty((size, len(order_S)), before_WS.dtype)
        for count, run in runs:
            view_NWS = _shifted(before_WS, count, run, num_arms, pad, size)
            sums_NWS = extend(view_NWS, gains_NS[: len(view_NWS), None, run])
            combine.reduce(sums_NWS, axis=0, out=reached_WS[:, run])
        tables.append(np.full_like(tables[0], nothing))
        tables[-1][pad : pad + size, order_S] = reached_WS
    return tables, np.maximum(pad - steps_BNS, 0)  # what exceeds the pad exceeds every budget


def _by_count(counts_S):
    """The order of the problems by their count of one bin, and (count, slice) of each count in it."""
    if len(counts_S) == 1:
        return np.zeros(1, np.int64), [(int(counts_S[0]), slice(0, 1))]
    order_S = np.argsort(counts_S, kind="stable")
    sorted_S = counts_S[order_S]
    ends = [0, *(np.flatnonzero(sorted_S[1:] != sorted_S[:-1]) + 1).tolist(), len(sorted_S)]
    return order_S, [(int(sorted_S[first]), slice(first, end)) for first, end in pairwise(ends)]


def _shifted(table_WS, shift, run, num_arms, start, size) -> np.ndarray:
    """View [n, w] of the table's columns `run` at row start + w − n · shift; it costs nothing."""
    row, word = table_WS.strides
    # what is shifted by the table's size or more is out of reach
    fits = min(num_arms, (size - 1) // abs(shift) + 1) if shift else num_arms
    shape, strides = (fits, size, run.stop - run.start), (-shift * row, row, word)
    return np.ndarray(shape, table_WS.dtype, table_WS, start * row + run.start * word, strides)


def _most_spent(table_WS, start_NS, spare_S, unreachable):
    """The largest sum up to its spare that each problem can spend exactly, (S,)."""
    spent_S = spare_S
    while not (reached_S := _before(table_WS, spent_S + start_NS).max(axis=0) > unreachable).all():
        spent_S = np.where(reached_S, spent_S, spent_S - 1)
    return spent_S


def _before(table_WS, rows_NS):
    """One row of the table for each problem and arm, (N, S)."""
    return table_WS[rows_NS, np.arange(table_WS.shape[1])]
