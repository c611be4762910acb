"""Unsloth: imported before TRL, and checked, since it changes TRL's trainer.

Where one of its patches does not fit, it logs that and goes on with completions of the base model.
So the trainer stops if a part that it relies on is missing.
"""

import os
import sys
from typing import Any

from gdro.checks import need


def import_unsloth(standby: bool = False) -> Any:
    """Import and return Unsloth, which replaces TRL's trainers; ImportError if that is too late.

    It reads whether its vLLM engine sleeps while the optimizer works (`standby`) at its import.
    """
    if "unsloth" not in sys.modules and "trl" in sys.modules:
        raise ImportError("trl was imported before unsloth; restart, and call load_model first")
    if standby:  # with the given share of the memory, not Unsloth's own
        os.environ |= {"UNSLOTH_VLLM_STANDBY": "1", "UNSLOTH_VLLM_STANDBY_UTIL_OVERRIDE": "1"}
    # its sampler is compiled with a CUDA toolkit, where one is found
    os.environ.setdefault("UNSLOTH_VLLM_NO_FLASHINFER", "1")
    import unsloth

    return unsloth


# two assume equally many rollouts of every prompt, one merges the adapter into trained weights
REFUSED_VARIABLES = (
    "UNSLOTH_GRPO_ZERO_VARIANCE_EXCLUDE",
    "UNSLOTH_GRPO_LOSS_AGGREGATION",
    "UNSLOTH_VLLM_MERGED_ROLLOUT",
)


def check_unsloth_settings(on_unsloth: bool, model: Any, args: Any, replays: bool) -> None:
    """Refuse (ValueError) what would change the method in silence, before the trainer is made."""
    engine = getattr(model, "vllm_engine", None)
    if not on_unsloth:
        late = "the model has an engine of Unsloth: import gdro.trainer after load_model"
        need(engine is None, late)
        return
    for name in REFUSED_VARIABLES:
        set_to = os.environ.get(name, "0")
        need(set_to in ("", "0"), f"{name} must not be set with GDROTrainer, got {set_to}")
    sampling = "vllm_sampling_params would change the policy that is sampled, and must be None"
    need(args.vllm_sampling_params is None, sampling)
    # TRL would merge the adapter into weights of 16 bits at each step, and the base would drift
    merges = args.use_vllm and engine is None and hasattr(model, "peft_config")
    need(not merges, "use_vllm with a LoRA model of Unsloth needs fast_inference")
    # Unsloth patches the engine of TRL so that it sleeps only with standby
    can_sleep = engine and engine.llm_engine.vllm_config.model_config.enable_sleep_mode
    wakes = args.vllm_enable_sleep_mode and not can_sleep
    need(not wakes, "vllm_enable_sleep_mode needs a model of Unsloth loaded with standby=True")
    need(not replays, f"gdro_method={args.gdro_method!r} replays texts, which Unsloth cannot")


def check_unsloth_parts(trainer: Any, model: Any) -> None:
    """ValueError unless all of Unsloth that a training relies on is in place."""
    engine = getattr(model, "vllm_engine", None)
    unsloths: Any = next(k for k in type(trainer).__mro__ if k.__name__ == "UnslothGRPOTrainer")
    called = unsloths.compute_loss.__code__.co_names
    pad, ends = trainer.processing_class.pad_token_id, trainer.eos_token_ids
    found = {
        "its loss, grpo_accumulated_loss": "grpo_accumulated_loss" in called,
        # it would leave the ends of completions out of the loss
        f"a padding token that ends no completion, as {pad} does": pad not in ends,
    }
    if engine is not None:
        generation = trainer.vllm_generation
        wrapped = hasattr(type(generation).generate, "_unsloth_vllm_generation_lora_wrapped")
        found |= {
            "the model's engine as the trainer's": generation.llm is engine,
            "weights shared with the engine": getattr(engine, "shared_weights", False),
            "the adapter handed to each generation": wrapped,
            "load_lora": getattr(generation, "_unsloth_load_lora", None) is not None,
        }
    missing = "; ".join(part for part, is_there in found.items() if not is_there)
    wrong = "Completions or losses would be wrong in silence; install requirements/gpu-unsloth.txt"
    need(not missing, f"Unsloth's trainer lacks: {missing}. {wrong}")
