"""Profiles: one YAML file (profiles/*.yaml) describes a kind of run.

Unknown and invalid fields are refused when the file is read; TRL's own training options only in the first job
(`gdro.study.experiment.training_arguments`), because Unsloth must be imported before TRL. The variant "base"
is the model before training.
"""

import hashlib
import os
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, ValidationError, model_validator

from gdro.controller import GDROController, make_controller
from gdro.methods import register_from
from gdro.tasks.reasoning_gym import GymSpec
from gdro.tasks.settings import (
    ChainChoice,
    Count,
    GymChoice,
    MathChoice,
    Name,
    NotNegative,
    Positive,
    Strict,
    read_yaml,
)
from gdro.tasks.world import read_world
from gdro.training.models import check_choice_of_model

BASE = "base"
RESERVED = {BASE, "results", "figures", "logs"}  # folders of a profile's runs
Part = Annotated[float, Field(gt=0, le=1)]


class BaseChoice(Strict):
    """How `tiny_base` makes the model where model.source is not given; a world says all but the seed."""

    size: Literal["tiny", "small", "mid"] = "tiny"
    seed: NotNegative = 0
    steps: Count = 800
    batch_size: Count = 96


class ModelChoice(Strict):
    """What is trained: arguments of `load_model`. Without a source, the tiny base made here."""

    source: str | None = None
    kind: Literal["full", "lora", "unsloth-full", "unsloth-lora"] = "full"
    dtype: Literal["float32", "bfloat16"] | None = None
    gradient_checkpointing: bool = False
    lora: dict[str, Any] | None = None
    attn_implementation: str | None = None
    fast_inference: bool = False
    quantization: Literal["4bit"] | None = None
    gpu_memory_utilization: Part = 0.5
    standby: bool = False


class TrainChoice(Strict):
    """GDROConfig's fields; those named here have another default or a narrower domain than TRL's.

    Our own three: prompts_per_step, the prompts of one generation batch; updates_per_step, the optimizer
    steps that share it; eval_prompts, at most how many held-out prompts TRL evaluates on where eval_strategy
    asks it to. per_device_train_batch_size: None for all of a process's share.
    """

    model_config = ConfigDict(extra="allow")

    prompts_per_step: Count = 32
    updates_per_step: Count = 1
    max_steps: Count = 150
    num_iterations: Count = 1
    num_generations: Annotated[int, Field(ge=2)] = 4
    per_device_train_batch_size: Count | None = None
    learning_rate: Positive = 1e-4
    lr_scheduler_type: str = "constant"
    save_steps: Count = 50
    beta: float = Field(0.0, ge=0)
    epsilon_high: Positive | None = None
    temperature: Positive = 1.0
    top_p: Part = 1.0
    top_k: NotNegative = 0
    loss_type: Literal["grpo", "bnpo", "dr_grpo", "dapo", "cispo", "luspo", "sapo", "vespo"] = "dapo"
    use_vllm: bool = False
    eval_strategy: Literal["no", "steps", "epoch"] = "no"
    eval_prompts: Count = 128

    @property
    def generation_batches(self) -> int:
        """Generation batches of the whole training, one row of the record each."""
        return self.max_steps // (self.updates_per_step * self.num_iterations)

    @property
    def budget(self) -> int:
        """Rollouts of the whole training."""
        return self.generation_batches * self.prompts_per_step * self.num_generations

    def local_batch(self, processes: int) -> tuple[int, int]:
        """Completions per process and forward pass, and passes accumulated for an optimizer step."""
        completions = self.prompts_per_step * self.num_generations
        passes = self.updates_per_step * processes
        micro_batch = self.per_device_train_batch_size or completions // passes
        if not micro_batch or completions % (micro_batch * passes):
            raise ValueError(
                f"{self.prompts_per_step} × {self.num_generations} = {completions} completions cannot be "
                f"split among {processes} processes and {self.updates_per_step} updates in micro-batches of "
                f"{micro_batch}; change train.per_device_train_batch_size or launch.processes"
            )
        return micro_batch, completions // (micro_batch * passes)


