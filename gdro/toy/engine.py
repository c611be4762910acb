"""Games by the thousand as arrays: every game with every seed is a column.

Axes: as in `gdro.toy`. Columns stand last, so that numpy's inner loops run over them.
"""

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from itertools import pairwise

import numpy as np

from gdro.bins import ROUNDING
from gdro.estimators import ESTIMATORS, BetaPosterior
from gdro.prompt_gdro import (
    exponential_weights,
    mixed_probabilities,
)
from gdro.rollout_gdro import RolloutGDRO, arm_log_probabilities, price_step
from gdro.toy.games import (
    EPSILON,
    HELD_OUT,
    MOVES_ROLLOUTS,
    REWEIGHTS,
    WORLDS,
    Results,
    check_integer,
    draw_directions,
    draw_luck,
    draw_setting,
    even_edges,
    skill_counts,
)
from gdro.toy.joint_arms import (
    best_joint_arms_of_games,
    greedy_rollouts,
    running_sums,
    sample_joint_arms_of_games,
)

COLUMNS = 1024  # games in one block of arrays: enough to hide numpy's overhead, few enough for the cache
FEW_GAMES = 4  # of a seed: fewer are not worth putting its batch's directions together


def play(games, seeds, checkpoints, threads: int | None = None) -> Results:
    """Play every game with every seed and measure at the given steps.

    games: of `Game`; they may differ in anything. seeds: integers ≥ 0. checkpoints: increasing step
    numbers ≥ 0, the last is the length of the games. Games that differ only in `step_size`, `eta` or
    the numbers of their worlds are played as one array.
    threads: blocks of games played at once, by default as many as there are processors; the result does
    not depend on it. Raises ValueError for empty or bad arguments.
    """
    games, seeds, checkpoints = list(games), list(seeds), list(checkpoints)
    if not games or not seeds or not checkpoints:
        raise ValueError(
            f"nothing to play: {len(games)} games, {len(seeds)} seeds, {len(checkpoints)} checkpoints; "
            "give at least one of each"
        )
    for seed in seeds:
        check_integer("seed", seed, 0)
    if sorted(set(checkpoints)) != checkpoints or checkpoints[0] < 0:
        raise ValueError(f"checkpoints must be increasing steps ≥ 0, got {checkpoints}; sort them")
    shape = (len(games), len(seeds), len(checkpoints))
    skills = {game.world.skills for game in games}
    if len(skills) > 1:
        raise ValueError(f"worlds have {sorted(skills)} skills; play those of one number in one call")
    (num_skills,) = skills
    num_bins = max(game.bins_in_all for game in games)
    accuracy, pass_at_8 = np.empty((*shape, num_skills)), np.empty((*shape, num_skills))
    traces = [np.full((*shape, num_bins), np.nan) for _ in range(3)]
    share = np.array([skill_counts(game.world) / game.world.prompts for game in games])

    def play_block(block):
        members, own = block
        table = _Table([games[g] for g in members], [seeds[s] for s in own])
        g_M1, s_S = np.array(members)[:, None], np.array(own)

        def by_game(values_XG):
            return values_XG.reshape(len(values_XG), len(own), len(members)).transpose(2, 1, 0)

        for c, checkpoint in enumerate(checkpoints):
            while table.steps_played < checkpoint:
                table.step()
            accuracy[g_M1, s_S, c], pass_at_8[g_M1, s_S, c] = map(by_game, table.measure())
            for trace, values_BG in zip(traces, table.trace(), strict=True):
                trace[g_M1, s_S, c, : len(values_BG)] = by_game(values_BG)

    threads = threads or os.cpu_count() or 1
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(play_block, _blocks(games, seeds, threads)))
    return Results(accuracy, pass_at_8, share, *traces)


