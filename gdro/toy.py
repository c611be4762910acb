"""Learners small enough to play thousands of games at once.

A prompt has a few possible answers, one of them right, and the policy is a softmax over them. The logit
of the right answer is what the prompt's skill has learned plus what was learned of this very prompt:

    z_right = offset + √c · strength(skill) + √(1−c) · ⟨ε_right, θ⟩,      z_wrong = √(1−c) · ⟨ε_wrong, θ⟩

The strength of a skill carries over to prompts never trained on (`transfer` c says how much of a
lesson does); θ is a memory of `capacity` numbers in which prompts get in each other's way, because
the random directions ε overlap. Besides, every sampled answer comes in words of its own: its advantage
also moves θ in a random direction of length `noise`, which averages out over many rollouts and walks at
random over few. That is what makes a large step and a small n costly. Skills differ in how often they
come (`tail`) and how hard they start (`spread`).

GRPO samples answers and climbs with group-normalized advantages, as `gdro.trainer` does with plain
gradient steps on-policy; the controllers are those of `gdro`, with a leading axis of games, and
`gdro.toy_plain` plays one game with the very objects. All games of one seed see the same random
numbers whatever their method, so differences between methods are paired.

Axes: G games (one row of everything), S seeds, C checkpoints, K skills, D prompts of the data set,
P prompts of a batch, A answers (0 is right), F memory, E held-out prompts, B bins, N arms.
"""

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from typing import NamedTuple

import numpy as np

from gdro.bins import DifficultyBins, move_bins
from gdro.estimators import ESTIMATORS
from gdro.joint_arms import best_joint_arms_of_games, greedy_rollouts, sample_joint_arms_of_games
from gdro.prompt_gdro import (
    PromptGDRO,
    debiased,
    ema_scores,
    exponential_weights,
    mixed_probabilities,
)
from gdro.rollout_gdro import RolloutGDRO, arm_log_probabilities, check_choice, exp3p_losses, price_step

METHODS = {
    "grpo": "GRPO",
    "prompt": "Prompt-GDRO, reweight",
    "resample": "Prompt-GDRO, resample",
    "rollout": "Rollout-GDRO, variance",
    "rollout_loss": "Rollout-GDRO, loss",
    "both": "both games",
    "oracle": "oracle allocation",
}
REWEIGHTS, MOVES_ROLLOUTS = ("prompt", "both"), ("rollout", "rollout_loss", "both", "oracle")
WORLDS = 16  # seed s is played in the random world s mod 16: games of one world share its directions
HELD_OUT = 8  # prompts of each skill
ROWS = 1024  # games in one block of arrays: enough to hide numpy's overhead, few enough for the cache
LUCK_ROLLOUTS = 16  # rollouts of a slot that luck is drawn for in every game
EPSILON = 1e-4  # beside the standard deviation of (3), as TRL has it


@dataclass(frozen=True)
class World:
    """What is to be learned.

    skills, prompts: how many; every skill has at least one prompt. tail: the share of the k-th
    skill is proportional to k^−tail, 0 is even. spread: the hardest skill starts so many logits
    below the mean, the easiest as many above. mean_logit: where the mean starts; −0.5 is a pass rate of
    0.17 among 4 answers. jitter: standard deviation of a prompt's own offset within its skill.
    rare: whether rare skills are the "hard" ones, the "easy" ones, or "mixed" (by lot, per world).
    sharing: share of a skill's strength that all skills have in common, 0 disjoint, 1 one skill.
    transfer: part of a lesson that carries over to the skill, in [0, 1]; the rest is the prompt's own.
    capacity: size of the memory; small makes prompts interfere. noise: length of the random direction
    in which a sampled answer's own words pull. answers: at least 2, one is right.
    """

    skills: int = 6
    prompts: int = 48
    tail: float = 1.0
    spread: float = 2.0
    mean_logit: float = -0.5
    jitter: float = 0.7
    rare: str = "hard"
    sharing: float = 0.0
    transfer: float = 0.3
    capacity: int = 64
    noise: float = 2.0
    answers: int = 4

    def __post_init__(self):
        for name, least in (("skills", 1), ("prompts", self.skills), ("capacity", 1), ("answers", 2)):
            _check_integer(name, getattr(self, name), least)
        for name in ("tail", "spread", "jitter", "noise"):
            _check_range(name, getattr(self, name), 0, np.inf, "0 makes all alike")
        _check_range("mean_logit", self.mean_logit, -np.inf, np.inf, "it is a logit")
        for name in ("sharing", "transfer"):
            _check_range(name, getattr(self, name), 0, 1, "it is a share")
        check_choice("rare", self.rare, ("hard", "easy", "mixed"))