class EvaluationChoice(Strict):
    """Samples of each held-out prompt; batch_size is for engine "hf".

    data_parallel_size: processes that share the prompts; with "vllm", each has tensor_parallel_size GPUs.
    """

    engine: Literal["hf", "vllm"] = "hf"
    samples: Count = 8
    k: Count = 8
    temperature: Positive = 1.0
    top_p: Part = 1.0
    top_k: NotNegative = 0
    batch_size: Count = 240
    gpu_memory_utilization: Part = 0.9
    tensor_parallel_size: Count = 1
    data_parallel_size: Count = 1

    @property
    def gpus(self) -> int:
        """GPUs that an evaluation takes."""
        return self.data_parallel_size * self.tensor_parallel_size


class LaunchChoice(Strict):
    """Processes to train on, of all machines. config: path of an accelerate configuration, as in configs/.

    Further fields are options of `accelerate launch`, such as num_machines and machine_rank.
    """

    model_config = ConfigDict(extra="allow")

    processes: Count = 1
    config: str | None = None

    @property
    def options(self) -> dict[str, str]:
        """The further fields; a $NAME in one is a variable of the machine's environment."""
        return {name: os.path.expandvars(str(value)) for name, value in (self.model_extra or {}).items()}

    @property
    def machine(self) -> int:
        """Which of the machines this is."""
        rank = self.options.get("machine_rank", "0")
        if not rank.isdigit():
            raise ValueError(f"launch.machine_rank must be an integer, got {rank!r}; set that variable")
        return int(rank)


