"""Sampling at temperature 1 in which rollouts with the same prefix share one row of the KV cache.

They have the same distribution of the next token: one row is computed for all of them, and it
branches where they part. Axes: N rows that are computed, R rollouts, T tokens, V vocabulary.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from gdro_lab.qwen3 import Cache, Model, forward

Step = Callable[[Tensor, Tensor | None], Tensor]
"""Logits of the next token, (N, V), after tokens (N, T) that are added to the cache; the second
argument says which row of the cache each of them continues, None at first."""


def sample_by_prefix(
    step: Step,
    draw: Callable[[Tensor], Tensor],
    ids_NT: Tensor,
    row_R: Tensor,
    text_RT: Tensor,
    ends: Tensor,
) -> None:
    """Sample a completion of each rollout.

    Args:
        step: the model with its cache.
        draw: tokens (R,) from probabilities (R, V).
        ids_NT: tokens of the distinct prompts.
        row_R: of each rollout, which of the prompts it has.
        text_RT: is filled in, up to the token that ends a text; what is behind it stays.
        ends: tokens that end a text.
    """
    live_R = torch.arange(len(row_R), device=row_R.device)  # rollouts that have not ended
    parent_N: Tensor | None = None
    for t in range(text_RT.shape[1]):
        p_NV = step(ids_NT, parent_N).float().softmax(dim=-1)
        token_R = draw(p_NV[row_R])
        text_RT[live_R, t] = token_R
        continues_R = ~torch.isin(token_R, ends)
        live_R = live_R[continues_R]
        if len(live_R) == 0:
            break
        # the rows computed next: pairs (row of this step, token) that rollouts share
        pair_R = row_R[continues_R] * p_NV.shape[1] + token_R[continues_R]
        pair_N, row_R = pair_R.unique(return_inverse=True)
        parent_N = pair_N // p_NV.shape[1]
        ids_NT = (pair_N % p_NV.shape[1])[:, None]


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

    def step(ids_NT: Tensor, parent_N: Tensor | None) -> Tensor:
        if parent_N is not None:
            cache[:] = [(keys[parent_N], values[parent_N]) for keys, values in cache]
        return forward(model, ids_NT, cache)[:, -1]

    def draw(p_RV: Tensor) -> Tensor:
        # p divided by Exp(1) numbers is largest at each token with probability p
        return (p_RV / torch.empty_like(p_RV).exponential_(generator=generator)).argmax(dim=-1)

    end = prompt_RT.new_tensor([model.config.eos_token_id])
    text_RT = end.repeat(len(prompt_RT), max_new_tokens)
    prompt_NT, row_R = prompt_RT.unique(dim=0, return_inverse=True)
    sample_by_prefix(step, draw, prompt_NT, row_R, text_RT, end)
    return text_RT
