"""The worlds, the games in them, and the luck that all games of a seed share.

Axes: as in `gdro.toy`.
"""

from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple

import numpy as np

from gdro.bins import DifficultyBins
from gdro.prompt_gdro import PromptGDRO
from gdro.rollout_gdro import RolloutGDRO, check_choice

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
            check_integer(name, getattr(self, name), least)
        for name in ("tail", "spread", "jitter", "noise"):
            check_range(name, getattr(self, name), 0, np.inf, "0 makes all alike")
        check_range("mean_logit", self.mean_logit, -np.inf, np.inf, "it is a logit")
        for name in ("sharing", "transfer"):
            check_range(name, getattr(self, name), 0, 1, "it is a share")
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
        check_integer("batch", self.batch, 1)
        if self.batch > self.world.prompts:
            raise ValueError(
                f"batch must not exceed the {self.world.prompts} prompts of the world, got {self.batch}; "
                "a step takes each prompt once at most"
            )
        check_integer("mean_rollouts", self.mean_rollouts, 2)
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

    def worst_skill(self):
        """Accuracy (pass@1) of the worst skill, (G, S, C)."""
        return self.accuracy.min(axis=-1)

    def typical_accuracy(self):
        """Accuracy with the skills weighted as they are in training, (G, S, C)."""
        return np.einsum("gsck,gk->gsc", self.accuracy, self.share)


def even_edges(num_bins):
    """Edges of `num_bins` bins of one width, as `DifficultyBins` takes them."""
    check_integer("num_bins", num_bins, 2)
    return tuple((np.arange(1, num_bins) / num_bins).tolist())


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
    """Directions ε in memory: (A·D, F) of the training prompts and (A·E, F) of the held-out ones."""
    rng = np.random.default_rng((number, 1))
    scale = capacity**-0.5
    training_FX = scale * rng.standard_normal((capacity, answers * prompts))
    held_out_FX = scale * rng.standard_normal((capacity, answers * held_out))
    return np.ascontiguousarray(training_FX.T), np.ascontiguousarray(held_out_FX.T)


class Luck(NamedTuple):
    """The uniform numbers of one step; every game of a seed has the same, whatever its method.

    rollouts (R, P) of the first, second … rollout of each slot, lots of the data set (D,), bins of the slots
    (P,).
    """

    rollouts: np.ndarray
    data: np.ndarray
    slot_bins: np.ndarray


def draw_luck(generators, game):
    """One step's `Luck` and the answers' own words (F,), with a leading axis of seeds."""
    # as many rows of rollouts whatever n_max is, so that games with other arms have the same luck
    sizes = (game.batch * max(LUCK_ROLLOUTS, game.n_max), game.world.prompts, game.batch)
    numbers, words = np.empty((len(generators), sum(sizes))), np.empty((len(generators), game.world.capacity))
    for row, words_F, generator in zip(numbers, words, generators, strict=True):
        generator.random(out=row)
        generator.standard_normal(out=words_F)
    rollouts, *others = np.split(numbers, np.cumsum(sizes)[:-1], axis=-1)
    return Luck(rollouts.reshape(len(numbers), -1, game.batch), *others), words


def check_integer(name, value, least):
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name} must be an integer of at least {least}, got {value!r}")


def check_range(name, value, low, high, remark):
    if not low <= value <= high or not np.isfinite(value):
        raise ValueError(f"{name} must be a finite number in [{low}, {high}], got {value}; {remark}")
