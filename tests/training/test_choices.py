"""What a `GDROConfig` says reaches the controller, and what the trainer measures reaches it too."""

from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import tiny_run
from conftest import TRAINS
from datasets import Dataset
from trl import GRPOConfig

from gdro.trainer import GDROConfig, GDROTrainer
from gdro.trl.config import check_data, check_training, make_controller
from gdro.trl.unsloth import REFUSED_VARIABLES, check_unsloth_settings

pytestmark = TRAINS


def controller_of(folder, rows=None, **changes):
    """The controller of a small training."""
    dataset = None if rows is None else Dataset.from_list(rows)
    return make_controller(tiny_run.arguments(GDROConfig, folder, **changes), dataset)


def test_the_preset_of_the_paper_reaches_the_controller(tmp_path):
    paper = {"gdro_preset": "paper", "gdro_method": "prompt"}
    controller = controller_of(tmp_path, **paper)
    run = controller.run
    assert (run.advantage_std, run.advantage_clip) == ("population", 5.0)
    assert controller.method.signal == "surrogate"
    unclipped = controller_of(tmp_path, gdro_options={"advantage_clip": None}, **paper)
    assert unclipped.run.advantage_clip is None


def test_several_gpus_in_one_process_are_refused(tmp_path):
    args = tiny_run.arguments(GDROConfig, tmp_path)
    several = SimpleNamespace(**vars(args) | {"n_gpu": 2})
    with pytest.raises(ValueError, match="GPU"):
        check_training(several, make_controller(args))


def test_the_surrogate_losses_are_those_of_the_policy(base, tmp_path, monkeypatch):
    trainer = tiny_run.make(
        base,
        tmp_path,
        gdro_method="prompt",
        gdro_options={"signal": "surrogate"},
        beta=0.5,
        max_steps=3,
        learning_rate=1e-2,
    )
    observe = trainer.controller.observe
    divergences = []

    def watched(plan, group_ids, rewards, **given):
        observed = observe(plan, group_ids, rewards, **given)
        ids = np.asarray(group_ids)
        advantages = trainer.controller.run.advantages(np.asarray(rewards), ids, len(plan))
        divergences.append(given["losses"] + advantages)  # β·KL is what is left
        return observed

    monkeypatch.setattr(trainer.controller, "observe", watched)
    trainer.train()
    assert np.abs(divergences[0]).max() < 1e-5  # the policy is the reference
    assert min(kl.min() for kl in divergences) > -1e-5
    assert divergences[-1].max() > 1e-3


def test_rewards_that_are_normalized_first_are_refused_where_trls_advantages_are_replaced(tmp_path):
    own = {"multi_objective_aggregation": "normalize_then_sum", "gdro_method": "grpo"}
    args = tiny_run.arguments(GDROConfig, tmp_path, **own)
    check_training(args, make_controller(args))
    args = tiny_run.arguments(GDROConfig, tmp_path, advantage_clip=1.0, **own)
    with pytest.raises(ValueError, match="multi_objective_aggregation"):
        check_training(args, make_controller(args))


def test_images_are_refused_where_the_policy_is_scored_again(tmp_path):
    options = {"gdro_method": "prompt", "gdro_options": {"signal": "surrogate"}}
    dataset = Dataset.from_list([{"prompt": "1", "image": "x"}] * 8)
    for beta, expected in ((0.0, nullcontext()), (0.1, pytest.raises(ValueError, match="image"))):
        args = tiny_run.arguments(GDROConfig, tmp_path, beta=beta, **options)
        with expected:
            check_data(args, make_controller(args).method, dataset, {})


def test_a_config_without_a_method_and_one_of_trl_are_refused(tmp_path):
    given = {"output_dir": str(tmp_path), "bf16": False, "use_cpu": True}
    with pytest.raises(ValueError, match="method"):
        GDROConfig(**given)
    with pytest.raises(ValueError, match="GRPOConfig"):
        GDROTrainer("no/such-model", tiny_run.half_right, args=GRPOConfig(**given))


def test_what_unsloth_cannot_do_is_refused_without_it(monkeypatch):
    options = {"vllm_sampling_params": None, "use_vllm": False, "vllm_enable_sleep_mode": False}
    args = SimpleNamespace(**options)
    model = SimpleNamespace()
    check_unsloth_settings(True, model, args)
    with_engine = SimpleNamespace(vllm_engine=object())
    with pytest.raises(ValueError, match="engine"):
        check_unsloth_settings(False, with_engine, args)
    lora = SimpleNamespace(peft_config={})
    by_vllm = SimpleNamespace(**vars(args) | {"use_vllm": True})
    with pytest.raises(ValueError, match="fast_inference"):
        check_unsloth_settings(True, lora, by_vllm)
    for name in REFUSED_VARIABLES:
        monkeypatch.setenv(name, "1")
        with pytest.raises(ValueError, match=name):
            check_unsloth_settings(True, model, args)
        monkeypatch.delenv(name)


def test_a_sweep_over_one_config_trains_each_method_as_alone(trained, tmp_path):
    options = {"per_device_train_batch_size": 8, "max_steps": 2, "learning_rate": 1e-2}
    args = tiny_run.arguments(
        GDROConfig, tmp_path, gdro_method="grpo", max_completion_length=10, **options
    )
    for method in ("grpo", "pivotal", "both", "grpo"):
        args.gdro_method = method
        alone = trained(method, trim_batches=True)  # as GDROConfig has it
        assert tiny_run.same_weights(trained(method, args=args), alone)
