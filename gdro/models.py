"""Models to train: loaded, in full or as LoRA, plain or through Unsloth.

Heavy packages are imported when they are used, because Unsloth writes a trainer of its own, puts it
in TRL's place, and must come first:

    loaded = load_model(source, kind="unsloth-lora", seed=0)
    from gdro.trainer import GDROTrainer  # now built on Unsloth's trainer

Where one of Unsloth's patches does not fit, it logs that and goes on with completions of the base
model. So the trainer looks for each part that it relies on, and stops if one is missing.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from gdro.checks import check

if TYPE_CHECKING:
    from peft import PeftConfig
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

KINDS = ("full", "lora", "unsloth-full", "unsloth-lora")
# Plain LoRA adapts all linear layers by default; Unsloth has its own target modules.
LORA_DEFAULTS: dict[str, Any] = {"r": 32, "lora_alpha": 64, "lora_dropout": 0.0}


class LoadedModel(NamedTuple):
    """What GDROTrainer needs; peft_config is None but for kind "lora" (Unsloth applies its own)."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    peft_config: PeftConfig | None


def load_model(
    source: str | Path,
    *,
    kind: str = "full",
    seed: int,
    dtype: str | None = None,
    gradient_checkpointing: bool = False,
    lora: Mapping[str, Any] | None = None,
    max_length: int = 4096,
    attn_implementation: str | None = None,
    fast_inference: bool = False,
    quantization: str | None = None,
    gpu_memory_utilization: float = 0.5,
    max_num_seqs: int = 240,
    standby: bool = False,
) -> LoadedModel:
    """Load a causal language model of any family, ready for GDROTrainer; it stops at `stop_tokens`.

    Seeds all global random states last, because TRL creates the adapter before it seeds: make the
    trainer next, and equal seeds give bit-equal adapters.

    Args:
        source: folder or hub id.
        kind: one of ``KINDS``.
        dtype: of the weights, "float32" (default) or "bfloat16" (default of Unsloth). AdamW's steps
            at 1e-6 are below bfloat16's resolution, and a bfloat16 base under LoRA drifts, since
            TRL merges the adapter into it for vLLM. ``bf16=True`` in GDROConfig still computes in
            bfloat16.
        gradient_checkpointing: used by Unsloth only; give GDROConfig the same value.
        lora: arguments of ``peft.LoraConfig`` (Unsloth's ``get_peft_model``) over
            ``LORA_DEFAULTS``.
        max_length: tokens of prompt and completion together; used by Unsloth only.
        attn_implementation: as in transformers; Unsloth has its own.
        fast_inference: for "unsloth-lora", let a vLLM engine that shares the weights generate (then
            give GDROConfig ``use_vllm=True``).
        quantization: for "unsloth-lora", "4bit" holds the base in four bits (QLoRA).
        gpu_memory_utilization: the engine's part of the GPU's memory, weights included.
        max_num_seqs: completions that the engine decodes at once, as far as its cache holds them;
            Unsloth's own choice is about half of what fits.
        standby: let the engine sleep while the optimizer works; Unsloth must not have been imported
            before.

    Raises ImportError if TRL was imported before Unsloth, and RuntimeError if the engine is
    missing.
    """
    engine: dict[str, Any] = {
        "fast_inference": fast_inference,
        "quantization": quantization,
        "gpu_memory_utilization": gpu_memory_utilization,
        "max_num_seqs": max_num_seqs,
        "standby": standby,
    }
    check_choice_of_model(kind, dtype, lora, attn_implementation, **engine)
    check("seed", seed, int, ge=0)
    peft_config, options = None, LORA_DEFAULTS | dict(lora or {})
    if kind.startswith("unsloth"):
        unsloth = import_unsloth(standby)
        import torch

        checkpointing = "unsloth" if gradient_checkpointing else False
        shared = {"random_state": seed, "use_gradient_checkpointing": checkpointing}
        served = {name: engine[name] for name in ENGINE} | {"max_lora_rank": options["r"]}
        model, tokenizer = unsloth.FastLanguageModel.from_pretrained(
            model_name=str(source),
            max_seq_length=max_length,
            dtype=getattr(torch, dtype or "bfloat16"),
            load_in_4bit=quantization == "4bit",  # its default is QLoRA
            full_finetuning=kind == "unsloth-full",
            use_exact_model_name=True,  # or a hub id would become that of Unsloth's own copy
            **served if fast_inference else {},
            **shared,
        )
        if kind == "unsloth-lora":
            model = unsloth.FastLanguageModel.get_peft_model(model, **shared | options)
        loaded = getattr(model, "vllm_engine", None)
        if fast_inference and not getattr(loaded, "shared_weights", False):
            raise RuntimeError(
                "Unsloth loaded the model without a vLLM engine that shares its weights, although "
                "fast_inference was asked for; its messages above say why (is vllm installed?)"
            )
    else:
        import transformers

        if kind == "lora":
            import peft

            adapter = {"target_modules": "all-linear"} | options
            peft_config = peft.LoraConfig(task_type="CAUSAL_LM", **adapter)
        tokenizer = transformers.AutoTokenizer.from_pretrained(source)
        how: dict[str, Any] = {"dtype": dtype or "float32"}
        how["attn_implementation"] = attn_implementation
        model = transformers.AutoModelForCausalLM.from_pretrained(source, **how)
    from transformers import set_seed

    tokenizer.padding_side = "left"  # as generation needs
    stops = stop_tokens(tokenizer, model.generation_config.eos_token_id)
    if len(stops) > 1:
        model.generation_config.eos_token_id = stops
    if kind.startswith("unsloth"):
        choose_padding(tokenizer, stops)
    set_seed(seed)
    return LoadedModel(model, tokenizer, peft_config)


