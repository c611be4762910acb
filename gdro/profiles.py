"""Profiles: one YAML file says all of a kind of run.

A profile (profiles/*.yaml) names the task, the model, how it is trained and evaluated, on how many
processes, and the variants to compare. Unknown and unfit fields are refused when it is read, before
anything is computed. The variant "base" is the model before training.

Nothing heavy is imported here: Unsloth must come before TRL, and the profile says whether it comes.
"""

from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, model_validator

from gdro.controller import make_controller
from gdro.models import check_choice_of_model

BASE = "base"


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ChainChoice(_Strict):
    """The embedded task; see gdro.tasks.chain."""

    kind: Literal["chain"] = "chain"
    seed: int = Field(0, ge=0)
    n_train: int = Field(1000, ge=1)
    n_eval_per_family: int = Field(40, ge=1)

    @property
    def groups(self) -> list[str]:
        """Columns of the training data that can be static groups."""
        return ["family"]


class MathChoice(_Strict):
    """Math data sets; see gdro.tasks.math for the names.

    train (one that has a training split) and evaluate name data sets; paths has a local copy, in the
    hub's schema, for those that are not to come from the hub. drop_bad_rows leaves rows out that cannot be
    used and reports them, instead of stopping there. Training prompts of more than max_prompt_tokens are
    left out and reported. Groups of the scores are the evaluation data sets, or the column group_by
    ("level" or "subject").
    """

    kind: Literal["math"]
    train: str = "dapo"
    evaluate: list[str] = Field(["math500"], min_length=1)
    paths: dict[str, str] = {}
    style: Literal["chat", "text"] = "chat"
    signed: bool = True
    train_limit: int | None = Field(None, ge=1)
    evaluate_limit: int | None = Field(None, ge=1)
    drop_bad_rows: bool = False
    group_by: Literal["dataset", "level", "subject"] = "dataset"
    max_prompt_tokens: int = Field(1024, ge=1)
    max_completion_tokens: int = Field(3072, ge=1)
    verify_seconds: float = Field(5.0, gt=0)
    verify_workers: int | None = Field(None, ge=1)

    @model_validator(mode="after")
    def _names_are_known(self):
        from gdro.tasks.math import MATH_SPECS, spec_of

        for name in (*self.evaluate, *self.paths):
            spec_of(name)
        if spec_of(self.train).train_split is None:
            known = [name for name, spec in MATH_SPECS.items() if spec.train_split is not None]
            raise ValueError(
                f"task.train is {self.train!r}, which is for evaluation; train on one of {known}"
            )
        same_split = spec_of(self.train).train_split == spec_of(self.train).split
        if self.train in self.evaluate and (same_split or Path(self.paths.get(self.train, "")).is_file()):
            raise ValueError(f"task.evaluate names {self.train!r}, whose rows are trained on; leave it out")
        return self

    @property
    def groups(self) -> list[str]:
        """Columns of the training data that can be static groups."""
        from gdro.tasks.math import spec_of

        return [name for name in ("level", "subject") if getattr(spec_of(self.train), name) is not None]


class BaseChoice(_Strict):
    """How the tiny base is made, where the model is not loaded; see gdro.tiny.tiny_base."""

    size: Literal["tiny", "mid"] = "tiny"
    seed: int = Field(0, ge=0)
    steps: int = Field(800, ge=1)
    batch_size: int = Field(96, ge=1)
    threads: int = Field(1, ge=1)


class ModelChoice(_Strict):
    """What is trained: arguments of gdro.models.load_model. Without a source, the tiny base made here.

    revision: of a source on the hub.
    """

    source: str | None = None
    kind: Literal["full", "lora", "unsloth-full", "unsloth-lora"] = "full"
    dtype: Literal["float32", "bfloat16"] | None = None
    gradient_checkpointing: bool = False
    lora: dict[str, Any] | None = None
    attention: str | None = None
    revision: str | None = None

    @model_validator(mode="after")
    def _can_be_loaded(self):
        check_choice_of_model(self.kind, self.dtype, self.lora, self.attention)
        return self

    @property
    def is_unsloth(self) -> bool:
        return self.kind.startswith("unsloth")

    @property
    def is_lora(self) -> bool:
        return self.kind.endswith("lora")


class VllmChoice(_Strict):
    """Generation in training through vLLM: in the same process, or by `trl vllm-serve` elsewhere."""

    mode: Literal["colocate", "server"] = "colocate"
    gpu_memory_utilization: float = Field(0.3, gt=0, lt=1)
    tensor_parallel_size: int = Field(1, ge=1)
    server_base_url: str | None = None

    @model_validator(mode="after")
    def _server_has_a_place(self):
        if (self.mode == "server") != (self.server_base_url is not None):
            raise ValueError(
                f"vllm.mode={self.mode!r} with server_base_url={self.server_base_url!r}: give the url of "
                "`trl vllm-serve` for mode 'server', and none for 'colocate'"
            )
        return self


