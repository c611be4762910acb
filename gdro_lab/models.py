"""Models to train: loaded, in full or as LoRA, plain or through Unsloth.

Heavy packages are imported when they are used, because Unsloth writes a trainer of its own, puts it
in TRL's place, and must come first:

    loaded = load_model(source, kind="unsloth-lora", seed=0)
    from gdro.trainer import GDROTrainer  # now built on Unsloth's trainer
"""

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field

from gdro.checks import Float, check, options

Model = Any  # as transformers has it
Tokenizer = Any

# Plain LoRA adapts all linear layers by default; Unsloth has its own target modules.
LORA_DEFAULTS: dict[str, Any] = {"r": 32, "lora_alpha": 64, "lora_dropout": 0.0}
# LoRA options that vLLM does not apply: completions would come from another policy
SERVED_LORA = {"lora_dropout": 0.0, "modules_to_save": None, "use_dora": False, "bias": "none"}
# completions that Unsloth's engine decodes at once, as far as its cache holds them; its own choice
# is about half of what fits
MAX_NUM_SEQS = 240


class LoadedModel(NamedTuple):
    """What GDROTrainer needs; peft_config is None but for kind "lora" (Unsloth applies its own)."""

    model: Model
    tokenizer: Tokenizer
    peft_config: Any


@options
class ModelOptions:
    """How `load_model` loads a model.

    Raises:
        ValueError: for options that do not go together.
    """

    kind: Literal["full", "lora", "unsloth-full", "unsloth-lora"] = "full"
    """What is trained, all weights or an adapter, and whether through Unsloth."""
    dtype: Literal["float32", "bfloat16"] | None = None
    """Type of the weights: "float32" (default) or "bfloat16" (default of Unsloth), which is too
    coarse for AdamW's steps at 1e-6. A bfloat16 base under LoRA drifts, since TRL merges the
    adapter into it for vLLM."""
    lora: Mapping[str, Any] | None = None
    """Arguments of peft.LoraConfig (Unsloth's get_peft_model), over LORA_DEFAULTS."""
    attn_implementation: str | None = None
    """As in transformers; Unsloth has its own."""
    fast_inference: bool = False
    """With "unsloth-lora": a vLLM engine that shares the weights generates (then give GDROConfig
    use_vllm=True)."""
    quantization: Literal["4bit"] | None = None
    """With "unsloth-lora": "4bit" holds the base in four bits (QLoRA)."""
    gpu_memory_utilization: Annotated[Float, Field(gt=0, lt=1)] = 0.5
    """The engine's part of the GPU's memory, weights included."""
    standby: bool = False
    """The engine sleeps while the optimizer works."""

    def __post_init__(self) -> None:
        choice = f"with kind {self.kind!r}"
        lora = dict(self.lora or {})
        if self.lora is not None and not self.kind.endswith("lora"):
            raise ValueError(f"lora must be None {choice}, got {lora}")
        if self.attn_implementation is not None and self.kind.startswith("unsloth"):
            kernel = self.attn_implementation
            raise ValueError(f"attn_implementation must be None {choice}, got {kernel!r}")
        if self.fast_inference and self.kind != "unsloth-lora":
            raise ValueError(f"fast_inference must be False {choice}, got True")
        if self.quantization and self.kind != "unsloth-lora":
            raise ValueError(f"quantization must be None {choice}, got {self.quantization!r}")
        if self.standby and not self.fast_inference:
            raise ValueError("standby must be False without fast_inference, got True")
        ignored = {n: lora[n] for n, value in SERVED_LORA.items() if lora.get(n, value) != value}
        if self.fast_inference and ignored:
            raise ValueError(f"lora must not have what fast_inference ignores, got {ignored}")


def load_model(
    source: str | Path,
    *,
    seed: int,
    gradient_checkpointing: bool = False,
    max_length: int = 4096,
    **choice: Any,
) -> LoadedModel:
    """Load a causal language model of any family, ready for GDROTrainer; it stops at `stop_tokens`.

    Seeds all global random states last: a GRPOTrainer made next starts from a bit-equal adapter.
    GDROTrainer seeds itself, by `GDROConfig.seed`.

    Args:
        source: folder or hub id.
        seed: of the adapter's first weights, an integer ≥ 0.
        gradient_checkpointing: used by Unsloth only; give GDROConfig the same value.
        max_length: tokens of prompt and completion together; used by Unsloth only.
        **choice: see `ModelOptions`.

    Raises:
        ImportError: if TRL was imported before Unsloth.
        ValueError: for options that do not go together.
    """
    check("seed", seed, int, ge=0)
    chosen = ModelOptions(**choice)
    if chosen.kind.startswith("unsloth"):
        loaded = _load_by_unsloth(str(source), chosen, seed, gradient_checkpointing, max_length)
    else:
        loaded = _load_by_transformers(source, chosen)
    from transformers import set_seed

    prepare(loaded.model, loaded.tokenizer)
    set_seed(seed)
    return loaded


