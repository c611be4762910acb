"""What the trainer leaves out. That the gradient stays: test_same_gradient.py."""

from types import SimpleNamespace

from conftest import TRAINS
from tiny_run import half_right, same_weights, trained, watch_sizes

pytestmark = TRAINS


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