class TrainChoice(_Strict):
    """GRPO's own settings. A step is one generation batch and one optimizer step.

    micro_batch: completions that one process trains on at once; the rest is accumulated. None for all of
    its share. vllm: None generates with transformers.
    """

    steps: int = Field(150, ge=1)
    prompts_per_step: int = Field(32, ge=1)
    mean_rollouts: int = Field(4, ge=2)
    micro_batch: int | None = Field(None, ge=1)
    learning_rate: float = Field(1e-4, gt=0)
    beta: float = Field(0.0, ge=0)
    epsilon_high: float | None = Field(None, gt=0)
    temperature: float = Field(1.0, gt=0)
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(0, ge=0)
    loss_type: Literal["grpo", "bnpo", "dr_grpo", "dapo"] = "dapo"
    advantage_std: Literal["sample", "population"] = "sample"
    advantage_clip: float | None = Field(None, gt=0)
    save_steps: int = Field(50, ge=1)
    vllm: VllmChoice | None = None

    def local_batch(self, processes: int) -> tuple[int, int]:
        """Completions one process trains on at once, and how many such make its share of a step.

        Raises ValueError where the step cannot be split so.
        """
        completions = self.prompts_per_step * self.mean_rollouts
        micro_batch = self.micro_batch or completions // processes
        if not micro_batch or completions % (micro_batch * processes):
            raise ValueError(
                f"a step's {self.prompts_per_step} × {self.mean_rollouts} = {completions} completions cannot "
                f"be split among {processes} processes in micro-batches of {micro_batch}; change "
                "train.micro_batch, train.prompts_per_step or launch.processes"
            )
        return micro_batch, completions // (micro_batch * processes)


class EvaluationChoice(_Strict):
    """Samples of each held-out prompt. batch_size is for engine "hf", the next two for "vllm"."""

    engine: Literal["hf", "vllm"] = "hf"
    samples: int = Field(8, ge=1)
    k: int = Field(8, ge=1)
    temperature: float = Field(1.0, gt=0)
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(0, ge=0)
    batch_size: int = Field(240, ge=1)
    gpu_memory_utilization: float = Field(0.9, gt=0, lt=1)
    tensor_parallel_size: int = Field(1, ge=1)


class LaunchChoice(_Strict):
    """Processes to train on. config: a file of configs/accelerate/ by its name, or the path of one."""

    processes: int = Field(1, ge=1)
    config: str | None = None

    @model_validator(mode="after")
    def _config_is_there(self):
        if self.config_path is not None and not self.config_path.is_file():
            raise ValueError(f"launch.config is {self.config!r}, but there is no {self.config_path}")
        return self

    @property
    def config_path(self) -> Path | None:
        """accelerate's configuration file; None leaves the launch to torch."""
        if self.config is None or self.config.endswith((".yaml", ".yml")):
            return None if self.config is None else Path(self.config)
        return repository() / "configs" / "accelerate" / f"{self.config}.yaml"

    @property
    def is_here(self) -> bool:
        """Whether training runs in the process that asks for it."""
        return self.processes == 1 and self.config is None


class Variant(_Strict):
    """One way to train: the controller's arguments, and what of `train` and `model` it changes.

    groups: a column of the training data whose values are the groups, in place of difficulty bins.
    baseline: the variant that tables compare it with, if the profile has it.
    """

    method: Literal["grpo", "prompt", "rollout", "both"]
    preset: str = "default"
    options: dict[str, Any] = {}
    groups: str | None = None
    train: dict[str, Any] = {}
    model: dict[str, Any] = {}
    label: str = ""
    baseline: str = "grpo"


def _kind_of_task(value):
    return value.get("kind", "chain") if isinstance(value, dict) else value.kind


TaskChoice = Annotated[
    Annotated[ChainChoice, Tag("chain")] | Annotated[MathChoice, Tag("math")], Discriminator(_kind_of_task)
]


