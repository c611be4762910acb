"""Evaluation: n samples for each held-out prompt, counted as right or wrong.

A table of evaluation has one row a prompt: uid, successes, trials, tokens, and what the prompt
brings of family, dataset, level and subject. Every score in a report (mean@k, pass@k, worst family,
worst bin) is computed from these counts alone.

Two engines sample: transformers (:func:`evaluate`, for a model in memory) and vLLM
(:func:`evaluate_with_vllm`, for a model in a folder). They tokenize, cut and count alike: see
:mod:`gdro.vllm_sampling`.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from tqdm.auto import tqdm
from transformers import GenerationConfig

from gdro.vllm_sampling import prompt_ids, sample_with_vllm

GROUPS = ("dataset", "level", "subject")  # columns that are copied where a prompt has them


def evaluate(
    model,
    tokenizer,
    rows,
    reward,
    *,
    samples: int,
    max_new_tokens: int,
    temperature: float,
    top_p: float = 1.0,
    top_k: int = 0,
    seed: int = 0,
    batch_size: int = 256,
    progress: bool = True,
) -> list[dict]:
    """Sample completions with a model in memory and count the right ones.

    rows: prompts with the columns prompt (a text, or a chat as a list of messages) and uid, and
    those that the reward asks for, such as answer. reward: as TRL takes it, (prompts=…,
    completions=…, answer=…, uid=…) → numbers; greater than 0 is right. A completion is a text, or
    for a chat the list of its one message. samples: completions a prompt. temperature: above 0.
    seed: of the sampling. batch_size: completions generated at once. top_k 0 and top_p 1 are off.
    A column that a row lacks is None to the reward. Returns one row a prompt. Raises ValueError for
    samples < 1, no rows, rows without prompt or uid, and a reward that does not give one finite number
    a completion.
    """
    _check_rows(rows, samples)
    eos_ids = _eos_ids(model, tokenizer)
    config = GenerationConfig(
        do_sample=True,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        repetition_penalty=1.0,  # or the model's own would be taken, which vLLM is not told of
        max_new_tokens=max_new_tokens,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=eos_ids,
    )
    ids = prompt_ids(tokenizer, [row["prompt"] for row in rows])
    jobs = [row for row in ids for _ in range(samples)]
    texts: list[str] = []
    lengths: list[int] = []
    torch.manual_seed(seed)
    model.eval()
    for start in tqdm(range(0, len(jobs), batch_size), desc="evaluate", disable=not progress):
        batch = _sample(model, tokenizer, jobs[start : start + batch_size], config, eos_ids)
        texts += batch[0]
        lengths += batch[1]
    return _counted(rows, _by_prompt(texts, samples), _by_prompt(lengths, samples), reward)


def evaluate_with_vllm(
    model_folder: str | Path,
    rows: Sequence[Mapping[str, Any]],
    reward: Callable[..., Sequence[float]],
    *,
    samples: int,
    max_new_tokens: int,
    temperature: float,
    top_p: float = 1.0,
    top_k: int = 0,
    seed: int = 0,
    tensor_parallel_size: int = 1,
    gpu_memory_utilization: float = 0.9,
    dtype: str = "auto",
    python: str | Path | None = None,
    progress: bool = True,
) -> list[dict]:
    """Sample completions with vLLM and count the right ones; the same rows as :func:`evaluate`.

    rows, reward, samples: as there. The other arguments are those of
    :func:`gdro.vllm_sampling.sample_with_vllm`, and so are the errors. The paper evaluates at
    temperature 0.6, top_p 0.8, top_k 20.
    """
    _check_rows(rows, samples)
    texts, lengths = sample_with_vllm(
        model_folder,
        [row["prompt"] for row in rows],
        samples=samples,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        seed=seed,
        tensor_parallel_size=tensor_parallel_size,
        gpu_memory_utilization=gpu_memory_utilization,
        dtype=dtype,
        python=python,
        progress=progress,
    )
    return _counted(rows, texts, lengths, reward)


# Counting, the same for both engines. Axes: P prompts, S samples of one


def _check_rows(rows, samples):
    if samples < 1 or not rows:
        raise ValueError(f"nothing to evaluate: samples={samples}, {len(rows)} prompts; both must be ≥ 1")
    for number, row in enumerate(rows):
        missing = {"prompt", "uid"} - row.keys()
        if missing:
            raise ValueError(f"row {number} has no column {min(missing)!r}, only {sorted(row)}; add it")


def _counted(rows, texts_PS, lengths_PS, reward):
    """A row of counts for each prompt."""
    scores_PS = _scores(rows, texts_PS, reward)
    return [
        {"uid": row["uid"], "family": row.get("family", "")}
        | {name: row[name] for name in GROUPS if name in row}
        | {"successes": sum(score > 0 for score in scores), "trials": len(scores), "tokens": sum(lengths)}
        for row, scores, lengths in zip(rows, scores_PS, lengths_PS, strict=True)
    ]


def _scores(rows, texts_PS, reward):
    """The reward of each completion, asked for as TRL asks: flat, with every column that any row has."""
    samples = len(texts_PS[0])
    flat = [row for row in rows for _ in range(samples)]
    completions = [
        text if isinstance(row["prompt"], str) else [{"role": "assistant", "content": text}]
        for row, texts in zip(rows, texts_PS, strict=True)
        for text in texts
    ]
    names = {name: None for row in rows for name in row if name != "prompt"}  # in order
    columns = {name: [row.get(name) for row in flat] for name in names}
    scores = reward(prompts=[row["prompt"] for row in flat], completions=completions, **columns)
    if len(scores) != len(flat):
        raise ValueError(
            f"reward gave {len(scores)} numbers for {len(flat)} completions; return one for each"
        )
    for row, score in zip(flat, scores, strict=True):
        if score is None or not math.isfinite(score):
            raise ValueError(
                f"reward gave {score} for a completion of {row['uid']!r}; return a finite number"
            )
    return _by_prompt(scores, samples)


def _by_prompt(flat, samples):
    return [flat[start : start + samples] for start in range(0, len(flat), samples)]


# Sampling with transformers


def _eos_ids(model, tokenizer):
    """What ends a completion, as in vLLM: the tokenizer's token and those of the generation config."""
    own = model.generation_config.eos_token_id
    own = own if isinstance(own, list) else [own]
    return sorted({token for token in (tokenizer.eos_token_id, *own) if token is not None})


@torch.no_grad()
def _sample(model, tokenizer, ids, config, eos_ids):
    """Completions of a batch as text, and their lengths in tokens, the one that ended them included."""
    inputs = tokenizer.pad({"input_ids": ids}, padding_side="left", return_tensors="pt").to(model.device)
    output = model.generate(**inputs, generation_config=config)
    new_tokens = output[:, inputs["input_ids"].shape[1] :]
    ended = torch.isin(new_tokens, torch.tensor(eos_ids, device=new_tokens.device))
    # tokens before which no end has come
    lengths = (ended.cumsum(dim=1) - ended.long() == 0).sum(dim=1).tolist()
    # what follows the end is padding, which may be an ordinary token
    texts = [row[:length] for row, length in zip(new_tokens.tolist(), lengths, strict=True)]
    return tokenizer.batch_decode(texts, skip_special_tokens=True), lengths
