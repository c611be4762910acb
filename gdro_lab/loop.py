"""GRPO with any method in one loop: plan, sample, reward, observe, loss, step.

It does what `gdro.trainer` does inside TRL, for small Qwen3 models, on a CPU or a GPU, at
temperature 1. Two savings change neither the gradient nor the distribution of samples: rollouts
with the same prefix share one row of the KV cache (`sample`), and equal rollouts enter the loss
once, those of advantage 0 not at all (`policy_gradient`).

Axes: D prompts of the data set, P prompts of a batch, R rollouts, N distinct texts, T tokens, V
vocabulary.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import linear, rms_norm, scaled_dot_product_attention, silu

from gdro.bins import as_uids
from gdro.checks import check, need
from gdro.controller import GDROController
from gdro.methods.bank import Bank

# The forward pass of a Qwen3 on a model's own weights: what transformers computes, in 40 lines.

Model = Any  # a transformers Qwen3ForCausalLM, without sliding windows or adapters
Cache = list[tuple[Tensor, Tensor]]  # of each layer the keys and values, NHTW


def forward(model: Model, ids_NT: Tensor, cache: Cache | None = None) -> Tensor:
    """Logits of a Qwen3, (N, T, V). A cache holds the tokens before; these are added to it."""
    width, eps = model.config.head_dim, model.config.rms_norm_eps
    past, length = cache[0][0].shape[2] if cache else 0, ids_NT.shape[1]
    positions_T = torch.arange(past, past + length, device=ids_NT.device)
    angles_TW = positions_T[:, None] * model.model.rotary_emb.inv_freq
    cos_TW = angles_TW.cos().repeat(1, 2)
    sin_TW = torch.cat([-angles_TW.sin(), angles_TW.sin()], dim=1)

    def norm(x: Tensor, layer_norm: Any) -> Tensor:
        return rms_norm(x, x.shape[-1:], layer_norm.weight, eps)

    def heads(x: Tensor, projection: Any) -> Tensor:
        return linear(x, projection.weight).unflatten(-1, (-1, width)).transpose(1, 2)

    def rotated(x_NHTW: Tensor) -> Tensor:  # by an angle in proportion to the position
        return x_NHTW * cos_TW + x_NHTW.roll(width // 2, dims=-1) * sin_TW

    x = model.model.embed_tokens(ids_NT)
    for index, layer in enumerate(model.model.layers):
        attention, mlp, normed = layer.self_attn, layer.mlp, norm(x, layer.input_layernorm)
        q_NHTW = rotated(norm(heads(normed, attention.q_proj), attention.q_norm))
        k_NHTW = rotated(norm(heads(normed, attention.k_proj), attention.k_norm))
        v_NHTW = heads(normed, attention.v_proj)
        if cache is not None:
            before_k, before_v = cache[index] if past else (k_NHTW[:, :, :0], v_NHTW[:, :, :0])
            k_NHTW, v_NHTW = torch.cat([before_k, k_NHTW], 2), torch.cat([before_v, v_NHTW], 2)
            cache[index : index + 1] = [(k_NHTW, v_NHTW)]
        mixed = scaled_dot_product_attention(
            q_NHTW, k_NHTW, v_NHTW, is_causal=length > 1, enable_gqa=True
        )
        x = x + linear(mixed.transpose(1, 2).flatten(2), attention.o_proj.weight)
        normed = norm(x, layer.post_attention_layernorm)
        gated = silu(linear(normed, mlp.gate_proj.weight)) * linear(normed, mlp.up_proj.weight)
        x = x + linear(gated, mlp.down_proj.weight)
    return linear(norm(x, model.model.norm), model.lm_head.weight)


Rows = Sequence[Mapping[str, Any]]  # columns: prompt, uid and those that the reward asks for
Reward = Callable[..., Sequence[float]]  # as TRL takes it: (prompts=…, completions=…, **columns)


def train(
    model: Model,
    tokenizer: Any,
    rows: Rows,
    reward: Reward,
    controller: GDROController,
    *,
    steps: int,
    prompts: int,
    learning_rate: float,
    max_new_tokens: int,
    seed: int,
    stream: bool = False,
    schedule: str = "constant",
    on_step: Callable[[int, dict], None] | None = None,
) -> list[dict]:
    """Train `model` in float32, in place, by TRL's defaults: AdamW, gradients clipped to norm 1.

    Args:
        steps: generation batches; each is an optimizer step unless the method waits for more.
        prompts: how many a batch.
        stream: train on no prompt twice, in the order of `rows` unless the method draws them.
        schedule: of the learning rate, "constant" or "linear" (decays to 0 over `steps`).
        on_step: called after each step with the number of steps done and the new row of the record.

    Returns:
        The record: `batch.row` of each batch with rollouts_spent, tokens, replayed (kept texts in
        the loss), trained_tokens (whose advantage is not 0) and seconds.
    """
    check("prompts", prompts, int, ge=1, le=len(rows))  # a batch holds no prompt twice
    check("schedule", schedule, Literal["constant", "linear"])
    if stream:
        check("steps", steps, int, ge=1, le=len(rows) // prompts)  # nor does a stream
    weights = model.parameters()
    optimizer = torch.optim.AdamW(weights, lr=learning_rate, weight_decay=0.0, fused=True)
    generator = torch.Generator(model.device).manual_seed(seed)
    in_order = _epochs(len(rows), prompts, np.random.default_rng(seed))
    ids_DT = prompt_ids(model, tokenizer, rows)
    uids_D = as_uids([row["uid"] for row in rows])  # hashed once
    left_D = np.arange(len(rows))  # of a stream, the prompts that have not come yet
    eos_id = model.config.eos_token_id
    record: list[dict] = []
    bank = Bank(controller.method.kept_texts)  # keyed by position in `rows`
    # prompt, text and advantage of what the next optimizer step learns from
    kept: list[tuple[Tensor, Tensor, Tensor]] = []
    for step in range(1, steps + 1):
        began = time.perf_counter()
        pool = uids_D[left_D] if stream else uids_D  # the same object is sorted once
        drawn_P = controller.draw(pool, prompts)
        if drawn_P is None:
            drawn_P = np.arange(prompts) if stream else next(in_order)
        drawn_P = left_D[np.asarray(drawn_P)]
        left_D = np.setdiff1d(left_D, drawn_P) if stream else left_D
        plan = controller.plan(uids_D[drawn_P])

        more_P, groups_R, rewards_R, texts = plan.rollouts, np.zeros(0, int), np.zeros(0), []
        while more_P is not None:  # a method with rounds sees the rewards and may ask for more
            new_R = np.repeat(np.arange(len(drawn_P)), more_P)
            texts.append(sample(model, ids_DT[drawn_P[new_R]], max_new_tokens, generator))
            scores_R = rewards_of(tokenizer, [rows[d] for d in drawn_P[new_R]], texts[-1], reward)
            groups_R, rewards_R = np.append(groups_R, new_R), np.append(rewards_R, scores_R)
            more_P = controller.extend(plan, groups_R, rewards_R)  # type: ignore[assignment]

        batch = controller.observe(plan, groups_R, rewards_R)
        advantages_R = torch.as_tensor(batch.advantages, dtype=torch.float32, device=model.device)
        text_RT = torch.cat(texts)
        kept.append((ids_DT[drawn_P[groups_R]], text_RT, advantages_R))
        length_R = _completion_mask(text_RT, eos_id).sum(dim=1)
        tokens = int(length_R.sum())
        trained_tokens = int(length_R[advantages_R != 0].sum())
        replayed = 0

        if controller.method.replays:
            for r in np.flatnonzero(rewards_R > controller.success_threshold):
                bank.add(int(drawn_P[groups_R[r]]), text_RT[r, : length_R[r]].tolist())
        if batch.ready:  # False where a method that discards groups (DAPO) wants another batch
            answer = controller.replay(uids_D[np.array(bank.uids, int)])
            if answer is not None:
                d_M, texts_M, weights_M = bank.rows(*answer)
                replayed, lengths_M = len(d_M), list(map(len, texts_M))
                trained_tokens += sum(lengths_M)
                again_MT = text_RT.new_full((replayed, max_new_tokens), eos_id)
                for row_T, text, length in zip(again_MT, texts_M, lengths_M, strict=True):
                    row_T[:length] = torch.tensor(text)
                kept.append((ids_DT[d_M], again_MT, advantages_R.new_tensor(weights_M)))
            for group in optimizer.param_groups:
                decay = 1 - (step - 1) / steps if schedule == "linear" else 1.0
                group["lr"] = learning_rate * decay
            optimizer.zero_grad(set_to_none=False)  # so that AdamW steps without signal, as in TRL
            policy_gradient(model, *(torch.cat(part) for part in zip(*kept, strict=True)))
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            kept = []

        spent: dict[str, float] = {"rollouts_spent": len(rewards_R), "tokens": tokens}
        spent |= {"replayed": replayed, "trained_tokens": trained_tokens}
        spent["seconds"] = time.perf_counter() - began
        record.append(batch.row | spent)
        if on_step is not None:
            on_step(step, record[-1])
    return record


def policy_gradient(model: Model, prompt_RT: Tensor, text_RT: Tensor, advantages_R: Tensor) -> int:
    """Add the gradient of −Σ A log π / tokens, GRPO's at ratio 1 (TRL's "dapo"); return tokens."""
    tokens = int(_completion_mask(text_RT, model.config.eos_token_id).sum())
    # linear in A, so equal texts are computed once, with the sum of their advantages
    text_NT, row_R = torch.cat([prompt_RT, text_RT], dim=1).unique(dim=0, return_inverse=True)
    advantages_N = advantages_R.new_zeros(len(text_NT)).index_add(0, row_R, advantages_R)
    text_NT, advantages_N = text_NT[advantages_N != 0], advantages_N[advantages_N != 0]
    if len(text_NT):
        logps_N = text_logps(model, text_NT, prompt_RT.shape[1])
        (-(advantages_N @ logps_N) / tokens).backward()
    return tokens


def text_logps(model: Model, text_NT: Tensor, start: int) -> Tensor:
    """Log-probability of each text from token `start` to the token that ends it, (N,)."""
    completion_NT = text_NT[:, start:]
    logps_NTV = forward(model, text_NT[:, :-1])[:, start - 1 :].log_softmax(dim=-1)
    logps_NT = logps_NTV.gather(-1, completion_NT[..., None])[..., 0]
    return (logps_NT * _completion_mask(completion_NT, model.config.eos_token_id)).sum(dim=1)


@torch.no_grad()
def sample(
    model: Model, prompt_RT: Tensor, max_new_tokens: int, generator: torch.Generator
) -> Tensor:
    """A completion of each prompt, (R, T), filled up with the token that ends it.

    Rollouts with the same prefix have the same distribution of the next token: one row is computed
    for all of them, and it branches where they part.
    """
    eos_id = model.config.eos_token_id
    text_RT = prompt_RT.new_full((len(prompt_RT), max_new_tokens), eos_id)
    live_R = torch.arange(len(prompt_RT), device=prompt_RT.device)  # rollouts that have not ended
    prompt_NT, row_R = prompt_RT.unique(dim=0, return_inverse=True)
    cache: Cache = []
    logits_NV = forward(model, prompt_NT, cache)[:, -1]
    for t in range(max_new_tokens):
        p_RV = logits_NV.softmax(dim=-1)[row_R]
        # p divided by Exp(1) numbers is largest at each token with probability p
        token_R = (p_RV / torch.empty_like(p_RV).exponential_(generator=generator)).argmax(dim=-1)
        text_RT[live_R, t] = token_R
        continues_R = token_R != eos_id
        live_R = live_R[continues_R]
        if t + 1 == max_new_tokens or len(live_R) == 0:
            break
        # a row of the next step is a pair (row of this step, token) that some rollouts share
        branch_N, row_R = (row_R * p_RV.shape[1] + token_R)[continues_R].unique(return_inverse=True)
        parent_N, token_N = branch_N // p_RV.shape[1], branch_N % p_RV.shape[1]
        cache[:] = [(keys[parent_N], values[parent_N]) for keys, values in cache]
        logits_NV = forward(model, token_N[:, None], cache)[:, -1]
    return text_RT


def evaluate(
    model: Model,
    tokenizer: Any,
    rows: Rows,
    reward: Reward,
    samples: int,
    max_new_tokens: int,
    seed: int,
) -> np.ndarray:
    """How many of `samples` completions are correct (reward above 0), by prompt, (P,)."""
    generator = torch.Generator(model.device).manual_seed(seed)
    prompt_RT = prompt_ids(model, tokenizer, rows).repeat_interleave(samples, dim=0)
    text_RT = sample(model, prompt_RT, max_new_tokens, generator)
    repeated = [row for row in rows for _ in range(samples)]
    rewards_R = rewards_of(tokenizer, repeated, text_RT, reward)
    return (rewards_R.reshape(-1, samples) > 0).sum(axis=1)


def prompt_ids(model: Model, tokenizer: Any, rows: Rows) -> Tensor:
    """Tokens of the prompts, (P, T), on the model's device; all must be equally long."""
    kind, ids = model.config.model_type, tokenizer([row["prompt"] for row in rows])["input_ids"]
    lengths = {len(row) for row in ids}
    need(kind == "qwen3", f"model must be a Qwen3, got {kind!r}; use gdro.trainer")
    need(len(lengths) == 1, f"prompts must be equally long in tokens, got {lengths}")
    return torch.tensor(ids, device=model.device)


def rewards_of(tokenizer: Any, rows: Rows, text_RT: Tensor, reward: Reward) -> np.ndarray:
    """The reward of each completion, (R,), asked for as TRL asks."""
    texts = tokenizer.batch_decode(text_RT, skip_special_tokens=True)
    columns = {name: [row.get(name) for row in rows] for name in rows[0] if name != "prompt"}
    prompts = [row["prompt"] for row in rows]
    return np.asarray(reward(prompts=prompts, completions=texts, **columns), float)


def _completion_mask(text_RT: Tensor, eos_id: int) -> Tensor:
    """Tokens of the completions up to the one that ends them, that one included, (R, T)."""
    ends_RT = (text_RT == eos_id).int()
    return ends_RT.cumsum(dim=1) == ends_RT


def _epochs(size: int, batch: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """Positions of batch after batch, without end; each epoch is shuffled, its rest dropped."""
    while True:
        order = rng.permutation(size)
        for start in range(0, size - batch + 1, batch):
            yield order[start : start + batch]
