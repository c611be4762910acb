"""Loading models to train: full fine-tuning or LoRA, plain or through Unsloth.

:func:`load_model` turns a profile's ``model`` mapping into what GDROTrainer takes. Heavy packages
are imported when it is called, because Unsloth replaces classes of TRL and must come first:

    loaded = load_model(source, kind="unsloth-lora", seed=0)
    from gdro.trainer import GDROTrainer  # now built on Unsloth's trainer

A model that is made here instead is in :mod:`gdro.tiny`.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import torch
    from peft import PeftConfig
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

KINDS = ("full", "lora", "unsloth-full", "unsloth-lora")
DTYPES = ("float32", "bfloat16")
# of a LoRA where a profile says nothing; Unsloth has its own target modules
LORA_DEFAULTS: dict[str, Any] = {"r": 32, "lora_alpha": 64, "lora_dropout": 0.0}


class LoadedModel(NamedTuple):
    """What GDROTrainer needs, by its argument names but for the tokenizer (``processing_class``).

    ``peft_config`` is None for full fine-tuning, and for Unsloth, which applies LoRA itself.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    peft_config: PeftConfig | None


def load_model(
    source: str,
    *,
    kind: str = "full",
    seed: int,
    dtype: str | None = None,
    gradient_checkpointing: bool = False,
    lora: Mapping[str, Any] | None = None,
    max_length: int = 4096,
    attention: str | None = None,
) -> LoadedModel:
    """Load a causal language model of any family, ready for GDROTrainer.

    TRL turns ``peft_config`` into an adapter before it seeds, so this seeds Python's, NumPy's and
    PyTorch's global random states last of all: make the trainer next, and equal seeds give
    adapters of equal bits.

    Args:
        source: a folder or a hub id.
        kind: "full" or "lora"; with "unsloth-" before it, through Unsloth.
        seed: of the adapter's weights, at least 0.
        dtype: of the loaded weights, "float32" or "bfloat16". None takes float32 for "full" and
            bfloat16 else. AdamW's steps at the usual 1e-6 are smaller than what bfloat16 can tell
            apart: so trained, 98 of 100 weights would never move. ``bf16=True`` in GDROConfig
            computes in bfloat16 all the same; an adapter's own weights are float32 either way.
        gradient_checkpointing: keep layer inputs alone and compute the rest again in the backward
            pass. Give GDROConfig the same, whose own default is True.
        lora: arguments of ``peft.LoraConfig`` (or Unsloth's ``get_peft_model``) in place of
            ``LORA_DEFAULTS``; plain LoRA adapts all linear layers unless ``target_modules`` is
            given. Only for the LoRA kinds.
        max_length: tokens of prompt and completion together, at least 1. Unsloth alone asks.
        attention: transformers' ``attn_implementation``, such as "flash_attention_2"; None leaves
            the choice to it. Not for Unsloth, which brings its own.

    Returns:
        The model, its tokenizer (padding left, as generation needs), and a PEFT configuration or
        None.

    Raises:
        ValueError: for an unknown kind or dtype, or options that the kind does not take.
        ImportError: for a missing package, naming the extra that brings it, and where TRL was
            imported before Unsloth.
    """
    check_choice_of_model(kind, dtype, lora, attention)
    for name, value, least in (("seed", seed, 0), ("max_length", max_length, 1)):
        if value < least:
            raise ValueError(f"{name} is {value}; give an integer of at least {least}")
    if kind.startswith("unsloth"):
        loaded = _load_unsloth(source, kind, seed, dtype, gradient_checkpointing, lora, max_length)
    else:
        loaded = _load_plain(source, kind, dtype, gradient_checkpointing, lora, attention)
    loaded.tokenizer.padding_side = "left"

    import transformers

    transformers.set_seed(seed)
    return loaded


def _load_plain(
    source: str,
    kind: str,
    dtype: str | None,
    gradient_checkpointing: bool,
    lora: Mapping[str, Any] | None,
    attention: str | None,
) -> LoadedModel:
    """Load with transformers; see :func:`load_model`."""
    _require("transformers", "train")
    import transformers

    peft_config = _lora_config(lora) if kind == "lora" else None
    tokenizer = transformers.AutoTokenizer.from_pretrained(source)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        source,
        dtype=_torch_dtype(dtype or ("float32" if kind == "full" else "bfloat16")),
        attn_implementation=attention,
    )
    if gradient_checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    return LoadedModel(model, tokenizer, peft_config)


