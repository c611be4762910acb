"""The worlds, the games in them, and the random numbers that all games of a seed share.

Axes: as in `gdro_lab.toy`.
"""

import copy
from dataclasses import field
from functools import lru_cache
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import ArrayLike
from pydantic import Field

from gdro.bins import DifficultyBins
from gdro.checks import Count, Int, NonNegative, Positive, Share, check, options, short
from gdro.controller import GDROController
from gdro.groups import StaticGroups
from gdro.method import Batch, Method, Prompts
from gdro.methods.prompt_gdro import PromptAdversary, PromptGDRO
from gdro.peers.rollouts import best_rollouts
from gdro.scores import bin_means

TOY_METHODS = {  # what the maps compare; all other registered methods can be played too
    "grpo": "GRPO",
    "prompt": "Prompt-GDRO, reweight",
    "resample": "Prompt-GDRO, resample",
    "rollout": "Rollout-GDRO",
    "both": "both games",
    "oracle": "oracle allocation",
}
HELD_OUT = 8  # prompts of each skill
ROLLOUT_NUMBERS = 16  # random numbers for each slot: up to this n_max, games see the same ones
Several = Annotated[Int, Field(ge=2)]


class _ByValue:
    """Equal where all fields are, so that equal games are played once."""

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash(tuple(vars(self).values()))


@options
class World(_ByValue):
    """What is to be learned."""

    skills: Count = 6
    """K, each with prompts of its own."""
    prompts: Count = 48
    """At least one of each skill."""
    tail: NonNegative = 1.0
    """The share of the i-th skill is proportional to i^−tail; 0 is even."""
    spread: NonNegative = 2.0
    """Logits by which the hardest skill starts below the mean, and the easiest above it."""
    mean_logit: float = -0.5
    """Where the mean starts: a pass rate of 0.17 among 4 answers."""
    jitter: NonNegative = 0.7
    """Standard deviation of a prompt's own offset within its skill."""
    rare: Literal["hard", "easy", "mixed"] = "hard"
    """Which skills are rare; "mixed" is at random."""
    transfer: Share = 0.3
    """Part of what is learned that carries over to the skill; the rest is the prompt's."""
    capacity: Count = 64
    """Size of the memory; a small one makes prompts interfere."""
    noise: NonNegative = 2.0
    """Norm of the random direction in which a sampled answer also moves the memory."""
    answers: Several = 4
    """One is correct."""

    def __post_init__(self) -> None:
        check("prompts", self.prompts, int, ge=self.skills)

    @property
    def skill_D(self) -> np.ndarray:
        """Skill of each prompt, the most frequent first: shares i^−tail, at least 1 prompt."""
        share_K = np.arange(1, self.skills + 1.0) ** -self.tail
        exact_K = 1 + (self.prompts - self.skills) * share_K / share_K.sum()
        counts_K = np.floor(exact_K).astype(np.int64)
        most_cut = np.argsort(counts_K - exact_K, kind="stable")
        counts_K[most_cut[: self.prompts - counts_K.sum()]] += 1
        return np.repeat(np.arange(self.skills), counts_K)