def _blocks(games, seeds, threads):
    """(positions of games, positions of seeds) of each array to play, seeds sorted by world."""
    sorted_seeds = sorted(range(len(seeds)), key=lambda s: (seeds[s] % WORLDS, seeds[s]))
    blocks = []
    for alike in _alike(games):
        for members in _parts(alike, -(-len(alike) // COLUMNS)):
            columns = len(members) * len(seeds)
            number = max(-(-columns // COLUMNS), min(threads, columns // (COLUMNS // 4)), 1)
            blocks += [(members, own) for own in _parts(sorted_seeds, min(number, len(seeds)))]
    return blocks


def _parts(items, number):
    """A list cut into so many parts, as even as can be."""
    cuts = [len(items) * i // number for i in range(number + 1)]
    return [items[first:end] for first, end in pairwise(cuts)]


def _alike(games):
    """Positions of games that one array can hold, list by list."""
    lists: dict[tuple, list[int]] = {}
    for place, game in enumerate(games):
        fields = asdict(replace(game, step_size=1.0, eta=1.0))
        world = fields.pop("world")
        key = (*fields.values(), *(world[n] for n in ("skills", "prompts", "capacity", "answers")))
        lists.setdefault(key, []).append(place)
    return list(lists.values())


class _Table:
    """Games in progress: every game with every seed, all learners and controllers as arrays.

    Game m with seed s is column s·M + m. Where a seed's games all take the same batch (none draws by its own
    q) what belongs to a prompt is read and written for the M games of a seed at once; else by
    the single game. U: units that have a batch of their own, S in the first case, G in the second.
    """

    def __init__(self, games, seeds):
        self.game = game = games[0]
        world = game.world
        self.S, self.M, self.G = len(seeds), len(games), len(seeds) * len(games)
        self.B, self.K = game.bins_in_all, world.skills
        self.D, self.P, self.A = world.prompts, game.batch, world.answers
        self.shared = game.method != "resample" and self.M >= FEW_GAMES
        self.U, self.width = (self.S, self.M) if self.shared else (self.G, 1)

        def of_games(number):
            return np.tile([number(g) for g in games], self.S)

        self.step_size_G, self.eta_G = of_games(lambda g: g.step_size), of_games(lambda g: g.eta)
        sharing_G, transfer_G = of_games(lambda g: g.world.sharing), of_games(lambda g: g.world.transfer)
        self.noise_G = of_games(lambda g: g.world.noise)
        self.own_G = np.sqrt(1 - transfer_G)  # what a prompt keeps to itself
        self.to_skill_G = np.sqrt(transfer_G * (1 - sharing_G))
        self.to_all_G = np.sqrt(transfer_G * sharing_G)

        self.games_G = np.arange(self.G)
        self.generators = [np.random.default_rng((int(seed), 2)) for seed in seeds]
        self.coin_generators = [np.random.default_rng((int(seed), 3)) for seed in seeds]
        self._draw_worlds(games, np.array(seeds) % WORLDS)
        self.steps_played = 0
        self.memory_FG = np.zeros((world.capacity, self.G))
        self.strength_KG = np.zeros((self.K, self.G))
        self.common_G = np.zeros(self.G)
        self._start_controllers()

    def _draw_worlds(self, games, number_S):
        """Directions and settings of the worlds that these seeds are played in."""
        numbers, self.world_S = np.unique(number_S, return_inverse=True)
        self.seeds_of_worlds = [  # seeds are sorted by world
            slice(run[0], run[-1] + 1) for run in (np.flatnonzero(number_S == n) for n in numbers)
        ]
        world = games[0].world
        shape = (self.D, self.K * HELD_OUT, self.A, world.capacity)
        training, held_out = zip(*(draw_directions(*shape, int(n)) for n in numbers), strict=True)
        self.directions_WXF, self.held_out_WXF = np.stack(training), np.stack(held_out)  # X: answer × prompt
        self.batch_SXF = np.empty((self.S if self.shared else 0, self.A * self.P, world.capacity))
        settings = [[draw_setting(g.world, int(n)) for g in games] for n in numbers]

        def by_column(part):
            values_WMD = np.array([[getattr(setting, part) for setting in row] for row in settings])
            return np.moveaxis(values_WMD[self.world_S], -1, 0).reshape(-1, self.G)

        self.offset_DG, self.held_out_offset_EG = by_column("offset_D"), by_column("held_out_offset_E")
        self.skill_DG = by_column("skill_D")
        self.skill_place_DG = self.skill_DG * self.G + self.games_G  # in an array (K, G)

    def _start_controllers(self):
        game = self.game
        self.edges = np.array(even_edges(game.num_bins))
        self.record = ESTIMATORS[game.estimator](game.k, game.history)
        self.record.grow(self.D * self.G)
        dtype = np.int8 if self.B <= 126 else np.int32
        self.bin_DG = np.full((self.D, self.G), -1, dtype)
        if game.grouping == "skill":
            self.bin_DG = self.skill_DG.astype(dtype)
        self.scores = _Scores((self.B, self.G), game.ema)
        self.total_BG = np.zeros((self.B, self.G))  # the cumulative score
        self.arms_N = np.arange(game.n_min, game.n_max + 1)
        # under utility "variance" one number a bin says all of its arms
        columns = len(self.arms_N) if game.method == "rollout_loss" else 1
        self.arm_scores = _Scores((self.B, columns, self.G), game.rollout_ema)
        self.price_G = np.zeros(self.G)
        self.rollouts_BG = np.full((self.B, self.G), game.mean_rollouts)
        self.log_p_BNG = self._arm_log_p()
        self.chances_BNG = np.exp(self.log_p_BNG)

    # One step

    def step(self):
        """Draw a batch, plan, sample, observe, learn."""
        self._draw_luck()
        self._take_batch(self._draw())
        p_APG = self._answer_chances()
        n_PG = self._plan(p_APG[0])
        counts_APG = sampled_answers(p_APG, n_PG, self._rollout_luck(int(n_PG.max())))
        self._observe(counts_APG[0], n_PG)
        self._learn(counts_APG, n_PG)
        self.steps_played += 1

    def _draw_luck(self):
        self.luck, self.words_SF = draw_luck(self.generators, self.game)
        if self.game.method in MOVES_ROLLOUTS:  # coins of the bins, and their arms' draws
            coins = np.stack([generator.random((2, self.B)) for generator in self.coin_generators], axis=-1)
            self.coins_BG, self.arm_draws_BG = np.repeat(coins, self.M, axis=-1)

    def _rollout_luck(self, widest):
        """Numbers (P, G) of the first, second … rollout of every slot."""
        luck_RPS = np.ascontiguousarray(self.luck.rollouts[:, :widest].transpose(1, 2, 0))
        return (np.repeat(luck_PS, self.M, axis=1) for luck_PS in luck_RPS)

    def _draw(self):
        """Prompts of the batch, (P, U): the next of the epoch's order, or by the adversary's q."""
        if self.game.method == "resample":
            return self._resample()
        place = self.steps_played % (self.D // self.P)
        if place == 0:
            self.epoch_DU = np.repeat(self.luck.data.argsort(axis=1).T, self.U // self.S, axis=1)
        return self.epoch_DU[place * self.P : (place + 1) * self.P]

    def _resample(self):
        """As `GDROController.draw`: bins by q (not seen yet: by share), within a bin by lot."""
        counts_CG = self._by_place(self.bin_DG)[1]  # row 0: not seen yet
        chances_CG = counts_CG / self.D
        q_BG = np.where(counts_CG[1:] > 0, self._probabilities(), 0.0)
        total_G, played_G = q_BG.sum(axis=0), chances_CG[1:].sum(axis=0)
        chances_CG[1:] = q_BG * np.divide(played_G, total_G, out=np.zeros(self.G), where=total_G > 0)
        ladder_CG = running_sums(chances_CG)
        ladder_CG = ladder_CG / ladder_CG[-1]
        numbers_PG = np.repeat(self.luck.slot_bins.T, self.M, axis=1)
        slots_up_to_CG = np.stack([(numbers_PG < rung_G).sum(axis=0) for rung_G in ladder_CG])
        # slots in the order of their bins: slot p is of the first bin that reaches beyond p
        slot_P1 = np.arange(self.P)[:, None]
        picked_PG = sum((slot_P1 >= up_to_G).astype(np.int64) for up_to_G in slots_up_to_CG[:-1])
        # prompts in the order of their bins, by lot within
        lot_DS = self.luck.data.argsort(axis=1).T
        rank_DS = np.empty_like(lot_DS)
        np.put_along_axis(rank_DS, lot_DS, np.arange(self.D)[:, None], 0)
        keys_DG = np.multiply(self.bin_DG, self.D, dtype=np.int32)
        keys_DG += np.repeat(rank_DS.astype(np.int32), self.M, axis=1)
        keys_GD = keys_DG.T.copy()
        keys_GD.sort(axis=1)

        places_PG = picked_PG * self.G + self.games_G
        start_PG, count_PG = (
            table_CG.take(places_PG) for table_CG in (running_sums(counts_CG.copy()) - counts_CG, counts_CG)
        )
        first_PG = np.concatenate([np.zeros((1, self.G), np.int64), slots_up_to_CG]).take(places_PG)
        place_PG = start_PG + (slot_P1 - first_PG) % count_PG
        rank_PG = keys_GD.take(place_PG + self.games_G * self.D) % self.D
        return lot_DS.take(rank_PG * self.S + self.games_G // self.M)

    # Prompts of the batch

    def _take_batch(self, slots_PU):
        self.slots_PU = slots_PU
        self.places_PU = slots_PU * self.U + np.arange(self.U)
        self.skill_place_PG = self._read(self.skill_place_DG)

    def _read(self, values_DG):
        """The batch's part of what is kept for every prompt, (P, G)."""
        return values_DG.reshape(-1, self.width).take(self.places_PU, axis=0).reshape(self.P, self.G)

    def _write(self, values_DG, values_PG):
        if self.width == 1:
            values_DG.ravel()[self.places_PU] = values_PG
        else:
            values_DG.reshape(-1, self.width)[self.places_PU] = values_PG.reshape(self.P, self.U, self.width)

    def _by_place(self, bins_XG):
        """Where each stands in an array (1 + B, G) whose row 0 is for bin −1, flat, and the counts there."""
        places_XG = np.multiply(bins_XG, self.G, dtype=np.int64)
        places_XG += self.games_G + self.G
        counts = np.bincount(places_XG.ravel(), minlength=(self.B + 1) * self.G)
        return places_XG, counts.reshape(-1, self.G)

    def _bin_means(self, places_PG, counts_CG, values_PG):
        """Mean by bin, (B, G), 0 where a bin is absent."""
        sums = np.bincount(places_PG.ravel(), values_PG.ravel(), counts_CG.size).reshape(-1, self.G)
        return sums[1:] / np.maximum(counts_CG[1:], 1)

    # The learner

    def _answer_chances(self):
        if self.shared:  # the directions of the batch alone
            first_S1 = self.world_S[:, None, None] * (self.A * self.D)
            rows_SAP = first_S1 + np.arange(self.A)[:, None] * self.D + self.slots_PU.T[:, None, :]
            directions_XF = self.directions_WXF.reshape(-1, self.directions_WXF.shape[-1])
            rows_SX = rows_SAP.reshape(self.S, -1)
            # mode "clip" writes straight into the array that is kept from step to step
            directions_XF.take(rows_SX, axis=0, out=self.batch_SXF, mode="clip")
            z_XG = np.empty((self.A * self.P, self.G))
            np.matmul(self.batch_SXF, self._by_seed(self.memory_FG), out=self._by_seed(z_XG))
            z_APG = z_XG.reshape(self.A, self.P, self.G)
        else:
            z_APG = self._logits(self.directions_WXF).reshape(self.A, -1).take(self.places_PU, axis=1)
        z_APG *= self.own_G
        z_APG[0] += self._read(self.offset_DG)
        z_APG[0] += self._strengths().take(self.skill_place_PG)
        return _softmax(z_APG)

    def _by_seed(self, values_XG):
        """The same array as (S, X, M)."""
        return values_XG.reshape(-1, self.S, self.M).transpose(1, 0, 2)

    def _logits(self, directions_WXF):
        """⟨ε, θ⟩ for each answer to each prompt, (X, G)."""
        z_XG = np.empty((directions_WXF.shape[1], self.G))
        for directions_XF, columns in self._columns_of_worlds(directions_WXF):
            np.matmul(directions_XF, self.memory_FG[:, columns], out=z_XG[:, columns])
        return z_XG

    def _columns_of_worlds(self, directions_WXF):
        for directions_XF, seeds in zip(directions_WXF, self.seeds_of_worlds, strict=True):
            yield directions_XF, slice(seeds.start * self.M, seeds.stop * self.M)

    def _strengths(self):
        return self.to_skill_G * self.strength_KG + self.to_all_G * self.common_G

    def _learn(self, counts_APG, n_PG):
        """One gradient step on the mean over prompts of w · (1/n) Σ_j A_j log π(answer_j)."""
        pull_APG, square_PG = answer_pulls(counts_APG, n_PG)
        step_PG = self.step_size_G / self.P * self._prompt_weights()
        pull_APG *= step_PG
        square_PG *= step_PG
        square_PG *= step_PG
        self.memory_FG += self.own_G * self._pull_on_memory(pull_APG)
        # Independent Gaussian directions add up to one whose variance is the sum of the squared factors,
        # so the answers' own words take one draw, exact in law
        length_G = self.noise_G * np.sqrt(square_PG.sum(axis=0) / len(self.memory_FG))
        self.memory_FG += length_G * np.repeat(self.words_SF.T, self.M, axis=1)
        gained_KG = np.bincount(self.skill_place_PG.ravel(), pull_APG[0].ravel(), self.K * self.G)
        gained_KG = gained_KG.reshape(self.K, self.G)
        self.strength_KG += self.to_skill_G * gained_KG
        self.common_G += self.to_all_G * gained_KG.sum(axis=0)

    def _pull_on_memory(self, pull_APG):
        pull_on_FG = np.empty(self.memory_FG.shape)
        if self.shared:
            np.matmul(
                self.batch_SXF.swapaxes(1, 2),
                self._by_seed(pull_APG.reshape(-1, self.G)),
                out=self._by_seed(pull_on_FG),
            )
            return pull_on_FG
        answers_A11 = np.arange(self.A)[:, None, None] * (self.D * self.G)
        places_APG = answers_A11 + self.places_PU  # a prompt may come twice in a batch
        pulls = np.bincount(places_APG.ravel(), pull_APG.ravel(), self.A * self.D * self.G)
        pulls_XG = pulls.reshape(-1, self.G)
        for directions_XF, columns in self._columns_of_worlds(self.directions_WXF):
            np.matmul(directions_XF.T, pulls_XG[:, columns], out=pull_on_FG[:, columns])
        return pull_on_FG

    # The controllers

    def _plan(self, right_PG):
        """Rollouts of each slot, n̄ on average in every game, exactly: (P, G), or (1, 1) where all get n̄."""
        game = self.game
        if game.method not in MOVES_ROLLOUTS:
            return np.full((1, 1), game.mean_rollouts)
        if game.method == "oracle":
            spare = (game.mean_rollouts - game.n_min) * self.P
            return greedy_rollouts(right_PG * (1 - right_PG), game.n_min, game.n_max, spare)
        places_PG, counts_CG = self._by_place(self._read(self.bin_DG))
        counts_BG = counts_CG[1:]
        rollouts_CG = np.full(counts_CG.shape, game.mean_rollouts)  # whose bin is not known yet gets n̄
        if counts_BG.any():
            playing_G = counts_BG.any(axis=0)
            chosen_BG = self._allocate(counts_BG, game.mean_rollouts * counts_BG.sum(axis=0))
            rollouts_CG[1:] = np.where(playing_G, chosen_BG, game.mean_rollouts)
        self.rollouts_BG = rollouts_CG[1:]
        return rollouts_CG.take(places_PG)

    def _allocate(self, counts_BG, budget_G):
        """Rollouts by bin, (B, G). n̄ is one of the arms, so the budget can always be met."""
        if self.game.method == "rollout_loss":
            chosen_BG, _, self.chances_BNG = sample_joint_arms_of_games(
                self.log_p_BNG, counts_BG, self.arms_N, budget_G, self.coins_BG, self.arm_draws_BG
            )
            return chosen_BG
        by_prompt = self.game.joint == "prompts"
        values_BNG = self.log_p_BNG * counts_BG[:, None] if by_prompt else self.log_p_BNG
        return best_joint_arms_of_games(values_BNG, counts_BG, self.arms_N, budget_G, self.coins_BG)[0]

    def _arm_log_p(self):
        """As `RolloutGDRO.losses` and its strategies, (B, N, G)."""
        game = self.game
        scores_BNG, arms_N1 = self.arm_scores.debiased(), self.arms_N[:, None]
        if game.method != "rollout_loss":
            average_G = scores_BNG.mean(axis=(0, 1))
            scale_G = np.divide(game.mean_rollouts**2, average_G, out=np.zeros(self.G), where=average_G > 0)
            scores_BNG = scores_BNG * scale_G / arms_N1
        losses_BNG = scores_BNG + self.price_G * arms_N1
        log_p_BGN = arm_log_probabilities(losses_BNG.swapaxes(1, 2), game.rollout_eta, game.rollout_gamma)
        return log_p_BGN.swapaxes(1, 2)

    def _observe(self, right_PG, n_PG):
        """As `GDROController.observe`: bins move, then both adversaries. Without an adversary, nothing."""
        game = self.game
        if game.method in ("grpo", "oracle"):
            return
        before_PG = self._read(self.bin_DG)
        self._book(right_PG, n_PG)
        self.bins_PG = self._read(self.bin_DG)
        places_PG, counts_CG = self._by_place(np.where(before_PG < 0, self.bins_PG, before_PG))
        failure_PG = 1.0 - right_PG / n_PG
        means_BG, seen_BG = self._bin_means(places_PG, counts_CG, failure_PG), counts_CG[1:] > 0
        if game.score == "cumulative":
            self.total_BG += means_BG * counts_CG[1:] * (self.B / self.P)
        else:
            self.scores.update(means_BG, seen_BG)
        if game.method in MOVES_ROLLOUTS:
            self._update_arms(places_PG, counts_CG, right_PG, n_PG, means_BG)

    def _book(self, right_PG, n_PG):
        game = self.game
        n_PG = np.broadcast_to(n_PG, right_PG.shape)
        if game.method == "resample":  # a prompt may come twice in a batch: one visit
            right_PG, n_PG = (
                np.bincount(self.places_PU.ravel(), counts_PG.ravel(), self.D * self.G).take(self.places_PU)
                for counts_PG in (right_PG, n_PG)
            )
        if game.estimator == "beta":
            estimate_PG = self._book_beta(right_PG, n_PG - right_PG)
        else:
            rows_PG = (self.places_PU[..., None] * self.width + np.arange(self.width)).reshape(right_PG.shape)
            rows, first = np.unique(rows_PG, return_index=True)
            self.record.add(
                rows, right_PG.ravel()[first].astype(np.int64), n_PG.ravel()[first].astype(np.int64)
            )
            estimate_PG = self.record.pass_at_k(rows_PG.ravel()).reshape(rows_PG.shape)
        if game.grouping == "difficulty":
            moved_PG = moved_bins(self._read(self.bin_DG), estimate_PG, self.edges, game.hysteresis)
            self._write(self.bin_DG, moved_PG)

    def _book_beta(self, right_PG, wrong_PG):
        """As `BetaPosterior.add` and `pass_at_k` in its own arrays, without looking for prompts twice."""
        kept = np.float32(1.0 - 1.0 / self.record.history)

        def add(name, counts_PG):
            faded_DG = self.record.arrays[name].reshape(self.D, self.G)
            new_PG = (self._read(faded_DG) * kept + counts_PG).astype(np.float32)
            self._write(faded_DG, new_PG)
            return new_PG

        return beta_pass_at_k(add("successes", right_PG), add("failures", wrong_PG), self.record.k)

    def _update_arms(self, places_PG, counts_CG, right_PG, n_PG, failure_BG):
        """As `RolloutGDRO.update`."""
        game, counts_BG, seen_BG = self.game, counts_CG[1:], counts_CG[1:] > 0
        count_G = counts_BG.sum(axis=0)
        demand_BG = np.einsum("bng,n->bg", np.exp(self.log_p_BNG), self.arms_N.astype(float))
        demand_G = (counts_BG * demand_BG).sum(axis=0) / np.maximum(count_G, 1)
        demand_G = np.where(count_G > 0, demand_G, game.mean_rollouts)  # nobody asks: the price stays
        if game.method == "rollout_loss":
            played_BG = np.maximum(self.rollouts_BG - game.n_min, 0)
            self.arm_scores.update(*self._exp3p_losses(failure_BG, played_BG, seen_BG))
        else:
            rate_PG = right_PG / n_PG
            known_PG = n_PG > 1  # a group of one says nothing of its variance
            variance_PG = rate_PG * (1 - rate_PG) * n_PG / np.maximum(n_PG - 1, 1)
            if not known_PG.all():
                places_PG, counts_CG = self._by_place(np.where(known_PG, places_PG // self.G - 1, -1))
            variance_BG = self._bin_means(places_PG, counts_CG, variance_PG)
            self.arm_scores.update(variance_BG[:, None], (counts_CG[1:] > 0)[:, None])
        self.price_G = price_step(self.price_G, demand_G, game.mean_rollouts, game.price_lr)
        self.log_p_BNG = self._arm_log_p()

    def _exp3p_losses(self, failure_BG, played_BG, seen_BG):
        """As `gdro.rollout_gdro.exp3p_losses`, (B, N, G), and where there is one."""
        possible_BNG = self.chances_BNG > 0
        possible_BNG &= seen_BG[:, None]
        chances_BNG = np.where(possible_BNG, self.chances_BNG, 1.0)
        losses_BNG = -RolloutGDRO(self.B).bonus / chances_BNG
        played_B1G = played_BG[:, None]
        played_losses = np.take_along_axis(losses_BNG, played_B1G, 1)
        played_losses += failure_BG[:, None] / np.take_along_axis(chances_BNG, played_B1G, 1)
        np.put_along_axis(losses_BNG, played_B1G, played_losses, 1)
        return losses_BNG, possible_BNG

    def _adversary_weights(self):
        scores_BG = self.total_BG if self.game.score == "cumulative" else self.scores.debiased()
        return exponential_weights(scores_BG, self.eta_G, self.game.clip)

    def _probabilities(self):
        return mixed_probabilities(self._adversary_weights().T, self.game.gamma).T

    def _weights(self):
        return np.minimum(self._adversary_weights(), self.game.max_weight)

    def _prompt_weights(self):
        """As `GDROController.weights`, (P, G): mean one over the batch. 1 without reweighting."""
        if self.game.method not in REWEIGHTS:
            return np.ones((1, 1))
        unseen_PG = self.bins_PG < 0
        weights_PG = self._weights().take(self._by_place(self.bins_PG)[0] - self.G, mode="clip")
        if unseen_PG.any():  # without an estimate yet: the mean weight
            count_G = self.P - unseen_PG.sum(axis=0)
            mean_G = np.where(unseen_PG, 0.0, weights_PG).sum(axis=0) / np.maximum(count_G, 1)
            weights_PG = np.where(unseen_PG, np.where(count_G > 0, mean_G, 1.0), weights_PG)
        return weights_PG / weights_PG.mean(axis=0)

    # What is measured

    def measure(self):
        """Accuracy and pass@8 on held-out prompts, mean by skill, (K, G) each; exact, no sampling."""
        z_AEG = self._logits(self.held_out_WXF).reshape(self.A, -1, self.G)
        z_AEG *= self.own_G
        z_AEG[0] += self.held_out_offset_EG + np.repeat(self._strengths(), HELD_OUT, axis=0)
        right_KEG = _softmax(z_AEG)[0].reshape(self.K, HELD_OUT, self.G)
        return right_KEG.mean(axis=1), (1 - (1 - right_KEG) ** 8).mean(axis=1)

    def trace(self):
        """Weights, probabilities and rollouts by bin as they stand, (B, G) each."""
        return self._weights(), self._probabilities(), self.rollouts_BG


class _Scores:
    """(12) for many games, freed of the start at 0: `ema_scores` and `debiased` with bins in front."""

    def __init__(self, shape, ema):
        self.ema = ema
        self.scores = np.zeros(shape)
        self.unfaded = np.ones(shape)  # (1−β)^visits, what is left of the start

    def update(self, means, seen):
        """means: of `shape`, anything where not seen."""
        keep = np.where(seen, 1 - self.ema, 1.0)
        self.scores *= keep
        self.scores += np.where(seen, self.ema * means, 0.0)
        self.unfaded *= keep

    def debiased(self):
        """As `gdro.prompt_gdro.debiased`: what was never visited stands at the mean of the visited bins."""
        visited = self.unfaded < 1
        if visited.all():
            return self.scores / (1 - self.unfaded)
        scores = self.scores / np.where(visited, 1 - self.unfaded, 1.0)
        mean = scores.sum(axis=0) / np.maximum(visited.sum(axis=0), 1)
        return np.where(visited, scores, mean)


def sampled_answers(p_APG, n_PG, luck):
    """How often each answer came in n rollouts, (A, P, G), by inverting the distribution.

    luck: uniform numbers (P, G) of the first, second … rollout, as many as the largest n.
    """
    ladder_APG = running_sums(p_APG[:-1].copy())
    least, most = n_PG.min(), n_PG.max()
    below_APG = np.zeros(ladder_APG.shape, np.int8 if most < 128 else np.int32)  # rollouts below each rung
    for r, number_PG in enumerate(luck):
        if r >= least:
            number_PG = np.where(r < n_PG, number_PG, np.inf)  # a rollout not made lies below none
        below_APG += (number_PG < ladder_APG).view(np.int8)
    counts_APG = np.empty(p_APG.shape, below_APG.dtype)
    counts_APG[0] = below_APG[0]
    np.subtract(below_APG[1:], below_APG[:-1], out=counts_APG[1:-1])
    counts_APG[-1] = n_PG - below_APG[-1]
    return counts_APG


def answer_pulls(counts_APG, n_PG):
    """Gradient of (1/n) Σ_j A_j log π(answer_j) in each answer's logit, (A, ...), and Σ_j (A_j/n)².

    A_j of (3) with the standard deviation of the sample (n − 1) and TRL's 1e-4. The advantages of a
    group sum to 0, so the softmax's own term drops out and an answer is pulled by its own advantages.
    """
    rate_PG = counts_APG[0] / n_PG
    spread_PG = rate_PG * (1 - rate_PG)
    per_rollout_PG = 1.0 / ((np.sqrt(spread_PG * n_PG / np.maximum(n_PG - 1, 1)) + EPSILON) * n_PG)
    pull_APG = counts_APG * (-rate_PG * per_rollout_PG)
    pull_APG[0] = counts_APG[0] * (1 - rate_PG) * per_rollout_PG
    return pull_APG, spread_PG * n_PG * per_rollout_PG**2


def beta_pass_at_k(successes, failures, k):
    """`BetaPosterior.pass_at_k` of counts not both 0, any shape: 1 − Π_{i<k} (β+i)/(α+β+i)."""
    beta = failures + np.float64(BetaPosterior.prior[1])
    both = beta + successes + BetaPosterior.prior[0]
    all_wrong = np.ones(beta.shape)
    for _ in range(k):
        all_wrong *= beta / both
        beta += 1
        both += 1
    return 1.0 - all_wrong


def moved_bins(current, estimate, edges, hysteresis):
    """`gdro.bins.move_bins` by comparison with each edge, which for few bins is faster than a search."""
    value = estimate + ROUNDING  # NaN leaves a bin as it is
    lowest = _edges_below(value - hysteresis, edges, current.dtype)
    highest = _edges_below(value + max(hysteresis - 2 * ROUNDING, 0.0), edges, current.dtype)
    moved = np.minimum(np.maximum(current, lowest), highest)
    if (current < 0).any():
        moved = np.where(current < 0, _edges_below(value, edges, current.dtype), moved)
    if np.isnan(estimate).any():
        moved = np.where(np.isnan(estimate), current, moved)
    return moved


def _edges_below(value, edges, dtype):
    """How many edges each value has reached."""
    count = np.zeros(value.shape, dtype)
    for edge in edges:
        count += value >= edge
    return count


def _softmax(z_AX):
    """Along the first axis, in place."""
    z_AX -= z_AX.max(axis=0)
    np.exp(z_AX, out=z_AX)
    z_AX /= z_AX.sum(axis=0)
    return z_AX
