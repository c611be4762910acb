"""Tiny random models of several families, saved as a hub folder would be."""

from pathlib import Path

import torch
import transformers

from gdro.gpu.size import byte_tokenizer

FAMILIES = ("Qwen3", "Llama", "Mistral")
SIZES = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 8, "intermediate_size": 64, "max_position_embeddings": 1024,
}  # fmt: skip


def save_tiny_model(family: str, folder: Path, **sizes: int) -> Path:
    """A random model of a family and its tokenizer, written to ``folder``; always the same."""
    tokenizer = byte_tokenizer()
    config = getattr(transformers, f"{family}Config")(
        vocab_size=len(tokenizer),
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        **SIZES | sizes,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = getattr(transformers, f"{family}ForCausalLM")(config)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
