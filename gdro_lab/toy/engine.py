"""Games by the thousand as arrays: every game with every seed is a column.

One toy game is a loop of small steps on small arrays, in which the overhead of Python and numpy
costs far more than the arithmetic. So games that differ in nothing but numbers are played side by
side: one numpy call does the same step for all of them. To understand a step, read
`gdro_lab.toy.plain` first, which plays one game with a real `GDROController`; the tests hold the
two to equal results.

There are no controllers here. Bins, scores and prices are arrays with a column for each game, moved
by the same pure functions that the controller's own parts call. What belongs to a prompt of a game
is kept flat, at place prompt × G + column, so that one `take` or `bincount` serves all games. All
games of a seed see the same random numbers, whatever their method, which is why differences between
methods are paired.

Axes: as in `gdro_lab.toy`, X places (prompt × column, flat, unless said otherwise). Games stand in
front where a pure function of `gdro` is called, last elsewhere; in memory they are last, so that
numpy's inner loops run over them.
"""

from typing import cast

import numpy as np
from scipy.special import softmax

from gdro.advantages import EPSILON
from gdro.arms import arm_log_probabilities, best_joint_arms, price_step
from gdro.bins import ESTIMATORS, move_bins
from gdro.prompt_gdro import bin_means, debias, ema_scores, log_weights, mixed_probabilities
from gdro.rollout_gdro import Both
from gdro_lab.toy.games import HELD_OUT, Game, draw_directions, draw_numbers, draw_offsets


