"""Evaluation: sample each held-out prompt several times, by transformers or vLLM, and count what is correct.

Both engines divide logits by the temperature, then apply top-k, then top-p. vLLM keeps the GPU's memory until
its process ends, so use it in a process of its own, as the jobs of :mod:`gdro.experiment` are.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from gdro.checks import check_array
from gdro.lifetime import end_with_parent
from gdro.models import stop_tokens
from gdro.tasks import prompt_ids

DEFAULTS = {"top_p": 1.0, "top_k": 0, "seed": 0, "batch_size": 240}
DEFAULTS |= {"gpu_memory_utilization": 0.9, "tensor_parallel_size": 1}
Tokens = list[list[int]]


def evaluate_model(
    model: str | Path,
    tokenizer: Any,
    rows: Sequence[Mapping[str, Any]],
    reward: Callable[..., Sequence[float]],
    *,
    engine: str = "hf",
    samples: int,
    data_parallel_size: int = 1,
    **options: Any,
) -> list[dict[str, Any]]:
    """Return a row for each prompt: uid, family, dataset where it has one, successes, trials, tokens.

    Args:
        model: folder or hub id of a whole model.
        rows: prompts with the columns prompt (a text or a chat), uid, and those that the reward reads.
        reward: as TRL calls it, (prompts=, completions=, **columns) → finite numbers; above 0 is correct. A
            column that a row lacks is None.
        engine: "hf" or "vllm".
        samples: of each prompt.
        data_parallel_size: processes that share the prompts, each with `tensor_parallel_size` GPUs. More than
            one need a main module that can be imported.
        options: max_new_tokens, temperature, and over DEFAULTS what they name; batch_size is for "hf", the
            last two for "vllm".
    """
    options, generate = DEFAULTS | options, {"hf": _by_transformers, "vllm": _by_vllm}[engine]
    ids = prompt_ids(tokenizer, [row["prompt"] for row in rows])
    if data_parallel_size == 1:
        tokens_R = generate(model, tokenizer, ids, samples, **options)
    else:
        tokens_R = _by_processes(generate, data_parallel_size, model, tokenizer, ids, samples, **options)
    rows_R = [row for row in rows for _ in range(samples)]
    completions = [
        text if isinstance(row["prompt"], str) else [{"role": "assistant", "content": text}]
        for row, text in zip(rows_R, tokenizer.batch_decode(tokens_R, skip_special_tokens=True), strict=True)
    ]
    names = dict.fromkeys(name for row in rows for name in row if name != "prompt")
    columns = {name: [row.get(name) for row in rows_R] for name in names}
    scores_R = reward(prompts=[row["prompt"] for row in rows_R], completions=completions, **columns)
    correct_PS = (check_array("the reward", scores_R) > 0).reshape(len(rows), samples)
    return [
        {name: row[name] for name in ("uid", "family", "dataset") if name in row}
        | {"successes": int(correct_PS[place].sum()), "trials": samples}
        | {"tokens": sum(map(len, tokens_R[place * samples : (place + 1) * samples]))}
        for place, row in enumerate(rows)
    ]


def _by_processes(
    generate: Callable[..., Tokens],
    processes: int,
    folder: str | Path,
    tokenizer: Any,
    ids: Tokens,
    samples: int,
    **options: Any,
) -> Tokens:
    """The same by `generate` in n processes, each with every n-th prompt, and GPUs and a seed of its own."""
    processes, each = min(processes, len(ids)), options["tensor_parallel_size"]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(torch.cuda.device_count())))
    devices = visible.split(",")
    if torch.cuda.is_available() and len(devices) < processes * each:
        needed = f"evaluation.data_parallel_size={processes} × tensor_parallel_size={each}"
        raise ValueError(
            f"{needed} are more GPUs than the {len(devices)} that are visible; lower one of them"
        )
    tokens_PS: list[Tokens] = [[] for _ in ids]
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        jobs = [
            pool.submit(
                _in_a_process,
                ",".join(devices[rank * each : (rank + 1) * each]),
                generate,
                (folder, tokenizer, ids[rank::processes], samples),
                options | {"seed": options["seed"] * processes + rank},
            )
            for rank in range(processes)
        ]
        for rank, job in enumerate(jobs):
            tokens_PS[rank::processes] = job.result()
    return [tokens for tokens_S in tokens_PS for tokens in tokens_S]


def _in_a_process(
    devices: str, generate: Callable[..., Tokens], arguments: tuple, options: dict
) -> list[Tokens]:
    end_with_parent()
    os.environ["CUDA_VISIBLE_DEVICES"] = devices  # before CUDA starts
    tokens_R, samples = generate(*arguments, **options), arguments[-1]
    return [tokens_R[start : start + samples] for start in range(0, len(tokens_R), samples)]


def _by_transformers(
    folder: str | Path,
    tokenizer: Any,
    ids: Tokens,
    samples: int,
    *,
    seed: int,
    batch_size: int,
    **options: Any,
) -> Tokens:
    """Tokens of `samples` completions of each prompt, up to the one that ends them."""
    from tqdm.auto import trange
    from transformers import AutoModelForCausalLM, GenerationConfig

    # in 16 bits on a GPU, as vLLM has it
    device, dtype = ("cuda", torch.bfloat16) if torch.cuda.is_available() else ("cpu", torch.float32)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).to(device)
    stops = stop_tokens(tokenizer, model.generation_config.eos_token_id)
    # not the model's own repetition penalty, which vLLM does not apply
    own = {"do_sample": True, "repetition_penalty": 1.0}
    own |= {name: options[name] for name in ("max_new_tokens", "temperature", "top_p", "top_k")}
    ends = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": stops}
    config, ids_R = GenerationConfig(**own | ends), [row for row in ids for _ in range(samples)]
    tokens_R: Tokens = []
    torch.manual_seed(seed)
    for start in trange(0, len(ids_R), batch_size, desc="evaluate"):
        texts = {"input_ids": ids_R[start : start + batch_size]}
        batch = tokenizer.pad(texts, padding_side="left", return_tensors="pt").to(device)
        output = model.generate(**batch, generation_config=config)
        for row in output[:, batch["input_ids"].shape[1] :].tolist():
            # what follows the end is padding, which may be an ordinary token
            end = next((place for place, token in enumerate(row) if token in stops), len(row))
            tokens_R.append(row[: end + 1])
    return tokens_R


def _by_vllm(folder: str | Path, tokenizer: Any, ids: Tokens, samples: int, **options: Any) -> Tokens:
    """The same with vLLM, which makes batches itself."""
    import vllm

    on_cpu = vllm.platforms.current_platform.is_cpu()
    if on_cpu:  # where compiling takes longer than it saves
        torch.compiler.set_stance("force_eager")
    engine = vllm.LLM(
        str(folder),
        max_model_len=max(map(len, ids)) + options["max_new_tokens"],
        enforce_eager=on_cpu,
        disable_log_stats=True,
        **{name: options[name] for name in ("seed", "gpu_memory_utilization", "tensor_parallel_size")},
    )
    stops = stop_tokens(tokenizer, None)  # vLLM adds those of the generation config
    ends = {"max_tokens": options["max_new_tokens"], "stop_token_ids": stops, "detokenize": False}
    cut = {name: options[name] for name in ("temperature", "top_p", "top_k")}
    prompts = [{"prompt_token_ids": row} for row in ids]
    outputs = engine.generate(prompts, vllm.SamplingParams(n=samples, **ends | cut), use_tqdm=False)
    return [list(completion.token_ids) for output in outputs for completion in output.outputs]
