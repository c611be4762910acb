"""Kept successes: what the buffer holds, which of it is replayed, and the gradient of the loop."""

import json

import numpy as np
import pytest
import tiny_run
import torch
from conftest import TRAINS
from helpers import visit
from transformers import AutoModelForCausalLM, AutoTokenizer, ProcessorMixin

from gdro import GDROController, Method, register
from gdro.methods.buffer import ReplayBuffer, is_whole, replay_weights
from gdro.methods.replay import PivotalReplay
from gdro.trainer import GDROTrainer
from gdro.trl import replay
from gdro_lab import loop

pytestmark = TRAINS


def test_the_buffer_keeps_the_newest_distinct_successes():
    buffer = ReplayBuffer(size=2)
    for uid, text in [("a", [1, 2]), ("b", [5]), ("a", [3]), ("a", [1, 2]), ("a", [4, 4, 4])]:
        buffer.add(uid, text, key=str(text))
    assert buffer.uids == ["a", "b"]
    uids, texts, weights = buffer.rows(np.array([1, 0]), np.array([3.0, 8.0]))
    assert list(zip(uids, texts, weights, strict=True)) == [
        ("b", (5,), 3.0),
        ("a", (3,), 4.0),
        ("a", (4, 4, 4), 4.0),
    ]
    copy = ReplayBuffer()
    copy.load_state_dict(json.loads(json.dumps(buffer.state_dict())))
    assert (copy.size, copy.texts) == (buffer.size, buffer.texts)
    copy.add("a", [4, 4, 4], key=str([4, 4, 4]))
    assert copy.texts == buffer.texts
    assert ReplayBuffer().rows(np.zeros(0, int), np.zeros(0))[0] == []


def test_texts_that_read_the_same_are_one():
    buffer = ReplayBuffer(size=2)
    buffer.add("a", [7, 8, 1], key="go")
    buffer.add("a", [9, 1], key="go")
    assert buffer.rows(np.array([0]), np.ones(1))[1] == [(7, 8, 1)]


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ([5, 6, 1], True),
        ([5, 2], True),  # there are two ends
        ([5, 6], False),
        ([], False),
        ([1], False),
        ([5, 0, 1], False),
        ([0, 5, 1], False),
        ([5, 2, 1], False),
        ([5, 0], False),
    ],
)
def test_a_whole_text_ends_and_has_no_special_token_inside(text, whole):
    assert is_whole(text, ends={1, 2}, specials={0, 1}) == whole


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
        controller = GDROController("pivotal_replay", prompts=5, start_at=2, seed=1)
        visit(controller, order, [uid in uids[:10] for uid in order])
        answers.append(replayed(controller, order[:1] + [u for u in order if u != order[0]]))
    assert answers[0] == answers[1]
    assert len(answers[0]) == 5
    # one of four rollouts correct, Jeffreys' prior: p̂ = 1.5/5; none: .5/5; c = 2 · 4
    expected = {uid: 8 * ((0.3 * 0.7) if uid in uids[:10] else 0.1 * 0.9) for uid in uids}
    for uid, weight in answers[0].items():
        assert weight == pytest.approx(expected[uid])


def test_a_prompt_is_replayed_a_few_times_between_visits():
    controller = GDROController("pivotal_replay", prompts=4, most=2, start_at=1)
    uids = [1, 2, 3, 4]
    visit(controller, uids, [True] * 4)
    assert [len(replayed(controller, uids)) for _ in range(2)] == [4, 4]
    assert controller.replay(uids) is None
    visit(controller, [2, 3], [False, False])
    assert set(replayed(controller, uids)) == {2, 3}
    copy = GDROController("pivotal_replay", prompts=4, most=2, start_at=1)
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
    controller = GDROController(Watched(start_at=1, prompts=3), mean_rollouts=4)
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


def all_right(completions, **columns):
    return [1.0] * len(completions)


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
    training = loop.LoopTraining(model, tokenizer, rows, all_right, controller, 4, seed=0)
    training.play_batch(np.zeros(1, int))
    assert training.replay_buffer.texts == {0: {"1": (one, eos), "2": (two, eos)}}


MICRO = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 4}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        MICRO,
        MICRO | {"gdro_method": "raft", "gdro_options": {"prompts": 7}},  # one text of each prompt
        {"beta": 0.04, "steps_per_generation": 2, "gradient_accumulation_steps": 1},
    ],
    ids=["one batch", "micro-batches", "seven texts", "old and reference log-probabilities"],
)
def test_the_gradient_of_replay_in_trl_is_the_loops(base, tmp_path, monkeypatch, changes):
    """Rows of kept texts count once, with their weight; with β, their ratio is 1 and their KL 0."""
    sizes = tiny_run.watch_sizes(monkeypatch)
    given = {"gdro_method": "replay_alone", "gdro_options": {"start_at": 1, "prompts": 7}}
    trainer = tiny_run.train_one_step(base, tmp_path, **given | changes)
    batch = trainer.batch
    assert len(batch["advantages"]) % trainer.args.steps_per_generation == 0  # TRL drops the rest
    assert max(sizes) <= trainer.args.per_device_train_batch_size  # of the user
    again = batch["completion_mask"].sum(1) > 0
    kept = again & (batch["advantages"] != 0)
    log = trainer.state.log_history[0]
    assert kept[:32].sum() == 0 < kept.sum() == log["gdro/replayed"]
    # the rollouts of this method have no advantage
    assert trainer.record[0]["trained_tokens"] == log["gdro/replayed_tokens"]
    if changes.get("beta"):
        gap = batch["old_per_token_logps"] - batch["ref_per_token_logps"]
        assert (gap[kept] == 0).all()
        return  # the rollouts' KL is in the gradient too, and a batch serves two steps
    eos = trainer.processing_class.eos_token_id
    texts = batch["completion_ids"].masked_fill(batch["completion_mask"] == 0, eos)
    model = AutoModelForCausalLM.from_pretrained(base)
    tokens = loop.policy_gradient(
        model, batch["prompt_ids"][again], texts[again], batch["advantages"][again]
    )
    assert tokens == batch["num_items_in_batch"]
    tiny_run.assert_gradient(tiny_run.gradient(model), trainer.gradient)