@dataclass(frozen=True)
class Game:
    """A world and a way to train in it.

    method: a name in `METHODS`. step_size: of the gradient ascent, > 0. batch: prompts a step, at
    most the data set's. mean_rollouts: n̄, a whole number. The arguments from n_min on are those
    of `RolloutGDRO`, `DifficultyBins` and `PromptGDRO`; `edges` are even. grouping: "difficulty" or
    "skill" (static groups, known from the start). score: "ema" is (12); "cumulative" adds up the losses
    of all prompts in the bin, so that frequent bins score high.
    """

    world: World = field(default_factory=World)
    method: str = "grpo"
    step_size: float = 8.0
    batch: int = 16
    mean_rollouts: int = 4
    n_min: int = 2
    n_max: int = 8
    rollout_eta: float = 0.65
    rollout_gamma: float = 0.01
    rollout_ema: float = 0.4
    price_lr: float = 0.05
    joint: str = "prompts"
    grouping: str = "difficulty"
    num_bins: int = 6
    estimator: str = "beta"
    k: int = 8
    history: int = 50
    hysteresis: float = 0.03
    eta: float = 0.65
    gamma: float = 0.01
    ema: float = 0.12
    clip: float = 5.0
    max_weight: float = 15.0
    score: str = "ema"

    def __post_init__(self):
        check_choice("method", self.method, tuple(METHODS))
        check_choice("grouping", self.grouping, ("difficulty", "skill"))
        check_choice("score", self.score, ("ema", "cumulative"))
        if not 0 < self.step_size < np.inf:
            raise ValueError(f"step_size must be positive and finite, got {self.step_size}; try 4 to 32")
        _check_integer("batch", self.batch, 1)
        if self.batch > self.world.prompts:
            raise ValueError(
                f"batch must not exceed the {self.world.prompts} prompts of the world, got {self.batch}; "
                "a step takes each prompt once at most"
            )
        _check_integer("mean_rollouts", self.mean_rollouts, 2)
        self.make_bins()
        self.make_prompt()
        self.make_rollout()

    @property
    def bins_in_all(self) -> int:
        """Bins of this game's grouping."""
        return self.num_bins if self.grouping == "difficulty" else self.world.skills

    def make_bins(self) -> DifficultyBins:
        """The classifier with this game's settings; ValueError if one lies outside its domain."""
        return DifficultyBins(
            even_edges(self.num_bins), self.k, self.history, self.hysteresis, self.estimator
        )

    def make_prompt(self) -> PromptGDRO:
        """The data adversary with this game's settings, and its checks."""
        return PromptGDRO(self.bins_in_all, self.eta, self.gamma, self.ema, self.clip, self.max_weight)

    def make_rollout(self) -> RolloutGDRO:
        """The compute adversary with this game's settings, and its checks."""
        return RolloutGDRO(
            self.bins_in_all,
            self.n_min,
            self.n_max,
            self.mean_rollouts,
            self.rollout_eta,
            self.rollout_gamma,
            self.rollout_ema,
            self.price_lr,
            "loss" if self.method == "rollout_loss" else "variance",
            joint=self.joint,
        )


class Results(NamedTuple):
    """What `play` measured; leading axes games (in the order given), seeds, checkpoints.

    accuracy, pass_at_8: (G, S, C, K), exact chances on held-out prompts, mean by skill.
    share: (G, K) of the training prompts. weight, probability, rollouts: (G, S, C, B), what the controllers
    stood at (NaN where the game has fewer bins; rollouts 0 for a bin that was not in the batch).
    """

    accuracy: np.ndarray
    pass_at_8: np.ndarray
    share: np.ndarray
    weight: np.ndarray
    probability: np.ndarray
    rollouts: np.ndarray

    def mean_pass_at_8(self):
        """Mean over skills, each counting the same, (G, S, C)."""
        return self.pass_at_8.mean(axis=-1)

    def mean_accuracy(self):
        """Mean over skills, each counting the same, (G, S, C)."""
        return self.accuracy.mean(axis=-1)

    def worst_skill(self):
        """Accuracy (pass@1) of the worst skill, (G, S, C)."""
        return self.accuracy.min(axis=-1)

    def typical_accuracy(self):
        """Accuracy with the skills weighted as they are in training, (G, S, C)."""
        return np.einsum("gsck,gk->gsc", self.accuracy, self.share)


