"""The worlds, the games in them, and the random numbers that all games of a seed share.

Axes: as in `gdro_lab.toy`.
"""

import copy
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import numpy as np

import gdro_lab.peers  # noqa: F401  (registers its methods)
from gdro.bins import DifficultyBins, StaticGroups
from gdro.checks import check
from gdro.controller import GDROController
from gdro.method import METHODS, Method

ARRAY_METHODS = {
    "grpo": "GRPO",
    "prompt": "Prompt-GDRO, reweight",
    "resample": "Prompt-GDRO, resample",
    "rollout": "Rollout-GDRO",
    "both": "both games",
    "oracle": "oracle allocation",
}
HELD_OUT = 8  # prompts of each skill
ROLLOUT_NUMBERS = 16  # random numbers drawn for each slot, whatever n_max is


@dataclass(frozen=True)
class World:
    """What is to be learned."""

    skills: int = 6
    prompts: int = 48  # at least one of each skill
    tail: float = 1.0  # the share of the k-th skill is proportional to k^−tail; 0 is even
    spread: float = (
        2.0  # logits by which the hardest skill starts below the mean, and the easiest above it
    )
    mean_logit: float = -0.5  # where the mean starts: a pass rate of 0.17 among 4 answers
    jitter: float = 0.7  # standard deviation of a prompt's own offset within its skill
    rare: str = (
        "hard"  # whether rare skills are the "hard" ones, the "easy" ones, or "mixed" (at random)
    )
    transfer: float = (
        0.3  # part of what is learned that carries over to the skill; the rest is the prompt's
    )
    capacity: int = 64  # size of the memory; a small one makes prompts interfere
    noise: float = (
        2.0  # norm of the random direction in which a sampled answer also moves the memory
    )
    answers: int = 4  # one is correct

    def __post_init__(self) -> None:
        for name, least in (
            ("skills", 1),
            ("prompts", self.skills),
            ("capacity", 1),
            ("answers", 2),
        ):
            check(name, getattr(self, name), int, ge=least)
        for name in ("tail", "spread", "jitter", "noise"):
            check(name, getattr(self, name), ge=0)  # 0 makes all the same
        check("mean_logit", self.mean_logit)
        check("transfer", self.transfer, ge=0, le=1)
        check("rare", self.rare, Literal["hard", "easy", "mixed"])

    @property
    def skill_D(self) -> np.ndarray:
        """Skill of each prompt, the most frequent first: shares k^−tail, at least 1 prompt."""
        share_K = np.arange(1, self.skills + 1.0) ** -self.tail
        exact_K = 1 + (self.prompts - self.skills) * share_K / share_K.sum()
        counts_K = np.floor(exact_K).astype(np.int64)
        most_cut = np.argsort(counts_K - exact_K, kind="stable")
        counts_K[most_cut[: self.prompts - counts_K.sum()]] += 1
        return np.repeat(np.arange(self.skills), counts_K)


