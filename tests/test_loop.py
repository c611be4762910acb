"""The loop: its model is transformers', its gradient is GDROTrainer's."""

import numpy as np
import pytest
import tiny_run
import torch
from conftest import TRAINS
from transformers import AutoModelForCausalLM, AutoTokenizer

from gdro import GDROController, Method
from gdro_lab import loop
from gdro_lab.qwen3 import forward

pytestmark = TRAINS


@pytest.fixture
def model(base):
    return AutoModelForCausalLM.from_pretrained(base)


@pytest.fixture(scope="module")
def tokenizer(base):
    return AutoTokenizer.from_pretrained(base)


class EverySecond(Method):
    """Takes a step only after every second batch."""

    batches = 0

    def ready(self, batch):
        self.batches += 1
        return self.batches % 2 == 0


class LastPrompts(Method):
    """Always draws the same prompts."""

    def draw(self, pool, size, rng):
        return np.arange(len(pool))[-size:]


ROWS = tiny_run.make_task().train


def run(model, tokenizer, method="grpo", reward=tiny_run.half_right, **changes):
    controller = GDROController(method, mean_rollouts=4)
    arguments = {"prompts": 8, "learning_rate": 1e-3, "max_new_tokens": 12, "seed": 0, "steps": 3}
    return loop.train(model, tokenizer, ROWS, reward, controller, **(arguments | changes))


def weights(model):
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def test_the_forward_pass_is_transformers_with_and_without_a_cache(model, tokenizer):
    ids = loop.prompt_ids(model, tokenizer, ROWS[:7])
    with torch.no_grad():
        expected = model(input_ids=ids).logits
        torch.testing.assert_close(forward(model, ids), expected)
        cache, sizes = [], [3, 1, 1, ids.shape[1] - 5]
        pieces = [forward(model, piece, cache) for piece in ids.split(sizes, dim=1)]
    torch.testing.assert_close(torch.cat(pieces, dim=1), expected)
    assert cache[0][0].shape[2] == ids.shape[1]


def test_samples_follow_the_model_and_stop_at_the_end(model, tokenizer):
    # at a tenth of its logits the model has many next tokens, the one that ends a text among them
    model.lm_head.weight.data *= 0.1
    ids = loop.prompt_ids(model, tokenizer, ROWS[:2])
    repeats, vocabulary, eos = 20_000, model.config.vocab_size, tokenizer.eos_token_id
    generator = torch.Generator().manual_seed(0)
    texts = loop.sample(model, ids.repeat_interleave(repeats, dim=0), 2, generator)
    texts = texts.view(2, repeats, 2)
    with torch.no_grad():
        for prompt, pairs in zip(ids, texts, strict=True):
            first = model(input_ids=prompt[None]).logits[0, -1].softmax(-1)
            each = torch.arange(vocabulary)[:, None]
            continued = torch.cat([prompt.expand(vocabulary, -1), each], dim=1)
            second = model(input_ids=continued).logits[:, -1].softmax(-1)
            second[eos] = torch.eye(vocabulary)[eos]  # an ended text is filled up
            expected = first[:, None] * second
            counts = torch.bincount(pairs[:, 0] * vocabulary + pairs[:, 1], minlength=vocabulary**2)
            counts = counts.view(vocabulary, vocabulary)
            deviation = (expected * (1 - expected) / repeats).sqrt().clamp(min=1e-12)
            assert ((counts / repeats - expected).abs() / deviation)[expected > 1e-4].max() < 5
            assert counts[eos].sum() == counts[eos, eos] > 0


def test_the_gradient_is_the_trainers(base, tokenizer, tmp_path):
    """The same completions and advantages, through TRL and through the loop."""
    trainer = tiny_run.train_one_step(base, tmp_path, gdro_method="grpo")
    batch, eos = trainer.batch, tokenizer.eos_token_id
    texts = batch["completion_ids"].masked_fill(batch["completion_mask"] == 0, eos)
    advantages = batch["advantages"]
    assert 0 < (advantages == 0).sum() < len(advantages)
    model = AutoModelForCausalLM.from_pretrained(base)
    tokens = loop.policy_gradient(model, batch["prompt_ids"], texts, advantages)
    assert tokens == batch["completion_mask"].sum()
    tiny_run.assert_gradient(tiny_run.gradient(model), trainer.gradient)