def _load_unsloth(
    source: str,
    kind: str,
    seed: int,
    dtype: str | None,
    gradient_checkpointing: bool,
    lora: Mapping[str, Any] | None,
    max_length: int,
) -> LoadedModel:
    """Load with Unsloth, which also applies LoRA; see :func:`load_model`."""
    unsloth = import_unsloth()
    checkpointing = "unsloth" if gradient_checkpointing else False
    model, tokenizer = unsloth.FastLanguageModel.from_pretrained(
        model_name=source,
        max_seq_length=max_length,
        dtype=_torch_dtype(dtype or "bfloat16"),
        load_in_4bit=False,  # its default is QLoRA
        full_finetuning=kind == "unsloth-full",
        use_gradient_checkpointing=checkpointing,
        random_state=seed,
    )
    if kind == "unsloth-lora":
        model = unsloth.FastLanguageModel.get_peft_model(
            model,
            random_state=seed,
            use_gradient_checkpointing=checkpointing,
            **LORA_DEFAULTS | dict(lora or {}),
        )
    return LoadedModel(model, tokenizer, None)


def fetched(source: str, revision: str | None = None) -> str:
    """A hub model's folder at one revision; what is a folder, or has no revision asked, is itself.

    So that all who load it, TRL's reference model and vLLM among them, take the same weights.
    """
    if revision is None or Path(source).is_dir():
        return source
    import huggingface_hub

    return huggingface_hub.snapshot_download(source, revision=revision)


def merged_model(source: str, adapter: str | Path, folder: str | Path) -> Path:
    """Write the model whose weights have an adapter's added, for engines that want one whole model.

    Args:
        source: folder or hub id of the model that the adapter was trained on.
        adapter: the adapter's folder, as PEFT and Unsloth save it.
        folder: where the merged model goes, with the adapter's tokenizer.

    Returns:
        ``folder``.
    """
    _require("peft", "train")
    import peft
    import transformers

    base = transformers.AutoModelForCausalLM.from_pretrained(source)
    merged = peft.PeftModel.from_pretrained(base, str(adapter)).merge_and_unload()
    merged.save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(str(adapter)).save_pretrained(folder)
    return Path(folder)


def import_unsloth() -> Any:
    """Import Unsloth, which replaces TRL's trainers, where that can still take effect.

    Returns:
        The module.

    Raises:
        ImportError: if it is not installed, or TRL or :mod:`gdro.trainer` came first.
    """
    _require("unsloth", "gpu")
    if "unsloth" not in sys.modules and "trl" in sys.modules:
        raise ImportError(
            "trl was imported before unsloth, which could no longer replace its trainers; restart, "
            "and call load_model or gdro.models.import_unsloth before you import trl or "
            "gdro.trainer"
        )
    import unsloth

    trainer, trl = sys.modules.get("gdro.trainer"), sys.modules.get("trl")
    if trainer is not None and trl is not None and trainer.GRPOTrainer is not trl.GRPOTrainer:
        raise ImportError(
            "gdro.trainer was imported before unsloth replaced TRL's GRPOTrainer; restart, and "
            "call load_model or gdro.models.import_unsloth first"
        )
    return unsloth


def _lora_config(lora: Mapping[str, Any] | None) -> PeftConfig:
    _require("peft", "train")
    import peft

    options = LORA_DEFAULTS | {"target_modules": "all-linear"} | dict(lora or {})
    try:
        return peft.LoraConfig(task_type="CAUSAL_LM", **options)
    except TypeError as error:
        raise ValueError(f"lora is {dict(lora or {})}: {error}; see peft.LoraConfig") from error


def _torch_dtype(name: str) -> torch.dtype:
    import torch

    return getattr(torch, name)


def _require(package: str, extra: str) -> None:
    if package not in sys.modules and importlib.util.find_spec(package) is None:
        raise ImportError(f"{package} is not installed; pip install 'gdro[{extra}]'")


def check_choice_of_model(
    kind: str, dtype: str | None, lora: Mapping[str, Any] | None, attention: str | None
) -> None:
    """ValueError for what :func:`load_model` cannot do, before anything is loaded."""
    if kind not in KINDS:
        raise ValueError(f"kind is {kind!r}; give one of {KINDS}")
    if dtype is not None and dtype not in DTYPES:
        raise ValueError(f"dtype is {dtype!r}; give one of {DTYPES}, or None to choose by kind")
    if lora is not None and not kind.endswith("lora"):
        raise ValueError(f"lora is given for kind {kind!r}; leave it out or use a LoRA kind")
    if attention is not None and kind.startswith("unsloth"):
        raise ValueError(f"attention is {attention!r} for kind {kind!r}; Unsloth brings its own")
