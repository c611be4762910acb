"""Several GPUs: the weights of DDP and FSDP2 reach vLLM, tied and untied."""

import needs_gpu  # noqa: F401
import pytest
import torch
from tiny_models import untie
from watch import CACHE, TOLERANCE, small_profile

from gdro_lab.experiments.play import make_base, train_run
from gdro_lab.experiments.records import read_table

pytest.importorskip("vllm", reason="no vLLM: docs/gpu-box.md, 1")
pytestmark = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("config", ["ddp", "fsdp2"])
@pytest.mark.parametrize("evaluates", [False, True])  # FSDP2 reshards before the next sync
def test_weights_reach_the_engine(tmp_path, config, tied, evaluates):
    base = make_base(small_profile("both").run("one", 0), CACHE)
    source = base if tied else str(untie(base, tmp_path / "model"))
    train = {"use_vllm": True, "vllm_enable_sleep_mode": True}
    if evaluates:
        train |= {"eval_strategy": "steps", "eval_steps": 1, "eval_prompts": 8}
    launch = {"processes": 2, "config": config}
    profile = small_profile("both", {"source": source}, launch, **train)
    train_run(profile.run("one", 0), tmp_path / "run", CACHE)
    logged = "sampling/sampling_logp_difference/mean"
    gaps = [
        row[logged] for row in read_table(tmp_path / "run" / "log_history.jsonl") if logged in row
    ]
    assert 0 < max(gaps) <= TOLERANCE
