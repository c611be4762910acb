"""The forward pass of a Qwen3 on a model's own weights: what transformers computes, in 50 lines.

Axes: N texts, T tokens, V vocabulary, H heads, W their width.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear, rms_norm, scaled_dot_product_attention, silu

Layer = Any  # one of its projections or norms, with a weight
Model = Any  # a transformers Qwen3ForCausalLM, without sliding windows or adapters
Cache = list[tuple[Tensor, Tensor]]  # of each layer the keys and values, NHTW


def forward(model: Model, ids_NT: Tensor, cache: Cache | None = None) -> Tensor:
    """Logits of a Qwen3, (N, T, V).

    A cache holds the tokens before, and these are added to it; once it is filled, T must be 1.
    """
    width = model.config.head_dim
    past = cache[0][0].shape[2] if cache else 0  # tokens in the cache
    length = ids_NT.shape[1]
    positions_T = torch.arange(past, past + length, device=ids_NT.device)
    angles_TW = positions_T[:, None] * model.model.rotary_emb.inv_freq
    cos_TW = angles_TW.cos().repeat(1, 2)
    # opposite signs in the halves, so that rolling the halves of x gives transformers' rotate_half
    sin_TW = torch.cat([-angles_TW.sin(), angles_TW.sin()], dim=1)

    def norm(x: Tensor, layer_norm: Layer) -> Tensor:
        return rms_norm(x, x.shape[-1:], layer_norm.weight, model.config.rms_norm_eps)

    def heads(x: Tensor, projection: Layer) -> Tensor:
        return linear(x, projection.weight).unflatten(-1, (-1, width)).transpose(1, 2)

    def rotate(x_NHTW: Tensor) -> Tensor:  # by an angle in proportion to the position
        return x_NHTW * cos_TW + x_NHTW.roll(width // 2, dims=-1) * sin_TW

    x = model.model.embed_tokens(ids_NT)
    for index, layer in enumerate(model.model.layers):
        attention = layer.self_attn
        normed = norm(x, layer.input_layernorm)
        q_NHTW = rotate(norm(heads(normed, attention.q_proj), attention.q_norm))
        k_NHTW = rotate(norm(heads(normed, attention.k_proj), attention.k_norm))
        v_NHTW = heads(normed, attention.v_proj)
        if cache is not None:
            if past:
                past_k, past_v = cache[index]
                k_NHTW = torch.cat([past_k, k_NHTW], 2)
                v_NHTW = torch.cat([past_v, v_NHTW], 2)
            cache[index : index + 1] = [(k_NHTW, v_NHTW)]  # appends where there was none
        # the causal mask begins at the first key: right without a cache; one token needs no mask
        mixed = scaled_dot_product_attention(
            q_NHTW, k_NHTW, v_NHTW, is_causal=length > 1, enable_gqa=True
        )
        x = x + linear(mixed.transpose(1, 2).flatten(2), attention.o_proj.weight)
        normed = norm(x, layer.post_attention_layernorm)
        gate = silu(linear(normed, layer.mlp.gate_proj.weight))
        gated = gate * linear(normed, layer.mlp.up_proj.weight)
        x = x + linear(gated, layer.mlp.down_proj.weight)
    return linear(norm(x, model.model.norm), model.lm_head.weight)
