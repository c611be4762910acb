"""Sampling with vLLM in a process of its own, and how both engines read prompts and end completions.

vLLM holds GPU memory until its process ends, and its pinned packages may not agree with those of the
training. So :func:`sample_with_vllm` runs this very file with the interpreter that the environment variable
GDRO_VLLM_PYTHON names (by default this one); gdro need not be installed there, and at the top only the
standard library is imported. Both engines divide logits by the temperature, then apply top-k, then top-p.
"""

import importlib.util
import json
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

PYTHON_VARIABLE = "GDRO_VLLM_PYTHON"
# Read by vLLM when it is imported; what the caller has set stays.
ENVIRONMENT = {
    # FlashInfer's sampler is compiled at the first use, which fails without the CUDA toolkit.
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
    # The scheduler in this process: requests meet in the same order each time, and errors surface here.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
}
Prompt = str | Sequence[dict]  # a text or a chat


def sample_with_vllm(
    model: str | Path,
    prompts: Sequence[Prompt],
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
) -> tuple[list[list[str]], list[list[int]]]:
    """Sample completions of each prompt with vLLM in a process that ends with the call.

    Args:
        model: folder or hub id of a whole model with its tokenizer; merge an adapter first.
        prompts: P texts, or chats to which the tokenizer's chat template is applied.
        temperature: above 0; top_k=1 samples greedily.
        top_p: in (0, 1]; 1 is off, as is top_k=0.
        seed: equal calls give equal completions on the same machine.
        gpu_memory_utilization: fraction of the GPU's (on a CPU, the main) memory that vLLM takes.
        dtype: "auto" is the model's own, or 16 bits if that is float32.

    Returns:
        completions without special tokens, and their lengths in tokens with the one that ended them, (P,
        samples) each.
    """
    job = {**locals(), "model": os.fspath(model), "prompts": list(prompts)}
    from gdro.checks import check_int, check_number

    least = {"samples": 1, "max_new_tokens": 1, "top_k": 0, "seed": 0, "tensor_parallel_size": 1}
    for name, low in least.items():
        check_int(name, job[name], low)
    for name, high in {"temperature": math.inf, "top_p": 1.0, "gpu_memory_utilization": 1.0}.items():
        check_number(name, job[name], 0, high, open_low=True)
    if not prompts or not all(prompts):
        raise ValueError(f"prompts must be one or more texts or chats, none of them empty, got {prompts!r}")
    if Path(model).is_dir() and not (Path(model) / "config.json").is_file():
        remedy = "save a whole model there, an adapter by gdro.models.merged_model"
        raise ValueError(f"model must be a folder with config.json, got {job['model']!r}; {remedy}")
    with tempfile.TemporaryDirectory(prefix="gdro-vllm-") as folder:
        paths = job_file, result = Path(folder) / "job.json", Path(folder) / "result.json"
        job_file.write_text(json.dumps(job), encoding="utf-8")
        _run([str(Path(__file__).resolve()), *map(str, paths)])
        answer = json.loads(result.read_text(encoding="utf-8"))
    return answer["texts"], answer["lengths"]


def prompt_ids(tokenizer: Any, prompts: Sequence[Prompt]) -> list[list[int]]:
    """Token ids of each prompt; a chat goes through the chat template, up to where the answer begins."""
    ids = []
    for prompt in prompts:
        is_chat = not isinstance(prompt, str)
        if is_chat and tokenizer.chat_template is None:
            raise ValueError(f"prompts must be texts for a tokenizer without chat template, got {prompt!r}")
        if is_chat:  # the template writes its own special tokens
            prompt = tokenizer.apply_chat_template(list(prompt), tokenize=False, add_generation_prompt=True)
        ids.append(list(tokenizer(prompt, add_special_tokens=not is_chat)["input_ids"]))
    return ids


def stop_tokens(tokenizer: Any, own: int | Sequence[int] | None) -> list[int]:
    """Token ids that end a completion: the tokenizer's, the generation config's (``own``) and the chat's.

    The last is the special token that closes an answer in the chat template: base models such as Qwen3's
    name only the end of text, and would go on to invent the next turn.
    """
    ids = {tokenizer.eos_token_id, *(own if isinstance(own, list | tuple) else [own])}
    if tokenizer.chat_template is not None:
        chat = [{"role": "user", "content": "Question"}, {"role": "assistant", "content": "Answer"}]
        text = tokenizer.apply_chat_template(chat, tokenize=False)
        for token in tokenizer(text.rpartition("Answer")[2], add_special_tokens=False)["input_ids"][:1]:
            ids |= {token} & {i for i, added in tokenizer.added_tokens_decoder.items() if added.special}
    return sorted(ids - {None})


def _run(arguments: list[str]) -> None:
    """Run this file in the interpreter that has vLLM; RuntimeError with the cause if it fails."""
    python = os.environ.get(PYTHON_VARIABLE, sys.executable)
    if shutil.which(python) is None:
        raise ValueError(f"{PYTHON_VARIABLE} must be an interpreter that has vLLM, got {python!r}")
    command = [python, "-P", *arguments]  # -P: this file's neighbours are not importable by accident
    out, err = subprocess.PIPE, subprocess.STDOUT
    run = subprocess.run(command, input="", stdout=out, stderr=err, errors="replace", check=False)
    if run.returncode:
        # workers name the cause, and those above them only report that there was one
        cause = re.search(r"\b[\w.]*(?:Error|Exception): .*", run.stdout)
        last = "\n".join([cause[0] if cause else "no error was named", "", *run.stdout.splitlines()[-30:]])
        raise RuntimeError(f"sampling with vLLM failed with exit code {run.returncode}: {last}")


def main(job_file: str, result: str) -> None:
    """Do the job of a file in this process and write texts and lengths to another."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    if importlib.util.find_spec("vllm") is None:
        sys.exit(f"ImportError: no vllm for {sys.executable}; install gdro[gpu], or set {PYTHON_VARIABLE}")
    import torch
    import vllm
    from transformers import AutoTokenizer

    job = json.loads(Path(job_file).read_text(encoding="utf-8"))
    of_engine = {name: job[name] for name in ("model", "dtype", "seed", "tensor_parallel_size")}
    of_sampling = {name: job[name] for name in ("temperature", "top_p", "top_k")}
    tokenizer = AutoTokenizer.from_pretrained(job["model"])
    ids = prompt_ids(tokenizer, job["prompts"])
    on_cpu = vllm.platforms.current_platform.is_cpu()
    if on_cpu:  # where compiling takes longer than it saves
        torch.compiler.set_stance("force_eager")
    engine = vllm.LLM(
        **of_engine,
        gpu_memory_utilization=job["gpu_memory_utilization"],
        max_model_len=max(map(len, ids)) + job["max_new_tokens"],
        enforce_eager=on_cpu,
        disable_log_stats=True,
    )
    sampling = vllm.SamplingParams(
        **of_sampling,
        n=job["samples"],
        max_tokens=job["max_new_tokens"],
        stop_token_ids=stop_tokens(tokenizer, None),  # vLLM adds those of the generation config
        detokenize=False,
    )
    outputs = engine.generate([{"prompt_token_ids": row} for row in ids], sampling, use_tqdm=False)
    tokens = [[list(completion.token_ids) for completion in output.outputs] for output in outputs]
    texts = [tokenizer.batch_decode(row, skip_special_tokens=True) for row in tokens]
    lengths = [list(map(len, row)) for row in tokens]
    Path(result).write_text(json.dumps({"texts": texts, "lengths": lengths}), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
