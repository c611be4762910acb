"""Unsloth: models loaded as its GRPO notebooks load them, and what `GDROTrainer` does on its trainer.

Unsloth writes a trainer of its own and puts it in TRL's place. Three things then differ:

- **Generation.** With `fast_inference` a model is loaded by a vLLM engine that shares its weights, and each
  call hands the engine the adapter as it is now: nothing is synchronized. Full fine-tuning cannot have that
  and generates by TRL's colocated vLLM.
- **Loss.** Its `compute_loss` replaces TRL's, so `_compute_loss` and its savings never run, and its backward
  ignores what the loss is multiplied by. So rows without a signal are left out *before* it, and where it
  takes a mean over rows, the advantages of the others are scaled.
- **Failures are quiet.** Where one of its patches does not fit, it logs that and goes on with completions of
  the base model. So the trainer looks for each part that it relies on, and stops if one is missing.

Axes: R rollouts of a micro-batch.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gdro.core.checks import check_choice, check_number

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase
    from trl import GRPOTrainer as Trainer
else:
    Trainer = object  # TRL's, which `OnUnsloth` stands in front of, may only be imported after Unsloth

STANDBY = "UNSLOTH_VLLM_STANDBY"
REFUSED_VARIABLES = {
    "UNSLOTH_GRPO_ZERO_VARIANCE_EXCLUDE": "it assumes that every prompt has the same number of rollouts",
    "UNSLOTH_GRPO_LOSS_AGGREGATION": "it assumes that every prompt has the same number of rollouts",
    "UNSLOTH_VLLM_MERGED_ROLLOUT": "it merges the adapter into the weights that are trained",
}
SERVED_LORA = {"lora_dropout": 0.0, "modules_to_save": None, "use_dora": False, "bias": "none"}
MEANS_OVER_ROWS = ("grpo", "sapo", "dr_grpo", "luspo")  # the other losses divide by the whole batch's tokens


def check_unsloth_choice(
    kind: str,
    lora: Mapping[str, Any] | None = None,
    fast_inference: bool = False,
    quantization: str | None = None,
    gpu_memory_utilization: float = 0.5,
    standby: bool = False,
) -> None:
    """Raise ValueError for what :func:`load_with_unsloth` cannot do, with the remedy."""
    check_choice("quantization", quantization, (None, "4bit"))
    check_number("gpu_memory_utilization", gpu_memory_utilization, 0, 1, open_low=True, open_high=True)
    for name, value in {"fast_inference": fast_inference, "quantization": quantization}.items():
        if value and kind != "unsloth-lora":
            raise ValueError(f"{name} needs kind 'unsloth-lora', got {kind!r}; leave it out")
    if standby and not fast_inference:
        raise ValueError("standby needs fast_inference: it puts that engine to sleep; leave it out")
    for name, served in SERVED_LORA.items() if fast_inference else ():
        if (given := dict(lora or {}).get(name, served)) != served:
            raise ValueError(
                f"lora[{name!r}] must be {served!r} with fast_inference, got {given!r}: vLLM does not apply "
                "it, so completions would come from another policy; leave it out, or fast_inference"
            )


def import_unsloth(standby: bool = False) -> Any:
    """Import and return Unsloth, which replaces TRL's trainers; ImportError if it is too late for that.

    standby: whether its vLLM engine sleeps while the optimizer works; Unsloth reads it when it is imported.
    """
    remedy = "restart, and call load_model or import_unsloth before importing trl or gdro.trainer"
    if "unsloth" not in sys.modules and "trl" in sys.modules:
        raise ImportError(f"trl was imported before unsloth, which now cannot replace its trainers; {remedy}")
    if standby and "unsloth" in sys.modules and os.environ.get(STANDBY) != "1":
        raise ImportError(f"unsloth was imported without standby; set {STANDBY}=1, or {remedy}")
    if standby:
        names = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
        if set_ := [name for name in names if "expandable_segments:true" in os.environ.get(name, "").lower()]:
            raise ValueError(f"{set_[0]} has expandable_segments, which vLLM cannot sleep with; take it out")
        os.environ[STANDBY] = "1"
        os.environ["UNSLOTH_VLLM_STANDBY_UTIL_OVERRIDE"] = "1"  # the given share of the memory, not its own
    elif os.environ.get(STANDBY, "0") != "0" and "unsloth" not in sys.modules:
        raise ValueError(f"{STANDBY} is set, but standby is false; give standby, or unset the variable")
    import unsloth

    return unsloth


def load_with_unsloth(
    source: str | Path,
    kind: str,
    *,
    seed: int,
    dtype: str | None,
    gradient_checkpointing: bool,
    lora: Mapping[str, Any],
    max_length: int,
    fast_inference: bool,
    quantization: str | None,
    gpu_memory_utilization: float,
    standby: bool,
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """What `load_model` does for a kind of Unsloth; the arguments are its own.

    Raises RuntimeError where `fast_inference` was asked for and the model does not share its weights with an
    engine: without vLLM, Unsloth only prints so.
    """
    unsloth = import_unsloth(standby)
    import torch

    checkpointing = "unsloth" if gradient_checkpointing else False
    shared = {"random_state": seed, "use_gradient_checkpointing": checkpointing}
    engine: dict[str, Any] = {}
    if fast_inference:
        engine = {"fast_inference": True, "max_lora_rank": lora["r"]}
        engine["gpu_memory_utilization"] = gpu_memory_utilization
    model, tokenizer = unsloth.FastLanguageModel.from_pretrained(
        model_name=str(source),
        max_seq_length=max_length,
        dtype=getattr(torch, dtype or "bfloat16"),
        load_in_4bit=quantization == "4bit",  # its default is QLoRA
        full_finetuning=kind == "unsloth-full",
        use_exact_model_name=True,  # or a hub id would become that of Unsloth's own copy
        **engine,
        **shared,
    )
    if kind == "unsloth-lora":
        model = unsloth.FastLanguageModel.get_peft_model(model, **shared | dict(lora))
    if fast_inference and not getattr(getattr(model, "vllm_engine", None), "shared_weights", False):
        raise RuntimeError(
            "Unsloth loaded the model without a vLLM engine that shares its weights, although fast_inference "
            "was asked for; its messages above say why (is vllm installed?)"
        )
    return model, tokenizer


class OnUnsloth(Trainer):
    """The part of `GDROTrainer` that acts where Unsloth has put its trainer in TRL's place, and there alone.

    Refuses (ValueError) settings that would change the method in silence, and stops (RuntimeError) where a
    part of Unsloth is not in place.
    """

    def __init__(self, model: Any, reward_funcs: Any, args: Any, **kwargs: Any) -> None:
        self.on_unsloth = any(kind.__name__ == "UnslothGRPOTrainer" for kind in type(self).__mro__)
        if self.on_unsloth:
            _check_settings(model, args)
        elif hasattr(model, "vllm_engine"):
            raise RuntimeError(
                "the model has an engine of Unsloth, but the trainer is TRL's own; import gdro.trainer after "
                "load_model"
            )
        super().__init__(model, reward_funcs, args=args, **kwargs)
        if self.on_unsloth:
            _check_parts(self, model)
            if args.unsloth_grpo_mini_batch is None:
                # Unsloth would cut batches by the memory that is free just now, and a run would not repeat
                # itself. This is the number of parts of a generation batch that is scored: micro-batches
                args.unsloth_grpo_mini_batch = args.steps_per_generation

    def only_advantages_train(self) -> bool:
        """Whether rows of advantage 0 have no gradient: no KL, entropy or router term acts on them."""
        has_others = self._entropy_bonus_enabled or self.aux_loss_enabled or self.top_entropy_quantile < 1
        return self.beta == 0 and not has_others

    def compute_loss(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """The loss, of Unsloth's trainer on rows with a signal alone."""
        theirs = super().compute_loss
        if not self.on_unsloth:
            return theirs(model, inputs, *args, **kwargs)
        if self.model.training and self.args.trim_batches and self.only_advantages_train():
            inputs = rows_with_signal(inputs, self.args.loss_type)
        parts, self.args.unsloth_grpo_mini_batch = self.args.unsloth_grpo_mini_batch, 1  # not cut further
        try:
            return theirs(model, inputs, *args, **kwargs)
        finally:
            self.args.unsloth_grpo_mini_batch = parts


