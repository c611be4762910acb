"""Sampling at temperature 1 in which rollouts with the same prefix share one row of the KV cache.

They have the same distribution of the next token: one row is computed for all of them, and it
branches where they part. Axes: N rows that are computed, R rollouts, T tokens, V vocabulary.
"""

import torch
from torch import Tensor

from gdro_lab.qwen3 import Cache, Model, forward


@torch.no_grad()
def sample(
    model: Model, prompt_RT: Tensor, max_new_tokens: int, generator: torch.Generator
) -> Tensor:
    """Sample a completion of each prompt.

    Args:
        model: a Qwen3.
        prompt_RT: tokens of the prompts, equally long.
        max_new_tokens: T of the completions.
        generator: on the model's device.

    Returns:
        Tokens, (R, T), filled up with the token that ends a text.
    """
    cache: Cache = []
    end = model.config.eos_token_id
    text_RT = prompt_RT.new_full((len(prompt_RT), max_new_tokens), end)
    ids_NT, row_R = prompt_RT.unique(dim=0, return_inverse=True)
    live_R = torch.arange(len(row_R), device=row_R.device)  # rollouts that have not ended
    parent_N = None  # which row of the cache each row continues, from the second token on
    for t in range(max_new_tokens):
        if parent_N is not None:
            cache[:] = [(keys[parent_N], values[parent_N]) for keys, values in cache]
        p_NV = forward(model, ids_NT, cache)[:, -1].float().softmax(dim=-1)
        p_RV = p_NV[row_R]
        # p divided by Exp(1) numbers is largest at each token with probability p
        token_R = (p_RV / torch.empty_like(p_RV).exponential_(generator=generator)).argmax(dim=-1)
        text_RT[live_R, t] = token_R
        continues_R = token_R != end
        live_R = live_R[continues_R]
        if len(live_R) == 0:
            break
        # the rows computed next: pairs (row of this step, token) that rollouts share
        pair_R = row_R[continues_R] * p_NV.shape[1] + token_R[continues_R]
        pair_N, row_R = pair_R.unique(return_inverse=True)
        parent_N = pair_N // p_NV.shape[1]
        ids_NT = (pair_N % p_NV.shape[1])[:, None]
    return text_RT