class Profile(_Strict):
    """All of a kind of run; unknown fields are refused.

    gpus: what a scheduler reserves for one run. keep_models: False deletes a trained model once it is
    evaluated.
    """

    name: str
    title: str = ""
    task: TaskChoice = ChainChoice()
    base: BaseChoice = BaseChoice()
    model: ModelChoice = ModelChoice()
    train: TrainChoice = TrainChoice()
    evaluation: EvaluationChoice = EvaluationChoice()
    launch: LaunchChoice = LaunchChoice()
    gpus: int = Field(0, ge=0)
    keep_models: bool = True
    variants: dict[str, Variant] = Field(min_length=1)
    seeds: list[int] = Field(min_length=1)

    @model_validator(mode="after")
    def _fits_together(self):
        """Refuse now what would otherwise fail after hours: each variant's controller is made once."""
        if self.evaluation.samples < self.evaluation.k:
            raise ValueError(
                f"evaluation.k={self.evaluation.k} needs as many samples, got {self.evaluation.samples}"
            )
        if len(set(self.seeds)) < len(self.seeds) or min(self.seeds) < 0:
            raise ValueError(f"seeds must differ and be ≥ 0, got {self.seeds}")
        if self.task.kind == "math" and self.model.source is None:
            raise ValueError("model.source must name a model for task.kind 'math': a folder or a hub id")
        labels = [self.label(variant) for variant in self.variants]
        if len(set(labels)) < len(labels) or {BASE, "results"} & set(self.variants):
            raise ValueError(
                f"variants need labels of their own and may not be called base or results: {labels}"
            )
        for name, variant in self.variants.items():
            if variant.baseline not in (*self.variants, "grpo"):
                raise ValueError(
                    f"variant {name!r} has the baseline {variant.baseline!r}; "
                    f"name one of {list(self.variants)}"
                )
            self._check_training(name, self.train_of(name))
            self._check_model(name, self.model_of(name), self.train_of(name))
            self._check_groups(name, variant.groups)
            make_controller(
                variant.method, variant.preset, variant.options, self.train_of(name).mean_rollouts
            )
        return self

    def _check_training(self, name, train):
        most = self.task.n_train if self.task.kind == "chain" else self.task.train_limit
        prompts = train.prompts_per_step
        if train.steps != self.train.steps or (most is not None and prompts > most):
            raise ValueError(
                f"variant {name!r} must have the profile's {self.train.steps} steps and at most "
                f"{most} prompts a step, got {train.steps} and {prompts}"
            )
        train.local_batch(self.launch.processes)

    def _check_model(self, name, model, train):
        if model.is_unsloth and (train.vllm is not None or self.launch.config not in (None, "ddp")):
            raise ValueError(
                f"variant {name!r} trains through Unsloth with train.vllm={train.vllm!r} and launch.config="
                f"{self.launch.config!r}; it needs train.vllm null and launch.config ddp or none"
            )

    def _check_groups(self, name, groups):
        known = self.task.groups
        if groups is not None and groups not in known:
            raise ValueError(
                f"variant {name!r} has groups={groups!r}; the training data have {known or 'no such column'}"
            )

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

    def settings_of(self, variant: str) -> dict[str, Any]:
        """All that a run of the variant depends on besides its seed; labels and other variants do not."""
        settings = self.model_dump(include={"task", "base", "evaluation"})
        settings["model"] = self.model_of(variant).model_dump()
        if variant != BASE:
            chosen = self._variant(variant).model_dump(include={"method", "preset", "options", "groups"})
            settings |= chosen | {"train": self.train_of(variant).model_dump()}
        return settings

    def _variant(self, variant):
        if variant not in self.variants:
            raise ValueError(
                f"variant must be one of {[BASE, *self.variants]} of profile {self.name!r}, got {variant!r}"
            )
        return self.variants[variant]


def load_profile(name: str | Path) -> Profile:
    """Read profiles/<name>.yaml, or the file itself if a path to one is given.

    Raises ValueError for an unknown profile or one with unknown, missing or unfit fields.
    """
    path = Path(name)
    if path.suffix not in (".yaml", ".yml"):
        path = repository() / "profiles" / f"{name}.yaml"
    if not path.is_file():
        known = sorted(file.stem for file in (repository() / "profiles").glob("*.yaml"))
        raise ValueError(f"profile must be one of {known} or the path of a .yaml file, got {str(name)!r}")
    fields = yaml.safe_load(path.read_text(encoding="utf-8"))
    return Profile(**{"name": path.stem, **(fields or {})})


def repository() -> Path:
    """The repository that holds the working directory."""
    for folder in (Path.cwd(), *Path.cwd().parents):
        if (folder / "profiles").is_dir() and (folder / "pyproject.toml").is_file():
            return folder
    raise ValueError(f"no profiles/ above {Path.cwd()}; run from inside the repository")


def run_folder(runs_dir: str | Path, variant: str, seed: int) -> Path:
    """Where a run's records lie."""
    return Path(runs_dir) / variant / f"seed{seed}"