def rows_with_signal(inputs: dict[str, Any], loss_type: str) -> dict[str, Any]:
    """`inputs` of Unsloth's loss without the rows whose advantage is 0 (but at least one): the same gradient.

    Columns stay, because its log-probabilities are as wide as the longest completion and the padding of the
    prompts together. Inputs with images are returned as they are.
    """
    import torch

    advantages_R = inputs["advantages"]
    rows_R = (advantages_R != 0).nonzero()[:, 0]
    if len(rows_R) == len(advantages_R) or "num_images" in inputs:
        return inputs
    if not len(rows_R):
        rows_R = rows_R.new_zeros(1)
    kept = {
        name: value[rows_R] if torch.is_tensor(value) and value.dim() else value
        for name, value in inputs.items()
    }
    if loss_type in MEANS_OVER_ROWS:
        kept["advantages"] = kept["advantages"] * (len(rows_R) / len(advantages_R))
    return kept


def _check_settings(model: Any, args: Any) -> None:
    for name, why in REFUSED_VARIABLES.items():
        if os.environ.get(name, "0") not in ("", "0"):
            raise ValueError(f"{name} must not be set with GDROTrainer: {why}; unset it")
    if args.vllm_sampling_params is not None:
        raise ValueError(
            "vllm_sampling_params must be None with GDROTrainer: it would change the policy that is sampled; "
            "give temperature, top_p and generation_kwargs"
        )
    engine = getattr(model, "vllm_engine", None)
    if engine is None and args.use_vllm and hasattr(model, "peft_config"):
        raise ValueError(
            "use_vllm with a LoRA model of Unsloth needs fast_inference: TRL would merge the adapter into "
            "weights of 16 bits and subtract it again at each step, and the base would drift; load the model "
            "with fast_inference=True"
        )
    can_sleep = engine is None or engine.llm_engine.vllm_config.model_config.enable_sleep_mode
    if args.vllm_enable_sleep_mode and not can_sleep:
        raise ValueError("vllm_enable_sleep_mode needs a model loaded with standby=True; set both or neither")