ENGINE = ("fast_inference", "gpu_memory_utilization", "max_num_seqs")  # as Unsloth names them
# LoRA options that vLLM does not apply: completions would come from another policy
SERVED_LORA = {"lora_dropout": 0.0, "modules_to_save": None, "use_dora": False, "bias": "none"}


def check_choice_of_model(
    kind: str,
    dtype: str | None = None,
    lora: Mapping[str, Any] | None = None,
    attn_implementation: str | None = None,
    fast_inference: bool = False,
    quantization: str | None = None,
    gpu_memory_utilization: float = 0.5,
    max_num_seqs: int = 240,
    standby: bool = False,
) -> None:
    """Raise ValueError for what :func:`load_model` cannot do, before anything is loaded."""
    check("kind", kind, Literal[KINDS])
    check("dtype", dtype, Literal["float32", "bfloat16"] | None)
    check("quantization", quantization, Literal["4bit"] | None)
    check("gpu_memory_utilization", gpu_memory_utilization, gt=0, lt=1)
    check("max_num_seqs", max_num_seqs, int, ge=1)
    if lora is not None and not kind.endswith("lora"):
        raise ValueError(f"lora must be None for kind {kind!r}, got {dict(lora)}")
    if attn_implementation is not None and kind.startswith("unsloth"):
        raise ValueError(
            f"attn_implementation must be None for {kind!r}, got {attn_implementation!r}"
        )
    for name, value in {"fast_inference": fast_inference, "quantization": quantization}.items():
        if value and kind != "unsloth-lora":
            raise ValueError(f"{name} needs kind 'unsloth-lora', got {kind!r}")
    if standby and not fast_inference:
        raise ValueError("standby needs fast_inference: it puts that engine to sleep")
    for name, served in SERVED_LORA.items() if fast_inference else ():
        if (given := dict(lora or {}).get(name, served)) != served:
            raise ValueError(
                f"lora[{name!r}] must be {served!r} with fast_inference, whose engine does not "
                f"apply it, got {given!r}"
            )


def stop_tokens(tokenizer: Any, own: int | Sequence[int] | None) -> list[int]:
    """Token ids that end a completion.

    The tokenizer's, the generation config's (``own``), and the chat's: the special token that
    closes an answer in the chat template. Base models such as Qwen3's name only the end of text,
    and would go on to invent the next turn.
    """
    ids = {tokenizer.eos_token_id, *(own if isinstance(own, list | tuple) else [own])}
    if tokenizer.chat_template is not None:
        chat = [{"role": "user", "content": "Question"}, {"role": "assistant", "content": "Answer"}]
        text = tokenizer.apply_chat_template(chat, tokenize=False)
        after = tokenizer(text.rpartition("Answer")[2], add_special_tokens=False)["input_ids"]
        # only a special token ends an answer: plain text could occur in it
        special = {i for i, added in tokenizer.added_tokens_decoder.items() if added.special}
        ids |= special & set(after[:1])
    return sorted(ids - {None})