@options
class Game(_ByValue):
    """A world and how to train in it; fields from n_min on go to controller, bins, adversaries."""

    world: World = field(default_factory=World)
    """What is learned."""
    method: Any = "grpo"
    """A name of `TOY_METHODS`, a registered name, or a `Method` (each game copies it)."""
    step_size: Positive = 8.0
    """Size of the gradient steps, such as 4 to 32."""
    batch: Count = 16
    """Prompts a step, at most the world's; none comes twice but by "resample"."""
    mean_rollouts: Several = 4
    """Rollouts per prompt, on average."""
    n_min: int = 2
    """Least rollouts of a prompt."""
    n_max: int = 8
    """Most rollouts of a prompt."""
    grouping: Literal["difficulty", "skill"] = "difficulty"
    """What the bins are; "skill" is static, and known from the start."""
    num_bins: Several = 6
    """Bins of difficulty."""
    estimator: str = "beta"
    """This and the next two are of `DifficultyBins`."""
    k: int = 8
    hysteresis: float = 0.03
    eta: float = 0.65
    """This and the next three are of `PromptAdversary`."""
    ema: float = 0.12
    clip: float = 5.0
    max_weight: float = 15.0
    score: Literal["ema", "cumulative"] = "ema"
    """"ema" is (12); "cumulative" adds up the losses of all prompts in a bin."""
    rollout_eta: float = 0.65
    """This is eta, and the next is price_lr, of `RolloutAdversary`."""
    price_lr: float = 0.05

    def __post_init__(self) -> None:
        check("batch", self.batch, int, le=self.world.prompts)
        self.controller("both")  # checks the settings that the game's own method may not have
        if isinstance(self.method, Method) and type(self.method).__hash__ is None:
            raise ValueError("method must be hashable, got one that is not; use gdro.options")
        method = self.controller(self.method).method
        if method.replays:
            raise ValueError(
                f"method must not replay texts, since the toy has none, got {short(self.method)}"
            )

    def controller(self, method: str | Method, seed: int = 0) -> GDROController:
        """A controller with this game's settings.

        Args:
            method: of `TOY_METHODS`, registered, or a `Method`, which is copied.
            seed: of the controller.

        Raises:
            ValueError: if a setting lies outside its domain.
        """
        bins = self._bins()
        # a game's options are flat, the controller's are those of each adversary
        prompt = {name: getattr(self, name) for name in ("eta", "ema", "clip", "max_weight")}
        rollout = {"eta": self.rollout_eta, "price_lr": self.price_lr}
        options: dict[str, Any] = {}
        if method in ("prompt", "both"):
            options["prompt"] = prompt
        if method in ("rollout", "both"):
            options["rollout"] = rollout
        if options:
            options["averaging"] = "prompt"  # in the bins' means and in the gradient
        if method == "resample":
            method = SharedDraw(prompt=prompt, action="resample", averaging="prompt")
        elif method == "oracle":
            method = OracleRollouts()
        controller = GDROController(
            copy.deepcopy(method),
            self.mean_rollouts,
            n_min=self.n_min,
            n_max=self.n_max,
            bins=bins,
            seed=seed,
            advantage_std="sample",
            **options,
        )
        if self.score == "cumulative" and isinstance(controller.method, PromptGDRO):
            controller.method.prompt_adversary = CumulativeAdversary(bins.num_bins, **prompt)
        return controller

    def _bins(self) -> DifficultyBins:
        """The bins of a new controller."""
        if self.grouping == "skill":
            return StaticGroups(
                range(self.world.prompts),
                self.world.skill_D.tolist(),
                range(self.world.skills),
                k=self.k,
                estimator=self.estimator,  # type: ignore[arg-type]
            )
        return DifficultyBins(
            edges=np.arange(1, self.num_bins) / self.num_bins,
            k=self.k,
            hysteresis=self.hysteresis,
            estimator=self.estimator,  # type: ignore[arg-type]
        )


# Methods that only the toy has. A `Player` tells them, by `inform`, what no real method can know.


class SharedDraw(PromptGDRO):
    """Prompt-GDRO by resampling, on the random numbers that all games of a seed share."""

    def inform(self, data_D: np.ndarray, slots_P: np.ndarray, rate_D: np.ndarray) -> None:
        """Uniform numbers that order the data set and draw the slots' bins."""
        self.data_D = data_D
        self.slots_P = slots_P

    def draw(self, pool: Prompts, size: int, rng: np.random.Generator) -> np.ndarray:
        """Bins by q as in `PromptGDRO.draw`, each slot by its own number; evenly within a bin.

        Here C counts the prompts without a bin, then the bins.
        """
        counts_C = np.bincount(pool.bins_P + 1, minlength=self.run.num_bins + 1)
        q_B = np.where(counts_C[1:] > 0, self.prompt_adversary.probabilities(), 0.0)
        # the bins together are drawn as often as they have prompts, so that prompts without a bin
        # keep their even chance
        q_B *= counts_C[1:].sum() / max(q_B.sum(), 1e-300)
        ladder_C = np.append(counts_C[0], q_B).cumsum()
        # sorted numbers give sorted bins: the slots of a bin are neighbours and take turns
        numbers_P = np.sort(self.slots_P)
        bin_P = (ladder_C[:-1] / ladder_C[-1]).searchsorted(numbers_P, side="right")
        turn_P = np.arange(size) - bin_P.searchsorted(bin_P)
        order_D = self.data_D.argsort()
        by_bin_D = order_D[pool.bins_P[order_D].argsort(kind="stable")]
        start_C = counts_C.cumsum() - counts_C
        return by_bin_D[start_C[bin_P] + turn_P % counts_C[bin_P]]


