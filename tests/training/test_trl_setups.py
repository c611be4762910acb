"""Set-ups of TRL's users, each with four methods: trained with the true groups, or refused.

Completions are random bytes, in place of generation; all else is TRL's. Method "grpo" without
savings must end with the weights of GRPOTrainer, to the bit. Losses: test_same_gradient.py.
"""

import itertools

import pytest
import torch
from datasets import Dataset, IterableDataset
from peft import LoraConfig
from scripted import CHATS, QWEN3, ROWS, Room, even, scripted, text_of
from tiny_models import byte_tokenizer
from tiny_run import nothing, same_weights
from transformers import Qwen3Config, Qwen3ForSequenceClassification

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.filterwarnings("ignore")]
METHODS = ("grpo", "pivotal", "rollout", "dapo")


def length(completions, **columns):
    return [len(text_of(completion)) / 10 for completion in completions]


def sometimes(completions, **columns):
    """None for what it cannot judge, as TRL documents."""
    return [None if r % 3 == 0 else value for r, value in enumerate(even(completions))]


def noted(completions, log_extra, log_metric, **columns):
    log_extra("length", [len(text_of(completion)) for completion in completions])
    log_metric("longest", max(len(text_of(completion)) for completion in completions))
    return even(completions)


def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: The first.
        b: The second.
    """
    return a + b


TURNS = itertools.count()


class World(Room):
    """An environment that owns its prompts and its reward."""

    def get_reward(self):
        return float(next(TURNS) % 3 == 0)


class Columns(World):
    """An environment that takes the columns of its data set, and no others."""

    def reset(self, prompt, answer):
        return "Go."


def roll(prompts, trainer):
    ids = [trainer.processing_class(prompt)["input_ids"] for prompt in prompts]
    completions, _ = scripted(trainer, ids)
    return {"prompt_ids": ids, "completion_ids": completions, "logprobs": None}


def setup(rows=ROWS, reward=even, refused=(), given=(), template=None, equal=True, **args):
    """One set-up; `refused`: methods that say no; `equal`: whether "grpo" is TRL to the bit."""
    return locals()


ROUNDS = ("dapo",)
NEEDS_ALL = ("pivotal", "dapo")  # of the data set
TRANSFORMED = Dataset.from_list(ROWS).with_transform(
    lambda batch: {name: batch[name] for name in ("prompt", "answer")}
)
STREAM = IterableDataset.from_generator(lambda: iter(ROWS * 20))
SETUPS = {
    "plain": setup(),
    "chat": setup(CHATS),
    "no uid": setup([{k: v for k, v in row.items() if k != "uid"} for row in ROWS]),
    "torch format": setup(Dataset.from_list(ROWS).with_format("torch")),
    "transform": setup(TRANSFORMED),
    "weighted rewards": setup(reward=[even, length], reward_weights=[1.0, 0.2]),
    "success_reward": setup(reward=[length, even], equal=False, success_reward="even"),
    "reward model": setup(reward="model"),
    "None rewards": setup(reward=sometimes),
    "None beside another": setup(reward=[sometimes, length]),
    "nothing but None": setup(reward=nothing, refused=ROUNDS),  # which waits for groups
    "log_extra": setup(reward=noted, log_completions=True),
    "unused columns removed": setup(remove_unused_columns=True),
    "stream": setup(STREAM, refused=NEEDS_ALL),
    "LoRA": setup(given={"peft_config": LoraConfig(r=2, target_modules="all-linear")}),
    "reference model": setup(beta=0.1),
    "two iterations": setup(num_iterations=2, max_steps=4),
    "generation of two steps": setup(steps_per_generation=2, max_steps=4),
    "accumulation": setup(per_device_train_batch_size=4, gradient_accumulation_steps=2),
    "evaluation": setup(
        given={"eval_dataset": Dataset.from_list(ROWS[:4])},
        eval_strategy="steps",
        eval_steps=1,
        per_device_eval_batch_size=4,
    ),
    "tools": setup(CHATS, given={"tools": [add]}, template=QWEN3, refused=ROUNDS),
    "rollout_func": setup(given={"rollout_func": roll}, refused=ROUNDS),
    "environment": setup(
        None,
        None,
        given={"environment_factory": World},
        template=QWEN3,
        refused=NEEDS_ALL,
        equal=False,
    ),
    "environment's columns": setup(
        [{k: v for k, v in row.items() if k != "uid"} for row in CHATS],
        given={"environment_factory": Columns},
        template=QWEN3,
        refused=ROUNDS,
        equal=False,
    ),
    "environments": setup(
        [row | {"environment": "ab"[row["uid"] % 2]} for row in CHATS],
        None,
        given={"environment_factory": {"a": World, "b": World}},
        template=QWEN3,
        refused=ROUNDS,
        equal=False,
    ),
    "unscaled": setup(scale_rewards="none"),
    "scaled by batch": setup(scale_rewards="batch"),
    "checkpointing": setup(gradient_checkpointing=True),
    "bf16": setup(bf16=True),
    "not shuffled": setup(shuffle_dataset=False),
}


def reward_model(tokenizer):
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "head_dim": 8}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1}
    config = Qwen3Config(vocab_size=len(tokenizer), num_labels=1, **sizes, **heads)
    return Qwen3ForSequenceClassification(config)


@pytest.mark.parametrize("name", SETUPS)
def test_setup(name, trained):
    choice = SETUPS[name]
    tokenizer = byte_tokenizer(choice["template"].read_text()) if choice["template"] else None
    given = choice["given"]
    reward = choice["reward"]
    if reward == "model":
        reward = reward_model(byte_tokenizer())
        given = {"reward_processing_classes": byte_tokenizer()}
    fields = {"rows": choice["rows"], "tokenizer": tokenizer, "given": given} | choice["args"]
    for method in METHODS:
        if method in choice["refused"]:
            reason = "not ready" if name == "nothing but None" else ""
            with pytest.raises(ValueError, match=reason):
                trained(method, reward, **fields)
            continue
        trainer = trained(method, reward, **fields)
        assert trainer.state.global_step == trainer.args.max_steps
        assert all(torch.isfinite(weight).all() for weight in trainer.model.parameters())
        if trainer.data.uids_D is not None:  # the history is that of the data's own prompts
            assert set(trainer.controller.bins.row_of) <= set(trainer.data.uids_D.tolist())
        if choice["rows"] is None:  # no prompt is known to come again
            assert len(trainer.controller.bins.row_of) == 2 * trainer.args.max_steps
        assert bool(trainer.record) == (name != "nothing but None")
        if method == "grpo" and choice["equal"]:
            bits = trained(method, reward, trim_batches=False, **fields)
            assert same_weights(trained(None, reward, **fields), bits)
