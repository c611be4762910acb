"""Unsloth, which changes TRL's trainer, checked.

Where one of its patches does not fit, it logs that and goes on with completions of the base model.
So the trainer stops if a part that it relies on is missing.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedModel
    from trl import GRPOConfig, GRPOTrainer


# two assume equally many rollouts of every prompt, one merges the adapter into trained weights
REFUSED_VARIABLES = (
    "UNSLOTH_GRPO_ZERO_VARIANCE_EXCLUDE",
    "UNSLOTH_GRPO_LOSS_AGGREGATION",
    "UNSLOTH_VLLM_MERGED_ROLLOUT",
)


def fix_mini_batch(args: GRPOConfig) -> None:
    """Cut batches as TRL does, or Unsloth would by the memory that is free, anew in each run."""
    if args.unsloth_grpo_mini_batch is None:
        args.unsloth_grpo_mini_batch = args.steps_per_generation


def check_unsloth_settings(
    on_unsloth: bool, model: str | PreTrainedModel, args: GRPOConfig
) -> None:
    """Refuse what would silently change the method, before the trainer is made."""
    engine = getattr(model, "vllm_engine", None)
    if not on_unsloth:
        if engine is not None:
            raise ValueError(
                f"model must have no engine of Unsloth, got {type(engine).__name__}: import "
                "gdro.trainer after load_model"
            )
        return
    for name in REFUSED_VARIABLES:
        value = os.environ.get(name, "0")
        if value not in ("", "0"):
            raise ValueError(f"{name} must not be set with GDROTrainer, got {value}")
    if args.vllm_sampling_params is not None:  # an option that Unsloth adds
        raise ValueError(
            "vllm_sampling_params must be None, since it would change the policy that is sampled, "
            f"got {args.vllm_sampling_params}"
        )
    # TRL would merge the adapter into weights of 16 bits at each step, and the base would drift
    if args.use_vllm and engine is None and hasattr(model, "peft_config"):
        raise ValueError(
            "use_vllm must be False for a LoRA model of Unsloth without fast_inference, got True"
        )
    # Unsloth patches the engine of TRL so that it sleeps only with standby
    can_sleep = engine and engine.llm_engine.vllm_config.model_config.enable_sleep_mode
    if args.vllm_enable_sleep_mode and not can_sleep:
        raise ValueError(
            "vllm_enable_sleep_mode must be False for a model of Unsloth without standby, got True"
        )


def check_unsloth_parts(trainer: GRPOTrainer, model: PreTrainedModel) -> None:
    """Refuse to train unless all of Unsloth that a training relies on is in place."""
    engine = getattr(model, "vllm_engine", None)
    classes = type(trainer).__mro__
    unsloth_class: Any = next(kind for kind in classes if kind.__name__ == "UnslothGRPOTrainer")
    called = unsloth_class.compute_loss.__code__.co_names
    pad_id = trainer._tokenizer.pad_token_id
    is_there = {
        "its loss, grpo_accumulated_loss": "grpo_accumulated_loss" in called,
        # it would leave the ends of completions out of the loss
        f"a padding token that is not a stop token too (it is {pad_id})": pad_id
        not in trainer.eos_token_ids,
    }
    if engine is not None:
        generation = trainer.vllm_generation
        is_wrapped = hasattr(type(generation).generate, "_unsloth_vllm_generation_lora_wrapped")
        is_there |= {
            "the model's engine as the trainer's": generation.llm is engine,
            "weights shared with the engine": getattr(engine, "shared_weights", False),
            "the adapter handed to each generation": is_wrapped,
            "load_lora": getattr(generation, "_unsloth_load_lora", None) is not None,
        }
    missing = [part for part, holds in is_there.items() if not holds]
    if missing:
        raise ValueError(
            f"Unsloth's trainer lacks: {'; '.join(missing)}. Completions or losses would "
            "silently be wrong; install requirements/gpu-unsloth.txt"
        )