class Table:
    """Games in progress: game m with seed s is column s·M + m of every array."""

    def __init__(self, games: list[Game], seeds: list[int]) -> None:
        self.game, world = games[0], games[0].world
        self.S, self.M, self.G = len(seeds), len(games), len(seeds) * len(games)
        self.K, self.D, self.P, self.A = world.skills, world.prompts, self.game.batch, world.answers
        self.columns_G, self.steps_played = np.arange(self.G), 0
        self.generators = [np.random.default_rng((seed, 2)) for seed in seeds]

        # the learner
        self.step_size_G = np.tile([game.step_size for game in games], self.S)
        self.own, self.to_skill = (1 - world.transfer) ** 0.5, world.transfer**0.5  # √(1−c) and √c
        self.memory_FG, self.strength_KG = (
            np.zeros((world.capacity, self.G)),
            np.zeros((self.K, self.G)),
        )
        sizes = (self.D, self.K * HELD_OUT, self.A, world.capacity)
        drawn = zip(*(draw_directions(*sizes, seed) for seed in seeds), strict=True)
        self.all_SXF, self.held_out_SXF = (  # here X is answer × prompt
            np.stack(part).reshape(self.S, -1, world.capacity) for part in drawn
        )
        offsets = zip(
            *(draw_offsets(game.world, seed) for seed in seeds for game in games), strict=True
        )
        offset_DG, self.held_out_offset_EG = (np.stack(part, axis=1) for part in offsets)
        self.offset_X = offset_DG.ravel()
        self.skill_X = np.tile(
            np.stack([g.world.skill_D for g in games], axis=1), (1, self.S)
        ).ravel()

        # the controllers: a real one has the settings of both games; here are bins, scores (12) and
        # prices
        method = cast(Both, self.game.controller("both").method)
        self.prompt, self.rollout = method.prompt_adversary, method.rollout_adversary
        by_skill = self.game.grouping == "skill"
        self.B, self.edges = (
            self.prompt.num_bins,
            np.arange(1, self.game.num_bins) / self.game.num_bins,
        )
        self.record = ESTIMATORS[self.game.estimator](
            self.game.k, 50
        )  # the history of `DifficultyBins`
        self.record.grow(self.D * self.G)
        self.bin_X = self.skill_X.copy() if by_skill else np.full(self.D * self.G, -1)
        nothing_GB = np.zeros((self.B, self.G)).T  # transposed, so that games are last in memory
        self.emas = {game: (nothing_GB, nothing_GB.astype(int)) for game in ("prompt", "rollout")}
        self.total_GB, self.price_G = nothing_GB.copy("K"), np.zeros(self.G)

    def step(self) -> None:
        """Draw a batch, plan, sample, observe, learn."""
        rollouts_SRP, data_SD, slots_SP, noise_SF = draw_numbers(self.game, self.generators)
        place = self.steps_played % (self.D // self.P)
        if place == 0:  # an epoch in random order
            self.epoch_DG = self._of_seeds(data_SD.argsort(axis=1))
        slots_PG = self.epoch_DG[place * self.P : (place + 1) * self.P]
        if self.game.method == "resample":
            slots_PG = self._resampled(data_SD, slots_SP)
        self.place_PG = slots_PG * self.G + self.columns_G
        p_APG = self._policy(slots_PG)
        self.bins_PG = self.bin_X.take(self.place_PG)
        n_PG = self._plan(p_APG[0])
        counts_APG = sampled_answers(p_APG, n_PG, rollouts_SRP, self.M)
        if self.game.method not in ("grpo", "oracle"):
            self._observe(counts_APG[0], np.broadcast_to(n_PG, self.place_PG.shape))
        self._learn(counts_APG, n_PG, noise_SF)
        self.steps_played += 1

    def _of_seeds(self, values_SX: np.ndarray) -> np.ndarray:
        """(X, G): each seed's numbers for all of its games."""
        return np.repeat(values_SX.T, self.M, axis=1)

    def _resampled(self, data_SD: np.ndarray, slots_SP: np.ndarray) -> np.ndarray:
        """Prompts of the batch, (P, G), as `PromptGDRO.draw`: bins by q, evenly within a bin."""
        bins_DG = self.bin_X.reshape(self.D, self.G)
        counts_CG = self._counts(bins_DG)  # row 0: not seen yet
        q_BG = np.where(counts_CG[1:] > 0, self._q().T, 0.0)
        q_BG *= counts_CG[1:].sum(axis=0) / np.maximum(q_BG.sum(axis=0), 1e-300)
        ladder_CG = np.concatenate([counts_CG[:1], q_BG]).cumsum(axis=0)
        # sorted numbers give sorted bins, so the slots of a bin are neighbours and can be counted
        # off
        numbers_PG = self._of_seeds(np.sort(slots_SP, axis=1))
        bin_PG = (numbers_PG >= (ladder_CG / ladder_CG[-1])[:-1, None]).sum(axis=0)
        first_CG = (bin_PG < np.arange(self.B + 1)[:, None, None]).sum(axis=1)
        start_CG = counts_CG.cumsum(axis=0) - counts_CG
        first_PG, start_PG, size_PG = (
            np.take_along_axis(values_CG, bin_PG, 0)
            for values_CG in (first_CG, start_CG, counts_CG)
        )
        turn_PG = (np.arange(self.P)[:, None] - first_PG) % size_PG
        order_SD = data_SD.argsort(axis=1)
        # sorting numbers is faster than argsort: by bin, then at random
        keys_DG = np.sort((bins_DG * self.D + self._of_seeds(order_SD.argsort(axis=1))).T, axis=1).T
        rank_PG = np.take_along_axis(keys_DG, start_PG + turn_PG, 0) % self.D
        return np.take_along_axis(self._of_seeds(order_SD), rank_PG, 0)

    # The learner

    def _policy(self, slots_PG: np.ndarray) -> np.ndarray:
        """Probabilities of the answers to the prompts of the batch, (A, P, G)."""
        if self.game.method == "resample":  # every game has a batch of its own
            self.batch_SXF = self.all_SXF
            z_APG = self._logits(self.all_SXF).reshape(self.A, -1).take(self.place_PG, axis=1)
        else:  # all games of a seed have the same batch: that of its first column
            prompts_SAP = slots_PG[:, :: self.M].T[:, None] + np.arange(self.A)[:, None] * self.D
            self.batch_SXF = self.all_SXF[
                np.arange(self.S)[:, None], prompts_SAP.reshape(self.S, -1)
            ]
            z_APG = self._logits(self.batch_SXF).reshape(self.A, self.P, self.G)
        z_APG *= self.own
        self.skill_place_PG = self.skill_X.take(self.place_PG) * self.G + self.columns_G
        z_APG[0] += self.offset_X.take(self.place_PG)
        z_APG[0] += (self.to_skill * self.strength_KG).take(self.skill_place_PG)
        return softmax(z_APG, axis=0)

    def _by_seed(self, values_XG: np.ndarray) -> np.ndarray:
        """A view of the same array as (S, X, M), into which a matrix product can be written."""
        return values_XG.reshape(-1, self.S, self.M).transpose(1, 0, 2)

    def _logits(self, directions_SXF: np.ndarray) -> np.ndarray:
        """⟨ε, θ⟩ for each answer to each prompt, (X, G)."""
        z_XG = np.empty((directions_SXF.shape[1], self.G))
        np.matmul(directions_SXF, self._by_seed(self.memory_FG), out=self._by_seed(z_XG))
        return z_XG

    def _learn(self, counts_APG: np.ndarray, n_PG: np.ndarray, noise_SF: np.ndarray) -> None:
        """One gradient step on the mean over prompts of w · (1/n) Σ_j A_j log π(answer_j)."""
        pull_APG, square_PG = answer_pulls(counts_APG, n_PG)
        step_PG = self.step_size_G / self.P * self._prompt_weights()
        pull_APG *= step_PG
        pull_XG, pull_FG = pull_APG, np.empty(self.memory_FG.shape)
        if self.game.method == "resample":
            places_APG = np.arange(self.A)[:, None, None] * (self.D * self.G) + self.place_PG
            pull_XG = np.bincount(places_APG.ravel(), pull_APG.ravel(), self.A * self.D * self.G)
        np.matmul(self.batch_SXF.swapaxes(1, 2), self._by_seed(pull_XG), out=self._by_seed(pull_FG))
        self.memory_FG += self.own * pull_FG
        # The noise: independent Gaussian directions of all answers add up to one, whose variance is
        # the sum of their squared factors. So one draw for all of them has the same distribution.
        variance_G = (square_PG * step_PG**2).sum(axis=0) / len(self.memory_FG)
        self.memory_FG += self.game.world.noise * np.sqrt(variance_G) * self._of_seeds(noise_SF)
        gained = np.bincount(self.skill_place_PG.ravel(), pull_APG[0].ravel(), self.K * self.G)
        self.strength_KG += self.to_skill * gained.reshape(self.K, self.G)

    # The controllers

    def _counts(self, bins_XG: np.ndarray) -> np.ndarray:
        """Prompts of each bin, (1 + B, G); row 0 is for bin −1."""
        places_XG = (bins_XG + 1) * self.G + self.columns_G
        return np.bincount(places_XG.ravel(), minlength=(self.B + 1) * self.G).reshape(-1, self.G)

    def _bin_means(
        self, bins_PG: np.ndarray, values_PG: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """(13) for each game: means (G, B), NaN where a bin is absent, and counts (G, B)."""
        # a bin of a game is a bin of its own, so that one call serves all games
        ids_PG = np.where(bins_PG >= 0, bins_PG * self.G + self.columns_G, -1)
        means, counts = bin_means(ids_PG.ravel(), values_PG.ravel(), self.B * self.G)
        return means.reshape(self.B, self.G).T, counts.reshape(self.B, self.G).T

    def _plan(self, rate_PG: np.ndarray) -> np.ndarray:
        """Rollouts of each slot, exactly n̄ on average: (P, G), or (1, 1) where all get n̄."""
        game, mean = self.game, self.game.mean_rollouts
        if game.method == "oracle":
            spare = (mean - game.n_min) * self.P
            return greedy_rollouts(rate_PG * (1 - rate_PG), game.n_min, game.n_max, spare)
        if game.method not in ("rollout", "both"):
            return np.full((1, 1), mean)
        counts_GB, scores_GB = self._counts(self.bins_PG)[1:].T, self._scores("rollout")
        average_G = scores_GB.mean(
            axis=1
        )  # as in `RolloutAdversary.losses`, of which only ratios matter
        scale_G = mean**2 / np.where(average_G > 0, average_G, np.inf)
        losses_GBN = (scores_GB * scale_G[:, None])[..., None] / self.rollout.arms
        losses_GBN += self.price_G[:, None, None] * self.rollout.arms
        self.log_p_GBN = arm_log_probabilities(losses_GBN, self.rollout.eta, self.rollout.gamma)
        values_GBN, budget_G = self.log_p_GBN * counts_GB[..., None], mean * counts_GB.sum(axis=1)
        rollouts_GB, _ = best_joint_arms(
            values_GBN, counts_GB, self.rollout.arms, budget_G
        )  # n̄ is an arm
        rollouts_PG = rollouts_GB[self.columns_G, np.maximum(self.bins_PG, 0)]
        return np.where(self.bins_PG >= 0, rollouts_PG, mean)  # without a bin yet: n̄

    def _observe(self, correct_PG: np.ndarray, n_PG: np.ndarray) -> None:
        """As `GDROController.observe`: bins move, then both adversaries."""
        self._visit(correct_PG, n_PG)
        self.bins_after_PG, rate_PG = self.bin_X.take(self.place_PG), correct_PG / n_PG
        bins_PG = np.where(self.bins_PG < 0, self.bins_after_PG, self.bins_PG)
        means_GB, counts_GB = self._bin_means(bins_PG, 1.0 - rate_PG)
        if self.game.score == "cumulative":
            self.total_GB += np.nan_to_num(means_GB) * counts_GB * (self.B / self.P)
        else:
            self._update_scores("prompt", means_GB)
        if self.game.method in ("rollout", "both"):
            free_PG = np.where(n_PG > 1, n_PG - 1.0, np.nan)
            variance_PG = rate_PG * (1 - rate_PG) * n_PG / free_PG
            self._update_scores("rollout", self._bin_means(bins_PG, variance_PG)[0])
            asked_GB = np.exp(self.log_p_GBN) @ self.rollout.arms - self.game.mean_rollouts
            excess_G = (counts_GB * asked_GB).sum(axis=1) / np.maximum(counts_GB.sum(axis=1), 1)
            self.price_G = price_step(self.price_G, excess_G, 0.0, self.rollout.price_lr)

    def _visit(self, correct_PG: np.ndarray, n_PG: np.ndarray) -> None:
        """As `DifficultyBins.visit`, every prompt of every game a row of its own."""
        rows, counts = self.place_PG.ravel(), [correct_PG.ravel().astype(int), n_PG.ravel()]
        if self.game.method == "resample":  # a prompt may come twice in a batch, which is one visit
            counts = [np.bincount(rows, c, len(self.bin_X)).astype(int) for c in counts]
            rows = np.flatnonzero(counts[1])
            counts = [c[rows] for c in counts]
        self.record.add(rows, *counts)
        if self.game.grouping == "difficulty":
            estimate = self.record.pass_at_k(rows)
            self.bin_X[rows] = move_bins(
                self.bin_X[rows], estimate, self.edges, self.game.hysteresis
            )

    def _update_scores(self, game: str, means_GB: np.ndarray) -> None:
        """(12); NaN where a bin is absent."""
        (ema_GB, visits_GB), ema = self.emas[game], getattr(self, game).ema
        self.emas[game] = ema_scores(ema_GB, means_GB, ema), visits_GB + ~np.isnan(means_GB)

    def _scores(self, game: str) -> np.ndarray:
        return debias(*self.emas[game], getattr(self, game).ema, 1)

    def _adversary_weights(self) -> np.ndarray:
        scores_GB = self.total_GB if self.game.score == "cumulative" else self._scores("prompt")
        return np.exp(log_weights(scores_GB, self.prompt.eta, self.prompt.clip))

    def _q(self) -> np.ndarray:
        return mixed_probabilities(self._adversary_weights(), self.prompt.gamma)

    def _prompt_weights(self) -> np.ndarray:
        """As `PromptGDRO.weights`, (P, G): mean one over the batch. 1 without reweighting."""
        if self.game.method not in ("prompt", "both"):
            return np.ones((1, 1))
        weights_GB = np.minimum(self._adversary_weights(), self.prompt.max_weight)
        known_PG = self.bins_after_PG >= 0
        weights_PG = weights_GB[self.columns_G, np.maximum(self.bins_after_PG, 0)]
        # without an estimate yet: the mean weight
        total_G, count_G = np.where(known_PG, weights_PG, 0.0).sum(axis=0), known_PG.sum(axis=0)
        mean_G = np.where(count_G > 0, total_G, 1.0) / np.maximum(count_G, 1)
        return np.where(known_PG, weights_PG / mean_G, 1.0)

    def measure(self) -> tuple[np.ndarray, ...]:
        """Accuracy and pass@8 on held-out prompts, mean by skill, (G, K), exact; and q, (G, B)."""
        z_AEG = self._logits(self.held_out_SXF).reshape(self.A, -1, self.G) * self.own
        z_AEG[0] += self.held_out_offset_EG + np.repeat(
            self.to_skill * self.strength_KG, HELD_OUT, axis=0
        )
        p_KEG = softmax(z_AEG, axis=0)[0].reshape(self.K, HELD_OUT, self.G)
        return p_KEG.mean(axis=1).T, (1 - (1 - p_KEG) ** 8).mean(axis=1).T, self._q()


def sampled_answers(
    p_APG: np.ndarray, n_PG: np.ndarray, numbers_SRP: np.ndarray, games: int
) -> np.ndarray:
    """How often each answer came in n rollouts, (A, P, G), by inverting the distribution.

    Args:
        numbers_SRP: uniform numbers of the first, second … rollout, for each seed's `games`
        columns.
    """
    ladder_APG, least, most = p_APG[:-1].cumsum(axis=0), int(n_PG.min()), int(n_PG.max())
    below_APG = np.zeros(
        ladder_APG.shape, np.int8 if most < 128 else np.int32
    )  # rollouts below each rung
    for r, number_PS in enumerate(np.ascontiguousarray(numbers_SRP.transpose(1, 2, 0)[:most])):
        number_PG = np.repeat(number_PS, games, axis=1)
        if r >= least:
            number_PG = np.where(
                r < n_PG, number_PG, np.inf
            )  # a rollout that is not made counts nowhere
        below_APG += (number_PG < ladder_APG).view(np.int8)  # a bool is a byte, 0 or 1
    counts_APG = np.empty(p_APG.shape, below_APG.dtype)
    counts_APG[0], counts_APG[-1] = below_APG[0], n_PG - below_APG[-1]
    np.subtract(below_APG[1:], below_APG[:-1], out=counts_APG[1:-1])
    return counts_APG


def answer_pulls(counts_APG: np.ndarray, n_PG: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Gradient of (1/n) Σ_j A_j log π(answer_j) in each answer's logit, (A, ...), and Σ_j (A_j/n)².

    A_j of (3) with the sample's standard deviation. The advantages of a group sum to 0, so the
    softmax's own term drops out and an answer is pulled by its own advantages.
    """
    rate_PG = counts_APG[0] / n_PG
    spread_PG = rate_PG * (1 - rate_PG)
    per_rollout_PG = 1.0 / ((np.sqrt(spread_PG * n_PG / np.maximum(n_PG - 1, 1)) + EPSILON) * n_PG)
    pull_APG = counts_APG * (-rate_PG * per_rollout_PG)
    pull_APG[0] = counts_APG[0] * (1 - rate_PG) * per_rollout_PG
    return pull_APG, spread_PG * n_PG * per_rollout_PG**2


def greedy_rollouts(variances_PG: np.ndarray, n_min: int, n_max: int, spare: int) -> np.ndarray:
    """Rollouts (P, G) that minimize Σ_p v_p/n_p when each prompt may have its own n, exactly.

    The gain v/n − v/(n+1) of one more rollout falls with n, so the `spare` largest gains win.
    """
    n_N = np.arange(n_min, n_max)
    if spare == 0 or not len(n_N):
        return np.full(variances_PG.shape, n_min)
    # without variance the split is even; of equal prompts the first is ahead
    values_PG = (variances_PG + 1e-12) * (1 - 1e-9 * np.arange(len(variances_PG)))[:, None]
    gains_NPG = values_PG / (n_N * (n_N + 1.0))[:, None, None]
    by_game_GX = gains_NPG.reshape(-1, variances_PG.shape[1]).T.copy()
    by_game_GX.sort(axis=1)
    return n_min + (gains_NPG >= by_game_GX[:, -spare]).sum(axis=0)
