"""A tiny random model of the Llama family as a GGUF file, as llama.cpp writes them."""

from pathlib import Path

import gguf
import numpy as np
from tiny_models import CHAT_TEMPLATE
from tokenizers import pre_tokenizers

LAYERS = 2
WIDTH = 32
HEADS = 4
KV_HEADS = 2
HIDDEN = 64
# as SmolLM2's: the token that fills up is the one that ends a turn
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TOKENS = [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet()), "ab", "cd"]


def write_tiny_gguf(path: Path) -> dict[str, np.ndarray]:
    """Write the file, its embeddings in eight bits; return the weights as they were quantized."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(256)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_vocab_size(len(TOKENS))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(TOKENS)
    control = [gguf.TokenType.CONTROL] * len(SPECIAL)
    writer.add_token_types(control + [gguf.TokenType.NORMAL] * (len(TOKENS) - len(SPECIAL)))
    writer.add_token_merges(["a b", "c d"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template(CHAT_TEMPLATE)
    weights = {}
    for name, array in _random_weights().items():
        if name == "token_embd.weight":
            kind = gguf.GGMLQuantizationType.Q8_0
            packed = gguf.quants.quantize(array, kind)
            writer.add_tensor(name, packed, raw_dtype=kind)
            array = gguf.quants.dequantize(packed, kind)
        else:
            writer.add_tensor(name, array)
        weights[name] = array
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return weights


def _random_weights() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    key_width = WIDTH * KV_HEADS // HEADS
    shapes = {
        "attn_q": (WIDTH, WIDTH),
        "attn_k": (key_width, WIDTH),
        "attn_v": (key_width, WIDTH),
        "attn_output": (WIDTH, WIDTH),
        "ffn_gate": (HIDDEN, WIDTH),
        "ffn_up": (HIDDEN, WIDTH),
        "ffn_down": (WIDTH, HIDDEN),
    }
    weights = {"token_embd.weight": rng.normal(0, 0.3, (len(TOKENS), WIDTH))}
    for layer in range(LAYERS):
        for name, shape in shapes.items():
            weights[f"blk.{layer}.{name}.weight"] = rng.normal(0, 0.3, shape)
        for name in ("attn_norm", "ffn_norm"):
            weights[f"blk.{layer}.{name}.weight"] = np.ones(WIDTH)
    weights["output_norm.weight"] = np.ones(WIDTH)
    return {name: array.astype(np.float32) for name, array in weights.items()}