class Variant(Strict):
    """One way to train: a registered method with its options, and changes to `train` and `model`.

    groups: a column of static groups in place of difficulty bins. baseline: what tables compare with.
    """

    method: str
    preset: str = "default"
    options: dict[str, Any] = Field({})
    groups: str | None = None
    train: dict[str, Any] = Field({})
    model: dict[str, Any] = Field({})
    label: str = ""
    baseline: str = "grpo"


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
        """Refuse now what would otherwise fail after hours: each variant's controller is made once."""
        labels = [self.label(variant) for variant in self.variants]
        if self.evaluation.samples < self.evaluation.k:
            raise ValueError("evaluation.k needs as many evaluation.samples")
        if 0 < self.gpus < self.evaluation.gpus:
            raise ValueError(
                f"evaluation.data_parallel_size × tensor_parallel_size must be at most gpus, {self.gpus}, "
                f"got {self.evaluation.gpus}; change one of them"
            )
        if 0 < self.gpus < self.launch.processes and "num_machines" not in self.launch.options:
            raise ValueError(
                f"launch.processes must be at most gpus, {self.gpus}, got {self.launch.processes}; change one"
            )
        if len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"seeds must differ, got {self.seeds}")
        if self.task.kind == "math" and self.model.source is None:
            raise ValueError("model.source must name a model for task.kind 'math': a folder or a hub id")
        if self.task.kind == "reasoning_gym":
            self._check_world(self.task)
        if self.task.kind == "math" and self.task.train in self.task.evaluate:
            raise ValueError(f"task.evaluate names {self.task.train!r}, whose rows are trained on")
        if self.launch.options and self.launch.config is None:
            raise ValueError(f"launch.config must be given with {sorted(self.launch.options)}")
        if taken := {"config_file", "num_processes"} & set(self.launch.options):
            raise ValueError(f"launch may not have {sorted(taken)}; give config and processes")
        if "num_machines" in self.launch.options and "machine_rank" not in self.launch.options:
            raise ValueError("launch.machine_rank must be given with num_machines; each machine has its own")
        if len(set(labels)) < len(labels):
            raise ValueError(f"variants need labels of their own, got {labels}")
        if RESERVED & set(self.variants):
            raise ValueError(f"variants may not be called any of {sorted(RESERVED)}")
        for name, file in {"launch.config": self.launch.config, "methods_from": self.methods_from}.items():
            if file is not None and not (repository() / file).is_file():
                raise ValueError(f"{name} is {file!r}, which is no file")
        if self.methods_from is not None:
            register_from(repository() / self.methods_from)
        for name in self.variants:
            try:
                self._check_variant(name)
            except (ValueError, TypeError) as error:
                raise ValueError(f"variant {name!r}: {error}") from error
        return self

    def _check_world(self, task: GymChoice) -> None:
        world = read_world(task.world)
        if not isinstance(world.spec, GymSpec) or world.spec.n_train == 0:
            wanted = "a world of reasoning-gym and no stream, which the arena alone plays"
            raise ValueError(f"task.world must name {wanted}, got {world.name!r}")
        if self.base != BaseChoice(seed=self.base.seed):
            raise ValueError(
                "base may give no more than the seed for task.kind 'reasoning_gym'; see its world"
            )
        if world.spec.prompt_length is None and self.model.source is None:
            raise ValueError(f"model.source must name a model, as {world.name!r} asks original questions")

    def _check_variant(self, name: str) -> None:
        variant, train, model = self.variants[name], self.train_of(name), self.model_of(name)
        check_choice_of_model(**model.model_dump(exclude={"source", "gradient_checkpointing"}))
        if variant.baseline not in (*self.variants, "grpo"):
            raise ValueError(f"baseline is {variant.baseline!r}; name one of {list(self.variants)}")
        same, steps = (train.max_steps, train.generation_batches), self.train.max_steps
        if same != (steps, self.train.generation_batches):
            raise ValueError(f"it must have the profile's {steps} steps, got {train.max_steps}")
        if train.max_steps % (train.updates_per_step * train.num_iterations):
            raise ValueError("max_steps must be a multiple of updates_per_step × num_iterations")
        if model.kind.startswith("unsloth") and Path(self.launch.config or "ddp").stem != "ddp":
            raise ValueError("training through Unsloth needs launch.config ddp or none")
        if model.kind == "unsloth-lora" and train.use_vllm != model.fast_inference:
            raise ValueError("unsloth-lora needs both use_vllm and fast_inference, or neither of them")
        if model.fast_inference and self.launch.processes > 1:
            raise ValueError("fast_inference needs launch.processes 1: Unsloth's engine has hung with more")
        if variant.groups not in (None, *(["family"] if self.task.kind != "math" else [])):
            raise ValueError(f"groups={variant.groups!r}, but only other kinds of task have groups: 'family'")
        train.local_batch(self.launch.processes)
        self.controller_of(name)

    @property
    def cost(self) -> str:
        """How many trainings a profile has, and the GPU-hours they take at most, in words."""
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
        return make_controller(chosen.method, chosen.preset, chosen.options, mean_rollouts)

    def settings_of(self, variant: str, *, evaluated: bool = True) -> dict[str, Any]:
        """What a run depends on besides its seed: no labels, and unless `evaluated`, no evaluation."""
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
            if self.methods_from is not None:
                methods = (repository() / self.methods_from).read_bytes()
                settings["methods"] = hashlib.sha256(methods).hexdigest()
        return settings

    def _variant(self, variant: str) -> Variant:
        if variant not in self.variants:
            raise ValueError(f"variant must be one of {[BASE, *self.variants]}, got {variant!r}")
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
        faults = [f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors()]
        raise ValueError(f"{path}: {'; '.join(faults)}") from error


def _read(name: str | Path, children: tuple[Path, ...] = ()) -> tuple[Path, dict[str, Any]]:
    """The path of a profile, and its fields laid over those of the profile that it is `like`."""
    path, profiles = Path(name), repository() / "profiles"
    if path.suffix not in (".yaml", ".yml"):
        path = profiles / f"{name}.yaml"
    if not path.is_file():
        known = sorted(file.stem for file in profiles.glob("*.yaml"))
        raise ValueError(f"profile must be one of {known} or the path of a .yaml file, got {str(name)!r}")
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


def repository() -> Path:
    """The repository that holds the working directory."""
    for folder in (Path.cwd(), *Path.cwd().parents):
        if (folder / "profiles").is_dir() and (folder / "pyproject.toml").is_file():
            return folder
    raise ValueError(f"no profiles/ above {Path.cwd()}; run from inside the repository")


def run_folder(runs_dir: str | Path, variant: str, seed: int) -> Path:
    """Where a run's records are."""
    return Path(runs_dir) / variant / f"seed{seed}"
