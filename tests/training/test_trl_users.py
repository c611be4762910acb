"""What users of TRL change in a training, in data, rewards, classes and options, reaches ours too.

Each set-up is run with methods that leave TRL's order alone, move rollouts, draw, and sample in
rounds. Where TRL's own trainer says what is right, it is run as well.
"""

from functools import partial

import numpy as np
import pytest
import torch
from datasets import Dataset, IterableDataset
from scripted import CHATS, ROWS, even
from tiny_run import same_weights
from torch.utils.data import DataLoader
from transformers import TrainerCallback

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.filterwarnings("ignore")]
CHOOSE = ("pivotal", "dapo")  # the prompts
METHODS = ("grpo", "rollout", "reinforce_ada", *CHOOSE)
NO_UIDS = [{name: row[name] for name in ("prompt", "answer")} for row in ROWS]


class AtStep(TrainerCallback):
    """Calls a function of the trainer after a step."""

    def __init__(self, trainer, change, step=1):
        self.trainer, self.change, self.step = trainer, change, step

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            self.change(self.trainer)


def setting(**attributes):
    return lambda trainer: vars(trainer).update(attributes)


def after_a_step(change):
    return lambda trainer: trainer.add_callback(AtStep(trainer, change))


# What is handed to people's code is theirs

NESTED = [row | {"steps": ["a", "b"], "meta": {"tries": 0, "tags": ["x"]}} for row in CHATS]
SOURCES = {
    "list": NESTED,
    "transform": Dataset.from_list(NESTED).with_transform(dict),
    "numpy": Dataset.from_list(ROWS).with_format("numpy"),
    "stream": IterableDataset.from_generator(lambda: iter(NESTED * 9)),
}


def write(part):
    """Empty nested lists, dictionaries and arrays, from within."""
    if isinstance(part, np.ndarray):
        part.fill(0)
    elif isinstance(part, dict | list):
        for inner in part.values() if isinstance(part, dict) else part:
            write(inner)
        part.clear()


@pytest.mark.parametrize("source", SOURCES)
def test_what_a_reward_writes_neither_trains_nor_reaches_another_rollout(trained, source):
    methods = (None, "grpo", "both", "reinforce_ada", "dars", "pilot_commit", *CHOOSE)
    for method in methods[:3] if source == "stream" else methods:
        runs = {}
        for writes in (False, True):
            seen = []

            def judge(completions, completion_ids, seen=seen, writes=writes, **columns):
                values = even(completions)
                columns = {n: column for n, column in columns.items() if type(column) is list}
                seen.append(repr(columns))
                for ids in completion_ids if writes else ():
                    ids[1:] = [7] * 9
                for column in (completions, *columns.values()) if writes else ():
                    for part in column:
                        write(part)
                return values

            runs[writes] = trained(method, judge, SOURCES[source]), seen
        assert runs[True][1] == runs[False][1], method
        assert same_weights(runs[True][0], runs[False][0]), method


def test_objects_that_a_transform_hands_out_are_not_copied(trained):
    """As in TRL, which reads a row again for each rollout: a verifier or a connection stays one."""
    verifier = type("Verifier", (), {"__deepcopy__": None})()  # cannot be copied
    rows = Dataset.from_list(ROWS).with_transform(
        lambda batch: batch | {"verifier": [verifier] * len(batch["prompt"])}
    )

    def judge(completions, verifier, **columns):
        seen.update(map(id, verifier))
        return even(completions)

    for method in (None, *METHODS):
        seen = set()
        trained(method, judge, rows)
        assert seen == {id(verifier)}


def test_a_transform_may_write_into_the_column_of_uids(trained):
    def spoil(batch):
        batch["uid"][:] = ["?"] * len(batch["uid"])
        return batch

    for method in METHODS:
        trainer = trained(method, rows=Dataset.from_list(ROWS).with_transform(spoil))
        assert set(trainer.controller.bins.row_of) <= {row["uid"] for row in ROWS}


# What TRL reads live


def hint(rows):
    return [row | {"prompt": f"Hint! {row['prompt']}"} for row in rows]


def hint_columns(batch):
    return {**batch, "prompt": [f"Hint! {prompt}" for prompt in batch["prompt"]]}


@pytest.fixture
def prompts_seen(trained):
    """Train; the prompts that a reward was given."""

    def seen(method, rows=ROWS, **named):
        prompts_R = []

        def judge(prompts, completions, **columns):
            prompts_R.extend(prompts)
            return even(completions)

        trained(method, judge, rows, **named)
        return prompts_R

    return seen


@pytest.mark.parametrize(("rows", "has_one"), [(ROWS, False), (NO_UIDS, True)])
def test_a_transform_that_is_set_later_reaches_all_that_is_sampled(prompts_seen, rows, has_one):
    for method in (None, *METHODS):
        data = Dataset.from_list(rows)
        if has_one:
            data.set_transform(dict)
        change = partial(data.set_transform, hint_columns)
        seen = prompts_seen(method, data, max_steps=4, before=after_a_step(lambda _, f=change: f()))
        assert {prompt.startswith("Hint!") for prompt in seen} == {True, False}, method
        seen = prompts_seen(method, data)
        assert all(prompt.startswith("Hint! Spell") for prompt in seen), method


