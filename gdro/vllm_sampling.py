"""Sampling with vLLM in a process of its own.

vLLM keeps GPU memory, threads and process groups until its process ends, and its pinned packages
need not agree with those a training needs. So :func:`sample_with_vllm` writes a job, starts this
file with an interpreter that has vLLM, shows what it says, and reads the result; when it returns
the memory is free again. The interpreter is this one, or the one that the argument ``python`` or
the environment variable ``GDRO_VLLM_PYTHON`` names; nothing of gdro need be installed there.

The other half runs there, and can be run by hand::

    python -m gdro.vllm_sampling JOB.json

JOB.json holds the fields of :class:`Job`. The result is one JSON object, written whole or not at
all: ``texts`` and ``lengths``, one list of ``samples`` entries a prompt, and ``seconds`` of loading
and of sampling. Exit code 3 says that vLLM is not installed.

Both engines sample from the same tokens and cut the same way: prompts are tokenized here by
:func:`prompt_ids` and completions are decoded by the tokenizer. The logits are divided by the
temperature, then top-k cuts, then top-p cuts what is left; top_k 0 and top_p 1 are off in both. Each
prompt is one request for all its samples, which share its tokens through vLLM's prefix cache.

The module imports the standard library alone; vLLM and transformers where they are used.
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
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

PYTHON_VARIABLE = "GDRO_VLLM_PYTHON"
DTYPES = ("auto", "bfloat16", "float16", "float32")
NO_VLLM = 3  # exit code
LINES_TOLD = 30
OURS = "vllm: "
SHOWN = (OURS, "Processed prompts")  # how lines that are shown begin
HUB_ID = re.compile(r"\w[\w.-]*/\w[\w.-]*")
CAUSE = re.compile(r"\b[A-Za-z_.]*(?:Error|Exception): .*")

Prompt = str | Sequence[dict]  # a text or a chat


@dataclass(frozen=True)
class Job:
    """What is to be sampled; :func:`sample_with_vllm` says what each field means.

    max_model_len None: the longest prompt and max_new_tokens. result: where the result is written.
    """

    model_folder: str
    prompts: list
    samples: int
    max_new_tokens: int
    temperature: float
    result: str
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0
    tensor_parallel_size: int = 1
    gpu_memory_utilization: float = 0.9
    max_model_len: int | None = None
    dtype: str = "auto"
    progress: bool = True


def sample_with_vllm(
    model_folder: str | Path,
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
    max_model_len: int | None = None,
    dtype: str = "auto",
    python: str | Path | None = None,
    progress: bool = True,
) -> tuple[list[list[str]], list[list[int]]]:
    """Sample completions of each prompt with vLLM in a process that ends with the call.

    Args:
        model_folder: a whole model and its tokenizer, or a hub id. An adapter must be merged before.
        prompts: P prompts: texts, or chats (lists of messages), to which the tokenizer's chat
            template is applied with its opening of an answer.
        samples: completions of each prompt.
        max_new_tokens: longest completion, in tokens.
        temperature: above 0. For the likeliest tokens only, set top_k=1.
        top_p: keeps the likeliest tokens that together have this probability; 1 is off.
        top_k: keeps so many tokens; 0 is off.
        seed: of the sampling. Equal jobs give equal completions on the same machine.
        tensor_parallel_size: GPUs to split the model over.
        gpu_memory_utilization: part of the GPU's memory that vLLM takes, in (0, 1]; on a CPU, part
            of the main memory.
        max_model_len: longest prompt with its completion, in tokens; None for what the job needs.
        dtype: of weights and activations; "auto" is the model's own, or 16 bits where that is float32.
        python: interpreter that has vLLM; None for the environment variable GDRO_VLLM_PYTHON, and
            without it this interpreter.
        progress: show how loading and sampling go on, on stderr.

    Returns:
        texts and lengths, (P, samples) each: completions without special tokens, and their tokens,
        the one that ended them included.

    Raises:
        ValueError: for arguments that cannot be met, before the process starts.
        ImportError: if that interpreter has no vLLM.
        RuntimeError: if the process fails, with what it said last.
    """
    interpreter = _interpreter(python)
    with tempfile.TemporaryDirectory(prefix="gdro-vllm-") as folder:
        job = Job(
            model_folder=os.fspath(model_folder),
            prompts=[prompt if isinstance(prompt, str) else list(prompt) for prompt in prompts],
            samples=samples,
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            result=str(Path(folder) / "result.json"),
            top_p=top_p,
            top_k=top_k,
            seed=seed,
            tensor_parallel_size=tensor_parallel_size,
            gpu_memory_utilization=gpu_memory_utilization,
            max_model_len=max_model_len,
            dtype=dtype,
            progress=progress,
        )
        check_job(job)
        path = Path(folder) / "job.json"
        path.write_text(json.dumps(asdict(job)), encoding="utf-8")
        # by path and with -P: this very file, and none of its neighbours on the module path
        _run([interpreter, "-P", str(Path(__file__).resolve()), str(path)], progress)
        result = json.loads(Path(job.result).read_text(encoding="utf-8"))
    return result["texts"], result["lengths"]


def check_job(job: Job) -> None:
    """Raise ValueError, with argument, value and remedy, for a job that cannot be done."""
    _check_model(job.model_folder)
    if not job.prompts:
        raise ValueError("prompts is empty; give at least one")
    for number, prompt in enumerate(job.prompts):
        if not prompt or not (isinstance(prompt, str) or all(_is_message(part) for part in prompt)):
            raise ValueError(
                f"prompt {number} is {prompt!r}; give a text, or a list of messages with role and content"
            )
    least = {"samples": 1, "max_new_tokens": 1, "top_k": 0, "seed": 0, "tensor_parallel_size": 1}
    if job.max_model_len is not None:
        least["max_model_len"] = job.max_new_tokens + 1
    for name, smallest in least.items():
        value = getattr(job, name)
        if not isinstance(value, int) or isinstance(value, bool) or value < smallest:
            raise ValueError(f"{name} is {value!r}; give an integer of at least {smallest}")
    if not 0 < job.temperature < math.inf:
        raise ValueError(
            f"temperature is {job.temperature}; give a number above 0, and top_k=1 for the likeliest "
            "tokens only"
        )
    for name in ("top_p", "gpu_memory_utilization"):
        if not 0 < getattr(job, name) <= 1:
            raise ValueError(f"{name} is {getattr(job, name)}; give a number in (0, 1]")
    if job.dtype not in DTYPES:
        raise ValueError(f"dtype is {job.dtype!r}; give one of {DTYPES}")


def _check_model(name: str) -> None:
    folder = Path(name)
    if (folder / "config.json").is_file():
        return
    if (folder / "adapter_config.json").is_file():
        raise ValueError(f"model_folder {name} holds an adapter; merge it into its base and save that")
    if folder.exists() or not HUB_ID.fullmatch(name):
        raise ValueError(
            f"model_folder {name} holds no model (config.json); give a folder that save_pretrained "
            "wrote, or a hub id such as owner/name"
        )


def _is_message(part: Any) -> bool:
    return isinstance(part, dict) and "role" in part and "content" in part


def prompt_ids(tokenizer: Any, prompts: Sequence[Prompt]) -> list[list[int]]:
    """Token ids of each prompt: a text as the tokenizer has it, a chat by its template, its answer opened.

    Raises ValueError for a chat where the tokenizer has no chat template.
    """
    chats = [number for number, prompt in enumerate(prompts) if not isinstance(prompt, str)]
    if chats and tokenizer.chat_template is None:
        raise ValueError(
            f"prompt {chats[0]} is a chat and the tokenizer has no chat template; give texts, or a model "
            "that was taught to chat"
        )
    ids = []
    for prompt in prompts:
        if isinstance(prompt, str):
            ids.append(list(tokenizer(prompt)["input_ids"]))
        else:
            encoded = tokenizer.apply_chat_template(
                list(prompt), tokenize=True, add_generation_prompt=True, return_dict=True
            )
            ids.append(list(encoded["input_ids"]))
    return ids


# The process that asks


def _interpreter(python: str | Path | None) -> str:
    """The interpreter as a path that can be started. ValueError if it is none."""
    named = python is None and PYTHON_VARIABLE in os.environ
    name = os.environ[PYTHON_VARIABLE] if named else os.fspath(python or sys.executable)
    found = shutil.which(name)
    if found is None:
        source = f"environment variable {PYTHON_VARIABLE}" if named else "python"
        raise ValueError(f"{source} is {name!r}, which cannot be run; give an interpreter that has vLLM")
    return found


def _run(command: list[str], progress: bool) -> None:
    """Run the other half to its end; show its own lines if ``progress``."""
    last = deque[str](maxlen=LINES_TOLD)
    cause = ""
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    assert process.stdout is not None
    try:
        with process.stdout:
            for line in process.stdout:
                if line.startswith(SHOWN):
                    if progress:
                        print(line, end="", file=sys.stderr, flush=True)
                elif line.strip():
                    last.append(line)
                    # vLLM's workers tell the cause, those above them only that there was one
                    cause = cause or "".join(CAUSE.findall(line)[:1])
        code = process.wait()
    finally:
        if process.poll() is None:
            from gdro.processes import end_family

            end_family(process.pid)
            process.wait()
    if code == NO_VLLM:
        raise ImportError(
            f"vllm is not installed for {command[0]}; install the extra 'gdro[gpu]', or set the "
            f"environment variable {PYTHON_VARIABLE} to an interpreter that has it"
        )
    if code:
        raise RuntimeError(
            f"sampling with vLLM failed with exit code {code}: {cause or 'no error was named'}\n"
            f"It ended with\n{''.join(last)}"
        )


# The process that samples


def main(path: str) -> int:
    """Do the job at ``path`` and write its result; the exit code."""
    job = Job(**json.loads(Path(path).read_text(encoding="utf-8")))
    check_job(job)
    if importlib.util.find_spec("vllm") is None:
        return NO_VLLM
    _set_environment()
    result = json.dumps(_sample(job))
    partial_file = Path(f"{job.result}.tmp")
    partial_file.write_text(result, encoding="utf-8")
    os.replace(partial_file, job.result)
    return 0


def _set_environment() -> None:
    """What vLLM reads when it is imported; what the caller has set stays."""
    chosen = {
        # the scheduler in this process: requests meet in the same order each time, errors come here
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_NO_USAGE_STATS": "1",
    }
    for name, value in chosen.items():
        os.environ.setdefault(name, value)


def _sample(job: Job) -> dict[str, Any]:
    started = time.perf_counter()
    import torch
    from tqdm import tqdm
    from transformers import AutoTokenizer
    from vllm import LLM, SamplingParams
    from vllm.platforms import current_platform

    tokenizer = AutoTokenizer.from_pretrained(job.model_folder)
    ids = prompt_ids(tokenizer, job.prompts)
    on_cpu = current_platform.is_cpu()
    if on_cpu:  # compiling takes longer there than it saves, the model's as well as the sampler's
        torch.compiler.set_stance("force_eager")
    llm = LLM(
        model=job.model_folder,
        dtype=job.dtype,
        seed=job.seed,
        tensor_parallel_size=job.tensor_parallel_size,
        gpu_memory_utilization=job.gpu_memory_utilization,
        max_model_len=job.max_model_len or max(map(len, ids)) + job.max_new_tokens,
        enforce_eager=on_cpu,
        disable_log_stats=True,
    )
    loaded = time.perf_counter()
    _say(job, f"model loaded in {loaded - started:.1f} s")
    sampling = SamplingParams(
        n=job.samples,
        max_tokens=job.max_new_tokens,
        temperature=job.temperature,
        top_p=job.top_p,
        top_k=job.top_k,
        detokenize=False,
    )
    bar = partial(tqdm, mininterval=5.0, ascii=True, ncols=0) if job.progress else False
    outputs = llm.generate([{"prompt_token_ids": row} for row in ids], sampling, use_tqdm=bar)
    sampled = time.perf_counter()
    completions = [[list(part.token_ids) for part in output.outputs] for output in outputs]
    _check_whole(completions, job)
    lengths = [[len(part) for part in row] for row in completions]
    tokens, seconds = sum(map(sum, lengths)), sampled - loaded
    _say(job, f"{len(ids)} × {job.samples} completions, {tokens} tokens in {seconds:.1f} s")
    return {
        "texts": [tokenizer.batch_decode(row, skip_special_tokens=True) for row in completions],
        "lengths": lengths,
        "seconds": {"load": loaded - started, "sample": seconds},
    }


def _check_whole(completions: list[list], job: Job) -> None:
    counts = [len(row) for row in completions]
    if counts != [job.samples] * len(job.prompts):
        raise RuntimeError(f"vLLM gave {sum(counts)} completions, not {job.samples} for each prompt")


def _say(job: Job, line: str) -> None:
    if job.progress:
        print(OURS + line, flush=True)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m gdro.vllm_sampling JOB.json")
    sys.exit(main(sys.argv[1]))