def test_a_seed_fixes_the_run_and_another_changes_it(base, tokenizer):
    models = [AutoModelForCausalLM.from_pretrained(base) for _ in range(3)]
    before = weights(models[0])
    pairs = zip(models, (0, 0, 1), strict=True)
    records = [run(model, tokenizer, seed=seed) for model, seed in pairs]
    assert torch.equal(weights(models[0]), weights(models[1]))
    assert not torch.equal(weights(models[0]), weights(models[2]))
    assert not torch.equal(weights(models[0]), before)
    assert [row["rollouts_spent"] for row in records[0]] == [32] * 3
    assert [row["tokens"] for row in records[0]] == [row["tokens"] for row in records[1]]


def test_a_batch_without_signal_changes_nothing(model, tokenizer):
    before = weights(model)
    run(model, tokenizer, reward=lambda completions, **_: [1.0] * len(completions))
    assert torch.equal(weights(model), before)


@pytest.mark.parametrize("method", ["dars", "both"])
def test_what_a_method_asks_for_is_spent(model, tokenizer, method):
    assert [row["rollouts_spent"] for row in run(model, tokenizer, method, steps=2)] == [32, 32]


def test_a_method_that_waits_adds_batches_to_one_optimizer_step(model, tokenizer):
    seen = [weights(model)]
    on_step = lambda *_: seen.append(weights(model))  # noqa: E731
    run(model, tokenizer, EverySecond(), steps=2, on_step=on_step)
    assert torch.equal(seen[1], seen[0])
    assert not torch.equal(seen[2], seen[0])


def test_a_method_may_draw_the_prompts(model, tokenizer):
    seen = set()

    def reward(completions, uid, **_):
        seen.update(uid)
        return [1.0] * len(completions)

    run(model, tokenizer, LastPrompts(), steps=4, reward=reward)
    assert len(seen) == 8


def test_what_counts_as_correct_in_an_evaluation_is_the_thresholds_choice(model, tokenizer):
    def reward(completions, **_):
        return [0.5, 2.0] * (len(completions) // 2)

    arguments = (model, tokenizer, ROWS[:3], reward, 4, 12, 0)
    assert loop.evaluate(*arguments).successes_P.tolist() == [4, 4, 4]
    assert loop.evaluate(*arguments, success_threshold=0.5).successes_P.tolist() == [2, 2, 2]


def test_an_evaluation_counts_the_different_texts_among_the_correct(model, tokenizer, monkeypatch):
    padded = tokenizer.pad_token + "12"  # decoded, it is "12" once more
    texts = [["12", padded, "21", "33"], ["12", "12", "12", "12"], ["33", "33", "33", "33"]]
    ids = tokenizer([text for row in texts for text in row], add_special_tokens=False)["input_ids"]
    ends = [row + [model.config.eos_token_id] * (4 - len(row)) for row in ids]
    monkeypatch.setattr(loop, "sample", lambda *_: torch.tensor(ends))

    def reward(completions, **_):
        return [float(text != "33") for text in completions]

    counts = loop.evaluate(model, tokenizer, ROWS[:3], reward, 4, 4, 0)
    assert counts.successes_P.tolist() == [3, 4, 0]
    assert counts.distinct_P.tolist() == [2, 1, 0]


def test_the_schedule_decays_to_zero(model, tokenizer, monkeypatch):
    rates, step = [], torch.optim.AdamW.step

    def watch(self, *args, **kwargs):
        rates.append(self.param_groups[0]["lr"])
        return step(self, *args, **kwargs)

    monkeypatch.setattr(torch.optim.AdamW, "step", watch)
    run(model, tokenizer, steps=4, schedule="linear")
    assert rates == pytest.approx([1e-3, 7.5e-4, 5e-4, 2.5e-4])


def test_bad_input_is_refused(model, tokenizer):
    with pytest.raises(ValueError, match="prompts"):
        run(model, tokenizer, prompts=49)
    with pytest.raises(ValueError, match="prompts"):
        loop.prompt_ids(model, tokenizer, [{"prompt": "1*2?"}, {"prompt": "1*2*3?"}])
    model.config.model_type = "llama"
    with pytest.raises(ValueError, match="Qwen3"):
        run(model, tokenizer)


def test_a_reward_gets_the_columns_that_only_some_rows_have(tokenizer):
    given = {}

    def reward(prompts, completions, **columns):
        given.update(columns)
        return [0.0] * len(prompts)

    rows = [{"prompt": "1", "uid": 0}, {"prompt": "2", "uid": 1, "hint": "odd"}]
    loop.rewards_of(tokenizer, rows, torch.zeros(2, 1, dtype=torch.long), reward)
    assert given == {"uid": [0, 1], "hint": [None, "odd"]}