@pytest.mark.parametrize(("reward", "trains"), [(tiny_run.half_right, True), (None, False)])
def test_tokens_of_flat_groups_are_not_trained(base, tmp_path, reward, trains):
    changes = {"max_steps": 1, "gdro_method": "grpo"}
    trainer = tiny_run.trained(base, tmp_path, reward=reward or all_right, **changes)
    trained = trainer.record[0]["trained_tokens"]
    assert (trained > 0) == trains
    assert trained < trainer.record[0]["tokens"]  # which holds the prompts


@pytest.mark.parametrize("loss_type", ["dapo", "grpo", "bnpo", "dr_grpo"])
def test_the_parts_of_an_enlarged_micro_batch_have_the_gradient_of_the_whole(
    base, tmp_path, monkeypatch, loss_type
):
    sizes = tiny_run.watch_sizes(monkeypatch)
    given = {"gdro_method": "replay_alone", "gdro_options": {"start_at": 1, "prompts": 16}}
    given |= {"loss_type": loss_type, "trim_batches": False}
    in_parts = tiny_run.train_one_step(base, tmp_path, **given)
    assert len(sizes) > 1
    monkeypatch.setattr(replay, "needs_whole_batch", lambda trainer: True)
    whole = tiny_run.train_one_step(base, tmp_path, **given)
    assert sizes[-1] == sum(sizes[:-1])
    tiny_run.assert_gradient(in_parts.gradient, whole.gradient)


@pytest.mark.parametrize("masks", [False, True])
def test_the_trainer_keeps_no_completion_that_is_cut(base, tmp_path, masks):
    """With `mask_truncated_completions` TRL has no token of them left."""
    trainer = train_all_right(base, tmp_path, 2, mask_truncated_completions=masks)
    assert trainer.state.log_history[0]["completions/clipped_ratio"] == 1
    assert trainer.replay_buffer.uids == []


def test_the_trainer_keeps_whole_texts(base, tmp_path):
    trainer = train_all_right(base, tmp_path, 12)
    tokenizer = trainer.processing_class
    assert len(trainer.replay_buffer.uids) > 1
    for texts in trainer.replay_buffer.texts.values():
        for _, ids in texts.values():
            assert ids[-1] == tokenizer.eos_token_id
            assert not set(ids[:-1]) & set(tokenizer.all_special_ids)


def train_all_right(base, folder, tokens, **changes):
    """One step with pivotal_replay on completions that all earn the reward."""
    changes |= {"gdro_method": "pivotal_replay", "max_completion_length": tokens}
    return tiny_run.trained(base, folder, reward=all_right, max_steps=1, **changes)


@pytest.mark.parametrize(
    ("method", "options"), [("pivotal_replay", {"start_at": 1, "most": None}), ("raft", {})]
)
def test_all_kept_prompts_are_replayed_evenly(method, options):
    """Two of six prompts in each step, all with a kept success."""
    controller = GDROController(method, prompts=2, **options)
    uids = np.arange(6)
    times = np.zeros(6)
    for _ in range(400):
        visit(controller, uids, [1] * 6)
        times[controller.replay(uids)[0]] += 1
    assert times.min() > 90  # of 133


class TextProcessor(ProcessorMixin):
    """A processor around a tokenizer, as models with pictures have one."""

    attributes = ("tokenizer",)
    tokenizer_class = "AutoTokenizer"

    def __init__(self, tokenizer=None, chat_template=None):
        super().__init__(tokenizer, chat_template=chat_template)


def test_the_buffer_works_with_a_processor(base, tmp_path):
    """It has a tokenizer, and no special tokens of its own."""
    plain = train_all_right(base, tmp_path / "plain", 12)
    model = AutoModelForCausalLM.from_pretrained(base)
    model.config.image_token_id = -1  # TRL asks for it where there is a processor
    given = {"model": model, "processing_class": TextProcessor(AutoTokenizer.from_pretrained(base))}
    trainer = tiny_run.make_trainer(GDROTrainer, plain.args, base, reward=all_right, **given)
    trainer.train()
    assert trainer.replay_buffer.uids == plain.replay_buffer.uids
    assert tiny_run.same_weights(trainer, plain)
