"""Unsloth: its engine has the adapter of the step, its base stays, its savings change nothing."""

import needs_gpu  # noqa: F401
import numpy as np
import pytest
import torch

pytest.importorskip("unsloth", reason="no Unsloth: docs/gpu-box.md, 1")  # before TRL
from watch import check_resuming, check_trimming, frozen_weights, largest_change, make_trainer

LORA = {"kind": "unsloth-lora"}
ENGINE = LORA | {"fast_inference": True, "gpu_memory_utilization": 0.3}
TRAIN = {"use_vllm": True, "learning_rate": 5e-3}


def test_the_engine_has_the_adapter_of_the_step(tmp_path):
    trainer, watch = make_trainer(tmp_path, "one-two-three", ENGINE, **TRAIN)
    before = frozen_weights(trainer.model)
    trainer.train()
    watch.check_engine(allowed=0.03, ratio=0.05, times=5)
    watch.check_plans()
    assert largest_change(trainer.model, before) == 0


def test_rows_without_a_signal_do_not_count(tmp_path, monkeypatch):
    monkeypatch.setenv("UNSLOTH_GRPO_SEQ_PACKING", "0")
    check_trimming(tmp_path, LORA)


def test_a_killed_training_resumes(tmp_path):
    check_resuming(tmp_path, LORA)


def test_all_weights_reach_trls_engine(tmp_path):
    model = {"kind": "unsloth-full", "dtype": "float32"}
    trainer, watch = make_trainer(tmp_path, "one-two-three", model, use_vllm=True)
    trainer.train()
    watch.check_engine()


def test_asleep_the_engine_gives_its_memory_back_and_wakes_with_the_adapter(tmp_path):
    train = TRAIN | {"vllm_enable_sleep_mode": True, "max_steps": 4}
    trainer, watch = make_trainer(tmp_path, "both", ENGINE | {"standby": True}, **train)
    engine, free = trainer.vllm_generation.llm, {"awake": [], "asleep": []}

    def noting(when, call):
        def noted(*args, **given):
            free[when].append(torch.cuda.mem_get_info()[0])
            return call(*args, **given)

        return noted

    engine.generate = noting("awake", engine.generate)
    trainer.compute_loss = noting("asleep", trainer.compute_loss)
    trainer.train()
    cache, shape = engine.llm_engine.vllm_config.cache_config, trainer.model.config
    token = 4 * shape.num_hidden_layers * shape.num_key_value_heads * shape.head_dim  # bytes
    back = np.median(free["asleep"]) - np.median(free["awake"])
    assert back >= 0.8 * cache.num_gpu_blocks * cache.block_size * token
    assert watch.gaps[-1] <= 0.03