def test_a_scheduled_scale_of_rewards_is_followed(trained):
    change = after_a_step(setting(scale_rewards="none"))
    stock, grpo = (trained(method, before=change, max_steps=3) for method in (None, "grpo"))
    assert same_weights(stock, grpo)
    for method in ("rollout", "reinforce_ada"):
        trainer = trained(method, before=change, max_steps=3)
        assert trainer.controller.run.scale_rewards == "none"
    options = {"gdro_options": {"scale_rewards": "none"}}  # chosen for good
    assert trained("rollout", **options).controller.run.scale_rewards == "none"


def test_rewards_and_their_weights_may_change_in_training(trained):
    def other(prompts, completions, completion_ids, answer, **columns):
        return [2 * value for value in even(completions)]

    swap = setting(reward_funcs=[even, other], reward_weights=torch.tensor([0.0, 1.0]))
    for method in (None, *METHODS):
        trainer = trained(method, [even, even], NO_UIDS, max_steps=3, before=after_a_step(swap))
        means = [row["mean_reward"] for row in getattr(trainer, "record", [])]
        logged = [row["reward"] for row in trainer.state.log_history if "reward" in row]
        assert method in (None, "dapo", "reinforce_ada") or logged == pytest.approx(means)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("num_generations", setting(num_generations=2)),
        ("gdro_method", lambda trainer: setattr(trainer.args, "gdro_method", "prompt")),
        ("gdro_options", lambda trainer: trainer.args.gdro_options.update(n_max=5)),
        ("success_reward", lambda trainer: setattr(trainer.args, "success_reward", "other")),
        ("scale_rewards", setting(scale_rewards="some")),
    ],
)
@pytest.mark.parametrize("when", [lambda change: change, after_a_step])
def test_other_changes_of_a_made_trainer_are_refused_by_their_name(trained, name, change, when):
    for method in ("rollout", "reinforce_ada"):
        with pytest.raises(ValueError, match=name):
            trained(method, before=when(change), gdro_options={"n_max": 6}, max_steps=3)


def test_the_config_may_say_another_num_generations_later_as_in_trl(trained):
    def halve(trainer):
        trainer.args.num_generations = 2

    for method in METHODS:
        changed = trained(method, before=halve, max_steps=3)
        assert same_weights(changed, trained(method, max_steps=3)), method


# Rewards


class Reversed:
    def _calculate_rewards(self, *given):
        return 1 - super()._calculate_rewards(*given)


def test_a_subclass_that_shapes_rewards_trains_on_them(trained):
    stock = trained(None, change=Reversed)
    for method in METHODS:
        trainer = trained(method, change=Reversed)
        assert method != "grpo" or same_weights(stock, trainer)
        rewards = np.array(trainer._logs["rewards"]["even"])
        advantages = np.array(trainer._logs["advantages"])
        trains = (advantages != 0) & ~np.array(trainer._logs["extra"]["discarded"])
        assert ((advantages > 0) == (rewards > 0.5))[trains].all(), method


def by_uid(completions, uid, **columns):
    """Compares the rollouts of a prompt, so it needs to know which they are."""
    values = np.array(even(completions))
    assert len(set(uid)) < len(uid)
    means = [values[[other == one for other in uid]].mean() for one in uid]
    return (values > means).tolist()


@pytest.mark.parametrize("rows", [ROWS, NO_UIDS])
def test_rewards_have_uids_in_an_evaluation_too(trained, rows):
    given = {"eval_dataset": Dataset.from_list(rows[:4])}
    evaluates = {"eval_strategy": "steps", "eval_steps": 1, "per_device_eval_batch_size": 8}
    for method in ("grpo", "pivotal", "dapo"):
        trainer = trained(method, [even, by_uid], rows, given=given, **evaluates)
        assert sum("eval_reward" in row for row in trainer.state.log_history) == 2


# Collators, loaders and samplers


def never(completions, **columns):
    raise AssertionError("sampled before it was refused")


def test_a_collator_is_applied_to_all_that_is_sampled(prompts_seen):
    for method in (None, *METHODS):
        seen = prompts_seen(method, NO_UIDS, before=setting(data_collator=hint))
        assert all(prompt.startswith("Hint! Spell") for prompt in seen), method


@pytest.mark.parametrize("collator", [lambda rows: rows[::-1], lambda rows: {"prompt": rows}])
def test_a_collator_that_loses_whose_rollout_it_is_is_refused(trained, collator):
    for method in METHODS:
        with pytest.raises(ValueError, match="data_collator"):
            trained(method, never, before=setting(data_collator=collator))


ORDER = [place for place in (3, 5, 1, 4) for _ in range(4)] * 2


class OwnLoader:
    def get_train_dataloader(self):
        return DataLoader(self.train_dataset.select(ORDER), batch_size=8, collate_fn=hint)


class OwnSampler:
    def _get_train_sampler(self, dataset=None):
        assert "answer" in dataset.column_names  # a curriculum reads its columns
        return ORDER


@pytest.mark.parametrize("change", [OwnLoader, OwnSampler])
def test_an_order_of_ones_own_is_followed_or_refused(trained, prompts_seen, change):
    for method in (None, *METHODS):
        if method in CHOOSE:
            with pytest.raises(ValueError, match="itself"):
                trained(method, never, ROWS, change=change)
            continue
        seen = [prompt.removeprefix("Hint! ") for prompt in prompts_seen(method, change=change)]
        assert list(dict.fromkeys(seen)) == [f"Spell {n}." for n in (3, 5, 1, 4)], method