def prepare(model: Model, tokenizer: Tokenizer) -> None:
    """Let a model stop at `stop_tokens`, and its tokenizer pad as generation and losses need."""
    tokenizer.padding_side = "left"
    generation = model.generation_config
    stops = stop_tokens(tokenizer, generation.eos_token_id)
    if len(stops) > 1:
        generation.eos_token_id = stops
    choose_padding(tokenizer, stops)


def _load_by_transformers(source: str | Path, chosen: ModelOptions) -> LoadedModel:
    import transformers

    peft_config = None
    if chosen.kind == "lora":
        import peft

        lora = {"target_modules": "all-linear"} | LORA_DEFAULTS | dict(chosen.lora or {})
        peft_config = peft.LoraConfig(task_type="CAUSAL_LM", **lora)
    tokenizer = transformers.AutoTokenizer.from_pretrained(source)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        source,
        dtype=chosen.dtype or "float32",
        attn_implementation=chosen.attn_implementation,
    )
    return LoadedModel(model, tokenizer, peft_config)


def _load_by_unsloth(
    source: str, chosen: ModelOptions, seed: int, gradient_checkpointing: bool, max_length: int
) -> LoadedModel:
    unsloth = import_unsloth(chosen.standby)
    import torch

    lora = LORA_DEFAULTS | dict(chosen.lora or {})
    shared = {
        "random_state": seed,
        "use_gradient_checkpointing": "unsloth" if gradient_checkpointing else False,
    }
    engine = {}
    if chosen.fast_inference:
        engine = {
            "fast_inference": True,
            "max_lora_rank": lora["r"],
            "gpu_memory_utilization": chosen.gpu_memory_utilization,
            "max_num_seqs": MAX_NUM_SEQS,
        }
    model, tokenizer = unsloth.FastLanguageModel.from_pretrained(
        model_name=source,
        max_seq_length=max_length,
        dtype=getattr(torch, chosen.dtype or "bfloat16"),
        load_in_4bit=chosen.quantization == "4bit",  # its default is QLoRA
        full_finetuning=chosen.kind == "unsloth-full",
        use_exact_model_name=True,  # or a hub id would become that of Unsloth's own copy
        **engine,
        **shared,
    )
    if chosen.kind == "unsloth-lora":
        model = unsloth.FastLanguageModel.get_peft_model(model, **shared | lora)
    return LoadedModel(model, tokenizer, None)


def import_unsloth(standby: bool = False) -> ModuleType:
    """Import and return Unsloth, which replaces TRL's trainers.

    Args:
        standby: whether its vLLM engine sleeps while the optimizer works, which it reads at its
            import.

    Raises:
        ImportError: if TRL was imported before.
    """
    if "unsloth" not in sys.modules and "trl" in sys.modules:
        raise ImportError("trl was imported before unsloth; restart, and call load_model first")
    if standby:  # with the given share of the memory, not Unsloth's own
        os.environ["UNSLOTH_VLLM_STANDBY"] = "1"
        os.environ["UNSLOTH_VLLM_STANDBY_UTIL_OVERRIDE"] = "1"
    # its sampler is compiled with a CUDA toolkit, where one is found
    os.environ.setdefault("UNSLOTH_VLLM_NO_FLASHINFER", "1")
    import unsloth

    return unsloth


def stop_tokens(tokenizer: Tokenizer, generation_stops: int | Sequence[int] | None) -> list[int]:
    """Token ids that end a completion.

    The tokenizer's, the generation config's, and the special token that closes an answer in the
    chat template: base models such as Qwen3's would go on to invent the next turn.

    Args:
        tokenizer: with or without a chat template.
        generation_stops: `eos_token_id` of the generation config.
    """
    stops = {tokenizer.eos_token_id}
    if isinstance(generation_stops, list | tuple):
        stops |= set(generation_stops)
    else:
        stops.add(generation_stops)
    if tokenizer.chat_template is not None:
        chat = [{"role": "user", "content": "Question"}, {"role": "assistant", "content": "Answer"}]
        text = tokenizer.apply_chat_template(chat, tokenize=False)
        after = tokenizer(text.rpartition("Answer")[2], add_special_tokens=False)["input_ids"]
        # only a special token ends an answer: plain text could occur in it
        special = {i for i, added in tokenizer.added_tokens_decoder.items() if added.special}
        stops |= special & set(after[:1])
    return sorted(stops - {None})


def choose_padding(tokenizer: Tokenizer, stops: Sequence[int]) -> None:
    """Replace padding that is missing or also ends completions, if another special token can.

    What leaves padding out of a loss, as Unsloth does, would leave out the ends.
    """
    pad = tokenizer.pad_token_id
    if pad is not None and pad not in stops:
        return
    added = tokenizer.added_tokens_decoder.items()
    special = [str(token) for i, token in added if token.special and i not in stops]
    # such as Qwen's <|vision_pad|>, SmolLM2's <|endoftext|>, Llama 2's <unk>
    for word in ("pad", "endoftext", "unk"):
        for token in special:
            if word in token.lower():
                tokenizer.pad_token = token
                return
