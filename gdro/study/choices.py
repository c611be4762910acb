"""The fields of a profile: base, model, training, evaluation, launch and variants.

Those of its task are in `gdro.tasks.settings`. pydantic checks each value here; which values do not fit
together is in `gdro.study.profile_checks`.
"""

import os
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from gdro.tasks.settings import Count, NotNegative, Positive, Strict

BASE = "base"  # the variant that is the model before training
Part = Annotated[float, Field(gt=0, le=1)]


class BaseChoice(Strict):
    """Arguments of `tiny_base`, for profiles without model.source. A world has its own, but for the seed."""

    size: Literal["tiny", "small", "mid"] = "tiny"
    seed: NotNegative = 0
    steps: Count = 800
    batch_size: Count = 96


class ModelChoice(Strict):
    """The model to train, as arguments of `load_model`; without a source, the tiny base."""

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
    """Fields of GDROConfig. Those listed here have another default than TRL's, or fewer values are allowed.

    Three are our own: prompts_per_step, the prompts of one generation batch; updates_per_step, the optimizer
    steps that share it; eval_prompts, the most held-out prompts that TRL evaluates on during training, if
    eval_strategy asks for it. per_device_train_batch_size: None takes all of a process's share at once.
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
        """Completions of one forward pass in one process, and the passes accumulated for a step."""
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
    """How held-out prompts are sampled; batch_size is for the engine "hf".

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
    """Processes that train, over all machines. config: path of an accelerate configuration, as in configs/.

    Further fields are options of `accelerate launch`, such as num_machines and machine_rank.
    """

    model_config = ConfigDict(extra="allow")

    processes: Count = 1
    config: str | None = None

    @property
    def options(self) -> dict[str, str]:
        """The further fields. A $NAME in one is replaced from the machine's environment variables."""
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

    groups: a column of static groups in place of difficulty bins. baseline: the variant to compare with.
    """

    method: str
    preset: str = "default"
    options: dict[str, Any] = Field({})
    groups: str | None = None
    train: dict[str, Any] = Field({})
    model: dict[str, Any] = Field({})
    label: str = ""
    baseline: str = "grpo"
