"""A profile: the YAML file of an experiment. It names data, variants, seeds and a backend.

`Profile` is of the backend "trl", which trains real models and tiny ones with `GDROTrainer`.
`LoopProfile`, in the file beside this one, is of the backend "loop". Whatever is wrong in a file is
a `Refusal`, before any compute.
"""

from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, ValidationError, field_validator, model_validator

from gdro.checks import Positive, Refusal, build
from gdro.controller import GDROController
from gdro_lab.experiments.blocks import (
    BASE,
    BaseChoice,
    EvaluationChoice,
    Experiment,
    LaunchChoice,
    ModelChoice,
    TrainChoice,
    Variant,
)
from gdro_lab.experiments.loop_profile import LoopProfile
from gdro_lab.tasks import EmbeddedChoice, GymChoice, MathChoice
from gdro_lab.tasks.base import BoundedNatural, Name
from gdro_lab.tasks.cold_start import ColdStart
from gdro_lab.tasks.reasoning_gym import GymSpec
from gdro_lab.tasks.world import find_yaml, read_world, read_yaml, refusal

PROFILES = Path(__file__).parents[1] / "profiles"
RESERVED = {BASE, "results", "figures", "logs"}
"""Folders of a profile's runs."""
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


class Profile(Experiment):
    """An experiment in TRL."""

    backend: Literal["trl"] = "trl"
    """What trains: `GDROTrainer`."""
    task: EmbeddedChoice | GymChoice | MathChoice = Field(EmbeddedChoice(), discriminator="kind")
    """The prompts and their reward."""
    base: BaseChoice = BaseChoice()
    """The tiny model to start from, where `model` has no source."""
    model: ModelChoice = ModelChoice()
    """The model to start from, and what of it is trained."""
    cold_start: ColdStart | None = None
    """Worked solutions that the model is taught first; without it, none."""
    train: TrainChoice = TrainChoice()
    """Fields of GDROConfig, the same for all variants but for what these change."""
    evaluation: EvaluationChoice = EvaluationChoice()
    """How held-out prompts are sampled after training."""
    launch: LaunchChoice = LaunchChoice()
    """The processes of one training."""
    gpus: BoundedNatural = 0
    """GPUs that a scheduler reserves for one training."""
    hours: Positive = 1.0
    """Hours that a scheduler reserves for one training."""
    variants: dict[Name, Variant] = Field(min_length=1)
    """What is compared, by name."""

    @field_validator("model", mode="before")
    @classmethod
    def _make_model(cls, fields: Any) -> Any:
        """A ModelChoice: where pydantic is strict, it makes no dataclass of a mapping."""
        return build("model", ModelChoice, fields) if isinstance(fields, dict) else fields

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        """Refuse what would otherwise fail after hours."""
        if RESERVED & set(self.variants):
            raise Refusal(
                f"variants may not be called {sorted(RESERVED)}, got {list(self.variants)}"
            )
        labels = [self.label(variant) for variant in (BASE, *self.variants)]
        if len(set(labels)) != len(labels):
            raise Refusal(f"labels of variants must differ, got {labels}")
        if self.evaluation.k > self.evaluation.samples:
            raise Refusal(
                f"evaluation.k must be at most the {self.evaluation.samples} samples, "
                f"got {self.evaluation.k}"
            )
        if self.launch.file is None and self.launch.options:
            options = sorted(self.launch.options)
            raise Refusal(f"launch.config must be given with further options, got {options}")
        self._check_task()
        for name in self.variants:
            try:
                self._check_variant(name)
            except (ValueError, TypeError) as error:
                raise Refusal(f"variant {name!r}: {error}") from error
        if len(self._thresholds) > 1:
            raise Refusal(
                f"success_threshold must be the same in all variants, got {self._thresholds}"
            )
        return self

    def _check_task(self) -> None:
        """Refuse a task without the model that it needs."""
        task = self.task
        source = self.model.source
        if task.kind == "math" and source is None:
            raise Refusal("model.source must be given for task.kind 'math', got None")
        if task.kind == "reasoning_gym":
            spec = read_world(task.world).spec
            if not isinstance(spec, GymSpec) or spec.n_train == 0:
                raise Refusal(
                    f"task.world must be a finite one of reasoning-gym, got {task.world!r}"
                )
            if source is None and spec.prompt_length is None:
                raise Refusal(f"model.source must be given for task.world {task.world!r}, got None")
            changed = sorted(self.base.model_fields_set - {"seed"})
            if changed:
                raise Refusal(f"base must be the world's, but for its seed, got {changed}")
        if self.cold_start is not None and (source is None or task.kind == "embedded"):
            raise Refusal(
                "cold_start needs model.source and a task of kind math or reasoning_gym, "
                f"got {source!r} and {task.kind!r}"
            )

    def _check_variant(self, name: str) -> None:
        """Refuse a variant that cannot be trained, or not be compared."""
        variant = self.variants[name]
        train = self.train_of(name)
        model = self.model_of(name)
        known = [*self.variants, "grpo"]
        if variant.baseline not in known:
            raise Refusal(f"baseline must be one of {known}, got {variant.baseline}")
        steps = self.train.max_steps
        batches = self.train.generation_batches
        if (train.max_steps, train.generation_batches) != (steps, batches):
            raise Refusal(
                "max_steps, updates_per_step and num_iterations must give the profile's "
                f"{steps} steps in {batches} batches, "
                f"got {train.max_steps} in {train.generation_batches}"
            )
        unit = train.updates_per_step * train.num_iterations
        if train.max_steps % unit != 0:
            raise Refusal(
                f"max_steps must be a multiple of {unit} updates a batch, got {train.max_steps}"
            )
        if train.save_steps < train.max_steps and train.save_steps % unit != 0:
            # a checkpoint within a batch does not resume to the same weights
            raise Refusal(
                f"save_steps must be a multiple of {unit} updates a batch, got {train.save_steps}"
            )
        if model.kind.startswith("unsloth") and self.launch.shards:
            raise Refusal(
                f"launch.config must not shard the weights of Unsloth, got {self.launch.config!r}"
            )
        if model.kind == "unsloth-lora" and train.use_vllm != model.fast_inference:
            raise Refusal(
                "use_vllm and fast_inference must be equal for unsloth-lora, "
                f"got {train.use_vllm} and {model.fast_inference}"
            )
        processes = self.launch.processes
        if model.fast_inference and processes != 1:
            raise Refusal(f"launch.processes must be 1 with fast_inference, got {processes}")
        train.local_batch(processes)
        self.controller_of(name)

    @property
    def cost(self) -> str:
        """A sentence: how many trainings a profile has, and the GPU-hours that they may take."""
        variants = len(self.variants)
        seeds = len(self.seeds)
        text = f"{variants * seeds} trainings (variants × seeds: {variants} × {seeds})"
        hours = self.gpus * self.hours
        if hours == 0:
            return text
        return f"{text}, up to {variants * seeds * hours:,.0f} GPU-hours"

    @property
    def is_pretrained(self) -> bool:
        """Whether any variant trains another model than a tiny base."""
        return any(self.model_of(name).source is not None for name in self.variants)

    @property
    def uses_unsloth(self) -> bool:
        """Whether Unsloth trains any variant."""
        return any(self.model_of(name).kind.startswith("unsloth") for name in self.variants)

    @property
    def success_threshold(self) -> float:
        """The reward above which a completion is correct, in training and in evaluation."""
        return self._thresholds[0]

    @property
    def _thresholds(self) -> list[float]:
        return sorted({self.controller_of(name).success_threshold for name in self.variants})

    def label(self, variant: str) -> str:
        """What tables and legends call a variant."""
        return "base" if variant == BASE else self.variants[variant].label or variant

    def train_of(self, variant: str) -> TrainChoice:
        """The training settings of a variant; of the base, those of the profile."""
        changes = {} if variant == BASE else self.variant(variant).train
        return TrainChoice(**(self.train.model_dump() | changes))

    def model_of(self, variant: str) -> ModelChoice:
        """The model settings of a variant; of the base, those of the profile."""
        changes = {} if variant == BASE else self.variant(variant).model
        return ModelChoice(**(asdict(self.model) | changes))

    def controller_of(self, variant: str) -> GDROController:
        """A controller with the method and budget of a variant."""
        chosen = self.variant(variant)
        return build(
            f"options of {chosen.method!r}",
            GDROController,
            {"seed": 0} | chosen.options,
            method=chosen.method,
            preset=chosen.preset,
            mean_rollouts=self.train_of(variant).num_generations,
        )

    def settings_of(self, variant: str, *, evaluated: bool = True) -> dict[str, Any]:
        """What a run depends on besides its seed: no labels, nothing of `MACHINE`.

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
            settings["methods"] = self.methods_hash(chosen.method)
        if not evaluated:
            del settings["evaluation"]
            # what is evaluated changes a training only by the problems that it takes out, and the
            # identity holds the rows that are left
            if variant == BASE or self.train_of(variant).eval_strategy == "no":
                settings["task"].pop("evaluate", None)
        for block in ("model", "train", "evaluation"):
            for name in MACHINE & set(settings.get(block, ())):
                del settings[block][name]
        return settings

    def variant(self, name: str) -> Variant:
        """A variant by its name; Refusal if there is none, as for the base."""
        if name not in self.variants:
            raise Refusal(f"variant must be one of {list(self.variants)}, got {name!r}")
        return self.variants[name]


def load_profile(name: str | Path) -> Profile | LoopProfile:
    """Read a shipped profile, or the .yaml file at a path; Refusal for whatever is wrong.

    `like: other` takes what it does not say from another, field by field, `variants` as a whole.
    """
    path, fields = _read(name)
    if isinstance(fields.get("task"), dict):
        fields["task"] = {"kind": "embedded"} | fields["task"]
    backend = fields.get("backend", "trl")
    kinds: dict[Any, type[Profile | LoopProfile]] = {"trl": Profile, "loop": LoopProfile}
    if backend not in ("trl", "loop"):
        raise Refusal(f"{path}: backend must be one of {list(kinds)}, got {backend!r}")
    try:
        return kinds[backend].model_validate({"name": path.stem, **fields})
    except ValidationError as error:
        raise refusal(path, error) from error


def load_trainings(name: str | Path) -> Profile:
    """Read a profile of the backend "trl", for commands that work with one of its runs."""
    profile = load_profile(name)
    if not isinstance(profile, Profile):
        raise Refusal(f"profile {profile.name!r} has the backend 'loop': use `gdro run {name}`")
    return profile


def _read(name: str | Path, children: tuple[Path, ...] = ()) -> tuple[Path, dict[str, Any]]:
    """The path of a profile, and its fields laid over those of the profile that it is `like`."""
    path = find_yaml("profile", name, PROFILES)
    if path in children:
        raise Refusal(f"{path} is like itself: `like` leads back to this file")
    fields = read_yaml(path)
    other = fields.pop("like", None)
    if other is None:
        return path, fields
    _, merged = _read(str(other), (*children, path))
    merged.pop("name", None)  # runs of two profiles must not share a folder
    for block, changes in fields.items():
        merged[block] = _merged_block(block, merged.get(block), changes)
    return path, merged


def _merged_block(block: str, before: Any, changes: Any) -> Any:
    """Changes laid over a block, or in its place."""
    if block == "variants" or not isinstance(changes, dict) or not isinstance(before, dict):
        return changes
    if block == "task" and changes.get("kind") not in (None, before.get("kind")):
        return changes  # another kind of task has other fields
    return before | changes


def run_folder(runs_dir: str | Path, variant: str, seed: int) -> Path:
    """Where a run's records are."""
    return Path(runs_dir) / variant / f"seed{seed}"


def repository() -> Path:
    """The clone that holds the working directory, for notebooks opened in their folder."""
    for folder in (Path.cwd(), *Path.cwd().parents):
        if (folder / "gdro_lab/profiles").is_dir():
            return folder
    return Path.cwd()
