"""Learners small enough to play thousands of games at once.

A prompt has a few possible answers, one of them right, and the policy is a softmax over them. The logit
of the right answer is what the prompt's skill has learned plus what was learned of this very prompt:

    z_right = offset + √c · strength(skill) + √(1−c) · ⟨ε_right, θ⟩,      z_wrong = √(1−c) · ⟨ε_wrong, θ⟩

The strength of a skill carries over to prompts never trained on (`transfer` c says how much of a
lesson does); θ is a memory of `capacity` numbers in which prompts get in each other's way, because
the random directions ε overlap. That is what makes a large step or a noisy gradient costly. Skills
differ in how often they come (`tail`) and how hard they start (`spread`).

GRPO samples answers and climbs with group-normalized advantages, as `gdro.trainer` does with plain
gradient steps on-policy; the controllers are those of `gdro`, with a leading axis of games, and
`gdro.toy_plain` plays one game with the very objects. All games of one seed see the same random
numbers whatever their method, so differences between methods are paired.

Axes: G games (one row of everything), S seeds, C checkpoints, K skills, D prompts of the data set,
P prompts of a batch, A answers (0 is right), F memory, E held-out prompts, B bins, N arms.
"""

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
WORLDS = 8  # seed s is played in the random world s mod 8: games of one world share its directions
HELD_OUT = 8  # prompts of each skill
ROWS = 1536  # games in one block of arrays: enough to hide numpy's overhead, few enough for the cache
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
    capacity: size of the memory; small makes prompts interfere. answers: at least 2, one is right.
    """

    skills: int = 6
    prompts: int = 64
    tail: float = 1.0
    spread: float = 2.0
    mean_logit: float = -0.5
    jitter: float = 0.7
    rare: str = "hard"
    sharing: float = 0.0
    transfer: float = 0.3
    capacity: int = 32
    answers: int = 4

    def __post_init__(self):
        for name, least in (("skills", 1), ("prompts", self.skills), ("capacity", 1), ("answers", 2)):
            _check_integer(name, getattr(self, name), least)
        for name in ("tail", "spread", "jitter"):
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
    n_max: int = 12
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
        return DifficultyBins(even_edges(self.num_bins), self.k, self.history, self.hysteresis, self.estimator)

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


def play(games, seeds, checkpoints) -> Results:
    """Play every game with every seed and measure at the given steps.

    games: of `Game`; they may differ in anything. seeds: integers ≥ 0. checkpoints: increasing step
    numbers ≥ 0, the last is the length of the games. Games that differ only in `step_size`, `eta` or
    the numbers of their worlds are played as one array. Raises ValueError for empty or bad arguments.
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

    for members in _alike(games):
        rows = sorted(
            ((g, s) for g in members for s in range(len(seeds))), key=lambda row: (seeds[row[1]] % WORLDS, row[1])
        )
        for start in range(0, len(rows), ROWS):
            block = rows[start : start + ROWS]
            g_G, s_G = np.array(block).T
            table = _Table([games[g] for g in g_G], [seeds[s] for s in s_G])
            step = 0
            for c, checkpoint in enumerate(checkpoints):
                for step in range(step, checkpoint):  # noqa: B020 (goes on where it stood)
                    table.step()
                step = checkpoint
                accuracy[g_G, s_G, c], pass_at_8[g_G, s_G, c] = table.measure()
                for trace, values in zip(traces, table.trace(), strict=True):
                    trace[g_G, s_G, c, : values.shape[1]] = values
    return Results(accuracy, pass_at_8, share, *traces)


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
    """Directions ε in memory: (F, D·A) of the training prompts and (F, E·A) of the held-out ones."""
    rng = np.random.default_rng((number, 1))
    scale = capacity**-0.5
    return (
        scale * rng.standard_normal((capacity, prompts * answers)),
        scale * rng.standard_normal((capacity, held_out * answers)),
    )


class Luck(NamedTuple):
    """The uniform numbers of one step, drawn together; every game of a seed has the same.

    rollouts (P, n_max), lots of the data set (D,), bins of the slots (P,), lots of the slots (P,),
    coins of the bins (B,), arm draws (B,).
    """

    rollouts: np.ndarray
    data: np.ndarray
    slot_bins: np.ndarray
    slot_lots: np.ndarray
    coins: np.ndarray
    arms: np.ndarray


def luck_sizes(game):
    """How many numbers each part of `Luck` has."""
    widest = max(game.n_max, game.mean_rollouts)
    bins = game.bins_in_all
    return (game.batch * widest, game.world.prompts, game.batch, game.batch, bins, bins)


