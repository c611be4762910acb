"""Evaluation: sample each held-out prompt several times and count the correct completions.

A row a prompt: uid, family, dataset, level and subject where it has them, successes, trials and tokens.
Transformers samples from a model in memory, vLLM from one in a folder; see :mod:`gdro.vllm_sampling`.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from tqdm.auto import trange
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from gdro.checks import check_int
from gdro.vllm_sampling import prompt_ids, sample_with_vllm, stop_tokens

GROUPS = ("dataset", "level", "subject")  # columns that are copied where a prompt has them


def evaluate(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    rows: Sequence[Mapping[str, Any]],
    reward: Callable[..., Sequence[float]],
    *,
    samples: int,
    seed: int = 0,
    batch_size: int = 256,
    progress: bool = True,
    **sampling: Any,
) -> list[dict[str, Any]]:
    """Sample with a model in memory and count the correct completions, one row for each prompt.

    Args:
        rows: prompts with the columns prompt (a text or a chat), uid, and those that the reward reads.
        reward: as TRL calls it, (prompts=, completions=, **columns) → finite numbers; above 0 is correct. A
            column that a row lacks is None.
        samples: of each prompt.
        batch_size: completions generated at once.
        sampling: max_new_tokens, temperature, top_p, top_k as in
            :func:`gdro.vllm_sampling.sample_with_vllm`.
    """
    prompts = _prompts(rows)
    check_int("samples", samples, 1)
    stops = stop_tokens(tokenizer, model.generation_config.eos_token_id)
    config = GenerationConfig(
        do_sample=True,
        repetition_penalty=1.0,  # not the model's own, which vLLM does not apply
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=stops,
        **{"top_p": 1.0, "top_k": 0} | sampling,
    )
    ids = [row for row in prompt_ids(tokenizer, prompts) for _ in range(samples)]
    tokens: list[list[int]] = []
    torch.manual_seed(seed)
    model.eval()
    for start in trange(0, len(ids), batch_size, desc="evaluate", disable=not progress):
        batch = tokenizer.pad(
            {"input_ids": ids[start : start + batch_size]}, padding_side="left", return_tensors="pt"
        ).to(model.device)
        with torch.no_grad():
            output = model.generate(**batch, generation_config=config)
        tokens += [_until(row, stops) for row in output[:, batch["input_ids"].shape[1] :].tolist()]
    texts = tokenizer.batch_decode(tokens, skip_special_tokens=True)
    return _counted(rows, _by_prompt(texts, samples), _by_prompt(list(map(len, tokens)), samples), reward)


def evaluate_with_vllm(
    model: str | Path,
    rows: Sequence[Mapping[str, Any]],
    reward: Callable[..., Sequence[float]],
    **options: Any,
) -> list[dict[str, Any]]:
    """As :func:`evaluate`, with vLLM; options are those of :func:`gdro.vllm_sampling.sample_with_vllm`."""
    texts, lengths = sample_with_vllm(model, _prompts(rows), **options)
    return _counted(rows, texts, lengths, reward)


def _prompts(rows: Sequence[Mapping[str, Any]]) -> list[Any]:
    if not rows:
        raise ValueError("rows must hold at least one prompt, got none")
    for number, row in enumerate(rows):
        if missing := {"prompt", "uid"} - row.keys():
            raise ValueError(f"row {number} must have a column {min(missing)!r}, got {sorted(row)}")
    return [row["prompt"] for row in rows]


def _until(tokens: list[int], stops: list[int]) -> list[int]:
    """The tokens up to the first stop token; what follows is padding, which may be an ordinary token."""
    ends = (place for place, token in enumerate(tokens) if token in stops)
    return tokens[: next(ends, len(tokens)) + 1]


def _by_prompt(flat: Sequence[Any], samples: int) -> list[Sequence[Any]]:
    return [flat[start : start + samples] for start in range(0, len(flat), samples)]


def _counted(rows, texts_PS, lengths_PS, reward) -> list[dict[str, Any]]:
    """A row of counts for each prompt. The reward is called as TRL calls it: flat, with every column."""
    samples = len(texts_PS[0])
    flat = [row for row in rows for _ in range(samples)]
    completions = [
        text if isinstance(row["prompt"], str) else [{"role": "assistant", "content": text}]
        for row, texts in zip(rows, texts_PS, strict=True)
        for text in texts
    ]
    names = dict.fromkeys(name for row in rows for name in row if name != "prompt")
    columns = {name: [row.get(name) for row in flat] for name in names}
    scores = reward(prompts=[row["prompt"] for row in flat], completions=completions, **columns)
    if len(scores) != len(flat):
        raise ValueError(f"reward must return {len(flat)} numbers, a completion each, got {len(scores)}")
    for row, score in zip(flat, scores, strict=True):
        if score is None or not math.isfinite(score):
            raise ValueError(f"reward must return finite numbers, got {score} for prompt {row['uid']!r}")
    return [
        {"uid": row["uid"], "family": row.get("family", "")}
        | {name: row[name] for name in GROUPS if name in row}
        | {"successes": sum(score > 0 for score in own), "trials": samples, "tokens": sum(lengths)}
        for row, own, lengths in zip(rows, _by_prompt(scores, samples), lengths_PS, strict=True)
    ]
