"""One check of `gdro check` with the real vLLM on a CPU; a process of its own.

python tests/check_run.py CHECK BASE_DIR OUTPUT_DIR

As vllm_run.py, it keeps the plain matrices that vLLM would pack and throw away on a CPU.
"""

import json
import sys
from dataclasses import asdict
from pathlib import Path

import torch
import vllm_run

from gdro.gpu.bench import Bench
from gdro.gpu.check import run_check

if __name__ == "__main__":
    torch.compiler.set_stance("force_eager")
    vllm_run.keep_plain_weights()
    torch.set_num_threads(1)
    name, base, folder = sys.argv[1:]
    results = run_check(name, Bench(Path(folder), source=base, reloads=True))
    (Path(folder) / "results.json").write_text(json.dumps([asdict(result) for result in results]))