@dataclass(frozen=True)
class Game:
    """A world and a way to train in it; from n_min on as in controller, bins and games."""

    world: World = field(default_factory=World)
    method: str | Method = (
        "grpo"  # in `ARRAY_METHODS`, registered, or a `Method` (each game copies it)
    )
    step_size: float = 8.0
    batch: int = 16  # prompts a step, at most the world's
    mean_rollouts: int = 4
    n_min: int = 2
    n_max: int = 8
    grouping: str = "difficulty"  # or "skill": static groups, known from the start
    num_bins: int = 6
    estimator: str = "beta"
    k: int = 8
    hysteresis: float = 0.03
    eta: float = 0.65
    ema: float = 0.12
    clip: float = 5.0
    max_weight: float = 15.0
    # "ema" is (12); "cumulative" adds up the losses of all prompts in a bin, so that frequent bins
    # score high
    score: str = "ema"
    rollout_eta: float = 0.65
    price_lr: float = 0.05

    def __post_init__(self) -> None:
        if not isinstance(self.method, Method):
            check("method", self.method, Literal[tuple(ARRAY_METHODS | METHODS)])
        elif type(self.method).__hash__ is None:
            raise ValueError("method must be hashable; declare its class with @dataclass(eq=False)")
        check("grouping", self.grouping, Literal["difficulty", "skill"])
        check("score", self.score, Literal["ema", "cumulative"])
        check("step_size", self.step_size, gt=0)  # such as 4 to 32
        check("batch", self.batch, int, ge=1, le=self.world.prompts)  # no prompt comes twice
        check("mean_rollouts", self.mean_rollouts, int, ge=2)
        check("num_bins", self.num_bins, int, ge=2)
        self.controller("both")  # checks the rest

    def controller(self, method: str | Method, seed: int = 0) -> GDROController:
        """A controller with this game's settings; ValueError if one lies outside its domain."""
        record: dict[str, Any] = {"k": self.k, "estimator": self.estimator}
        if self.grouping == "skill":
            groups, skills = self.world.skill_D.tolist(), range(self.world.skills)
            bins: DifficultyBins = StaticGroups(range(self.world.prompts), groups, skills, **record)
        else:
            edges = np.arange(1, self.num_bins) / self.num_bins
            bins = DifficultyBins(edges, hysteresis=self.hysteresis, **record)
        # a game's options are flat, the controller's are those of each adversary
        options: dict[str, Any] = {}
        if method in ("prompt", "resample", "both"):
            options["prompt"] = {
                name: getattr(self, name) for name in ("eta", "ema", "clip", "max_weight")
            }
        if method in ("rollout", "both"):
            options["rollout"] = {"eta": self.rollout_eta, "price_lr": self.price_lr}
        if options:  # each prompt counts the same in the means and in the gradient
            options["averaging"] = "prompt"
        if method == "resample":
            method, options["action"] = "prompt", "resample"
        return GDROController(
            copy.deepcopy(method), self.mean_rollouts, bins=bins, n_min=self.n_min, n_max=self.n_max,
            seed=seed, advantage_std="sample", **options,
        )  # fmt: skip


class Results(NamedTuple):
    """What `play` measured; leading axes games (in the order given), seeds, checkpoints.

    accuracy, pass_at_8: (G, S, C, K), exact probabilities on held-out prompts, mean by skill.
    probability: (G, S, C, B), q of Prompt-GDRO at the checkpoint; NaN where a game has none or
    fewer bins.
    share: (G, K) of the training prompts.
    """

    accuracy: np.ndarray
    pass_at_8: np.ndarray
    probability: np.ndarray
    share: np.ndarray


@lru_cache(4096)
def draw_offsets(world: World, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """First logits, (D,) and held out (E,); the jitter is the same in every world."""
    rng = np.random.default_rng((seed, 0))
    hardness_K = np.linspace(-1, 1, world.skills) if world.skills > 1 else np.zeros(1)
    mixed_K = hardness_K[rng.permutation(world.skills)]
    hardness_K = {"hard": hardness_K, "easy": -hardness_K, "mixed": mixed_K}[world.rare]
    logit_K = world.mean_logit - world.spread * hardness_K
    offset_D = logit_K[world.skill_D] + world.jitter * rng.standard_normal(world.prompts)
    held_out_KE = logit_K[:, None] + world.jitter * rng.standard_normal((world.skills, HELD_OUT))
    return offset_D, held_out_KE.ravel()


@lru_cache(256)
def draw_directions(
    prompts: int, held_out: int, answers: int, capacity: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Directions ε in memory: training prompts (A, D, F), held-out ones (A, E, F)."""
    rng = np.random.default_rng((seed, 1))
    training, testing = (rng.standard_normal((answers, n, capacity)) for n in (prompts, held_out))
    return training / capacity**0.5, testing / capacity**0.5


def draw_numbers(game: Game, generators: list[np.random.Generator]) -> tuple[np.ndarray, ...]:
    """The random numbers of one step for S seeds; all games of a seed have the same.

    Returns:
        Uniform: (S, R, P) of the first, second … rollout of each slot, (S, D) that order the data
        set, (S, P) that draw the slots' bins. Normal: (S, F), the direction of the noise.
    """
    # As many as the largest n_max can use, so that games with different bounds see the same
    # numbers.
    rows = max(ROLLOUT_NUMBERS, game.n_max)
    ends = np.cumsum([rows * game.batch, game.world.prompts, game.batch]).tolist()
    drawn = [(rng.random(ends[2]), rng.standard_normal(game.world.capacity)) for rng in generators]
    uniform, noise = map(np.stack, zip(*drawn, strict=True))
    rollouts = uniform[:, : ends[0]].reshape(len(drawn), rows, game.batch)
    return rollouts, uniform[:, ends[0] : ends[1]], uniform[:, ends[1] :], noise
