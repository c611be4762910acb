"""Profiles: one YAML file (profiles/*.yaml) describes a kind of run.

Reading the file refuses unknown and invalid fields (`gdro.study.choices`) and fields that do not fit together
(`gdro.study.profile_checks`). TRL's own training options are checked in the first job
(`gdro.study.arguments`), because Unsloth must be imported before TRL. The variant "base" is the model before
training.
"""

import hashlib
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, ValidationError, model_validator

from gdro.controller import GDROController
from gdro.core.checks import build
from gdro.study.choices import (
    BASE,
    BaseChoice,
    EvaluationChoice,
    LaunchChoice,
    ModelChoice,
    TrainChoice,
    Variant,
)
from gdro.study.profile_checks import check_profile
from gdro.tasks.settings import (
    ChainChoice,
    GymChoice,
    MathChoice,
    Name,
    NotNegative,
    Positive,
    Strict,
    find_yaml,
    read_yaml,
    refusal,
)
from gdro.tasks.world import read_world
from gdro.training.files import repository


class Profile(Strict):
    """Everything about a kind of run.

    methods_from: a Python file that registers methods of your own. gpus, hours: what a scheduler reserves for
    one training.
    """

    name: Name
    title: str = ""
    methods_from: str | None = None
    task: ChainChoice | GymChoice | MathChoice = Field(ChainChoice(), discriminator="kind")
    base: BaseChoice = BaseChoice()
    model: ModelChoice = ModelChoice()
    train: TrainChoice = TrainChoice()
    evaluation: EvaluationChoice = EvaluationChoice()
    launch: LaunchChoice = LaunchChoice()
    gpus: NotNegative = 0
    hours: Positive = 1.0
    variants: dict[Name, Variant] = Field(min_length=1)
    seeds: list[Annotated[int, Field(ge=0, lt=2**32)]] = Field(min_length=1)  # as numpy and torch take them

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        check_profile(self)
        return self

    @property
    def cost(self) -> str:
        """A sentence: how many trainings a profile has, and the GPU-hours that they may take."""
        runs = len(self.variants) * len(self.seeds)
        text = f"{runs} trainings ({len(self.variants)} variants, {len(self.seeds)} seeds)"
        if self.gpus:
            hours = f"{runs} × {self.gpus} GPUs × {self.hours:g} hours"
            text += f": up to {runs * self.gpus * self.hours:,.0f} GPU-hours, {hours}"
        return text

    def label(self, variant: str) -> str:
        """What tables and legends call a variant."""
        return "base" if variant == BASE else self.variants[variant].label or variant

    def train_of(self, variant: str) -> TrainChoice:
        """The training settings of a variant."""
        return TrainChoice(**(self.train.model_dump() | self._variant(variant).train))

    def model_of(self, variant: str) -> ModelChoice:
        """The model settings of a variant; of the base, those of the profile."""
        changes = {} if variant == BASE else self._variant(variant).model
        return ModelChoice(**(self.model.model_dump() | changes))

    def controller_of(self, variant: str) -> GDROController:
        """A controller with the method and budget of a variant."""
        chosen, mean_rollouts = self._variant(variant), self.train_of(variant).num_generations
        given = {"method": chosen.method, "preset": chosen.preset, "mean_rollouts": mean_rollouts}
        return build("gdro_options", GDROController, {"seed": 0} | chosen.options, **given)

    def settings_of(self, variant: str, *, evaluated: bool = True) -> dict[str, Any]:
        """What a run depends on besides its seed. Not labels, and without `evaluated` not the evaluation."""
        settings = self.model_dump(include={"task", "base", "evaluation"})
        if self.task.kind == "reasoning_gym":
            settings["world"] = read_world(self.task.world).model_dump(mode="json")
        if not evaluated:
            settings.pop("evaluation")
            if variant == BASE or self.train_of(variant).eval_strategy == "no":
                settings["task"].pop("evaluate", None)
        settings["model"] = self.model_of(variant).model_dump()
        if variant != BASE:
            settings |= self._variant(variant).model_dump(include={"method", "preset", "options", "groups"})
            settings["train"] = self.train_of(variant).model_dump()
            if self.methods_from is not None:  # a changed method is another run
                methods = (repository() / self.methods_from).read_bytes()
                settings["methods"] = hashlib.sha256(methods).hexdigest()
        return settings

    def _variant(self, variant: str) -> Variant:
        if variant not in self.variants:
            known = [BASE, *self.variants]
            raise ValueError(f"variant must be one of {known}, got {variant!r}; choose one of these")
        return self.variants[variant]


def load_profile(name: str | Path) -> Profile:
    """Read profiles/<name>.yaml, or the .yaml file at a path. ValueError for whatever is wrong with it.

    `like: other` takes what it does not say from another profile, field by field, `variants` as a whole.
    """
    path, fields = _read(name)
    if isinstance(fields.get("task"), dict):
        fields["task"] = {"kind": "chain"} | fields["task"]
    try:
        return Profile.model_validate({"name": path.stem, **fields})
    except ValidationError as error:
        raise refusal(path, error) from error


def _read(name: str | Path, children: tuple[Path, ...] = ()) -> tuple[Path, dict[str, Any]]:
    """The path of a profile, and its fields laid over those of the profile that it is `like`."""
    path = find_yaml("profile", name, repository() / "profiles")
    fields = read_yaml(path)
    if path in children:
        raise ValueError(f"{path} is like itself; name another profile")
    if (other := fields.pop("like", None)) is not None:
        _, taken = _read(str(other), (*children, path))
        for block, changes in fields.items():  # the fields of a block one by one, but variants as a whole
            inner = block != "variants" and isinstance(changes, dict) and isinstance(taken.get(block), dict)
            if block == "task" and inner:  # another kind of task has other fields
                inner = changes.get("kind", taken[block].get("kind")) == taken[block].get("kind")
            taken[block] = taken[block] | changes if inner else changes
        fields = taken
    return path, fields


def run_folder(runs_dir: str | Path, variant: str, seed: int) -> Path:
    """Where a run's records are."""
    return Path(runs_dir) / variant / f"seed{seed}"