def choose_padding(tokenizer: Any, stops: Sequence[int]) -> None:
    """Replace padding that also ends completions, which Unsloth would leave out of the loss."""
    if tokenizer.pad_token_id in stops:
        added = tokenizer.added_tokens_decoder.items()
        pads = [str(token) for i, token in added if "pad" in str(token).lower() and i not in stops]
        if pads:  # such as Qwen's <|vision_pad|>
            tokenizer.pad_token = pads[0]


# Unsloth.

STANDBY = "UNSLOTH_VLLM_STANDBY"


def import_unsloth(standby: bool = False) -> Any:
    """Import and return Unsloth, which replaces TRL's trainers; ImportError if that is too late.

    standby: whether its vLLM engine sleeps while the optimizer works; Unsloth reads it when it is
    imported.
    """
    imported = "unsloth" in sys.modules
    if not imported and "trl" in sys.modules:
        raise ImportError(
            "trl was imported before unsloth, which now cannot replace its trainers; restart, and "
            "call load_model or import_unsloth first"
        )
    if standby and imported and os.environ.get(STANDBY) != "1":
        raise ImportError(f"unsloth was imported without {STANDBY}=1; restart, and import it later")
    allocation = os.environ.get("PYTORCH_ALLOC_CONF", "")  # vLLM looks at the older name alone
    if standby and "expandable_segments:true" in allocation.lower():
        raise ValueError(f"PYTORCH_ALLOC_CONF must not let vLLM's memory grow, got {allocation!r}")
    if standby:  # with the given share of the memory, not Unsloth's own
        os.environ |= {STANDBY: "1", "UNSLOTH_VLLM_STANDBY_UTIL_OVERRIDE": "1"}
    # its sampler is compiled with a CUDA toolkit, where one is found
    os.environ.setdefault("UNSLOTH_VLLM_NO_FLASHINFER", "1")
    import unsloth

    return unsloth


# two assume equally many rollouts of every prompt, one merges the adapter into trained weights
REFUSED_VARIABLES = ("UNSLOTH_GRPO_ZERO_VARIANCE_EXCLUDE", "UNSLOTH_GRPO_LOSS_AGGREGATION")
REFUSED_VARIABLES += ("UNSLOTH_VLLM_MERGED_ROLLOUT",)


def check_unsloth_settings(on_unsloth: bool, model: Any, args: Any) -> None:
    """Refuse settings that would change the method in silence, before the trainer is made."""
    engine = getattr(model, "vllm_engine", None)
    if not on_unsloth:
        if engine is not None:
            raise RuntimeError(
                "the model has an engine of Unsloth, but the trainer is TRL's own; import "
                "gdro.trainer after load_model"
            )
        return
    for name in REFUSED_VARIABLES:
        if os.environ.get(name, "0") not in ("", "0"):
            raise ValueError(f"{name} must not be set with GDROTrainer, got {os.environ[name]!r}")
    if args.vllm_sampling_params is not None:
        raise ValueError(
            "vllm_sampling_params would change the policy that is sampled, and must be None; give "
            "temperature, top_p and generation_kwargs"
        )
    if engine is None and args.use_vllm and hasattr(model, "peft_config"):
        raise ValueError(
            "use_vllm with a LoRA model of Unsloth needs fast_inference: TRL would merge the "
            "adapter into weights of 16 bits and subtract it again at each step, and "
            "the base would drift"
        )
    # Unsloth patches the engine of TRL so that it sleeps only with standby
    can_sleep = engine and engine.llm_engine.vllm_config.model_config.enable_sleep_mode
    if args.vllm_enable_sleep_mode and not can_sleep:
        raise ValueError("vllm_enable_sleep_mode needs a model of Unsloth loaded with standby=True")


def check_unsloth_parts(trainer: Any, model: Any) -> None:
    """RuntimeError unless all of Unsloth that a training relies on is in place."""
    engine = getattr(model, "vllm_engine", None)
    unsloths = next(k for k in type(trainer).__mro__ if k.__name__ == "UnslothGRPOTrainer")
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
            f"Unsloth's trainer lacks: {'; '.join(missing)}. Completions or losses would be wrong "
            "in silence; install the versions of requirements/gpu-unsloth.txt"
        )
    pad, ends = trainer.processing_class.pad_token_id, trainer.eos_token_ids
    if pad in ends:
        raise RuntimeError(
            f"the padding token {pad} also ends completions, and Unsloth would leave their ends "
            "out of the loss; give the tokenizer another one"
        )