def even_edges(num_bins):
    """Edges of `num_bins` bins of one width, as `DifficultyBins` takes them."""
    _check_integer("num_bins", num_bins, 2)
    return tuple((np.arange(1, num_bins) / num_bins).tolist())


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
        _check_integer("seed", seed, 0)
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
        g_G, s_G = np.array(block).T
        table = _Table([games[g] for g in g_G], [seeds[s] for s in s_G])
        for c, checkpoint in enumerate(checkpoints):
            while table.steps_played < checkpoint:
                table.step()
            accuracy[g_G, s_G, c], pass_at_8[g_G, s_G, c] = table.measure()
            for trace, values in zip(traces, table.trace(), strict=True):
                trace[g_G, s_G, c, : values.shape[1]] = values

    threads = threads or os.cpu_count() or 1
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(play_block, _blocks(games, seeds, threads)))
    return Results(accuracy, pass_at_8, share, *traces)


def _blocks(games, seeds, threads):
    """Rows (game, seed) of each array to play, those of one world together, as even as can be."""
    blocks = []
    for members in _alike(games):
        rows = [(g, s) for g in members for s in range(len(seeds))]
        rows.sort(key=lambda row: (seeds[row[1]] % WORLDS, row[1]))
        parts = max(-(-len(rows) // ROWS), min(threads, len(rows) // (ROWS // 4)))
        size = -(-len(rows) // max(parts, 1))
        blocks += [rows[start : start + size] for start in range(0, len(rows), size)]
    return blocks


def skill_counts(world):
    """Prompts of each skill, (K,), the most frequent first: k^−tail by largest remainder, at least 1."""
    share_K = np.arange(1, world.skills + 1.0) ** -world.tail
    exact_K = 1 + (world.prompts - world.skills) * share_K / share_K.sum()
    counts_K = np.floor(exact_K).astype(np.int64)
    most_cut = np.argsort(counts_K - exact_K, kind="stable")
    counts_K[most_cut[: world.prompts - counts_K.sum()]] += 1
    return counts_K


class Setting(NamedTuple):
    """A world as drawn: skill (D,), offset (D,), held-out offset (E,)."""

    skill_D: np.ndarray
    offset_D: np.ndarray
    held_out_offset_E: np.ndarray


@cache
def draw_setting(world, number):
    """Skills and offsets of the random world `number`; the same jitter in every world's settings."""
    rng = np.random.default_rng((number, 0))
    hardness_K = np.linspace(-1, 1, world.skills) if world.skills > 1 else np.zeros(1)
    lot_K = rng.permutation(world.skills)
    hardness_K = {"hard": hardness_K, "easy": -hardness_K, "mixed": hardness_K[lot_K]}[world.rare]
    logit_K = world.mean_logit - world.spread * hardness_K
    skill_D = np.repeat(np.arange(world.skills), skill_counts(world))
    offset_D = logit_K[skill_D] + world.jitter * rng.standard_normal(world.prompts)
    held_out_E = world.jitter * rng.standard_normal((world.skills, HELD_OUT))
    return Setting(skill_D, offset_D, (logit_K[:, None] + held_out_E).ravel())


@cache
def draw_directions(prompts, held_out, answers, capacity, number):
    """Directions ε in memory: (F, A·D) of the training prompts and (F, A·E) of the held-out ones."""
    rng = np.random.default_rng((number, 1))
    scale = capacity**-0.5
    return (
        scale * rng.standard_normal((capacity, answers * prompts)),
        scale * rng.standard_normal((capacity, answers * held_out)),
    )


class Luck(NamedTuple):
    """The uniform numbers of one step; every game of a seed has the same, whatever its method.

    rollouts (R, P) of the first, second … rollout of each slot, lots of the data set (D,), bins of the slots
    (P,), lots of the slots (P,).
    """

    rollouts: np.ndarray
    data: np.ndarray
    slot_bins: np.ndarray
    slot_lots: np.ndarray


def draw_luck(generators, game):
    """One step's `Luck` and the answers' own words (F,), with a leading axis of seeds."""
    # as many rows of rollouts whatever n_max is, so that games with other arms have the same luck
    sizes = (game.batch * max(LUCK_ROLLOUTS, game.n_max), game.world.prompts, game.batch, game.batch)
    numbers = np.stack([generator.random(sum(sizes)) for generator in generators])
    rollouts, *others = np.split(numbers, np.cumsum(sizes)[:-1], axis=-1)
    words = np.stack([generator.standard_normal(game.world.capacity) for generator in generators])
    return Luck(rollouts.reshape(len(numbers), -1, game.batch), *others), words


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
    """Games of one shape in progress: the state of all learners and controllers, one row each."""

    def __init__(self, games, seeds):
        self.game = game = games[0]
        world = game.world
        self.G, self.B, self.K = len(games), game.bins_in_all, world.skills
        self.D, self.P, self.A = world.prompts, game.batch, world.answers
        self.rows_G1 = np.arange(self.G)[:, None]
        self.step_size_G = np.array([g.step_size for g in games])
        self.eta_G1 = np.array([g.eta for g in games])[:, None]
        worlds = [g.world for g in games]
        self.sharing_G = np.array([w.sharing for w in worlds])
        self.transfer_G = np.array([w.transfer for w in worlds])
        self.noise_G = np.array([w.noise for w in worlds])
        self.own_G1 = np.sqrt(1 - self.transfer_G)[:, None]  # what a prompt keeps to itself
        numbers = np.array(seeds) % WORLDS
        settings = [draw_setting(g.world, int(n)) for g, n in zip(games, numbers, strict=True)]
        self.skill_GD, self.offset_GD, self.held_out_offset_GE = map(np.stack, zip(*settings, strict=True))
        self.worlds = []  # (rows, directions of training prompts, of held-out prompts)
        for number in np.unique(numbers):
            where = np.flatnonzero(numbers == number)
            rows = slice(where[0], where[-1] + 1)  # rows are sorted by world
            directions = draw_directions(self.D, self.K * HELD_OUT, self.A, world.capacity, int(number))
            self.worlds.append((rows, *directions))

        own_seeds, self.seed_of_G = np.unique(seeds, return_inverse=True)
        self.generators = [np.random.default_rng((int(seed), 2)) for seed in own_seeds]
        self.coin_generators = [np.random.default_rng((int(seed), 3)) for seed in own_seeds]
        self.epoch_GD = np.zeros((self.G, 0), np.int64)
        self.steps_played = 0

        self.logits_GAD = np.empty((self.G, self.A * self.D))  # large arrays are kept, not made anew
        self.pulls_GAD = np.zeros((self.G, self.A * self.D))
        self.memory_GF = np.zeros((self.G, world.capacity))
        self.strength_GK = np.zeros((self.G, self.K))
        self.common_G = np.zeros(self.G)
        self._start_controllers()

    def _start_controllers(self):
        game = self.game
        self.edges = np.array(even_edges(game.num_bins))
        self.record = ESTIMATORS[game.estimator](game.k, game.history)
        self.record.grow(self.G * self.D)
        self.bin_GD = np.full((self.G, self.D), -1)
        if game.grouping == "skill":
            self.bin_GD = self.skill_GD.copy()
        self.ema_GB, self.visits_GB = np.zeros((self.G, self.B)), np.zeros((self.G, self.B), np.int64)
        self.arms_N = np.arange(game.n_min, game.n_max + 1)
        # under utility "variance" one number a bin says all of its arms
        columns = len(self.arms_N) if game.method == "rollout_loss" else 1
        self.arm_ema_GBN = np.zeros((self.G, self.B, columns))
        self.arm_visits_GBN = np.zeros(self.arm_ema_GBN.shape, np.int64)
        self.price_G = np.zeros(self.G)
        self.rollouts_GB = np.full((self.G, self.B), game.mean_rollouts)
        self.log_p_GBN = self._arm_log_p()
        self.chances_GBN = np.exp(self.log_p_GBN)

    # One step

    def step(self):
        """Draw a batch, plan, sample, observe, learn."""
        self._draw_luck()
        slots_GP = self._draw()
        places_AGP = self._places(slots_GP)
        p_AGP = self._answer_chances(slots_GP, places_AGP)
        n_GP = self._plan(slots_GP, p_AGP[0])
        counts_AGP = sampled_answers(p_AGP, n_GP, self._rollout_luck(int(n_GP.max())))
        self._observe(slots_GP, counts_AGP[0], n_GP)
        self._learn(slots_GP, places_AGP, counts_AGP, n_GP)
        self.steps_played += 1

    def _draw_luck(self):
        self.luck_of_seeds, self.words_of_seeds = draw_luck(self.generators, self.game)
        if self.game.method in MOVES_ROLLOUTS:  # coins of the bins, and their arms' draws, (G, B) each
            coins = np.stack([generator.random((2, self.B)) for generator in self.coin_generators])
            self.coins_GB, self.arm_draws_GB = coins[self.seed_of_G].swapaxes(0, 1)

    def _luck(self, part):
        return getattr(self.luck_of_seeds, part)[self.seed_of_G]

    def _rollout_luck(self, widest):
        """Numbers (G, P) of the first, second … rollout of every slot."""
        return (self.luck_of_seeds.rollouts[:, r][self.seed_of_G] for r in range(widest))

    def _places(self, slots_GP):
        """Where each answer of each slot stands in `logits_GAD`, flat, (A, G, P)."""
        first_GP = self.rows_G1 * (self.A * self.D) + slots_GP
        return first_GP + np.arange(self.A)[:, None, None] * self.D

    def _draw(self):
        """Prompts of the batch, (G, P): the next of the epoch's order, or by the adversary's q."""
        if self.game.method == "resample":
            return self._resample()
        steps_in_epoch = self.D // self.P
        place = self.steps_played % steps_in_epoch
        if place == 0:
            self.epoch_GD = self._luck("data").argsort(axis=1)
        return self.epoch_GD[:, place * self.P : (place + 1) * self.P]

    def _resample(self):
        """As `GDROController.draw`: bins by q (not seen yet: by share), within a bin by lot."""
        counts_GC = _counts(self.bin_GD + 1, self.B + 1)  # column 0: not seen yet
        chances_GC = counts_GC / self.D
        q_GB = np.where(counts_GC[:, 1:] > 0, self._probabilities(), 0.0)
        total_G = q_GB.sum(axis=1)
        played_G = chances_GC[:, 1:].sum(axis=1)
        scale_G = np.divide(played_G, total_G, out=np.zeros(self.G), where=total_G > 0)
        chances_GC[:, 1:] = q_GB * scale_G[:, None]
        ladder_GC = chances_GC.cumsum(axis=1)
        ladder_GC /= ladder_GC[:, -1:]
        picked_GP = (ladder_GC[:, None, :] <= self._luck("slot_bins")[..., None]).sum(axis=2)
        picked_GP.sort(axis=1)
        by_bin_GD = (self.bin_GD + self._luck("data")).argsort(axis=1)  # bins in order, lots within
        start_GC = counts_GC.cumsum(axis=1) - counts_GC
        first_GP = (picked_GP[:, :, None] > picked_GP[:, None, :]).sum(axis=2)
        turn_GP = (np.arange(self.P) - first_GP) % np.take_along_axis(counts_GC, picked_GP, 1)
        place_GP = np.take_along_axis(start_GC, picked_GP, 1) + turn_GP
        return np.take_along_axis(by_bin_GD, place_GP, 1)

    def _answer_chances(self, slots_GP, places_AGP):
        for rows, directions, _ in self.worlds:
            np.matmul(self.memory_GF[rows], directions, out=self.logits_GAD[rows])
        z_AGP = self.logits_GAD.ravel().take(places_AGP)
        z_AGP *= self.own_G1
        strength_GP = self._strengths()[self.rows_G1, self.skill_GD[self.rows_G1, slots_GP]]
        z_AGP[0] += self.offset_GD[self.rows_G1, slots_GP] + strength_GP
        return _softmax(z_AGP)

    def _strengths(self):
        own_GK = np.sqrt(1 - self.sharing_G)[:, None] * self.strength_GK
        return np.sqrt(self.transfer_G)[:, None] * (
            own_GK + (np.sqrt(self.sharing_G) * self.common_G)[:, None]
        )

    def _plan(self, slots_GP, right_GP):
        """Rollouts of each slot, (G, P), n̄ on average in every game, exactly."""
        game = self.game
        n_GP = np.full(slots_GP.shape, game.mean_rollouts)
        if game.method not in MOVES_ROLLOUTS:
            return n_GP
        if game.method == "oracle":
            spare = (game.mean_rollouts - game.n_min) * self.P
            return greedy_rollouts(right_GP * (1 - right_GP), game.n_min, game.n_max, spare)
        bins_GP = self.bin_GD[self.rows_G1, slots_GP]
        counts_GB = _counts(bins_GP, self.B)
        playing_G = counts_GB.any(axis=1)
        self.rollouts_GB = np.full((self.G, self.B), game.mean_rollouts)
        if not playing_G.any():
            return n_GP
        rows = np.flatnonzero(playing_G)
        seen_GP = bins_GP[rows] >= 0
        budget_G = game.mean_rollouts * seen_GP.sum(axis=1)
        chosen_GB, left_over_G = self._allocate(rows, counts_GB[rows], budget_G)
        self.rollouts_GB[rows] = chosen_GB
        chosen_GP = np.take_along_axis(chosen_GB, np.maximum(bins_GP[rows], 0), 1)
        n_GP[rows] = hand_out(
            np.where(seen_GP, chosen_GP, game.mean_rollouts),
            left_over_G,
            seen_GP,
            self._luck("slot_lots")[rows],
            game.n_max,
        )
        return n_GP

    def _allocate(self, rows, counts_GB, budget_G):
        log_p_GBN = self.log_p_GBN[rows]
        if self.game.method == "rollout_loss":
            chosen_GB, left_over_G, chances_GBN = sample_joint_arms_of_games(
                log_p_GBN,
                counts_GB,
                self.arms_N,
                budget_G,
                self.coins_GB[rows],
                self.arm_draws_GB[rows],
            )
            self.chances_GBN[rows] = chances_GBN
            return chosen_GB, left_over_G
        values_GBN = log_p_GBN * counts_GB[..., None] if self.game.joint == "prompts" else log_p_GBN
        return best_joint_arms_of_games(values_GBN, counts_GB, self.arms_N, budget_G, self.coins_GB[rows])

    def _arm_log_p(self):
        """As `RolloutGDRO.losses` and its strategies, (G, B, N)."""
        game = self.game
        scores_GBN = debiased(self.arm_ema_GBN, self.arm_visits_GBN, game.rollout_ema, bin_axis=1)
        if game.method != "rollout_loss":
            average_G = scores_GBN.mean(axis=(1, 2))
            scale_G = np.divide(game.mean_rollouts**2, average_G, out=np.zeros(self.G), where=average_G > 0)
            scores_GBN = scores_GBN * scale_G[:, None, None] / self.arms_N
        losses_GBN = scores_GBN + self.price_G[:, None, None] * self.arms_N
        return arm_log_probabilities(losses_GBN, game.rollout_eta, game.rollout_gamma)

    def _observe(self, slots_GP, right_GP, n_GP):
        """As `GDROController.observe`: bins move, then both adversaries. Without an adversary, nothing."""
        game = self.game
        if game.method in ("grpo", "oracle"):
            return
        bins_GP = self.bin_GD[self.rows_G1, slots_GP]
        self._book(slots_GP, right_GP, n_GP)
        bins_GP = np.where(bins_GP < 0, self.bin_GD[self.rows_G1, slots_GP], bins_GP)
        failure_GP = 1.0 - right_GP / n_GP
        means_GB, counts_GB = bin_means_of_games(bins_GP, failure_GP, self.B)
        if game.score == "cumulative":
            self.ema_GB = self.ema_GB + np.nan_to_num(means_GB) * counts_GB * (self.B / self.P)
        else:
            self.ema_GB = ema_scores(self.ema_GB, means_GB, game.ema)
            self.visits_GB += counts_GB > 0
        if game.method in MOVES_ROLLOUTS:
            self._update_arms(bins_GP, right_GP, n_GP, failure_GP)

    def _book(self, slots_GP, right_GP, n_GP):
        rows = (self.rows_G1 * self.D + slots_GP).ravel()
        right, trials = right_GP.ravel(), n_GP.ravel()
        if self.game.method == "resample":  # a prompt may come twice in a batch: one visit
            rows, inverse = np.unique(rows, return_inverse=True)
            right = np.bincount(inverse, right).astype(np.int64)
            trials = np.bincount(inverse, trials).astype(np.int64)
        self.record.add(rows, right, trials)
        if self.game.grouping == "difficulty":
            flat = self.bin_GD.ravel()
            flat[rows] = move_bins(flat[rows], self.record.pass_at_k(rows), self.edges, self.game.hysteresis)

    def _update_arms(self, bins_GP, right_GP, n_GP, failure_GP):
        """As `RolloutGDRO.update`."""
        game = self.game
        counts_GB = _counts(bins_GP, self.B)
        rollouts_GB = np.where(counts_GB > 0, self.rollouts_GB, 0)
        p_GBN = np.exp(self.log_p_GBN)
        count_G = counts_GB.sum(axis=1)
        demand_G = np.einsum("gb,gb->g", counts_GB, p_GBN @ self.arms_N) / np.maximum(count_G, 1)
        demand_G = np.where(count_G > 0, demand_G, game.mean_rollouts)  # nobody asks: the price stays
        if game.method == "rollout_loss":
            observed_GB, _ = bin_means_of_games(bins_GP, failure_GP, self.B)
            observed_GB = np.where(rollouts_GB > 0, observed_GB, np.nan)
            played_GB = np.maximum(rollouts_GB - game.n_min, 0)
            new_GBN = exp3p_losses(observed_GB, played_GB, self.chances_GBN, RolloutGDRO(self.B).bonus)
        else:
            rate_GP = right_GP / n_GP
            unscaled_GP = rate_GP * (1 - rate_GP) * n_GP
            nothing_GP = np.full(n_GP.shape, np.nan)  # a group of one says nothing of its variance
            variance_GP = np.divide(unscaled_GP, n_GP - 1, out=nothing_GP, where=n_GP > 1)
            variance_GB, _ = bin_means_of_games(bins_GP, variance_GP, self.B)
            new_GBN = variance_GB[..., None]
        self.arm_ema_GBN = ema_scores(self.arm_ema_GBN, new_GBN, game.rollout_ema)
        self.arm_visits_GBN += ~np.isnan(new_GBN)
        self.price_G = price_step(self.price_G, demand_G, game.mean_rollouts, game.price_lr)
        self.log_p_GBN = self._arm_log_p()

    def _scores(self):
        if self.game.score == "cumulative":
            return self.ema_GB
        return debiased(self.ema_GB, self.visits_GB, self.game.ema, bin_axis=1)

    def _probabilities(self):
        return mixed_probabilities(
            exponential_weights(self._scores(), self.eta_G1, self.game.clip), self.game.gamma
        )

    def _weights(self):
        weights_GB = exponential_weights(self._scores(), self.eta_G1, self.game.clip)
        return np.minimum(weights_GB, self.game.max_weight)

    def _prompt_weights(self, slots_GP):
        """As `GDROController.weights`: mean one over the batch. None without reweighting."""
        if self.game.method not in REWEIGHTS:
            return None
        bins_GP = self.bin_GD[self.rows_G1, slots_GP]
        seen_GP = bins_GP >= 0
        weights_GP = np.take_along_axis(self._weights(), np.maximum(bins_GP, 0), 1)
        if not seen_GP.all():  # without an estimate yet: the mean weight
            count_G1 = seen_GP.sum(axis=1, keepdims=True)
            mean_G1 = np.where(seen_GP, weights_GP, 0.0).sum(axis=1, keepdims=True) / np.maximum(count_G1, 1)
            weights_GP = np.where(seen_GP, weights_GP, np.where(count_G1 > 0, mean_G1, 1.0))
        return weights_GP / weights_GP.mean(axis=1, keepdims=True)

    def _learn(self, slots_GP, places_AGP, counts_AGP, n_GP):
        """One gradient step on the mean over prompts of w · (1/n) Σ_j A_j log π(answer_j)."""
        weights_GP = self._prompt_weights(slots_GP)
        step_G1 = (self.step_size_G / self.P)[:, None]
        step_GP = step_G1 if weights_GP is None else step_G1 * weights_GP
        pull_AGP, square_GP = answer_pulls(counts_AGP, n_GP)
        pull_AGP *= step_GP
        flat = self.pulls_GAD.ravel()
        if self.game.method == "resample":  # a prompt may come twice in a batch
            np.add.at(flat, places_AGP.ravel(), pull_AGP.ravel())
        else:
            flat[places_AGP] = pull_AGP
        for rows, directions, _ in self.worlds:
            self.memory_GF[rows] += self.own_G1[rows] * (self.pulls_GAD[rows] @ directions.T)
        self.memory_GF += self._words(square_GP * step_GP**2)
        flat[places_AGP] = 0.0
        places_GP = self.rows_G1 * self.K + self.skill_GD[self.rows_G1, slots_GP]
        gained_GK = np.bincount(places_GP.ravel(), pull_AGP[0].ravel(), self.G * self.K)
        gained_GK = np.sqrt(self.transfer_G)[:, None] * gained_GK.reshape(self.G, self.K)
        self.strength_GK += np.sqrt(1 - self.sharing_G)[:, None] * gained_GK
        self.common_G += np.sqrt(self.sharing_G) * gained_GK.sum(axis=1)

    def _words(self, square_GP):
        """Pull of the answers' own words, (G, F): Σ_ij of advantage × random direction, exact in law.

        Independent Gaussian directions add up to one whose variance is the sum of the squared factors.
        """
        length_G = self.noise_G * np.sqrt(square_GP.sum(axis=1) / self.game.world.capacity)
        return length_G[:, None] * self.words_of_seeds[self.seed_of_G]

    # What is measured

    def measure(self):
        """Accuracy and pass@8 on held-out prompts, mean by skill, (G, K) each; exact, no sampling."""
        z_GAE = np.empty((self.G, self.A * self.K * HELD_OUT))
        for rows, _, held_out in self.worlds:
            np.matmul(self.memory_GF[rows], held_out, out=z_GAE[rows])
        z_AGE = (self.own_G1 * z_GAE).reshape(self.G, self.A, -1).transpose(1, 0, 2).copy()
        z_AGE[0] += self.held_out_offset_GE + np.repeat(self._strengths(), HELD_OUT, axis=1)
        right_GKE = _softmax(z_AGE)[0].reshape(self.G, self.K, HELD_OUT)
        return right_GKE.mean(axis=2), (1 - (1 - right_GKE) ** 8).mean(axis=2)

    def trace(self):
        """Weights, probabilities and rollouts by bin as they stand, (G, B) each."""
        return self._weights(), self._probabilities(), self.rollouts_GB


def sampled_answers(p_AGP, n_GP, luck):
    """How often each answer came in n rollouts, (A, G, P), by inverting the distribution.

    luck: uniform numbers (G, P) of the first, second … rollout, as many as the largest n.
    """
    ladder_AGP = p_AGP[:-1].cumsum(axis=0)
    below_AGP = np.zeros(ladder_AGP.shape, np.int16)  # rollouts whose number lies below each rung
    for r, number_GP in enumerate(luck):
        below_AGP += (number_GP < ladder_AGP) & (r < n_GP)
    return np.diff(np.concatenate([below_AGP, n_GP[None]]), axis=0, prepend=0)


def answer_pulls(counts_AGP, n_GP):
    """Gradient of (1/n) Σ_j A_j log π(answer_j) in each answer's logit, (A, ...), and Σ_j (A_j/n)².

    A_j of (3) with the standard deviation of the sample (n − 1) and TRL's 1e-4. The advantages of a
    group sum to 0, so the softmax's own term drops out and an answer is pulled by its own advantages.
    """
    rate_GP = counts_AGP[0] / n_GP
    spread_GP = rate_GP * (1 - rate_GP)
    per_rollout_GP = 1.0 / ((np.sqrt(spread_GP * n_GP / np.maximum(n_GP - 1, 1)) + EPSILON) * n_GP)
    pull_AGP = counts_AGP * (-rate_GP * per_rollout_GP)
    pull_AGP[0] = counts_AGP[0] * (1 - rate_GP) * per_rollout_GP
    return pull_AGP, spread_GP * n_GP * per_rollout_GP**2


def bin_means_of_games(bins_GP, values_GP, num_bins):
    """`gdro.prompt_gdro.bin_means` for each game: means (G, B), NaN where absent, and counts (G, B).

    bin −1 (none yet) is left out, as is a NaN value.
    """
    known_GP = ~np.isnan(values_GP) & (bins_GP >= 0)
    counts_GB = _counts(np.where(known_GP, bins_GP, -1), num_bins)
    places = (np.arange(len(bins_GP))[:, None] * num_bins + np.maximum(bins_GP, 0)).ravel()
    sums_GB = np.bincount(places, np.where(known_GP, values_GP, 0.0).ravel(), counts_GB.size)
    sums_GB = sums_GB.reshape(counts_GB.shape)
    means_GB = np.divide(sums_GB, counts_GB, out=np.full(counts_GB.shape, np.nan), where=counts_GB > 0)
    return means_GB, counts_GB


def hand_out(n_GP, left_over_G, open_GP, lots_GP, n_max):
    """Give rollouts left over one each by lot to open slots below n_max, round after round."""
    left_G = left_over_G.copy()
    while left_G.any():
        candidate_GP = open_GP & (n_GP < n_max)
        stuck_G = ~candidate_GP.any(axis=1) & (left_G > 0)
        if stuck_G.any():
            open_GP = open_GP | stuck_G[:, None]
            continue
        turn_GP = np.where(candidate_GP, lots_GP, np.inf).argsort(axis=1).argsort(axis=1)
        lucky_GP = candidate_GP & (turn_GP < left_G[:, None])
        n_GP = n_GP + lucky_GP
        left_G = left_G - lucky_GP.sum(axis=1)
    return n_GP


def _counts(bins_GP, num_bins):
    """How many of each row lie in each bin, (G, B); −1 is left out."""
    places = np.where(
        bins_GP >= 0, np.arange(len(bins_GP))[:, None] * num_bins + bins_GP, len(bins_GP) * num_bins
    )
    return np.bincount(places.ravel(), minlength=len(bins_GP) * num_bins + 1)[:-1].reshape(-1, num_bins)


def _softmax(z_AX):
    """Along the first axis, in place."""
    z_AX -= z_AX.max(axis=0)
    np.exp(z_AX, out=z_AX)
    z_AX /= z_AX.sum(axis=0)
    return z_AX


def _check_integer(name, value, least):
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name} must be an integer of at least {least}, got {value!r}")


def _check_range(name, value, low, high, remark):
    if not low <= value <= high or not np.isfinite(value):
        raise ValueError(f"{name} must be a finite number in [{low}, {high}], got {value}; {remark}")
