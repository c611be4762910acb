"""The joint choice of arms for many games at once: `gdro.rollout_gdro`'s two choosers with an axis of games.

Axes: B bins, N arms, S rollouts spent beyond the smallest arm (0 … spare), G games, always last. Every game
has its own bins, counts and strategies; the arms are common. What `best_joint_arms` and
`sample_joint_arms` do for one game these do for all, and a test holds them equal.

A dynamic programme over the bins shifts a game's table by count × arm. So at each bin the games are sorted by
their count there, and those of one count move together; bins go from few prompts to many, which
keeps the tables of the first ones short and the counts alike.
"""

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from gdro.rollout_gdro import UNREACHABLE

LEAST_LOG_CHANCE = -600.0  # of a whole choice of arms, as in `sample_joint_arms`: no product underflows


def best_joint_arms_of_games(values_BNG, counts_BG, arms_N, budget_G, coins_BG):
    """`best_joint_arms` for each game; a bin without prompts (count 0) gets 0 rollouts.

    coins_BG: numbers that order bins alike in count and value, in place of the shuffle that
    `RolloutGDRO.allocate` makes. Returns (rollouts (B, G), left over (G,)).
    """
    counts_BG = np.asarray(counts_BG, np.int64)
    order_BG = np.lexsort((coins_BG, values_BNG[:, -1], counts_BG), axis=0)
    values_BNG = np.where(counts_BG[:, None] > 0, values_BNG, 0.0)
    problem = _sorted_problem(values_BNG, counts_BG, order_BG, arms_N, budget_G)
    keys_BNG = _keys_of_games(problem, arms_N, np.asarray(budget_G))
    tables = _forward(problem, keys_BNG, np.maximum, np.add, 0, UNREACHABLE)

    def keys_of_arms(b, spent_G):
        """Keys of the best choice of the bins up to b that spends `spent_G`, by the arm of b, (N, G)."""
        return tables[b].at(spent_G, problem.shifts_BNG[b], UNREACHABLE) + keys_BNG[b]

    last = len(counts_BG) - 1
    spent_G = _most_spent(problem, lambda spent_G: keys_of_arms(last, spent_G).max(axis=0) > UNREACHABLE // 2)
    left_over_G = problem.spare_G - spent_G
    chosen_BG = np.empty_like(counts_BG)
    for b in range(last, -1, -1):
        chosen_BG[b] = keys_of_arms(b, spent_G).argmax(axis=0)
        spent_G = spent_G - problem.counts_BG[b] * chosen_BG[b]
    return _rollouts(problem, chosen_BG, arms_N), left_over_G


def sample_joint_arms_of_games(log_p_BNG, counts_BG, arms_N, budget_G, coins_BG, draws_BG):
    """`sample_joint_arms` for each game, the bins taken by count and those of one count by their coins.

    draws_BG: one uniform number for each bin, which picks its arm. Returns (rollouts (B, G), left over
    (G,), chances (B, N, G)); a bin without prompts gets 0 rollouts and NaN chances.
    """
    counts_BG = np.asarray(counts_BG, np.int64)
    order_BG = np.lexsort((coins_BG, counts_BG), axis=0)
    bins_G = np.maximum((counts_BG > 0).sum(axis=0), 1)
    p_BNG = np.exp(np.maximum(log_p_BNG, LEAST_LOG_CHANCE / bins_G))
    problem = _sorted_problem(p_BNG, counts_BG, order_BG, arms_N, budget_G)
    p_BNG, draws_BG = problem.values_BNG, np.take_along_axis(draws_BG, order_BG, 0)
    tables = _forward(problem, p_BNG, np.add, np.multiply, 1.0, 0.0)

    def odds_of_arms(b, spent_G):
        """Odds that the bins up to b spend `spent_G`, by the arm of b, (N, G)."""
        return p_BNG[b] * tables[b].at(spent_G, problem.shifts_BNG[b], 0.0)

    last = len(counts_BG) - 1
    target_G = _most_spent(problem, lambda spent_G: odds_of_arms(last, spent_G).max(axis=0) > 0)
    chances_BNG = _chances_of_arms(problem, tables, target_G)

    spent_G, chosen_BG = target_G, np.empty_like(counts_BG)
    for b in range(last, -1, -1):
        ladder_NG = running_sums(odds_of_arms(b, spent_G))
        chosen_BG[b] = rungs_reached(ladder_NG / ladder_NG[-1], draws_BG[b])
        spent_G = spent_G - problem.counts_BG[b] * chosen_BG[b]
    chances_BNG = _reordered(chances_BNG, np.argsort(order_BG, axis=0))
    chances_BNG += np.where(counts_BG > 0, 0.0, np.nan)[:, None]
    return _rollouts(problem, chosen_BG, arms_N), problem.spare_G - target_G, chances_BNG


class _Problem(NamedTuple):
    """Games with their bins in order: values, counts, what each arm costs beyond the smallest, the spare."""

    values_BNG: np.ndarray
    counts_BG: np.ndarray
    shifts_BNG: np.ndarray
    spare_G: np.ndarray
    order_BG: np.ndarray
    runs_of_bins: list  # of (games sorted by their count of that bin, [(count, slice of them)])


def _sorted_problem(values_BNG, counts_BG, order_BG, arms_N, budget_G):
    spare_G = np.asarray(budget_G, np.int64) - counts_BG.sum(axis=0) * arms_N[0]
    if (spare_G < 0).any():
        raise ValueError(
            f"{(spare_G < 0).sum()} games have a budget below the smallest arm {arms_N[0]} for each of their "
            "prompts; raise mean_rollouts or lower n_min"
        )
    counts_BG = np.take_along_axis(counts_BG, order_BG, 0)
    values_BNG = _reordered(values_BNG, order_BG)
    shifts_BNG = counts_BG[:, None] * np.arange(len(arms_N))[:, None]
    return _Problem(values_BNG, counts_BG, shifts_BNG, spare_G, order_BG, [_runs(c_G) for c_G in counts_BG])


def _reordered(values_BNG, order_BG):
    """Each game's bins in its order, `take_along_axis` with flat places."""
    num_arms, games = values_BNG.shape[1:]
    cells_NG = np.arange(num_arms * games).reshape(num_arms, games)
    return values_BNG.ravel().take(order_BG[:, None] * (num_arms * games) + cells_NG)


def _runs(counts_G):
    """Games sorted by count, and (count, slice of the sorted games) of each count."""
    small = np.int16 if counts_G.max() < 2**15 else np.int64  # short integers are sorted faster
    games_G = np.argsort(counts_G.astype(small), kind="stable")
    sorted_G = counts_G[games_G]
    cuts = [0, *(np.flatnonzero(sorted_G[1:] != sorted_G[:-1]) + 1).tolist(), len(sorted_G)]
    return games_G, [(int(sorted_G[first]), slice(first, end)) for first, end in pairwise(cuts)]


class _SpendTable:
    """What choices of some bins are worth, by what they spend: row s, one column a game, in any order."""

    def __init__(self, rows_SG, column_G):
        self.rows_SG, self.column_G = rows_SG, column_G  # column_G: where each game stands

    def sorted_rows(self, games_G):
        """The rows with the columns in this order of games, (S, G)."""
        return self.rows_SG.take(self.column_G[games_G], axis=1)

    def at(self, spent_G, shifts_NG, nothing):
        """The entry of spent − shift for each game and arm, (N, G); `nothing` where that is out of reach."""
        row_NG = spent_G - shifts_NG
        size, games = self.rows_SG.shape
        inside_NG = (row_NG >= 0) & (row_NG < size)
        row_NG *= games
        row_NG += self.column_G
        return np.where(inside_NG, self.rows_SG.ravel().take(row_NG, mode="clip"), nothing)


def _forward(problem, gains_BNG, combine, extend, unit, nothing):
    """[b]: `_SpendTable` of the bins before b; out[s] = combine_n extend(table[s − c·n], gain[n])."""
    games = problem.counts_BG.shape[1]
    tables = [_SpendTable(np.full((1, games), unit), np.arange(games))]
    for gains_NG, (games_G, runs) in zip(gains_BNG[:-1], problem.runs_of_bins[:-1], strict=True):
        rows_SG, gains_NG = tables[-1].sorted_rows(games_G), gains_NG.take(games_G, axis=1)
        most_spent = int(problem.spare_G.max())
        out_SG = _stage(rows_SG, gains_NG, runs, most_spent, combine, extend, nothing)
        tables.append(_SpendTable(out_SG, _places(games_G)))
    return tables


def _stage(rows_SG, gains_NG, runs, most_spent, combine, extend, nothing):
    """One bin of the dynamic programme, the games sorted by their count of it."""
    num_arms, rows = len(gains_NG), len(rows_SG)
    size = min(rows + runs[-1][0] * (num_arms - 1), most_spent + 1)
    out_SG = np.full((size, rows_SG.shape[1]), nothing, rows_SG.dtype)
    for count, run in runs:
        if count == 0:  # a bin without prompts passes the table on
            out_SG[:rows, run] = rows_SG[:, run]
            continue
        before_SG, gains = rows_SG[:, run], gains_NG[:, run]
        extend(before_SG, gains[0], out=out_SG[:rows, run])
        for arm in range(1, min(num_arms, (size - 1) // count + 1)):
            reached = out_SG[arm * count : arm * count + rows, run]
            combine(reached, extend(before_SG[: len(reached)], gains[arm]), out=reached)
    return out_SG


def _most_spent(problem, reachable):
    """The largest sum of a game, up to its spare, that its arms can spend exactly, (G,)."""
    spent_G = problem.spare_G
    while not (found_G := reachable(spent_G)).all():
        spent_G = np.where(found_G, spent_G, spent_G - 1)
    return spent_G


def _chances_of_arms(problem, tables, target_G):
    """Chance of each arm given that all bins spend `target_G`, (B, N, G), the bins in order.

    Backward over the bins: row s of `rest` is the chance that the bins after b spend target − s.
    """
    p_BNG = problem.values_BNG
    last, num_arms, games = len(p_BNG) - 1, p_BNG.shape[1], len(target_G)
    ways_BNG = np.ones_like(p_BNG)  # stays 1 for bins without prompts, whose chances nobody asks for
    ways_BNG[last] = tables[last].at(target_G, problem.shifts_BNG[last], 0.0)
    row_NG = target_G - problem.shifts_BNG[last]  # the last bin alone spends what is left
    inside_NG = (row_NG >= 0) & (row_NG < len(tables[last].rows_SG))
    rest_SG = np.zeros(tables[last].rows_SG.shape)
    rest_SG[row_NG[inside_NG], np.nonzero(inside_NG)[1]] = p_BNG[last][inside_NG]
    rest = _SpendTable(rest_SG, np.arange(games))
    for b in range(last - 1, -1, -1):
        games_G, runs = problem.runs_of_bins[b]
        before_SG, after_SG = tables[b].sorted_rows(games_G), rest.sorted_rows(games_G)
        p_NG, ways_NG = p_BNG[b].take(games_G, axis=1), np.ones((num_arms, games))
        rows = min(len(before_SG), len(after_SG))
        rest_SG = np.zeros((rows, games))
        for count, run in runs:
            if count == 0:
                rest_SG[:, run] = after_SG[:rows, run]
                continue
            ways_NG[:, run] = 0.0
            for arm in range(min(num_arms, (len(after_SG) - 1) // count + 1)):
                after = after_SG[arm * count : arm * count + rows, run]
                ways_NG[arm, run] = np.einsum("sg,sg->g", before_SG[: len(after), run], after)
                if b:
                    rest_SG[: len(after), run] += after * p_NG[arm, run]
        rest = _SpendTable(rest_SG, _places(games_G))
        ways_BNG[b] = ways_NG.take(rest.column_G, axis=1)
    chances_BNG = p_BNG * ways_BNG
    chances_BNG /= chances_BNG.sum(axis=1, keepdims=True)
    return chances_BNG


def _places(games_G):
    """Where each game stands in this order of games."""
    place_G = np.empty_like(games_G)
    place_G[games_G] = np.arange(len(games_G))
    return place_G


def running_sums(values_XG):
    """`cumsum` along the first axis in place, row by row, which is faster where rows are long."""
    for before_G, row_G in pairwise(values_XG):
        row_G += before_G
    return values_XG


def rungs_reached(ladder_XG, numbers_G):
    """How many rungs of a ladder (X, ...) do not lie above the number, integers (...)."""
    count_G = np.zeros(numbers_G.shape, np.int64)
    for rung_G in ladder_XG:
        count_G += rung_G <= numbers_G
    return count_G


def _keys_of_games(problem, arms_N, budget_G):
    """`gdro.rollout_gdro._tie_broken_keys` for each game, (B, N, G)."""
    values_BNG, counts_BG = problem.values_BNG, problem.counts_BG
    mean_G = budget_G / np.maximum(counts_BG.sum(axis=0), 1)
    uneven_NG = (4 * arms_N[:, None] - np.rint(4 * mean_G).astype(np.int64)) ** 2
    uneven_BNG = counts_BG[:, None] * uneven_NG
    low_bits_G = _bit_length((counts_BG * uneven_NG.max(axis=0)).sum(axis=0))
    largest_G = np.abs(values_BNG).max(axis=1).sum(axis=0)
    high_bits_G = 60 - low_bits_G - np.maximum(np.ceil(np.log2(largest_G + 1)).astype(np.int64), 1)
    scaled_BNG = np.rint(values_BNG * 2.0**high_bits_G).astype(np.int64)
    return (scaled_BNG << low_bits_G) - uneven_BNG


def _bit_length(integers):
    return np.frexp(integers.astype(float))[1].astype(np.int64)


def _rollouts(problem, chosen_BG, arms_N):
    """Arms by number of the sorted bins → rollouts of the bins as they came, (B, G)."""
    rollouts_BG = np.empty_like(chosen_BG)
    sorted_BG = np.where(problem.counts_BG > 0, np.asarray(arms_N).take(chosen_BG, mode="clip"), 0)
    np.put_along_axis(rollouts_BG, problem.order_BG, sorted_BG, 0)
    return rollouts_BG


def greedy_rollouts(variances_PG, n_min, n_max, spare):
    """Rollouts (P, G) that minimize Σ_p v_p/n_p when each prompt may have its own n, exactly.

    The gain v/n − v/(n+1) of one more rollout falls with n, so giving each of the `spare` rollouts to
    whom it serves most is optimal: the `spare` largest gains win. Ties go to the first prompts.
    """
    n_N = np.arange(n_min, n_max)
    # without variance the split is even
    gains_NPG = (variances_PG + 1e-12) / (n_N * (n_N + 1.0))[:, None, None]
    if spare == 0 or not len(n_N):
        return np.full(variances_PG.shape, n_min)
    by_game_GX = gains_NPG.reshape(-1, variances_PG.shape[1]).T.copy()
    by_game_GX.sort(axis=1)
    least_G = by_game_GX[:, -spare]
    rollouts_PG = n_min + (gains_NPG > least_G).sum(axis=0)
    ties_PG = (gains_NPG == least_G).any(axis=0)  # a prompt's gains all differ: one tie each at most
    ties_PG &= ties_PG.cumsum(axis=0) <= spare - (rollouts_PG - n_min).sum(axis=0)
    return rollouts_PG + ties_PG
