"""Methods that sample in rounds, in TRL: what is sampled, trains, is thrown away and counted."""

import dynamic_sampling
import numpy as np
import pytest
import sharded_run
import torch
from conftest import TRAINS
from processes import run_ranks
from safetensors.torch import load_file
from tiny_models import byte_tokenizer
from tiny_run import assert_gradient, gradient, half_right, make, trained
from trl import GRPOTrainer

from gdro.files import load_state
from gdro.method import Method
from gdro.registry import register
from gdro.rounds import prompts_of_batch
from gdro.trainer import GDROTrainer
from gdro_lab import loop

pytestmark = TRAINS

METHODS = {
    "dapo": {},
    "reinforce_ada": {},
    "dars": {},
    "pilot_commit": {"n_max": 5},  # leaves some of the budget where few prompts are worth it
}


def test_further_prompts_come_epoch_by_epoch():
    batches = [
        prompts_of_batch(number, 3, 7, seed=5, shuffled=True).tolist() for number in range(4)
    ]
    epochs = [batches[0] + batches[1], batches[2] + batches[3]]
    assert all(len(set(epoch)) == 6 for epoch in epochs)
    assert epochs[0] != epochs[1]
    assert prompts_of_batch(3, 3, 7, seed=5, shuffled=False).tolist() == [3, 4, 5]


@pytest.mark.parametrize("method", METHODS)
def test_the_gradient_is_that_of_the_loop_on_the_same_completions(
    base, tmp_path, monkeypatch, method
):
    compared, rewarded = [], []
    ours = GDROTrainer._compute_loss

    def both(self, model, inputs):
        assert len(inputs["advantages"]) == 32  # TRL's own size
        weights, eos = list(model.parameters()), model.config.eos_token_id
        counts = inputs["completion_mask"] * inputs.get("tool_mask", 1)
        real = counts.sum(dim=1) > 0  # not what only fills the batch
        texts = torch.where(counts > 0, inputs["completion_ids"], eos)[real]
        model.zero_grad()
        advantages = inputs["advantages"][real]
        tokens = loop.policy_gradient(model, inputs["prompt_ids"][real], texts, advantages)
        assert tokens == inputs["num_items_in_batch"]
        expected = gradient(model)
        model.zero_grad()
        for loss in (GRPOTrainer._compute_loss(self, model, inputs), ours(self, model, inputs)):
            assert_gradient(torch.autograd.grad(loss, weights), expected)
        compared.append((int(real.sum()), float((advantages != 0).float().mean())))
        return ours(self, model, inputs)

    def reward(completions, answer, **kwargs):
        rewarded.append(len(completions))
        return half_right(completions, answer)

    monkeypatch.setattr(GDROTrainer, "_compute_loss", both)
    options = {"gdro_method": method, "gdro_options": METHODS[method]}
    trainer = trained(base, tmp_path, reward=reward, max_steps=5, **options)
    assert len(compared) == 5
    rows = trainer.record
    # what is thrown away is counted
    assert sum(row["rollouts_spent"] for row in rows) == sum(rewarded)
    assert sum(row["tokens"] for row in rows) == trainer.state.num_input_tokens_seen
    if method == "dapo":
        assert len(rows) > 5
        assert set(compared) == {(32, 1.0)}
        logged = [row["gdro/has_signal"] for row in trainer.state.log_history if "reward" in row]
        assert logged == [1.0] * 5
    else:
        assert [row["rollouts_spent"] for row in rows] == [trains for trains, _ in compared]
        assert len(rewarded) > 5  # more than one round a step
        logged = [row["reward"] for row in trainer.state.log_history if "reward" in row]
        # TRL's mean, too, is over what was sampled, without what only fills the batch
        assert logged == pytest.approx([row["mean_reward"] for row in rows])
    if method == "pilot_commit":
        assert min(trains for trains, _ in compared) < 32


@pytest.mark.parametrize("method", ["dapo", "pilot_commit"])
def test_two_processes_train_as_one_does(base, tmp_path, method):
    states, models = [], []
    for processes in (1, 2):
        folder = tmp_path / str(processes)
        folder.mkdir()
        run_ranks(processes, sharded_run.train_in_rounds, base, folder, method)
        states.append(load_state(folder / "state.json"))
        models.append(load_file(folder / "model" / "model.safetensors"))
    spent = [np.array([row["rollouts_spent"] for row in state["record"]]) for state in states]
    for row in states[0]["record"] + states[1]["record"]:
        del row["rollouts_spent"], row["tokens"]
    assert states[0] == states[1]
    extra = spent[1] - spent[0]  # a round that two processes cannot divide takes one rollout more
    assert set(extra.tolist()) <= ({0} if method == "dapo" else {0, 1})
    start = load_file(base / "model.safetensors")
    for name, weight in models[0].items():
        moved = (weight - start[name]).abs().max()
        assert moved > 0
        # rounding makes 1.7e-4 to 5.7e-4, most in weights near 1 that hardly move
        assert (weight - models[1][name]).abs().max() < 6e-3 * moved, name


@register("never_ready")
class NeverReady(Method):
    needs_losses = True

    def ready(self, batch):
        return False


def test_what_rounds_cannot_do_is_refused(base, tmp_path, monkeypatch):
    monkeypatch.setattr("gdro.trl.rounds.MOST_BATCHES", 3)
    with pytest.raises(ValueError, match="never_ready"):
        trained(base, tmp_path, gdro_method="never_ready")
    with pytest.raises(ValueError, match="beta"):
        make(base, tmp_path, gdro_method="never_ready", beta=0.1)
    rows = [{"prompt": "1", "answer": "1", "uid": uid, "image": "x"} for uid in range(8)]
    with pytest.raises(ValueError, match="'image'"):
        make(base, tmp_path, rows, gdro_method="dapo")


@pytest.mark.parametrize(
    ("method", "more"),
    [
        ("dapo", {}),
        ("reinforce_ada", {}),
        ("prompt", {"gdro_options": {"signal": "surrogate"}, "beta": 0.04}),  # scores texts again
    ],
)
def test_images_inside_messages_are_refused_and_not_trained_without(base, tmp_path, method, more):
    picture = {"type": "image", "image": "x.png"}
    rows = [
        {"prompt": [{"role": "user", "content": [picture]}], "answer": "1", "uid": uid}
        for uid in range(8)
    ]
    trainer = make(base, tmp_path, rows, gdro_method=method, max_steps=1, **more)
    trainer.processing_class = byte_tokenizer()
    before = [weight.clone() for weight in trainer.model.parameters()]
    with pytest.raises(ValueError, match=method):
        trainer.train()
    assert not trainer.record
    weights = zip(before, trainer.model.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in weights)


def test_the_example_of_dynamic_sampling(base, tmp_path, monkeypatch):
    monkeypatch.setattr(dynamic_sampling, "tiny_base", lambda *_, **__: base)
    monkeypatch.setattr(dynamic_sampling.embedded, "reward", half_right)  # the base is too weak
    [row] = dynamic_sampling.main(1, str(tmp_path))
    assert row["gdro/has_signal"] == 1
    assert row["gdro/rollouts_spent"] >= 32
