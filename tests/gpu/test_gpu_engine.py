"""vLLM in training: it samples from the weights of the step, as often as planned."""

import needs_gpu  # noqa: F401
import pytest

pytest.importorskip("vllm", reason="no vLLM: docs/gpu-box.md, 1")
from watch import frozen_weights, largest_change, make_trainer

SLEEPS = {"use_vllm": True, "vllm_enable_sleep_mode": True}


@pytest.mark.parametrize("sleeps", [False, True])
def test_the_engine_has_the_weights_of_the_step(tmp_path, sleeps):
    train = SLEEPS | {"vllm_enable_sleep_mode": sleeps}
    trainer, watch = make_trainer(tmp_path, "one-two-three", **train)
    trainer.train()
    watch.check_engine()
    watch.check_plans()


def test_an_adapter_is_merged_and_taken_out_without_a_trace(tmp_path):
    trainer, watch = make_trainer(
        tmp_path, "one-two-three", {"kind": "lora"}, max_steps=20, **SLEEPS
    )
    before = frozen_weights(trainer.model)
    trainer.train()
    watch.check_engine()
    assert largest_change(trainer.model, before) <= 1e-6
