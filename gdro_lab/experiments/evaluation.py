"""Evaluation: sample held-out prompts by transformers or vLLM, and count what is correct.

Both engines divide logits by the temperature, then apply top-k, then top-p. vLLM keeps the GPU's
memory until its process ends, so use it in a process of its own.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from gdro.checks import check_array
from gdro.trl.models import stop_tokens
from gdro_lab.experiments.profile import EvaluationChoice
from gdro_lab.machine import Arithmetic, arithmetic
from gdro_lab.tasks import prompt_token_ids

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Tokens = list[list[int]]


def evaluate_model(
    choice: EvaluationChoice,
    model: str | Path,
    tokenizer: "PreTrainedTokenizerBase",
    rows: Sequence[Mapping[str, Any]],
    reward: Callable[..., Sequence[float]],
    max_new_tokens: int,
    seed: int = 0,
    template: Mapping[str, Any] | None = None,
    *,
    dtype: Arithmetic | None = None,
) -> list[dict[str, Any]]:
    """Return a row a prompt: uid, family, dataset where it has one, and counts.

    These are successes, trials, distinct (different texts among the correct ones) and tokens.

    Args:
        model: folder or hub id of a whole model.
        rows: prompts with the columns prompt (a text or a chat), uid, and those of the reward.
        reward: as TRL calls it, (prompts=, completions=, **columns) → finite numbers; above 0 is
            correct. A column that a row lacks is None.
        dtype: of the weights that the engine "hf" samples from; None for `arithmetic` of a model
            that is not pretrained. vLLM chooses for itself.
    """
    sample: Callable[..., list[Tokens]] = partial(
        _by_vllm, choice, model, tokenizer, max_new_tokens=max_new_tokens
    )
    if choice.engine == "hf":
        dtype = dtype or arithmetic(pretrained=False)
        sample = partial(
            _by_transformers, choice, model, tokenizer, max_new_tokens=max_new_tokens, dtype=dtype
        )
    ids = prompt_token_ids(tokenizer, [row["prompt"] for row in rows], template)
    processes = min(choice.data_parallel_size, len(rows))
    if processes == 1:
        tokens_PS = sample(ids, seed=seed)
    else:
        tokens_PS = [[]] * len(rows)
        part = partial(_part, sample, ids, seed, processes, choice.tensor_parallel_size)
        with ProcessPoolExecutor(processes, get_context("spawn"), max_tasks_per_child=1) as pool:
            for rank, tokens in enumerate(pool.map(part, range(processes))):
                tokens_PS[rank::processes] = tokens
    tokens_R = [tokens for tokens_S in tokens_PS for tokens in tokens_S]
    rows_R = [row for row in rows for _ in range(choice.samples)]
    texts_R = tokenizer.batch_decode(tokens_R, skip_special_tokens=True)
    completions = [
        text if isinstance(row["prompt"], str) else [{"role": "assistant", "content": text}]
        for row, text in zip(rows_R, texts_R, strict=True)
    ]
    names = dict.fromkeys(name for row in rows for name in row if name != "prompt")
    columns = {name: [row.get(name) for row in rows_R] for name in names}
    scores_R = reward(prompts=[row["prompt"] for row in rows_R], completions=completions, **columns)
    correct_PS = (check_array("the reward", scores_R) > 0).reshape(len(rows), choice.samples)
    evaluation = []
    texts_PS = np.array(texts_R, object).reshape(len(rows), choice.samples)
    for row, correct_S, texts_S, tokens_S in zip(
        rows, correct_PS, texts_PS, tokens_PS, strict=True
    ):
        counts = {"successes": int(correct_S.sum()), "trials": choice.samples}
        counts["distinct"] = len({text.strip() for text in texts_S[correct_S]})
        counts["tokens"] = sum(map(len, tokens_S))
        kept = {name: row[name] for name in ("uid", "family", "dataset") if name in row}
        evaluation.append(kept | counts)
    return evaluation


def _part(
    sample: Callable[..., list], ids: Tokens, seed: int, processes: int, gpus: int, rank: int
) -> list[Tokens]:
    """What the process `rank` does: every n-th prompt, with GPUs and a seed of its own."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    devices = list(map(str, range((rank + 1) * gpus))) if visible is None else visible.split(",")
    own = devices[rank * gpus :][:gpus]
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(own)  # before CUDA starts
    return sample(ids[rank::processes], seed=seed * processes + rank)


def _by_transformers(
    choice: EvaluationChoice,
    folder: Any,
    tokenizer: Any,
    ids: Tokens,
    max_new_tokens: int,
    seed: int,
    dtype: Arithmetic,
) -> list[Tokens]:
    """Tokens of the samples of each prompt, up to the one that ends them: a list for each."""
    from tqdm.auto import trange
    from transformers import AutoModelForCausalLM, GenerationConfig

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).to(device)
    stops = stop_tokens(tokenizer, model.generation_config.eos_token_id)
    # without the model's own repetition penalty, which vLLM does not apply
    own = {"do_sample": True, "repetition_penalty": 1.0, "max_new_tokens": max_new_tokens}
    own |= choice.model_dump(include={"temperature", "top_p", "top_k"})
    ends = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": stops}
    config, tokens_R = GenerationConfig(**own | ends), []
    ids_R = [row for row in ids for _ in range(choice.samples)]
    torch.manual_seed(seed)
    for start in trange(0, len(ids_R), choice.batch_size, desc="evaluate"):
        texts = {"input_ids": ids_R[start : start + choice.batch_size]}
        batch = tokenizer.pad(texts, padding_side="left", return_tensors="pt").to(device)
        output = model.generate(**batch, generation_config=config)
        for row in output[:, batch["input_ids"].shape[1] :].tolist():
            # cut here: what follows the end is padding, which may be an ordinary token
            end = next((place for place, token in enumerate(row) if token in stops), len(row))
            tokens_R.append(row[: end + 1])
    places = range(0, len(ids_R), choice.samples)
    return [tokens_R[place : place + choice.samples] for place in places]


def _by_vllm(
    choice: EvaluationChoice,
    folder: Any,
    tokenizer: Any,
    ids: Tokens,
    max_new_tokens: int,
    seed: int,
) -> list[Tokens]:
    """The same with vLLM, which makes batches itself."""
    import vllm

    on_cpu = vllm.platforms.current_platform.is_cpu()
    if on_cpu:  # compiling would take longer than it saves
        torch.compiler.set_stance("force_eager")
    engine = vllm.LLM(
        str(folder),
        max_model_len=max(map(len, ids)) + max_new_tokens,
        enforce_eager=on_cpu,
        disable_log_stats=True,
        seed=seed,
        **choice.model_dump(include={"gpu_memory_utilization", "tensor_parallel_size"}),
    )
    stops = stop_tokens(tokenizer, None)  # vLLM itself adds those of the generation config
    ends = {"max_tokens": max_new_tokens, "stop_token_ids": stops, "detokenize": False}
    cut = choice.model_dump(include={"temperature", "top_p", "top_k"})
    prompts = [{"prompt_token_ids": row} for row in ids]
    outputs = engine.generate(
        prompts, vllm.SamplingParams(n=choice.samples, **ends | cut), use_tqdm=False
    )
    return [[list(sample.token_ids) for sample in output.outputs] for output in outputs]
