"""A profile: the YAML file of an experiment. It names data, methods, seeds and a backend.

The backend "trl" trains real models and tiny ones with `GDROTrainer`, the backend "loop" tiny ones
in `gdro_lab.loop`. Whatever is wrong in a file is a `Refusal`, before any compute.
"""

import hashlib
import math
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import Field, ValidationError, field_validator, model_validator

from gdro.checks import Positive, Refusal, build, check
from gdro.controller import GDROController
from gdro.registry import find_method
from gdro_lab.experiments.blocks import (
    BASE,
    BaseChoice,
    EvaluationChoice,
    LaunchChoice,
    ModelChoice,
    TrainChoice,
    Variant,
)
from gdro_lab.experiments.oracles import loop_controller
from gdro_lab.experiments.profile_checks import (
    check_comparison,
    check_loop_train,
    check_names,
    check_seeds,
    check_task,
    check_training,
    check_worlds,
)
from gdro_lab.experiments.spelling import import_methods, read_spelling
from gdro_lab.tasks import EmbeddedChoice, GymChoice, MathChoice
from gdro_lab.tasks.base import BaseSize, BoundedNatural, Name, Strict
from gdro_lab.tasks.cold_start import ColdStart
from gdro_lab.tasks.world import TaskWorld, read_layers, read_world, refusal

PROFILES = Path(__file__).parents[1] / "profiles"
OF_LOOP = {"worlds", "methods", "learning_rates", "size", "baseline"}
OF_TRL = {"one_task", "task", "base", "model", "cold_start", "launch", "gpus"}
OF_TRL |= {"hours", "variants"}
# How a machine computes, and not what: these may change between two starts of one run.
MACHINE = {
    "vllm_gpu_memory_utilization",
    "vllm_enable_sleep_mode",
    "vllm_server_base_url",
    "vllm_server_host",
    "vllm_server_port",
    "vllm_server_timeout",
    "vllm_group_port",
    "gpu_memory_utilization",
    "standby",
    "report_to",
    "run_name",
    "log_completions",
    "logging_steps",
    "disable_tqdm",
    "save_total_limit",
}


class Configuration(NamedTuple):
    """What is compared with others."""

    method: str
    """The variant's name; in the loop the method's spelling, without its rate."""
    variant: Variant
    learning_rate: float


Seed = Annotated[int, Field(ge=0, lt=2**32)]  # as numpy and torch take them


