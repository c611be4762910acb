"""A profile: the YAML file of an experiment. It names data, methods, seeds and a backend.

The backend "trl" trains real models and tiny ones with `GDROTrainer`, the backend "loop" tiny ones
in `gdro_lab.loop`. Whatever is wrong in a file is a `Refusal`, before any compute. Its `runs` are
plain values: nothing after them asks the profile again.
"""

from collections.abc import Iterator
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, field_validator, model_validator

from gdro.checks import Positive, Refusal, build, check
from gdro.controller import GDROController
from gdro_lab.experiments.blocks import (
    BASE,
    BaseChoice,
    EvaluationChoice,
    LaunchChoice,
    ModelChoice,
    TrainChoice,
    Variant,
    check_together,
)
from gdro_lab.experiments.oracles import loop_controller
from gdro_lab.experiments.run import LOOP_TRAIN, Run
from gdro_lab.experiments.scores import K
from gdro_lab.experiments.spelling import import_methods, read_spelling
from gdro_lab.tasks import EmbeddedChoice, GymChoice, MathChoice
from gdro_lab.tasks.base import BoundedNatural, Name, Strict
from gdro_lab.tasks.cold_start import ColdStart
from gdro_lab.tasks.reasoning_gym import GymSpec
from gdro_lab.tasks.world import TaskWorld, read_layers, read_world, refusal