def split_luck(numbers, game):
    """`Luck` from (..., width) uniform numbers."""
    parts = np.split(numbers, np.cumsum(luck_sizes(game))[:-1], axis=-1)
    parts[0] = parts[0].reshape(*numbers.shape[:-1], game.batch, -1)
    return Luck(*parts)


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
        for name in ("sharing", "transfer"):
            setattr(self, f"{name}_G", np.array([getattr(g.world, name) for g in games]))
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
        self.epoch_GD = None
        self.steps_played = 0

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
        self.arm_ema_GBN = np.zeros((self.G, self.B, len(self.arms_N)))
        self.arm_visits_GBN = np.zeros(self.arm_ema_GBN.shape, np.int64)
        self.price_G = np.zeros(self.G)
        self.rollouts_GB = np.full((self.G, self.B), game.mean_rollouts)
        self.chances_GBN = np.exp(self._arm_log_p()) if game.method == "rollout_loss" else None

    # One step

    def step(self):
        """Draw a batch, plan, sample, observe, learn."""
        game, luck = self.game, self._luck()
        slots_GP = self._draw(luck)
        p_GPA = self._answer_chances(slots_GP)
        n_GP = self._plan(slots_GP, p_GPA, luck)
        counts_GPA = sampled_answers(p_GPA, n_GP, luck.rollouts)
        right_GP = counts_GPA[..., 0]
        self._observe(slots_GP, right_GP, n_GP)
        self._learn(slots_GP, counts_GPA, n_GP, self._prompt_weights(slots_GP))
        self.steps_played += 1
        return game

    def _luck(self):
        width = sum(luck_sizes(self.game))
        own = np.stack([generator.random(width) for generator in self.generators])
        return split_luck(own[self.seed_of_G], self.game)

    def _draw(self, luck):
        """Prompts of the batch, (G, P): the next of the epoch's order, or by the adversary's q."""
        if self.game.method == "resample":
            return self._resample(luck)
        steps_in_epoch = self.D // self.P
        place = self.steps_played % steps_in_epoch
        if place == 0:
            self.epoch_GD = luck.data.argsort(axis=1)
        return self.epoch_GD[:, place * self.P : (place + 1) * self.P]

    def _resample(self, luck):
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
        picked_GP = (ladder_GC[:, None, :] <= luck.slot_bins[..., None]).sum(axis=2)
        picked_GP.sort(axis=1)
        by_bin_GD = (self.bin_GD + luck.data).argsort(axis=1)  # bins in order, lots within
        start_GC = counts_GC.cumsum(axis=1) - counts_GC
        first_GP = (picked_GP[:, :, None] > picked_GP[:, None, :]).sum(axis=2)
        turn_GP = (np.arange(self.P) - first_GP) % np.take_along_axis(counts_GC, picked_GP, 1)
        place_GP = np.take_along_axis(start_GC, picked_GP, 1) + turn_GP
        return np.take_along_axis(by_bin_GD, place_GP, 1)

    def _logits(self, slots_GP):
        memory_GDA = np.empty((self.G, self.D * self.A))
        for rows, directions, _ in self.worlds:
            np.matmul(self.memory_GF[rows], directions, out=memory_GDA[rows])
        z_GPA = memory_GDA.reshape(self.G, self.D, self.A)[self.rows_G1, slots_GP]
        z_GPA *= np.sqrt(1 - self.transfer_G)[:, None, None]
        strength_GP = self._strengths()[self.rows_G1, self.skill_GD[self.rows_G1, slots_GP]]
        z_GPA[..., 0] += self.offset_GD[self.rows_G1, slots_GP] + strength_GP
        return z_GPA

    def _strengths(self):
        own_GK = np.sqrt(1 - self.sharing_G)[:, None] * self.strength_GK
        return np.sqrt(self.transfer_G)[:, None] * (own_GK + (np.sqrt(self.sharing_G) * self.common_G)[:, None])

    def _answer_chances(self, slots_GP):
        return _softmax(self._logits(slots_GP))

    def _plan(self, slots_GP, p_GPA, luck):
        """Rollouts of each slot, (G, P), n̄ on average in every game, exactly."""
        game = self.game
        n_GP = np.full(slots_GP.shape, game.mean_rollouts)
        if game.method not in MOVES_ROLLOUTS:
            return n_GP
        if game.method == "oracle":
            right_GP = p_GPA[..., 0]
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
        chosen_GB, left_over_G = self._allocate(rows, counts_GB[rows], budget_G, luck)
        self.rollouts_GB[rows] = chosen_GB
        chosen_GP = np.take_along_axis(chosen_GB, np.maximum(bins_GP[rows], 0), 1)
        n_GP[rows] = hand_out(
            np.where(seen_GP, chosen_GP, game.mean_rollouts), left_over_G, seen_GP, luck.slot_lots[rows], game.n_max
        )
        return n_GP

    def _allocate(self, rows, counts_GB, budget_G, luck):
        log_p_GBN = self._arm_log_p()[rows]
        if self.game.method == "rollout_loss":
            chosen_GB, left_over_G, chances_GBN = sample_joint_arms_of_games(
                log_p_GBN, counts_GB, self.arms_N, budget_G, luck.coins[rows], luck.arms[rows]
            )
            self.chances_GBN[rows] = chances_GBN
            return chosen_GB, left_over_G
        values_GBN = log_p_GBN * counts_GB[..., None] if self.game.joint == "prompts" else log_p_GBN
        return best_joint_arms_of_games(values_GBN, counts_GB, self.arms_N, budget_G, luck.coins[rows])

    def _arm_log_p(self):
        """As `RolloutGDRO.losses` and its strategies, (G, B, N)."""
        game = self.game
        scores_GBN = debiased(self.arm_ema_GBN, self.arm_visits_GBN, game.rollout_ema, bin_axis=1)
        if game.method != "rollout_loss":
            average_G = (scores_GBN[..., 0] * self.arms_N[0]).mean(axis=1)
            scale_G = np.divide(game.mean_rollouts**2, average_G, out=np.zeros(self.G), where=average_G > 0)
            scores_GBN = scores_GBN * scale_G[:, None, None]
        losses_GBN = scores_GBN + self.price_G[:, None, None] * self.arms_N
        return arm_log_probabilities(losses_GBN, game.rollout_eta, game.rollout_gamma)

    def _observe(self, slots_GP, right_GP, n_GP):
        """As `GDROController.observe`: bins move, then both adversaries."""
        game = self.game
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
        if game.method in MOVES_ROLLOUTS and game.method != "oracle":
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
        p_GBN = np.exp(self._arm_log_p())
        demand_G = np.einsum("gb,gb->g", counts_GB, p_GBN @ self.arms_N) / counts_GB.sum(axis=1)
        if game.method == "rollout_loss":
            observed_GB, _ = bin_means_of_games(bins_GP, failure_GP, self.B)
            observed_GB = np.where(rollouts_GB > 0, observed_GB, np.nan)
            played_GB = np.maximum(rollouts_GB - game.n_min, 0)
            new_GBN = exp3p_losses(observed_GB, played_GB, self.chances_GBN, RolloutGDRO(self.B).bonus)
        else:
            rate_GP = right_GP / n_GP
            variance_GP = rate_GP * (1 - rate_GP) * n_GP / (n_GP - 1)
            variance_GB, _ = bin_means_of_games(bins_GP, variance_GP, self.B)
            new_GBN = variance_GB[..., None] / self.arms_N
        self.arm_ema_GBN = ema_scores(self.arm_ema_GBN, new_GBN, game.rollout_ema)
        self.arm_visits_GBN += ~np.isnan(new_GBN)
        self.price_G = price_step(self.price_G, demand_G, game.mean_rollouts, game.price_lr)

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
        weights_GP = np.take_along_axis(self._weights(), self.bin_GD[self.rows_G1, slots_GP], 1)
        return weights_GP / weights_GP.mean(axis=1, keepdims=True)

    def _learn(self, slots_GP, counts_GPA, n_GP, weights_GP):
        """One gradient step on the mean over prompts of (1/n) Σ_j A_j log π(answer_j)."""
        pull_GPA = answer_pulls(counts_GPA, n_GP) * (self.step_size_G / self.P)[:, None, None]
        if weights_GP is not None:
            pull_GPA *= weights_GP[..., None]
        places = (self.rows_G1 * self.D + slots_GP)[..., None] * self.A + np.arange(self.A)
        pull_GDA = np.bincount(places.ravel(), pull_GPA.ravel(), self.G * self.D * self.A)
        pull_GDA = pull_GDA.reshape(self.G, -1)
        own_G1 = np.sqrt(1 - self.transfer_G)[:, None]
        for rows, directions, _ in self.worlds:
            self.memory_GF[rows] += own_G1[rows] * (pull_GDA[rows] @ directions.T)
        skill_GP = self.skill_GD[self.rows_G1, slots_GP]
        gained_GK = np.bincount(
            (self.rows_G1 * self.K + skill_GP).ravel(), pull_GPA[..., 0].ravel(), self.G * self.K
        ).reshape(self.G, self.K)
        gained_GK *= np.sqrt(self.transfer_G)[:, None]
        self.strength_GK += np.sqrt(1 - self.sharing_G)[:, None] * gained_GK
        self.common_G += np.sqrt(self.sharing_G) * gained_GK.sum(axis=1)

    # What is measured

    def measure(self):
        """Accuracy and pass@8 on held-out prompts, mean by skill, (G, K) each; exact, no sampling."""
        z_GEA = np.empty((self.G, self.K * HELD_OUT * self.A))
        for rows, _, held_out in self.worlds:
            np.matmul(self.memory_GF[rows], held_out, out=z_GEA[rows])
        z_GEA = z_GEA.reshape(self.G, -1, self.A) * np.sqrt(1 - self.transfer_G)[:, None, None]
        z_GEA[..., 0] += self.held_out_offset_GE + np.repeat(self._strengths(), HELD_OUT, axis=1)
        right_GKE = _softmax(z_GEA)[..., 0].reshape(self.G, self.K, HELD_OUT)
        return right_GKE.mean(axis=2), (1 - (1 - right_GKE) ** 8).mean(axis=2)

    def trace(self):
        """Weights, probabilities and rollouts by bin as they stand, (G, B) each."""
        return self._weights(), self._probabilities(), self.rollouts_GB