class Profile(Strict):
    """An experiment: each method on each seed, in TRL or in the loop."""

    name: Name
    """Name of the runs' folder; the file's name unless it is given."""
    title: str = ""
    """One sentence on what is compared."""
    backend: Literal["trl", "loop"] = "trl"
    """What trains: `GDROTrainer`, or `gdro_lab.loop`."""
    methods_from: str | None = None
    """A Python file that registers methods of your own. It is run: trust it as any code."""
    seeds: list[Seed] = Field(min_length=1)
    """Of the replicates: each draws a task, a base and a training of its own."""
    train: TrainChoice = TrainChoice()
    """Fields of GDROConfig, the same for all methods but for what variants change. The loop knows
    `LOOP_TRAIN`."""

    # of the backend "trl"
    one_task: bool = False
    """All seeds share the task, the base and the cold start, which are drawn with their own seeds;
    a seed draws only the training."""
    task: EmbeddedChoice | GymChoice | MathChoice = Field(EmbeddedChoice(), discriminator="kind")
    """The prompts and their reward."""
    base: BaseChoice = BaseChoice()
    """The tiny model to start from, where `model` has no source."""
    model: ModelChoice = ModelChoice()
    """The model to start from, and what of it is trained."""
    cold_start: ColdStart | None = None
    """Worked solutions that the model is taught first; without it, none."""
    evaluation: EvaluationChoice = EvaluationChoice()
    """How held-out prompts are sampled after training."""
    launch: LaunchChoice = LaunchChoice()
    """The processes of one training."""
    gpus: BoundedNatural = 0
    """GPUs that a scheduler reserves for one training."""
    hours: Positive = 1.0
    """Hours that a scheduler reserves for one training."""
    variants: dict[Name, Variant] = Field({})
    """What is compared, by name."""

    # of the backend "loop"
    worlds: list[str] = Field(["rare-hard"], min_length=1)
    """Tasks with their bases: names in gdro_lab/tasks/worlds, or YAML files."""
    methods: list[str] = Field([])
    """What is compared, spelled as in `gdro_lab.experiments.spelling`."""
    learning_rates: list[Positive] = Field([1e-4, 2e-4], min_length=1)
    """Tried for each method that names no rate of its own."""
    size: BaseSize | None = None
    """Size of all bases, in place of the worlds' own."""
    baseline: str = "grpo"
    """The method that others are compared with."""

    @field_validator("model", mode="before")
    @classmethod
    def _make_model(cls, fields: Any) -> Any:
        """A ModelChoice: where pydantic is strict, it makes no dataclass of a mapping."""
        return build("model", ModelChoice, fields) if isinstance(fields, dict) else fields

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        """Refuse what would otherwise fail after hours."""
        others = OF_TRL if self.backend == "loop" else OF_LOOP
        for field in sorted(self.model_fields_set & others):
            raise Refusal(f"{field} must be left out with the backend {self.backend!r}")
        if len(set(self.seeds)) != len(self.seeds):
            raise Refusal(f"seeds must differ, got {self.seeds}")
        import_methods(self.methods_from)
        if self.backend == "loop":
            self._check_loop()
        else:
            self._check_trl()
        thresholds = {self.controller_of(c).success_threshold for c in self.configurations()}
        if len(thresholds) > 1:
            raise Refusal(
                "success_threshold must be the same in all that is compared, "
                f"got {sorted(thresholds)}"
            )
        return self

    def _check_loop(self) -> None:
        """Refuse what is misspelled, before any training."""
        check_loop_train(self.train)
        if not self.evaluation.model_fields_set <= {"at"}:
            raise Refusal(f"evaluation must have no other field than at, got {self.evaluation}")
        if not self.methods:
            raise Refusal("methods must name what is compared, got []")
        known = sorted({"grpo", *(one.method for one in self.configurations())})
        if self.baseline not in known:
            raise Refusal(f"baseline must be one of {known}, got {self.baseline!r}")
        most = max(self.batch_shape(one.variant)[0] for one in self.configurations())
        check_worlds(self.drawn_worlds, self.train.max_steps, most)

    def _check_trl(self) -> None:
        """Refuse variants that cannot be told apart or compared, and what cannot be trained."""
        check_names(list(self.variants), [self.label(name) for name in (BASE, *self.variants)])
        if not self.one_task:
            check_seeds(self.seeds, self.evaluation, self.task, self.base, self.cold_start)
        check_task(self.task, self.model.source, self.base, self.cold_start)
        for name, variant in self.variants.items():
            try:
                train = self.train_of(name)
                model = self.model_of(name)
                check_comparison(variant, [*self.variants, "grpo"], train, self.train)
                if variant.model:  # others have that of the profile, which was checked above
                    check_task(self.task, model.source, self.base, self.cold_start)
                check_training(train, model, self.launch, self.evaluation)
                self.controller_of(Configuration(name, variant, train.learning_rate))
            except ValidationError as error:
                raise refusal(f"variants.{name}.train", error) from error
            except ValueError as error:
                raise Refusal(f"variant {name!r}: {error}") from error

    def methods_hash(self, method: str) -> str | None:
        """Hash of `methods_from` if the method is from it: a changed file makes another run."""
        package = find_method(method).__module__.partition(".")[0]
        # a part of "composed" may be from it
        is_ours = package in ("gdro", "gdro_lab") and method != "composed"
        if self.methods_from is None or is_ours:
            return None
        return hashlib.sha256(Path(self.methods_from).read_bytes()).hexdigest()

    @property
    def cost(self) -> str:
        """A sentence: how many trainings a profile has, and the GPU-hours that they may take."""
        in_loop = {"worlds": len(self.drawn_worlds)} if self.backend == "loop" else {}
        what = "methods at their rates" if in_loop else "variants"
        counts = in_loop | {what: len(self.configurations()), "seeds": len(self.seeds)}
        trainings = math.prod(counts.values())
        numbers = " × ".join(map(str, counts.values()))
        text = f"{trainings} trainings ({' × '.join(counts)}: {numbers})"
        hours = trainings * self.gpus * self.hours
        return f"{text}, up to {hours:,.0f} GPU-hours" if hours else text

    @property
    def is_pretrained(self) -> bool:
        """Whether any variant trains another model than a tiny base."""
        return any(self.model_of(name).source is not None for name in self.variants)

    @property
    def success_threshold(self) -> float:
        """The reward above which a completion is correct, in training and in evaluation."""
        return self.controller_of(self.configurations()[0]).success_threshold

    def drawn(self, seed: int) -> Self:
        """The profile of one replicate: this seed has drawn task, base and cold start, too."""
        if self.one_task:
            return self
        of_seed: dict[str, Any] = {"one_task": True}
        for name in ("task", "base", "cold_start"):
            part = getattr(self, name)
            if part is not None:
                of_seed[name] = part.model_copy(update={"seed": seed})
        return self.model_copy(update=of_seed)

    def label(self, variant: str) -> str:
        """What tables and legends call a variant."""
        return "base" if variant == BASE else self.variants[variant].label or variant

    def variant(self, name: str) -> Variant:
        """A variant by its name; Refusal if there is none, as for the base."""
        if name not in self.variants:
            raise Refusal(f"variant must be one of {list(self.variants)}, got {name!r}")
        return self.variants[name]

    def train_of(self, variant: str) -> TrainChoice:
        """The training settings of a variant; of the base, those of the profile."""
        changes = {} if variant == BASE else self.variant(variant).train
        return TrainChoice(**(self.train.model_dump() | changes))

    def model_of(self, variant: str) -> ModelChoice:
        """The model settings of a variant; of the base, those of the profile."""
        changes = {} if variant == BASE else self.variant(variant).model
        return ModelChoice(**(asdict(self.model) | changes))

    def controller_of(self, configuration: Configuration) -> GDROController:
        """A controller with the method and budget of a configuration."""
        chosen = configuration.variant
        if self.backend == "loop":
            return loop_controller(chosen, self.batch_shape(chosen)[1], seed=0)
        return build(
            f"options of {chosen.method!r}",
            GDROController,
            {"seed": 0} | chosen.options,
            method=chosen.method,
            preset=chosen.preset,
            mean_rollouts=self.train_of(configuration.method).num_generations,
        )

    def settings_of(self, variant: str, *, evaluated: bool = True) -> dict[str, Any]:
        """What a run in TRL depends on besides its seed: no labels, nothing of `MACHINE`.

        Without `evaluated`, what a training depends on: nothing of the evaluation.
        """
        settings = self.model_dump(include={"task", "base", "cold_start", "evaluation"})
        settings["model"] = asdict(self.model_of(variant))
        settings["template"] = self.train_of(variant).template
        settings["success_threshold"] = self.success_threshold
        if self.task.kind == "reasoning_gym":
            settings["world"] = read_world(self.task.world).model_dump(mode="json")
        if variant != BASE:
            chosen = self.variant(variant)
            settings |= chosen.model_dump(exclude={"label", "baseline", "train", "model"})
            settings["train"] = self.train_of(variant).model_dump()
            settings["methods_from"] = self.methods_hash(chosen.method)
        if not evaluated and not self.evaluation.at:
            del settings["evaluation"]
            # what is evaluated changes a training only by the problems that it takes out, and the
            # identity holds the rows that are left
            if variant == BASE or self.train_of(variant).eval_strategy == "no":
                settings["task"].pop("evaluate", None)
        for block in ("model", "train", "evaluation"):
            for name in MACHINE & set(settings.get(block, ())):
                del settings[block][name]
        return settings

    @cached_property
    def drawn_worlds(self) -> list[TaskWorld]:
        """The loop's worlds, each once, as read from their files."""
        worlds = self.worlds if self.backend == "loop" else []
        return [read_world(name) for name in dict.fromkeys(worlds)]

    def configurations(self) -> list[Configuration]:
        """What is compared, each once."""
        if self.backend == "trl":
            return [
                Configuration(name, variant, self.train_of(name).learning_rate)
                for name, variant in self.variants.items()
            ]
        configurations: dict[tuple[str, float], Configuration] = {}
        for variant in map(read_spelling, self.methods):
            own_rate = variant.train.get("learning_rate")
            for rate in self.learning_rates if own_rate is None else [own_rate]:
                configurations[variant.label, rate] = Configuration(variant.label, variant, rate)
        return list(configurations.values())

    def batch_shape(self, variant: Variant) -> tuple[int, float]:
        """A variant's prompts a step and mean rollouts a prompt in the loop, at equal rollouts."""
        total = self.train.prompts_per_step * self.train.num_generations
        prompts = variant.train.get("prompts_per_step", self.train.prompts_per_step)
        check(f"prompts of {variant.label!r}", prompts, int, ge=1, le=total)
        return prompts, total / prompts