PROFILES = Path(__file__).parents[1] / "profiles"
OF_OTHERS = {  # the fields of the other backend
    "trl": {"worlds", "methods", "learning_rates"},
    "loop": {"one_task", "task", "base", "model", "cold_start", "launch", "gpus", "hours"}
    | {"variants"},
}


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
    seeds: list[BoundedNatural] = Field(min_length=1)
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

    @field_validator("model", mode="before")
    @classmethod
    def _make_model(cls, fields: Any) -> Any:
        """A ModelChoice: where pydantic is strict, it makes no dataclass of a mapping."""
        return build("model", ModelChoice, fields) if isinstance(fields, dict) else fields

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        """Refuse what would otherwise fail after hours, or compare what is not alike."""
        for field in sorted(self.model_fields_set & OF_OTHERS[self.backend]):
            raise Refusal(f"{field} must be left out with the backend {self.backend!r}")
        if len(set(self.seeds)) != len(self.seeds):
            raise Refusal(f"seeds must differ, got {self.seeds}")
        import_methods(self.methods_from)
        if self.backend == "loop":
            self._check_loop()
        else:
            self._check_names()
            if not self.one_task:
                self._check_seeds()
            for name, variant in self.variants.items():
                try:
                    self._check_variant(name, variant)
                except ValidationError as error:
                    raise refusal(f"variants.{name}.train", error) from error
                except ValueError as error:
                    raise Refusal(f"variant {name!r}: {error}") from error
        _ = self.success_threshold  # makes a controller of each variant, which checks its options
        return self

    def _check_loop(self) -> None:
        """Refuse what the loop does not know, and prompts that a world does not have."""
        train = self.train
        unknown = sorted((train.model_fields_set | set(train.model_extra or {})) - set(LOOP_TRAIN))
        if unknown:
            raise Refusal(f"train must have no other fields than {LOOP_TRAIN}, got {unknown}")
        schedules = Literal["constant", "linear"]
        check("train.lr_scheduler_type", train.lr_scheduler_type, schedules)
        # with fewer, two of the five checkpoints would be the same step
        check("train.max_steps", train.max_steps, int, ge=5)
        if not self.evaluation.model_fields_set <= {"at"}:
            raise Refusal(f"evaluation must have no other field than at, got {self.evaluation}")
        check("methods", self.methods, Annotated[list[str], Field(min_length=1)])
        names = [world.name for world in self.drawn_worlds]
        if len(set(names)) < len(names):
            raise Refusal(f"worlds must have names of their own, got {names}")
        prompts = max(self.batch_shape(variant)[0] for variant, _ in self.spelled)
        for world in self.drawn_worlds:
            if not world.has_tiny_base:
                raise Refusal(f"worlds must have a tiny base in the loop, got {world.name!r}")
            if prompts > world.spec.n_train:
                raise Refusal(f"prompts must be fewer in the world {world.name!r}, got {prompts}")

    def _check_names(self) -> None:
        """Refuse variants that cannot be told apart, in folders or in tables."""
        names = list(self.variants)
        if not names:
            raise Refusal("variants must name what is compared, got {}")
        labels = [self.label(name) for name in (BASE, *names)]
        if len(set(labels)) != len(labels):
            raise Refusal(f"labels of variants must differ, got {labels}")

    def _check_seeds(self) -> None:
        """Refuse too few samples for the paired table, and seeds in what the seeds draw."""
        if len(self.seeds) > 1 and self.evaluation.samples < K:
            raise Refusal(
                f"evaluation.samples must be at least {K} where each seed draws its own task (or "
                f"one_task must be true), got {self.evaluation.samples}"
            )
        for name in ("task", "base", "cold_start"):
            part = getattr(self, name)
            if part is not None and "seed" in part.model_fields_set:
                raise Refusal(
                    f"{name}.seed must be left out: the profile's seeds draw it, got {part.seed}"
                )

    def _check_variant(self, name: str, variant: Variant) -> None:
        """Refuse what cannot be trained, and what is not compared at equal rollouts."""
        train = self.train_of(name)
        model = self.model_of(name)
        known = [*self.variants, "grpo"]
        if variant.baseline not in known:
            raise Refusal(f"baseline must be one of {known}, got {variant.baseline}")
        ours, wanted = (
            f"{one.max_steps} steps in {one.generation_batches} batches of "
            f"{one.prompts_per_step * one.num_generations} rollouts"
            for one in (train, self.train)
        )
        if ours != wanted:
            raise Refusal(
                "max_steps, updates_per_step, num_iterations and prompts_per_step × "
                f"num_generations must give the profile's {wanted}, got {ours}"
            )
        self._check_task(model.source)
        check_together(train, model, self.launch, self.evaluation)

    def _check_task(self, source: str | None) -> None:
        """Refuse a task or a cold start without the model, or the base, that it needs."""
        kind = self.task.kind
        has_tiny_base = kind == "embedded"
        if isinstance(self.task, GymChoice):
            world = read_world(self.task.world)
            has_tiny_base = world.has_tiny_base
            if not isinstance(world.spec, GymSpec):
                raise Refusal(f"task.world must be one of reasoning-gym, got {world.name!r}")
        if source is None and not has_tiny_base:
            raise Refusal(f"model.source must be given for a task of kind {kind!r}, got None")
        changed = sorted(self.base.model_fields_set - {"seed"})
        if kind == "reasoning_gym" and changed:
            raise Refusal(f"base must be the world's, but for its seed, got {changed}")
        if self.cold_start is not None and (source is None or kind == "embedded"):
            raise Refusal(
                f"cold_start needs model.source and no embedded task, got {source!r} and {kind!r}"
            )

    @property
    def is_pretrained(self) -> bool:
        """Whether any variant trains another model than a tiny base."""
        return any(self.model_of(name).source is not None for name in self.variants)

    @cached_property
    def success_threshold(self) -> float:
        """The reward above which a completion is correct, in training and in evaluation."""
        thresholds = {controller.success_threshold for controller in self._controllers()}
        if len(thresholds) > 1:
            raise Refusal(
                "success_threshold must be the same in all that is compared, "
                f"got {sorted(thresholds)}"
            )
        return thresholds.pop()

    def _controllers(self) -> Iterator[GDROController]:
        """A controller of each variant, once."""
        for variant in {variant.label: variant for variant, _ in self.spelled}.values():
            yield loop_controller(variant, self.batch_shape(variant)[1], seed=0)
        for name, variant in self.variants.items():
            try:
                yield build(
                    f"options of {variant.method!r}",
                    GDROController,
                    {"seed": 0} | variant.options,
                    method=variant.method,
                    preset=variant.preset,
                    mean_rollouts=self.train_of(name).num_generations,
                )
            except ValueError as error:
                raise Refusal(f"variant {name!r}: {error}") from error

    @cached_property
    def drawn_worlds(self) -> list[TaskWorld]:
        """The loop's worlds, each once, as read from their files."""
        worlds = self.worlds if self.backend == "loop" else []
        return [read_world(name) for name in dict.fromkeys(worlds)]

    @cached_property
    def spelled(self) -> list[tuple[Variant, float]]:
        """The loop's methods at their learning rates, each once."""
        found = {}
        for variant in map(read_spelling, self.methods):
            own_rate = variant.train.get("learning_rate")
            for rate in self.learning_rates if own_rate is None else [own_rate]:
                found[variant.label, rate] = variant, rate
        return list(found.values())

    def batch_shape(self, variant: Variant) -> tuple[int, float]:
        """A variant's prompts a step and mean rollouts a prompt in the loop, at equal rollouts."""
        total = self.train.prompts_per_step * self.train.num_generations
        prompts = variant.train.get("prompts_per_step", self.train.prompts_per_step)
        check(f"prompts of {variant.label!r}", prompts, int, ge=1, le=total)
        return prompts, total / prompts

    def label(self, variant: str) -> str:
        """What tables and legends call a variant."""
        return "base" if variant == BASE else self.variants[variant].label or variant

    def train_of(self, name: str) -> TrainChoice:
        """The training settings of a variant; of the base, those of the profile."""
        changes = {} if name == BASE else self.variants[name].train
        return TrainChoice(**(self.train.model_dump() | changes))

    def model_of(self, name: str) -> ModelChoice:
        """The model settings of a variant; of the base, those of the profile."""
        changes = {} if name == BASE else self.variants[name].model
        return ModelChoice(**(asdict(self.model) | changes))

    def runs(self) -> list[Run]:
        """All runs, replicate by replicate, so that a folder always holds whole pairs."""
        runs = []
        for seed in self.seeds:
            has_base = not self.one_task or seed == self.seeds[0]
            if self.backend == "trl":
                runs += [self.run(name, seed) for name in self.variants]
                runs += [self.run(BASE, seed)] if has_base else []
            for world in self.drawn_worlds:
                runs += [self._loop_run(world, seed, *one) for one in self.spelled]
                runs.append(self._loop_run(world, seed, None, 0.0))
        return runs

    def run(self, name: str, seed: int) -> Run:
        """A variant, or the base, on one replicate in TRL; Refusal if there is no such variant."""
        if name not in (BASE, *self.variants):
            raise Refusal(f"variant must be one of {list(self.variants)}, got {name!r}")
        drawn = self.drawn(seed)
        train = self.train_of(name)
        model = self.model_of(name)
        of_base = self.seeds[0] if self.one_task else seed
        return Run(
            profile=self.name,
            configuration=name,
            replicate=seed,
            variant=self.variants.get(name),
            learning_rate=0.0 if name == BASE else train.learning_rate,
            train=train,
            success_threshold=self.success_threshold,
            methods_from=self.methods_from,
            start_title=f"base {model.source or 'tiny'} {of_base}",
            model=model,
            task=drawn.task,
            base=drawn.base,
            cold_start=drawn.cold_start,
            taught_template=self.train.template,
            evaluation=self.evaluation,
            launch=self.launch,
            gpus=self.gpus,
            # only what was set: a world refuses the defaults of `base`
            written=drawn.model_dump_json(exclude_unset=True),
        )

    def _loop_run(self, world: TaskWorld, seed: int, variant: Variant | None, rate: float) -> Run:
        """A method in a world at a learning rate, or the base."""
        prompts, mean_rollouts = (0, 0.0) if variant is None else self.batch_shape(variant)
        return Run(
            profile=self.name,
            configuration=BASE if variant is None else variant.label,
            replicate=seed,
            variant=variant,
            learning_rate=rate,
            train=self.train,
            success_threshold=self.success_threshold,
            methods_from=self.methods_from,
            start_title=f"base {world.name} {seed}",
            evaluation=self.evaluation,
            world=world,
            prompts=prompts,
            mean_rollouts=mean_rollouts,
        )

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


def _merged_block(block: str, before: Any, changes: Any) -> Any:
    """A block of the profile that this one is `like`, with the changes over it or in its place."""
    is_other_task = block == "task" and changes.get("kind") not in (None, before.get("kind"))
    # another kind of task has other fields
    return changes if block == "variants" or is_other_task else before | changes


def repository() -> Path:
    """The clone that holds the working directory, for notebooks opened in their folder."""
    for folder in (Path.cwd(), *Path.cwd().parents):
        if (folder / "gdro_lab/profiles").is_dir():
            return folder
    return Path.cwd()
