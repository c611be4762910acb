"""vLLM and transformers find the same success rates, on all GPUs."""

from dataclasses import replace

import needs_gpu  # noqa: F401
import numpy as np
import pytest
import torch
from watch import CACHE, small_profile

from gdro_lab.experiments.blocks import EvaluationChoice
from gdro_lab.experiments.evaluation import evaluate_model
from gdro_lab.experiments.play import make_parts

pytest.importorskip("vllm", reason="no vLLM: docs/gpu-box.md, 1")


def test_both_engines_find_the_same_rates():
    source, tokenizer, data, _ = make_parts(
        small_profile("grpo").run("one", 0), CACHE, held_out=True
    )
    data, rates = replace(data, rows=data.rows[:30]), []
    for seed, engine in enumerate(("hf", "vllm")):
        processes = torch.cuda.device_count() if engine == "vllm" else 1
        choice = EvaluationChoice(
            engine=engine, samples=64, gpu_memory_utilization=0.3, data_parallel_size=processes
        )
        found = evaluate_model(choice, source, tokenizer, data, seed)
        rates.append(np.array([row["successes"] / row["trials"] for row in found]))
    pooled = (rates[0] + rates[1]) / 2
    errors = np.sqrt(2 * np.maximum(pooled * (1 - pooled), 1 / 64) / 64)
    assert pooled.any()
    assert np.abs((rates[0] - rates[1]) / errors).max() < 4.5  # of 30 standard normal numbers
