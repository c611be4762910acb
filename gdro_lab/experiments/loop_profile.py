"""Profiles of the backend "loop": tiny models in `gdro_lab.loop`, where a seed draws everything."""

from functools import cached_property
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, ValidationError, model_validator

from gdro.checks import Positive, Refusal
from gdro_lab.experiments.blocks import Experiment, LoopTrain, Variant
from gdro_lab.experiments.oracles import loop_controller
from gdro_lab.experiments.spelling import read_spelling
from gdro_lab.tasks.base import BaseSize
from gdro_lab.tasks.reasoning_gym import STREAM_SIZE
from gdro_lab.tasks.world import TaskWorld, read_world, refusal


class LoopProfile(Experiment):
    """An experiment in the loop: every method in every world, at every rate, on every seed."""

    backend: Literal["loop"]
    """What trains: `gdro_lab.loop`."""
    worlds: list[str] = Field(["rare-hard"], min_length=1)
    """Tasks with their bases: names in gdro_lab/tasks/worlds, or YAML files."""
    methods: list[str] = Field(min_length=1)
    """Spelled as in `gdro_lab.experiments.spelling`."""
    learning_rates: list[Positive] = Field([1e-4, 2e-4], min_length=1)
    """Tried for each method that names no rate of its own."""
    train: LoopTrain = LoopTrain()
    """The same for all methods."""
    size: BaseSize | None = None
    """Size of all bases, in place of the worlds' own."""
    baseline: str = "grpo"
    """The method that others are compared with."""

    is_pretrained: ClassVar[bool] = False
    """The loop trains only tiny models."""
    uses_unsloth: ClassVar[bool] = False
    """It uses only PyTorch."""
    gpus: ClassVar[int] = 0
    """It runs on one processor core."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        """Refuse what is misspelled, before any training."""
        names = [world.name for world in self.drawn_worlds]
        if len(set(names)) != len(names):
            raise Refusal(f"worlds must have names of their own, got {names}")
        most = 1
        thresholds = set()
        for text in self.methods:
            variant = read_spelling(text)
            prompts, mean_rollouts = self.batch_shape(variant)
            controller = loop_controller(variant, mean_rollouts, seed=0)
            thresholds.add(controller.success_threshold)
            most = max(most, prompts)
        if len(thresholds) > 1:
            raise Refusal(
                f"success_threshold must be the same in all methods, got {sorted(thresholds)}"
            )
        known = sorted({"grpo", *(variant.label for variant, _ in self.arms())})
        if self.baseline not in known:
            raise Refusal(f"baseline must be one of {known}, got {self.baseline!r}")
        streams = [world.name for world in self.drawn_worlds if world.spec.n_train == 0]
        steps = self.train.max_steps
        if streams and steps * most > STREAM_SIZE:
            raise Refusal(
                f"steps × prompts must be at most {STREAM_SIZE} in the stream {streams[0]!r}, "
                f"got {steps} × {most}"
            )
        return self

    @property
    def success_threshold(self) -> float:
        """The reward above which a completion is correct, in training and in scores."""
        variant = read_spelling(self.methods[0])
        _, mean_rollouts = self.batch_shape(variant)
        return loop_controller(variant, mean_rollouts, seed=0).success_threshold

    @cached_property
    def drawn_worlds(self) -> list[TaskWorld]:
        """The worlds, each once, as read from their files."""
        return [read_world(name) for name in dict.fromkeys(self.worlds)]

    @property
    def cost(self) -> str:
        """A sentence: how many runs a profile has, with the base of each draw."""
        worlds = len(self.drawn_worlds)
        arms = len(self.arms())
        seeds = len(self.seeds)
        return (
            f"{worlds * arms * seeds} trainings (worlds × methods at their rates × seeds: "
            f"{worlds} × {arms} × {seeds})"
        )

    def arms(self) -> list[tuple[Variant, float]]:
        """Variant and learning rate of each arm, each once."""
        arms: dict[tuple[str, float], Variant] = {}
        for text in self.methods:
            variant = read_spelling(text)
            own_rate = variant.train.get("learning_rate")
            for rate in self.learning_rates if own_rate is None else [own_rate]:
                arms[variant.label, rate] = variant
        return [(variant, rate) for (_, rate), variant in arms.items()]

    def batch_shape(self, variant: Variant) -> tuple[int, float]:
        """A variant's prompts a step and mean rollouts a prompt, at the profile's budget."""
        total = self.train.prompts_per_step * self.train.num_generations
        prompts = variant.train.get("prompts_per_step", self.train.prompts_per_step)
        if type(prompts) is not int or not 1 <= prompts <= total:  # True is an int, too
            raise Refusal(f"prompts of {variant.label!r} must be in [1, {total}], got {prompts!r}")
        return prompts, total / prompts

    def settings_of(self, world: TaskWorld, variant: Variant | None) -> dict[str, Any]:
        """What a run depends on besides method, rate and seed; the base has no variant."""
        settings: dict[str, Any] = {
            "world": world.model_dump(mode="json"),
            "train": self.train.model_dump(),
            "size": self.size,
        }
        if self.success_threshold != 0:
            settings["success_threshold"] = self.success_threshold
        if variant is not None:
            settings["methods"] = self.methods_hash(variant.method)
        return settings


def make_loop_profile(fields: dict[str, Any]) -> LoopProfile:
    """A profile of the loop from its fields; Refusal for whatever is wrong."""
    try:
        return LoopProfile.model_validate(fields)
    except ValidationError as error:
        raise refusal("arena", error) from error
