"""Kept successes: what the buffer holds, which of it is replayed, and the gradient of the loop."""

import numpy as np
import pytest
import tiny_run
import torch
from conftest import TRAINS
from datasets import Dataset
from helpers import visit
from transformers import AutoModelForCausalLM, AutoTokenizer

from gdro import GDROController, Method, register
from gdro.methods.replay import PivotalReplay, replay_weights
from gdro.trainer import GDROConfig, GDROTrainer
from gdro_lab import loop
from gdro_lab.buffer import ReplayBuffer

pytestmark = TRAINS


def test_the_buffer_keeps_the_newest_distinct_successes():
    buffer = ReplayBuffer(size=2)
    for uid, text in [("a", [1, 2]), ("b", [5]), ("a", [6]), ("a", [3]), ("a", [4, 4, 4])]:
        buffer.add(uid, text, key=str(sum(text)))  # [3] reads as [1, 2] does
    assert buffer.uids == ["a", "b"]
    uids, texts, weights = buffer.rows(np.array([1, 0]), np.array([3.0, 8.0]))
    assert list(zip(uids, texts, weights, strict=True)) == [
        ("b", (5,), 3.0),
        ("a", (6,), 4.0),
        ("a", (4, 4, 4), 4.0),
    ]
    assert ReplayBuffer().rows(np.zeros(0, int), np.zeros(0))[0] == []


def test_the_weight_fades_as_a_prompt_is_solved():
    """c · max(p̂, .1)(1 − p̂): zero at 1, largest at a half."""
    weights = replay_weights(np.array([0.0, 0.02, 0.5, 0.9, 1.0]), scale=8)
    np.testing.assert_allclose(weights, [0.8, 0.784, 2.0, 0.72, 0.0])


def replayed(controller, uids):
    positions, weights = controller.replay(uids)
    return {uids[p]: w for p, w in zip(positions, weights, strict=True)}


def test_replay_follows_the_posterior_and_not_the_order_of_the_buffer():
    uids = [f"prompt {i}" for i in range(20)]
    answers = []
    for order in (uids, uids[::-1]):
        controller = GDROController("pivotal_replay", replayed=5, start_at=2, seed=1)
        visit(controller, order, [uid in uids[:10] for uid in order])
        answers.append(replayed(controller, order[:1] + [u for u in order if u != order[0]]))
    assert answers[0] == answers[1]
    assert len(answers[0]) == 5
    # one of four rollouts correct, Jeffreys' prior: p̂ = 1.5/5; none: .5/5; c = 2 · 4
    expected = {uid: 8 * ((0.3 * 0.7) if uid in uids[:10] else 0.1 * 0.9) for uid in uids}
    for uid, weight in answers[0].items():
        assert weight == pytest.approx(expected[uid])


def test_a_prompt_is_replayed_a_few_times_between_visits():
    controller = GDROController("pivotal_replay", replayed=4, most=2, start_at=1)
    uids = [1, 2, 3, 4]
    visit(controller, uids, [True] * 4)
    assert [len(replayed(controller, uids)) for _ in range(2)] == [4, 4]
    assert controller.replay(uids) is None
    visit(controller, [2, 3], [False, False])
    assert set(replayed(controller, uids)) == {2, 3}
    copy = GDROController("pivotal_replay", replayed=4, most=2, start_at=1)
    copy.load_state_dict(controller.state_dict())
    assert replayed(copy, uids) == replayed(controller, uids)


def test_few_kept_prompts_and_other_methods_replay_nothing():
    assert not Method().replays
    assert PivotalReplay().replays
    for method, options in {"pivotal_replay": {"start_at": 3}, "pivotal": {}}.items():
        controller = GDROController(method, **options)
        visit(controller, [1, 2], [True, True])
        assert controller.replay([1, 2]) is None
        assert controller.replay([]) is None


@register("replay_alone")
class Watched(PivotalReplay):
    """Zero advantages leave the replayed texts alone in the loss."""

    def advantages(self, batch):
        return np.zeros(len(batch.rewards_R))


