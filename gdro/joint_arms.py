"""The joint choice of arms for many games at once: `gdro.rollout_gdro`'s two choosers with a leading axis.

Axes: G games, B bins, N arms, S rollouts spent beyond the smallest arm (0 … spare). Every game has its
own bins, counts and strategies; the arms and the number of prompts are common. What
`best_joint_arms` and `sample_joint_arms` do for one game these do for all, and a test holds them equal.
"""

import numpy as np

from gdro.rollout_gdro import UNREACHABLE


def best_joint_arms_of_games(values_GBN, counts_GB, arms_N, budget_G, coins_GB):
    """`best_joint_arms` for each game; a bin without prompts (count 0) gets 0 rollouts.

    coins_GB: numbers that order bins alike in count and value, in place of the shuffle that
    `RolloutGDRO.allocate` makes. Returns (rollouts (G, B), left over (G,)).
    """
    counts_GB = np.asarray(counts_GB, np.int64)
    values_GBN = np.where(counts_GB[..., None] > 0, values_GBN, 0.0)
    prompts_G = counts_GB.sum(axis=1)
    spare_G = np.asarray(budget_G, np.int64) - prompts_G * arms_N[0]
    spare = int(spare_G.max())
    order_GB = np.lexsort((coins_GB, values_GBN[..., -1], counts_GB), axis=-1)
    counts_GB = np.take_along_axis(counts_GB, order_GB, 1)
    values_GBN = np.take_along_axis(values_GBN, order_GB[..., None], 1)
    keys_BNG = _keys_of_games(values_GBN, counts_GB, arms_N, np.asarray(budget_G) / prompts_G)

    num_games, num_bins = counts_GB.shape
    start = np.full((spare + 1, num_games), UNREACHABLE)
    start[0] = 0
    tables, reach_G = [start], np.zeros(num_games, np.int64)
    for b in range(num_bins):
        counts_G = counts_GB[:, b]
        tables.append(_stage(tables[-1], keys_BNG[b], counts_G, reach_G, np.maximum, np.add, UNREACHABLE))
        reach_G = reach_G + counts_G * (len(arms_N) - 1)

    reachable_SG = (tables[-1] > UNREACHABLE // 2) & (np.arange(spare + 1)[:, None] <= spare_G)
    spent_G = spare - reachable_SG[::-1].argmax(axis=0)
    left_over_G = spare_G - spent_G
    games_G = np.arange(num_games)
    steps_N = np.arange(len(arms_N))
    rollouts_GB = np.zeros((num_games, num_bins), np.int64)
    for b in reversed(range(num_bins)):
        before_NG = spent_G - counts_GB[:, b] * steps_N[:, None]
        key_NG = tables[b][np.maximum(before_NG, 0), games_G] + keys_BNG[b]
        arm_G = np.where(before_NG >= 0, key_NG, 2 * UNREACHABLE).argmax(axis=0)
        arm_G = np.where(counts_GB[:, b] > 0, arm_G, 0)
        rollouts_GB[games_G, order_GB[:, b]] = np.where(counts_GB[:, b] > 0, arms_N[arm_G], 0)
        spent_G = spent_G - counts_GB[:, b] * arm_G
    return rollouts_GB, left_over_G


def _keys_of_games(values_GBN, counts_GB, arms_N, mean_G):
    """`gdro.rollout_gdro._tie_broken_keys` for each game, (B, N, G)."""
    uneven_GBN = (
        counts_GB[..., None] * (4 * arms_N - np.rint(4 * mean_G).astype(np.int64)[:, None, None]) ** 2
    )
    low_bits_G = _bit_length(uneven_GBN.max(axis=2).sum(axis=1))
    largest_G = np.abs(values_GBN).max(axis=2).sum(axis=1)
    high_bits_G = 60 - low_bits_G - np.maximum(np.ceil(np.log2(largest_G + 1)).astype(np.int64), 1)
    scaled_GBN = np.rint(values_GBN * (2.0**high_bits_G)[:, None, None]).astype(np.int64)
    return np.ascontiguousarray(((scaled_GBN << low_bits_G[:, None, None]) - uneven_GBN).transpose(1, 2, 0))


def _bit_length(integers):
    return np.frexp(integers.astype(float))[1].astype(np.int64)


def sample_joint_arms_of_games(log_p_GBN, counts_GB, arms_N, budget_G, coins_GB, draws_GB):
    """`sample_joint_arms` for each game, the bins taken in the order of their coins.

    draws_GB: one uniform number for each bin, which picks its arm. Returns (rollouts (G, B), left over
    (G,), chances (G, B, N)); a bin without prompts gets 0 rollouts and NaN chances.
    """
    counts_GB = np.asarray(counts_GB, np.int64)
    num_games, num_bins = counts_GB.shape
    games_G, steps_N = np.arange(num_games), np.arange(len(arms_N))
    spare_G = np.asarray(budget_G, np.int64) - counts_GB.sum(axis=1) * arms_N[0]
    spare = int(spare_G.max())
    order_GB = np.argsort(coins_GB, axis=1)
    counts_GB = np.take_along_axis(counts_GB, order_GB, 1)
    p_GBN = np.exp(np.take_along_axis(log_p_GBN, order_GB[..., None], 1))
    p_BNG = np.ascontiguousarray(p_GBN.transpose(1, 2, 0))
    forward, backward = (
        _spend_tables(p_BNG, counts_GB, spare),
        _spend_tables(p_BNG[::-1], counts_GB[:, ::-1], spare),
    )
    reachable_SG = (forward[-1] > 0) & (np.arange(spare + 1)[:, None] <= spare_G)
    spent_G = spare - reachable_SG[::-1].argmax(axis=0)

    rollouts_GB = np.zeros((num_games, num_bins), np.int64)
    chances_GBN = np.full(p_GBN.shape, np.nan)
    grid_S = np.arange(spare + 1)[:, None]
    remaining_G = spent_G
    for b in reversed(range(num_bins)):
        counts_G, present_G = counts_GB[:, b], counts_GB[:, b] > 0
        after_SG = backward[num_bins - 1 - b]
        if (spent_G == spare).all():
            after_SG = after_SG[::-1]  # what is left for the later bins once s is spent up to this one
        else:
            rest_SG = spent_G - grid_S
            after_SG = np.where(rest_SG >= 0, after_SG[np.maximum(rest_SG, 0), games_G], 0.0)
        ways_NG = _overlaps(forward[b], after_SG, counts_G, len(arms_N))
        chance_NG = p_BNG[b] * ways_NG
        chance_NG /= chance_NG.sum(axis=0)
        chances_GBN[games_G, order_GB[:, b]] = np.where(present_G, chance_NG, np.nan).T

        before_NG = remaining_G - counts_G * steps_N[:, None]
        weight_NG = p_BNG[b] * np.where(before_NG >= 0, forward[b][np.maximum(before_NG, 0), games_G], 0.0)
        ladder_NG = np.cumsum(weight_NG / weight_NG.sum(axis=0), axis=0)
        ladder_NG /= ladder_NG[-1]
        arm_G = (ladder_NG <= draws_GB[games_G, order_GB[:, b]]).sum(axis=0)
        arm_G = np.where(present_G, arm_G, 0)
        rollouts_GB[games_G, order_GB[:, b]] = np.where(present_G, arms_N[arm_G], 0)
        remaining_G = remaining_G - counts_G * arm_G
    return rollouts_GB, spare_G - spent_G, chances_GBN


def _overlaps(before_SG, after_SG, counts_G, num_arms):
    """Σ_s before[s] · after[s + c·arm] for each arm, (N, G)."""
    order_G = np.argsort(counts_G, kind="stable")
    before_SG, after_SG, sorted_counts_G = before_SG[:, order_G], after_SG[:, order_G], counts_G[order_G]
    sums_NG = np.zeros((num_arms, len(counts_G)))
    size = len(before_SG)
    for count, games in _runs(sorted_counts_G):
        for arm in range(num_arms if count == 0 else min(num_arms, (size - 1) // count + 1)):
            shift = arm * count
            products = before_SG[: size - shift, games] * after_SG[shift:, games]
            sums_NG[arm, games] = products.sum(axis=0)
    result_NG = np.empty_like(sums_NG)
    result_NG[:, order_G] = sums_NG
    return result_NG


def _runs(sorted_G):
    """(value, slice) of each run of equal values."""
    starts = np.flatnonzero(np.diff(sorted_G, prepend=-1))
    ends = [*starts[1:], len(sorted_G)]
    return [(int(sorted_G[first]), slice(first, end)) for first, end in zip(starts, ends, strict=True)]


def _spend_tables(p_BNG, counts_GB, spare):
    """`gdro.rollout_gdro._spend_distributions` for each game: tables (S, G), one more than bins."""
    start = np.zeros((spare + 1, len(counts_GB)))
    start[0] = 1.0
    tables, reach_G = [start], np.zeros(len(counts_GB), np.int64)
    for b in range(len(p_BNG)):
        table = _stage(tables[-1], p_BNG[b], counts_GB[:, b], reach_G, np.add, np.multiply, 0.0)
        tables.append(table / table.sum(axis=0))
        reach_G = reach_G + counts_GB[:, b] * (p_BNG.shape[1] - 1)
    return tables


def _stage(table_SG, gains_NG, counts_G, reach_G, combine, extend, nothing):
    """One bin of the dynamic programme: out[s] = combine_n extend(table[s − c·n], gain[n]).

    reach_G: the largest s that the bins so far can have spent; beyond it the table holds nothing.
    A game's shifts depend on its count c, so games are sorted by it and those of one count move
    together; a bin without prompts passes the table on.
    """
    order_G = np.argsort(counts_G, kind="stable")
    sorted_counts_G = counts_G[order_G]
    table_SG, gains_NG, reach_G = table_SG[:, order_G], gains_NG[:, order_G], reach_G[order_G]
    out_SG = np.full_like(table_SG, nothing)
    size = len(table_SG)
    for count, games in _runs(sorted_counts_G):
        if count == 0:
            out_SG[:, games] = table_SG[:, games]
            continue
        rows = min(int(reach_G[games].max()) + 1, size)
        for step in range(min(len(gains_NG), (size - 1) // count + 1)):
            shift = step * count
            reached = out_SG[shift : shift + rows, games]
            combine(reached, extend(table_SG[: len(reached), games], gains_NG[step, games]), out=reached)
    result_SG = np.empty_like(out_SG)
    result_SG[:, order_G] = out_SG
    return result_SG


def greedy_rollouts(variances_GP, n_min, n_max, spare):
    """Rollouts (G, P) that minimize Σ_p v_p/n_p when each prompt may have its own n, exactly.

    The gain v/n − v/(n+1) of one more rollout falls with n, so giving each of the `spare` rollouts to
    whom it serves most is optimal. Ties go to the prompt with fewest rollouts, then to the first.
    """
    rollouts_GP = np.full(variances_GP.shape, n_min)
    games_G = np.arange(len(variances_GP))
    gain_GP = (variances_GP + 1e-12) / (n_min * (n_min + 1))  # without variance the split is even
    for _ in range(spare):
        best_G = gain_GP.argmax(axis=1)
        n_G = rollouts_GP[games_G, best_G] + 1
        rollouts_GP[games_G, best_G] = n_G
        gain_G = (variances_GP[games_G, best_G] + 1e-12) / (n_G * (n_G + 1))
        gain_GP[games_G, best_G] = np.where(n_G < n_max, gain_G, -np.inf)
    return rollouts_GP
