"""What the trainer leaves out changes no gradient; benchmarks/loop.py measures what it saves."""

from types import SimpleNamespace

import pytest
import torch
from conftest import TRAINS
from tiny_run import assert_gradient, half_right, same_weights, trained, watch_sizes
from trl import GRPOTrainer

from gdro.trainer import GDROTrainer
from gdro.trl.trimming import trim_batch

pytestmark = TRAINS


LOSSES = ["dapo", "grpo", "bnpo", "dr_grpo", "cispo", "luspo", "sapo", "vespo"]


@pytest.mark.parametrize("micro_batch", [32, 8])
def test_the_gradient_is_that_of_the_whole_batch(base, tmp_path, monkeypatch, micro_batch):
    """For all of TRL's losses, on the same batches: they depend on nothing but `loss_type`."""
    compared = []
    ours = GDROTrainer._compute_loss

    def both(self, model, inputs):
        weights = list(model.parameters())
        trained_by = self.loss_type
        for self.loss_type in LOSSES:
            whole = GRPOTrainer._compute_loss(self, model, inputs)
            loss = ours(self, model, inputs)
            # a loss without a signal does not run the model, so some weights may not be part of it
            whole, loss = (
                torch.autograd.grad(value, weights, materialize_grads=True)
                for value in (whole, loss)
            )
            assert_gradient(loss, whole)
        self.loss_type = trained_by
        compared.append(float((inputs["advantages"] == 0).float().mean()))
        return ours(self, model, inputs)

    monkeypatch.setattr(GDROTrainer, "_compute_loss", both)
    args = {"per_device_train_batch_size": micro_batch, "max_steps": 2}
    args["gradient_accumulation_steps"] = 32 // micro_batch
    trained(base, tmp_path, gdro_method="rollout", **args)
    assert len(compared) == 2 * 32 // micro_batch
    assert max(compared) > 0.1


def test_a_batch_without_a_signal_runs_no_model_and_moves_weights_as_if_it_had(
    base, tmp_path, monkeypatch
):
    rows = watch_sizes(monkeypatch)
    judged = []

    def one_in_three(completions, answer, **columns):
        judged.append(len(completions))
        return half_right(completions, answer) if len(judged) % 3 == 1 else [0.0] * len(completions)

    choices = {"reward": one_in_three, "gdro_method": "rollout", "max_steps": 6}
    choices |= {"weight_decay": 0.1, "per_device_train_batch_size": 16}
    choices |= {"gradient_accumulation_steps": 2}
    skipping = trained(base, tmp_path / "a", **choices)
    assert len(rows) <= 4
    judged.clear()
    several = SimpleNamespace(NO="none")  # as if more than one process trained
    monkeypatch.setattr("gdro.trl.trimming.DistributedType", several)
    running = trained(base, tmp_path / "b", **choices)
    assert len(rows) >= 12
    assert same_weights(skipping, running)  # by momentum and decay, in steps of gradient 0 too
    assert all("loss" in row for row in skipping.state.log_history[:6])


def test_what_is_kept():
    columns = torch.arange(12).reshape(3, 4)
    inputs = {
        "advantages": torch.tensor([0.0, 1.0, 0.0]),
        "prompt_ids": columns,
        "prompt_mask": torch.tensor([[1, 1, 1, 1], [0, 0, 1, 1], [0, 1, 1, 1]]),
        "completion_ids": columns,
        "completion_mask": torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0], [1, 0, 0, 0]]),
    }
    one, factor = trim_batch(inputs, 1, "grpo")
    assert one["prompt_ids"].tolist() == [[6, 7]]
    assert one["completion_ids"].tolist() == [[4, 5, 6]]
    assert factor == pytest.approx(1 / 3)
    _, factor = trim_batch(inputs, 2, "bnpo")  # the row that teaches, and the shortest other
    assert factor == pytest.approx(4 / 8)


@pytest.mark.parametrize(
    "changes", [{"beta": 0.02}, {"top_entropy_quantile": 0.5}, {"trim_batches": False}]
)
def test_rows_stay_where_more_than_advantages_teach(base, tmp_path, monkeypatch, changes):
    rows = watch_sizes(monkeypatch)
    trained(base, tmp_path, max_steps=2, gdro_method="rollout", **changes)
    assert rows == [32, 32]


def test_scoring_by_length_changes_no_log_probability(base, tmp_path, monkeypatch):
    gaps, columns = [], []
    ours = GDROTrainer._get_per_token_logps_and_entropies
    trls = GRPOTrainer._get_per_token_logps_and_entropies

    def watched(self, model, ids, *inputs, **kwargs):
        columns.append(ids.numel())
        return trls(self, model, ids, *inputs, **kwargs)

    def both(self, model, ids, mask, length, **kwargs):
        columns.clear()
        scored = ours(self, model, ids, mask, length, **kwargs)
        if not torch.is_grad_enabled():
            whole, *_ = trls(self, model, ids, mask, length, **kwargs)
            gap = float(((scored[0] - whole) * mask[:, -length:]).abs().max())
            gaps.append((gap, sum(columns) / ids.numel()))
        return scored

    monkeypatch.setattr(GRPOTrainer, "_get_per_token_logps_and_entropies", watched)
    monkeypatch.setattr(GDROTrainer, "_get_per_token_logps_and_entropies", both)
    # 24 tokens: an answer has 12, and some completions never end
    args = {"max_completion_length": 24, "per_device_train_batch_size": 4, "max_steps": 4}
    args |= {"gradient_accumulation_steps": 8, "beta": 0.02, "num_iterations": 2}
    trained(base, tmp_path, gdro_method="rollout", **args)
    assert len(gaps) == 4  # old and reference policy, in two generation batches
    # rounding makes 1.0e-6 to 1.9e-6, by the set of CPU kernels
    assert max(gap for gap, _ in gaps) < 2e-5
    assert min(share for _, share in gaps) < 1  # of the columns are computed