def test_the_gradient_of_replay_is_that_of_plain_torch(base, monkeypatch):
    """With zero advantages a step's gradient is −Σ w ∇log π over all tokens of both."""
    model = AutoModelForCausalLM.from_pretrained(base)
    tokenizer = AutoTokenizer.from_pretrained(base)
    rows, seen = tiny_run.make_task().train, {}
    whole, buffers = loop.policy_gradient, []
    monkeypatch.setattr(
        loop, "ReplayBuffer", lambda size: buffers.append(ReplayBuffer(size)) or buffers[-1]
    )

    def watch(model, prompts, texts, advantages):
        seen.update(prompts=prompts, texts=texts, advantages=advantages)
        tokens = whole(model, prompts, texts, advantages)
        seen["gradient"] = tiny_run.gradient(model)
        return tokens

    monkeypatch.setattr(loop, "policy_gradient", watch)
    controller = GDROController(Watched(start_at=1, replayed=3), mean_rollouts=4)
    [row] = loop.train(
        model,
        tokenizer,
        rows,
        tiny_run.half_right,
        controller,
        steps=1,
        prompts=8,
        learning_rate=1e-3,
        max_new_tokens=12,
        seed=0,
    )
    kept = {text for texts in buffers[0].texts.values() for text in texts.values()}
    again = seen["advantages"] != 0
    assert 3 <= row["replayed"] == int(again.sum()) <= 12
    eos = tokenizer.eos_token_id
    ended = [text[: ([*text, eos]).index(eos) + 1] for text in seen["texts"].tolist()]
    assert {tuple(ended[r]) for r in again.nonzero()[:, 0]} <= kept
    assert row["trained_tokens"] == sum(len(ended[r]) for r in again.nonzero()[:, 0])

    # the same by transformers, text by text
    model, loss = AutoModelForCausalLM.from_pretrained(base), 0.0
    for r in again.nonzero()[:, 0]:
        ids = torch.cat([seen["prompts"][r], torch.tensor(ended[r])])[None]
        logps = model(ids[:, :-1]).logits.log_softmax(-1).gather(-1, ids[:, 1:, None])[0, :, 0]
        loss = loss - seen["advantages"][r] * logps[len(seen["prompts"][r]) - 1 :].sum()
    (loss / sum(map(len, ended))).backward()
    tiny_run.assert_gradient(tiny_run.gradient(model), seen["gradient"])


def test_the_loop_keeps_whole_texts_once(base, monkeypatch):
    model = AutoModelForCausalLM.from_pretrained(base)
    tokenizer = AutoTokenizer.from_pretrained(base)
    eos = tokenizer.eos_token_id
    pad = tokenizer.pad_token_id
    one, two = tokenizer.convert_tokens_to_ids(["1", "2"])
    sampled = torch.tensor(
        [
            [one, eos, eos, eos],
            [one, eos, two, eos],  # what comes after the end does not count
            [one, pad, eos, eos],
            [one, two, one, two],
            [eos, eos, eos, eos],
            [two, eos, eos, eos],
        ]
    )
    monkeypatch.setattr(loop, "sample", lambda *given: sampled)
    controller = GDROController("pivotal_replay", mean_rollouts=6)
    rows = tiny_run.make_task().train[:1]
    training = loop.LoopTraining(model, tokenizer, rows, tiny_run.all_right, controller, 4, seed=0)
    training.play_batch(1, loop.batches(1, 1, np.random.default_rng(0)))
    assert training.replay_buffer.texts == {0: {"1": (one, eos), "2": (two, eos)}}


@pytest.mark.parametrize(
    ("method", "options"), [("pivotal_replay", {"start_at": 1, "most": None}), ("raft", {})]
)
def test_all_kept_prompts_are_replayed_evenly(method, options):
    """Two of six prompts in each step, all with a kept success."""
    controller = GDROController(method, replayed=2, **options)
    uids = np.arange(6)
    times = np.zeros(6)
    for _ in range(400):
        visit(controller, uids, [1] * 6)
        times[controller.replay(uids)[0]] += 1
    assert times.min() > 90  # of 133


@pytest.mark.parametrize("method", ["pivotal_replay", "raft", "replay_alone"])
def test_a_method_that_replays_is_refused_in_trl_before_a_model_is_loaded(tmp_path, method):
    args = tiny_run.arguments(GDROConfig, tmp_path, gdro_method=method)
    rows = Dataset.from_list([{"prompt": str(n)} for n in range(8)])
    with pytest.raises(ValueError, match=f"{method}.*replays"):
        GDROTrainer("no/such-model", tiny_run.all_right, args=args, train_dataset=rows)


def test_raft_without_replay_trains_in_trl(base, tmp_path):
    trainer = tiny_run.trained(base, tmp_path, gdro_method="raft", gdro_options={"replayed": 0})
    assert len(trainer.record) == 5