def load_profile(name: str | Path) -> Profile:
    """Read a shipped profile, or the .yaml file at a path; Refusal for whatever is wrong.

    `like: other` takes what it does not say from another, field by field, `variants` as a whole.
    """
    path, fields = read_layers("profile", name, PROFILES, _merged_block)
    if isinstance(fields.get("task"), dict):
        fields["task"] = {"kind": "embedded"} | fields["task"]
    return make_profile(path, {"name": path.stem, **fields})


def make_profile(where: str | Path, fields: dict[str, Any]) -> Profile:
    """A profile of these fields; Refusal, with where they are from, for whatever is wrong."""
    try:
        return Profile.model_validate(fields)
    except ValidationError as error:
        raise refusal(where, error) from error


def load_trainings(name: str | Path) -> Profile:
    """Read a profile of the backend "trl", for commands that work with one of its runs."""
    profile = load_profile(name)
    if profile.backend == "loop":
        raise Refusal(f"profile {profile.name!r} has the backend 'loop': use `gdro run {name}`")
    return profile


def _merged_block(block: str, before: Any, changes: Any) -> Any:
    """A block of the profile that this one is `like`, with the changes over it or in its place."""
    is_other_task = block == "task" and changes.get("kind") not in (None, before.get("kind"))
    # another kind of task has other fields
    return changes if block == "variants" or is_other_task else before | changes


def run_folder(runs_dir: str | Path, variant: str, seed: int) -> Path:
    """Where a run's records are."""
    return Path(runs_dir) / variant / f"seed{seed}"


def repository() -> Path:
    """The clone that holds the working directory, for notebooks opened in their folder."""
    for folder in (Path.cwd(), *Path.cwd().parents):
        if (folder / "gdro_lab/profiles").is_dir():
            return folder
    return Path.cwd()
