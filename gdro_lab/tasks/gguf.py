"""Models out of GGUF files, the format of llama.cpp: transformers reads and dequantizes them.

transformers needs the package gguf for it, which the extra "train" brings.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def load_gguf(path: Path) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load a GGUF file as an ordinary model in float32, and its tokenizer."""
    import transformers

    from gdro_lab.models import prepare

    folder = str(path.parent)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, gguf_file=path.name)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, gguf_file=path.name, dtype="float32"
    )
    _repair_ends(tokenizer, model)
    _forget_quantization(model)
    prepare(model, tokenizer)
    return model, tokenizer


def _repair_ends(tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel) -> None:
    """Take the tokens that begin and end a text from the file's metadata.

    transformers 5.17 gives tokenizers of GGUF's Llama family the beginning for the end.
    """
    for name in ("bos_token", "eos_token"):
        token_id = getattr(model.config, f"{name}_id")
        if isinstance(token_id, int):
            setattr(tokenizer, name, tokenizer.convert_ids_to_tokens(token_id))
    # True, the loader's choice, would strip spaces before punctuation
    tokenizer.clean_up_tokenization_spaces = False


def _forget_quantization(model: PreTrainedModel) -> None:
    """Remove the marks of a quantized model: the weights are whole, and these prevent saving."""
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.hf_quantizer = None
    for name in ("is_quantized", "quantization_method"):
        model.__dict__.pop(name, None)