def sampled_answers(p_GPA, n_GP, luck_GPR):
    """How often each answer came in n rollouts, (..., P, A), by inverting the distribution."""
    widest = int(n_GP.max())
    luck_GPR = luck_GPR[..., :widest]
    ladder_GPA = p_GPA.cumsum(axis=-1)
    unused_GPR = np.arange(widest) >= n_GP[..., None]
    counts_GPA = np.empty(p_GPA.shape, np.int64)
    above_GP = n_GP  # rollouts whose number lies above the rungs so far
    luck_GPR = np.where(unused_GPR, -1.0, luck_GPR)  # below every rung
    for a in range(p_GPA.shape[-1] - 1):
        still_GP = np.count_nonzero(luck_GPR >= ladder_GPA[..., a, None], axis=-1)
        counts_GPA[..., a] = above_GP - still_GP
        above_GP = still_GP
    counts_GPA[..., -1] = above_GP
    return counts_GPA


def answer_pulls(counts_GPA, n_GP):
    """Gradient of (1/n) Σ_j A_j log π(answer_j) in each answer's logit, (..., P, A).

    A_j of (3) with the standard deviation of the sample (n − 1) and TRL's 1e-4. The advantages of a
    group sum to 0, so the softmax's own term drops out and an answer is pulled by its own advantages.
    """
    rate_GP = counts_GPA[..., 0] / n_GP
    variance_GP = rate_GP * (1 - rate_GP) * n_GP / np.maximum(n_GP - 1, 1)
    per_rollout_GP = 1.0 / ((np.sqrt(variance_GP) + EPSILON) * n_GP)
    pull_GPA = counts_GPA * (-rate_GP * per_rollout_GP)[..., None]
    pull_GPA[..., 0] = counts_GPA[..., 0] * (1 - rate_GP) * per_rollout_GP
    return pull_GPA


def bin_means_of_games(bins_GP, values_GP, num_bins):
    """`gdro.prompt_gdro.bin_means` for each game: means (G, B), NaN where absent, and counts (G, B).

    Every prompt must have a bin; a NaN value is left out of the mean.
    """
    known_GP = ~np.isnan(values_GP)
    counts_GB = _counts(np.where(known_GP, bins_GP, -1), num_bins)
    places = (np.arange(len(bins_GP))[:, None] * num_bins + bins_GP).ravel()
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
    places = np.where(bins_GP >= 0, np.arange(len(bins_GP))[:, None] * num_bins + bins_GP, len(bins_GP) * num_bins)
    return np.bincount(places.ravel(), minlength=len(bins_GP) * num_bins + 1)[:-1].reshape(-1, num_bins)


def _softmax(z):
    z -= z.max(axis=-1, keepdims=True)
    np.exp(z, out=z)
    z /= z.sum(axis=-1, keepdims=True)
    return z


def _check_integer(name, value, least):
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name} must be an integer of at least {least}, got {value!r}")


def _check_range(name, value, low, high, remark):
    if not low <= value <= high or not np.isfinite(value):
        raise ValueError(f"{name} must be a finite number in [{low}, {high}], got {value}; {remark}")