def _check_parts(trainer: Any, model: Any) -> None:
    """Raise RuntimeError unless all of Unsloth that a training relies on is in place."""
    engine, own = getattr(model, "vllm_engine", None), type(trainer).__mro__
    unsloths: Any = next(kind for kind in own if kind.__name__ == "UnslothGRPOTrainer")
    called = unsloths.compute_loss.__code__.co_names
    found = {"its loss, grpo_accumulated_loss": "grpo_accumulated_loss" in called}
    if engine is not None:
        generation = trainer.vllm_generation
        wrapped = hasattr(type(generation).generate, "_unsloth_vllm_generation_lora_wrapped")
        found |= {
            "the model's engine as the trainer's": generation.llm is engine,
            "weights shared with the engine": getattr(engine, "shared_weights", False),
            "the adapter handed to each generation": wrapped,
            "load_lora": getattr(generation, "_unsloth_load_lora", None) is not None,
        }
    if missing := [part for part, is_there in found.items() if not is_there]:
        raise RuntimeError(
            f"Unsloth's trainer lacks: {'; '.join(missing)}. Without it, completions or losses would be "
            "wrong in silence. Install the versions of requirements/gpu-unsloth.txt"
        )
    pad, ends = trainer.processing_class.pad_token_id, trainer.eos_token_ids
    if pad in ends:
        raise RuntimeError(
            f"the padding token {pad} also ends completions, and Unsloth would leave their ends out of the "
            "loss; use the tokenizer that load_model returns"
        )
