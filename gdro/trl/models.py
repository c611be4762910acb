"""Models to train: loaded, in full or as LoRA, plain or through Unsloth.

Heavy packages are imported when they are used, because Unsloth writes a trainer of its own, puts it
in TRL's place, and must come first:

    loaded = load_model(source, kind="unsloth-lora", seed=0)
    from gdro.trainer import GDROTrainer  # now built on Unsloth's trainer
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from pydantic import Field

from gdro.checks import Float, check, need, options
from gdro.trl.gguf import is_gguf, load_gguf
from gdro.trl.unsloth import import_unsloth

if TYPE_CHECKING:
    from peft import PeftConfig
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

# Plain LoRA adapts all linear layers by default; Unsloth has its own target modules.
LORA_DEFAULTS: dict[str, Any] = {"r": 32, "lora_alpha": 64, "lora_dropout": 0.0}
# LoRA options that vLLM does not apply: completions would come from another policy
SERVED_LORA = {"lora_dropout": 0.0, "modules_to_save": None, "use_dora": False, "bias": "none"}
# completions that Unsloth's engine decodes at once, as far as its cache holds them; its own choice
# is about half of what fits
MAX_NUM_SEQS = 240


class LoadedModel(NamedTuple):
    """What GDROTrainer needs; peft_config is None but for kind "lora" (Unsloth applies its own)."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    peft_config: PeftConfig | None


@options
class ModelOptions:
    """How `load_model` loads a model; ValueError for options that do not go together."""

    kind: Literal["full", "lora", "unsloth-full", "unsloth-lora"] = "full"
    # of the weights: "float32" (default) or "bfloat16" (default of Unsloth), whose resolution
    # AdamW's steps at 1e-6 are below; a bfloat16 base under LoRA drifts, since TRL merges the
    # adapter into it for vLLM
    dtype: Literal["float32", "bfloat16"] | None = None
    # arguments of peft.LoraConfig (Unsloth's get_peft_model), over LORA_DEFAULTS
    lora: Mapping[str, Any] | None = None
    attn_implementation: str | None = None  # as in transformers; Unsloth has its own
    # of "unsloth-lora": a vLLM engine that shares the weights generates (then give GDROConfig
    # use_vllm=True); quantization "4bit" holds the base in four bits (QLoRA)
    fast_inference: bool = False
    quantization: Literal["4bit"] | None = None
    # the engine's part of the GPU's memory, weights included
    gpu_memory_utilization: Annotated[Float, Field(gt=0, lt=1)] = 0.5
    standby: bool = False  # the engine sleeps while the optimizer works

    def __post_init__(self) -> None:
        of_kind, lora = f"with kind {self.kind!r}", dict(self.lora or {})
        own = self.attn_implementation is not None and self.kind.startswith("unsloth")
        alone = self.kind == "unsloth-lora"
        lost = {n: lora[n] for n, served in SERVED_LORA.items() if lora.get(n, served) != served}
        need(self.lora is None or self.kind.endswith("lora"), f"lora must be None {of_kind}")
        need(not own, f"attn_implementation must be None {of_kind}")
        need(alone or not self.fast_inference, f"fast_inference must be False {of_kind}")
        need(alone or not self.quantization, f"quantization must be None {of_kind}")
        need(self.fast_inference or not self.standby, "standby needs fast_inference")
        need(not (self.fast_inference and lost), f"lora has {lost}, which fast_inference ignores")


def load_model(
    source: str | Path,
    *,
    seed: int,
    gradient_checkpointing: bool = False,
    max_length: int = 4096,
    **choice: Any,
) -> LoadedModel:
    """Load a causal language model of any family, ready for GDROTrainer; it stops at `stop_tokens`.

    Seeds all global random states last, because TRL creates the adapter before it seeds: make the
    trainer next, and equal seeds give bit-equal adapters.

    Args:
        source: folder, hub id, or a .gguf file, which Unsloth does not take.
        gradient_checkpointing: used by Unsloth only; give GDROConfig the same value.
        max_length: tokens of prompt and completion together; used by Unsloth only.
        **choice: see `ModelOptions`.

    Raises ImportError if TRL was imported before Unsloth.
    """
    check("seed", seed, int, ge=0)
    chosen = ModelOptions(**choice)
    kind, dtype = chosen.kind, chosen.dtype
    peft_config, lora = None, LORA_DEFAULTS | dict(chosen.lora or {})
    if kind.startswith("unsloth"):
        if is_gguf(source):
            raise ValueError(f"source must be a folder or hub id with kind {kind!r}, got {source}")
        unsloth = import_unsloth(chosen.standby)
        import torch

        checkpointing = "unsloth" if gradient_checkpointing else False
        shared = {"random_state": seed, "use_gradient_checkpointing": checkpointing}
        engine = {
            "fast_inference": True,
            "max_lora_rank": lora["r"],
            "gpu_memory_utilization": chosen.gpu_memory_utilization,
            "max_num_seqs": MAX_NUM_SEQS,
        }
        model, tokenizer = unsloth.FastLanguageModel.from_pretrained(
            model_name=str(source),
            max_seq_length=max_length,
            dtype=getattr(torch, dtype or "bfloat16"),
            load_in_4bit=chosen.quantization == "4bit",  # its default is QLoRA
            full_finetuning=kind == "unsloth-full",
            use_exact_model_name=True,  # or a hub id would become that of Unsloth's own copy
            **engine if chosen.fast_inference else {},
            **shared,
        )
        if kind == "unsloth-lora":
            model = unsloth.FastLanguageModel.get_peft_model(model, **shared | lora)
    else:
        import transformers

        if kind == "lora":
            import peft

            adapter = {"target_modules": "all-linear"} | lora
            peft_config = peft.LoraConfig(task_type="CAUSAL_LM", **adapter)
        attention = chosen.attn_implementation
        if is_gguf(source):
            model, tokenizer = load_gguf(source, dtype or "float32", attention)
        else:
            tokenizer = transformers.AutoTokenizer.from_pretrained(source)
            model = transformers.AutoModelForCausalLM.from_pretrained(
                source, dtype=dtype or "float32", attn_implementation=attention
            )
    from transformers import set_seed

    tokenizer.padding_side = "left"  # as generation needs
    stops = stop_tokens(tokenizer, model.generation_config.eos_token_id)
    if len(stops) > 1:
        model.generation_config.eos_token_id = stops
    choose_padding(tokenizer, stops)
    set_seed(seed)
    return LoadedModel(model, tokenizer, peft_config)


def stop_tokens(tokenizer: Any, own: int | Sequence[int] | None) -> list[int]:
    """Token ids that end a completion.

    The tokenizer's, the generation config's (``own``), and the special token that closes an answer
    in the chat template: base models such as Qwen3's would go on to invent the next turn.
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


def choose_padding(tokenizer: PreTrainedTokenizerBase, stops: Sequence[int]) -> None:
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