class OracleRollouts(Method):
    """Rollouts that minimize Σ p(1−p)/n by the true pass rates: no rule by bins can do better."""

    def inform(self, data_D: np.ndarray, slots_P: np.ndarray, rate_D: np.ndarray) -> None:
        """The policy's pass rates."""
        self.rate_D = rate_D

    def allocate(self, prompts: Prompts, budget: int, rng: np.random.Generator) -> np.ndarray:
        """The gain v/n − v/(n+1) of one more rollout falls with n, so the largest gains win."""
        rate_P1 = self.rate_D[prompts.uids_P][:, None]
        n_N = np.arange(self.run.n_min, self.run.n_max)
        gains_PN = rate_P1 * (1 - rate_P1) / (n_N * (n_N + 1.0))
        return best_rollouts(gains_PN, self.run.n_min, budget, rng)

    def weights(self, batch: Batch) -> np.ndarray:
        """Each prompt counts the same in the gradient, however many rollouts it has."""
        return self.run.mean_rollouts / batch.trials_P


class CumulativeAdversary(PromptAdversary):
    """Scores that add up the losses of all prompts in a bin, over the mean prompts of a bin."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.total_B = np.zeros(self.num_bins)

    def update(
        self, bin_ids: ArrayLike, losses: ArrayLike, weights: ArrayLike | None = None
    ) -> None:
        """Add the losses of a batch, (P,) each; every prompt counts once."""
        means_B, counts_B = bin_means(bin_ids, losses, self.num_bins)
        self.total_B += np.nan_to_num(means_B) * counts_B * (self.num_bins / np.size(losses))

    def scores(self) -> np.ndarray:
        """The sums, (B,)."""
        return self.total_B


@lru_cache(4096)
def draw_offsets(world: World, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """First logits, (D,) and held out (E,); the jitter is the same in every world."""
    rng = np.random.default_rng((seed, 0))
    hardness_K = np.linspace(-1, 1, world.skills) if world.skills > 1 else np.zeros(1)
    # drawn whatever `rare` is, so that the jitter is the same in every world
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
    """Directions d in memory: training prompts (A, D, F), held-out ones (A, E, F)."""
    rng = np.random.default_rng((seed, 1))
    training = rng.standard_normal((answers, prompts, capacity))
    testing = rng.standard_normal((answers, held_out, capacity))
    return training / capacity**0.5, testing / capacity**0.5


def draw_numbers(
    game: Game, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The random numbers of one step; all games of a seed have the same.

    Returns:
        Uniform: (R, P) of the first, second … rollout of each slot, (D,) that order the data set,
        (P,) that draw the slots' bins. Normal: (F,), the direction of the noise.
    """
    # as many as the largest n_max can use, so that games with different bounds see the same ones
    rows = max(ROLLOUT_NUMBERS, game.n_max)
    rollouts, data, slots = np.cumsum([rows * game.batch, game.world.prompts, game.batch]).tolist()
    uniform = rng.random(slots)
    noise_F = rng.standard_normal(game.world.capacity)
    rollouts_RP = uniform[:rollouts].reshape(rows, game.batch)
    return rollouts_RP, uniform[rollouts:data], uniform[data:], noise_F
