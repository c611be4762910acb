"""What users of TRL change in a training, in data, rewards, classes and options, reaches ours too.

Each set-up is run with methods that leave TRL's order alone, move rollouts, draw, replay and sample
in rounds. Where TRL's own trainer says what is right, it is run as well.
"""

import dataclasses
import functools
import shutil

import numpy as np
import pytest
import torch
from datasets import ClassLabel, Dataset, IterableDataset
from scripted import CHATS, QWEN3, ROWS, Room, even, text_of
from tiny_models import byte_tokenizer
from tiny_run import arguments, same_weights
from torch.utils.data import DataLoader
from transformers import TrainerCallback
from trl.trainer.utils import RepeatSampler

from gdro.trainer import GDROConfig
from gdro.trl.config import make_controller
from gdro.trl.data import with_uids
from gdro.uids import check_prompts, hash_of

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.filterwarnings("ignore")]
CHOOSE = ("pivotal", "pivotal_replay", "dapo")  # the prompts
KEEP_ORDER = ("grpo", "rollout", "reinforce_ada")
METHODS = (*KEEP_ORDER, *CHOOSE)
NO_UIDS = [{name: row[name] for name in ("prompt", "answer")} for row in ROWS]


def logged(trainer):
    return [row["reward"] for row in trainer.state.log_history if "reward" in row]


# Rows: objects of their own for each rollout


WRITES = [
    lambda row: row["prompt"].append({"role": "assistant", "content": "!"}),
    lambda row: row["prompt"][0].update(content="!"),
    lambda row: row["steps"].clear(),
    lambda row: row["meta"].update(tries=3),
    lambda row: row["meta"]["tags"].append("seen"),
]
NESTED = [row | {"steps": ["a", "b"], "meta": {"tries": 0, "tags": ["x"]}} for row in CHATS]
SOURCES = {
    "list": NESTED,
    "transform": Dataset.from_list(NESTED).with_transform(dict),
    "stream": IterableDataset.from_generator(lambda: iter(NESTED * 9)),
}


@pytest.mark.parametrize("source", SOURCES)
def test_what_a_reward_writes_into_a_row_no_other_rollout_sees(trained, source):
    """Rollouts of one prompt are written into in different ways."""
    methods = (None, "rollout", "both") if source == "stream" else (None, *METHODS)
    clean = {row["uid"]: row for row in NESTED}

    def judge(prompts, completions, **columns):
        names = ("steps", "meta")
        rows = [{n: columns[n][r] for n in names} | {"prompt": p} for r, p in enumerate(prompts)]
        for row, uid in zip(rows, columns["uid"], strict=True):
            assert row == {name: clean[uid][name] for name in row}
            WRITES[len(changed) % len(WRITES)](row)
            changed.append(uid)
        return even(completions)

    for method in methods:
        changed = []
        trained(method, judge, SOURCES[source])
        assert len(changed) >= 16, method


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_arrays_of_a_row_are_its_own(trained, kind):
    rows = Dataset.from_list([row | {"grid": [0, 0]} for row in ROWS]).with_format(kind)

    def judge(completions, grid, **columns):
        assert not sum(int(part.sum()) for part in grid)
        for part in grid:
            part += 1
        return even(completions)

    for method in (None, *METHODS):
        trained(method, judge, rows)


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


class Notebook(Room):
    """An environment that writes into what it is given."""

    def reset(self, prompt, steps, meta, **columns):
        assert (len(prompt), steps, meta["tags"]) == (1, ["a", "b"], ["x"])
        steps.clear()
        meta["tags"].append("seen")
        return "Go."


def test_what_an_environment_writes_into_its_row_no_other_sees(trained):
    for method in (None, "grpo", "both", "rollout", "pivotal"):
        tokenizer = byte_tokenizer(QWEN3.read_text())
        given = {"environment_factory": Notebook}
        trained(method, rows=NESTED, tokenizer=tokenizer, given=given)


# Rewards: as a subclass shapes them, and once


def shaping(shape):
    class Shaped:
        def _calculate_rewards(self, *given):
            return shape(super()._calculate_rewards(*given))

    return Shaped


SHAPES = {
    "reversed": lambda rewards: 1 - rewards,
    "one left out": lambda rewards: rewards.index_fill(0, torch.tensor([0]), torch.nan),
    "by length of the batch": lambda rewards: rewards + torch.arange(len(rewards))[:, None] / 100,
}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_subclass_that_shapes_rewards_trains_on_what_it_logs(trained, shape):
    weights = {}
    for method in (None, *METHODS):
        bits = {} if method is None else {"trim_batches": False}
        trainer = trained(method, change=shaping(SHAPES[shape]), **bits)
        weights[method] = trainer
        if method is None:
            continue
        rewards = np.array(trainer._logs["rewards"]["even"])
        advantages = np.array(trainer._logs["advantages"])
        assert logged(trainer)[-1] == pytest.approx(np.nanmean(rewards))
        if method not in ("dapo", "reinforce_ada"):  # which leave out what they have sampled
            means = [row["mean_reward"] for row in trainer.record]
            assert logged(trainer) == pytest.approx(means)
        known = ~np.isnan(rewards) & (advantages != 0)
        if known.any() and shape == "reversed":  # the sign of each is that of its own reward
            assert ((advantages > 0) == (rewards > 0.5))[known].all(), method
    assert same_weights(weights[None], weights["grpo"])


def test_rewards_shaped_on_the_object_are_trained_on_too(trained):
    def flip(trainer):
        calculate = trainer._calculate_rewards
        trainer._calculate_rewards = lambda *given: 1 - calculate(*given)
        kept.append(trainer._calculate_rewards)

    for method in ("grpo", "both", "pivotal", "dapo"):
        kept = []
        trainer = trained(method, before=flip)
        assert trainer._calculate_rewards is kept[0]  # the user's own is there afterwards
        means = [row["mean_reward"] for row in trainer.record][-1]
        assert method == "dapo" or logged(trainer)[-1] == pytest.approx(means)


def test_what_a_subclass_adds_to_sampling_is_called_once_a_rollout(trained):
    calls = []

    class Counting:
        def _generate(self, prompts):
            calls.append(len(prompts))
            return super()._generate(prompts)

        def _calculate_rewards(self, inputs, *given):
            calls.append(-len(inputs))
            return super()._calculate_rewards(inputs, *given)

    for method in METHODS:
        calls.clear()
        trainer = trained(method, change=Counting)
        spent = sum(row["rollouts_spent"] for row in trainer.record)
        assert sum(n for n in calls if n > 0) == spent, method
        assert sum(calls) == 0, method


# Names of rewards


def make_reward(check):
    def reward(completions, **columns):
        return [float(check(text_of(completion))) for completion in completions]

    return reward


class Judge:
    def __init__(self, factor):
        self.factor = factor

    def __call__(self, completions, **columns):
        return [self.factor * value for value in even(completions)]


def scaled(completions, factor, **columns):
    return [factor * value for value in even(completions)]


class reward(Room):  # an environment whose reward TRL names after it
    def get_reward(self):
        return 1.0


ALIKE = {
    "reward": [make_reward(bool), make_reward(lambda text: len(text) % 2)],
    "scaled": [functools.partial(scaled, factor=1.0), functools.partial(scaled, factor=0.5)],
    "Judge": [Judge(1.0), Judge(0.5)],
}


@pytest.mark.parametrize("name", ALIKE)
def test_a_success_reward_that_two_rewards_are_called_is_refused(build, trained, name):
    with pytest.raises(ValueError, match="success_reward"):
        build("pivotal", list(ALIKE[name]), success_reward=name)
    # without it TRL copes, and so do we, with the sum of both
    stock = trained(None, list(ALIKE[name]), rows=ROWS)
    ours = trained("grpo", list(ALIKE[name]), rows=ROWS, trim_batches=False)
    assert same_weights(stock, ours)
    both = trained("both", list(ALIKE[name]), rows=ROWS)
    assert [row["mean_reward"] for row in both.record] == pytest.approx(logged(both))
    assert build("pivotal", ALIKE[name][:1], success_reward=name).controller.name == "pivotal"


def test_an_environment_called_like_a_reward_is_refused_for_success(build):
    given = {"environment_factory": reward}
    tokenizer = byte_tokenizer(QWEN3.read_text())
    with pytest.raises(ValueError, match="success_reward"):
        build(
            "rollout", make_reward(bool), tokenizer=tokenizer, given=given, success_reward="reward"
        )


# Collators, loaders, samplers and columns


def hint(rows):
    return [row | {"prompt": f"Hint! {row['prompt']}"} for row in rows]


def hint_alone(rows):
    return [{"prompt": f"Hint! {row['prompt']}"} for row in rows]


def hint_in_place(rows):
    for row in rows:
        row["prompt"] = f"Hint! {row['prompt']}"
        row.pop("uid", None)
    return rows


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


def never(completions, **columns):
    raise AssertionError("sampled before it was refused")


def with_collator(collator):
    return lambda trainer: setattr(trainer, "data_collator", collator)


@pytest.mark.parametrize(
    ("collator", "rows"),
    [
        (hint, ROWS),
        (hint_alone, NO_UIDS),
        (hint_in_place, ROWS),
        (hint_in_place, IterableDataset.from_generator(lambda: iter(ROWS * 9))),
    ],
)
def test_a_collator_is_applied_to_all_that_is_sampled(prompts_seen, collator, rows):
    for method in (None, *(METHODS if isinstance(rows, list) else ("grpo", "rollout"))):
        seen = prompts_seen(method, rows, before=with_collator(collator))
        assert len(seen) >= 16
        assert all(prompt.startswith("Hint! Spell") for prompt in seen), method


def test_a_collator_may_give_the_rollouts_of_a_prompt_different_rows(prompts_seen):
    def hint_for_every_second(rows):
        return [hint([row])[0] if place % 2 else row for place, row in enumerate(rows)]

    for method in (None, *METHODS):
        seen = prompts_seen(method, max_steps=1, before=with_collator(hint_for_every_second))
        starts = [prompt.startswith("Hint!") for prompt in seen[:4]]  # of the first prompt
        assert starts == [False, True, False, True], method


@pytest.mark.parametrize(
    "collator",
    [lambda rows: rows[::-1], lambda rows: rows[1:], lambda rows: {"prompt": rows}],
    ids=["reversed", "fewer", "a dictionary"],
)
def test_a_collator_that_loses_whose_rollout_it_is_is_refused(trained, collator):
    for method in METHODS:
        with pytest.raises(ValueError, match="data_collator"):
            trained(method, before=with_collator(collator))


class Swaps(TrainerCallback):
    """Sets attributes of a trainer after the first step."""

    def __init__(self, **attributes):
        self.attributes = attributes

    def on_step_end(self, args, state, control, **kwargs):
        for name, value in self.attributes.items():
            setattr(self.trainer, name, value)


@pytest.mark.parametrize(
    "attributes",
    [
        {"train_dataset": Dataset.from_list([row | {"prompt": "Other."} for row in ROWS])},
        {"data_collator": hint},
    ],
    ids=["data of the same uids", "a collator"],
)
def test_what_is_swapped_during_training_is_ignored_as_in_trl(prompts_seen, attributes):
    def swap(trainer):
        callback = Swaps(**attributes)
        callback.trainer = trainer
        trainer.add_callback(callback)

    for method in (None, *METHODS):
        seen = prompts_seen(method, max_steps=3, before=swap)
        assert len(seen) >= 24
        assert all(prompt.startswith("Spell") for prompt in seen), method


class KeepsColumns:
    def _set_signature_columns_if_needed(self):
        self._signature_columns = ["prompt", "answer"]


@pytest.mark.parametrize(("change", "rows"), [(None, ROWS), (KeepsColumns, NO_UIDS)])
def test_rewards_get_the_columns_that_trl_gives_them(trained, change, rows):
    def judge(completions, **columns):
        seen.append(frozenset(columns) - {"uid"})
        return even(completions)

    found = {}
    for method in (None, *METHODS):
        seen = []
        trained(method, judge, rows, change=change, remove_unused_columns=True)
        found[method] = set(seen)
    assert set(map(frozenset, found.values())) == {frozenset(found[None])}
    assert ("answer" in next(iter(found[None]))) == (change is not None)


class WrapsLoader:
    def get_train_dataloader(self):
        return super().get_train_dataloader()


class OwnLoader:
    def get_train_dataloader(self):
        order = [place for place in (3, 5, 1, 4) for _ in range(4)] * 2
        rows = self.train_dataset.select(order)
        return DataLoader(rows, batch_size=8, collate_fn=hint)


class OwnSampler:
    def _get_train_sampler(self, dataset=None):
        return [place for place in (3, 5, 1, 4) for _ in range(4)] * 2


@pytest.mark.parametrize("change", [OwnLoader, OwnSampler])
def test_an_order_of_ones_own_is_followed_or_refused(trained, prompts_seen, change):
    for method in (None, *METHODS):
        if method in CHOOSE:
            with pytest.raises(ValueError, match=r"prompts itself|reads its rows"):
                trained(method, never, ROWS, change=change)
            continue
        seen = prompts_seen(method, change=change)
        start = "Hint! " if change is OwnLoader else ""
        prompts = [prompt.removeprefix(start) for prompt in seen if prompt.startswith(start)]
        assert list(dict.fromkeys(prompts)) == [f"Spell {n}." for n in (3, 5, 1, 4)], method
        assert len(prompts) == len(seen)


class HintBeforeSampling:
    def _generate_and_score_completions(self, inputs):
        return super()._generate_and_score_completions(hint(inputs))


class HintInPlaceBeforeSampling:
    def _generate_and_score_completions(self, inputs):
        for row in inputs:
            row["prompt"] = f"Hint! {row['prompt']}"
        return super()._generate_and_score_completions(inputs)


class HintWhilePreparing:
    def _prepare_inputs(self, batch):
        return super()._prepare_inputs(hint(batch) if isinstance(batch, list) else batch)


@pytest.mark.parametrize(
    "change", [HintBeforeSampling, HintInPlaceBeforeSampling, HintWhilePreparing]
)
def test_rows_that_a_subclass_changes_are_sampled_or_refused(trained, prompts_seen, change):
    for method in (None, *METHODS):
        if method in CHOOSE:
            with pytest.raises(ValueError, match="itself"):
                trained(method, never, ROWS, change=change)
            continue
        seen = prompts_seen(method, change=change)
        assert seen
        assert all(prompt.startswith("Hint! Spell") for prompt in seen), method


def test_a_loader_that_is_only_wrapped_changes_nothing(trained):
    for method in METHODS:
        one, other = trained(method), trained(method, change=WrapsLoader)
        assert same_weights(one, other)


def test_a_sampler_that_mixes_prompts_is_refused(trained):
    class Mixed:
        def _get_train_sampler(self, dataset=None):
            return list(range(12)) * 2

    for method in KEEP_ORDER:
        with pytest.raises(ValueError, match="num_generations"):
            trained(method, change=Mixed)


class OwnRepeatSampler:
    def _get_train_sampler(self, dataset=None):
        return RepeatSampler(
            self.train_dataset, self.num_generations, 2, repeat_count=1, shuffle=False
        )


@pytest.mark.parametrize("change", [OwnSampler, OwnRepeatSampler])
def test_a_sampler_of_ones_own_is_resumed_past_the_first_epoch(trained, tmp_path, change):
    weights = {}
    for method in (None, "grpo", "both"):
        saves = {"max_steps": 9, "save_strategy": "steps", "save_steps": 7, "change": change}
        saves |= {} if method is None else {"trim_batches": False}
        trained(method, rows=ROWS, **saves)
        shutil.rmtree(tmp_path / str(method) / "checkpoint-9")
        weights[method] = trained(method, rows=ROWS, resume=True, **saves)
        assert weights[method].state.global_step == 9
    assert same_weights(weights[None], weights["grpo"])


# Rewards that take no other columns


def strict(prompts, completions, completion_ids, answer, trainer_state, log_extra, log_metric):
    return even(completions)


async def strict_and_slow(
    prompts, completions, completion_ids, answer, trainer_state, log_extra, log_metric
):
    return even(completions)


class Strict:
    def __call__(
        self, prompts, completions, completion_ids, answer, trainer_state, log_extra, log_metric
    ):
        return even(completions)


def by_uid(completions, uid, **columns):
    """Compares the rollouts of a prompt, so it needs to know which they are."""
    values = np.array(even(completions))
    assert len(set(uid)) < len(uid)
    means = [values[[other == one for other in uid]].mean() for one in uid]
    return (values > means).tolist()


STRICT = {
    "function": [strict],
    "asynchronous": [strict_and_slow],
    "object": [Strict()],
    "partial": [functools.partial(strict)],
    "beside others": [strict, even],
}


@pytest.mark.parametrize("name", STRICT)
def test_a_reward_that_takes_no_uid_trains_as_in_trl(trained, name):
    stock = trained(None, list(STRICT[name]), NO_UIDS)
    given = list(STRICT[name])
    for method in METHODS:
        trainer = trained(method, given, NO_UIDS, trim_batches=False)
        assert given == STRICT[name]  # the user's list is left alone
        assert trainer.reward_func_names == stock.reward_func_names
        assert method != "grpo" or same_weights(stock, trainer)


def test_a_reward_that_groups_by_uid_beside_one_that_takes_none(trained):
    for method in METHODS:
        trained(method, [strict, by_uid], NO_UIDS)
        trained(method, [strict_and_slow, by_uid], ROWS)


# Options that are changed before a trainer is made


def config_of(tmp_path, **options):
    return arguments(GDROConfig, tmp_path, per_device_train_batch_size=8, **options)


def by_setting(args, **options):
    for name, value in options.items():
        setattr(args, name, value)
    return args


def by_replacing(args, **options):
    return dataclasses.replace(args, generation_batch_size=None, **options)


def by_copying(args, **options):
    values = {field.name: getattr(args, field.name) for field in dataclasses.fields(args)}
    return GDROConfig(**values | {"generation_batch_size": None} | options)


@pytest.mark.parametrize("change", [by_setting, by_replacing, by_copying])
@pytest.mark.parametrize(
    ("start", "options"),
    [
        ({"gdro_method": "grpo"}, {"gdro_method": "both"}),
        ({"gdro_method": "prompt"}, {"gdro_preset": "paper"}),
        ({"gdro_method": "both", "gdro_preset": "paper"}, {"gdro_method": "grpo"}),
    ],
)
def test_a_changed_config_is_what_its_options_say(build, tmp_path, change, start, options):
    changed = change(config_of(tmp_path, **start), **options)
    fresh = config_of(tmp_path, **start | options)
    runs = [vars(make_controller(args).run) for args in (changed, fresh)]
    assert runs[0] == runs[1]
    one, other = (build("grpo", args=args) for args in (changed, fresh))
    assert one.trims == other.trims
    assert one.controller.name == fresh.gdro_method


def test_a_sweep_over_one_config_trains_each_method_as_alone(trained, tmp_path):
    args = config_of(tmp_path, gdro_method="grpo", max_steps=2, learning_rate=1e-2)
    args.max_completion_length = 10
    for method in ("grpo", "pivotal", "both", "grpo"):
        args.gdro_method = method
        assert same_weights(trained(method, args=args), trained(method))


# Uids, groups and what a checkpoint knows of the data


@pytest.mark.parametrize(
    "uids",
    [
        *([[1], [2]], [{"n": 1}, {"n": 2}], [0.0, 0.5]),  # of other types
        *([None, 1], [True, False], [1, None], ["a", None], [3, 3]),  # that tell nothing apart
    ],
)
def test_uids_that_are_none_are_refused_by_the_name_of_their_column(uids):
    data = Dataset.from_list([{"prompt": "p", "user": uid} for uid in uids])
    with pytest.raises(ValueError, match=r"'user'.*uid_column"):
        with_uids(data, "user")


GROWN = {
    "a key of a message": (
        [{"prompt": [{"role": "user", "content": "a"}]}],
        {"prompt": [{"role": "user", "content": "b", "name": "guest"}]},
    ),
    "a key of a part": (
        [{"prompt": [{"role": "user", "content": [{"type": "text", "text": "a"}]}]}],
        {"prompt": [{"role": "user", "content": [{"type": "image", "text": "b", "image": "x"}]}]},
    ),
    "tool calls": (
        [{"prompt": [{"role": "user", "content": "a"}]}],
        {"prompt": [{"role": "user", "content": "b", "tool_calls": [{"name": "f"}]}]},
    ),
    "a column": ([{"prompt": "a", "answer": "1"}], {"prompt": "b", "answer": "1", "hint": "h"}),
    "a key of a struct": (
        [{"prompt": "a", "meta": {"level": 1}}],
        {"prompt": "b", "meta": {"level": 2, "source": "s"}},
    ),
    "fractions": ([{"prompt": "a", "answer": 1}], {"prompt": "b", "answer": 1.5}),
}


@pytest.mark.parametrize("name", GROWN)
@pytest.mark.parametrize("has_uids", [True, False])
def test_rows_that_join_leave_the_others_what_they_are(name, has_uids):
    rows, new = GROWN[name]
    everything = [dict(row) for row in [*rows, new]]
    if name == "fractions":  # Arrow itself wants one type
        everything[0]["answer"] = float(everything[0]["answer"])
    if name == "a column":
        everything[0]["hint"] = None
    if has_uids:
        everything = [row | {"uid": n} for n, row in enumerate(everything)]
        rows = [row | {"uid": n} for n, row in enumerate(rows)]
    before = with_uids(Dataset.from_list(rows), "uid")
    after = with_uids(Dataset.from_list(everything), "uid")
    assert before.uids_D[0] == after.uids_D[0]
    saved = {"uids": before.uids_D.tolist(), "hashes": before.hashes_D.tolist()}
    check_prompts(after.uids_D, after.hashes_D, saved)


def test_what_differs_is_still_told_apart():
    different = [{"a": 1}, {"a": "1"}, {"a": True}, {"a": 1.5}, {"b": 1}, {"a": []}, {"a": [None]}]
    assert len({hash_of(value) for value in different}) == len(different)


def test_a_growing_set_of_chats_is_resumed(trained):
    guest = {"uid": 99, "prompt": [{"role": "user", "content": "Spell 99.", "name": "guest"}]}
    chats = [{"uid": row["uid"], "prompt": row["prompt"]} for row in CHATS]
    for method in (None, "grpo", "both", "pivotal"):
        saves = {"save_strategy": "steps", "save_steps": 2}
        trained(method, rows=chats, **saves)
        grown = trained(method, rows=[*chats, guest], resume=True, max_steps=4, **saves)
        assert grown.state.global_step == 4
        assert method is None or len(grown.record) == 4


@pytest.mark.parametrize("kind", [str, lambda n: f"p{n}"])
def test_uids_of_another_type_are_said_to_be_that(trained, kind):
    saves = {"save_strategy": "steps", "save_steps": 2}
    trained("both", **saves)
    others = [row | {"uid": kind(row["uid"])} for row in CHATS]
    with pytest.raises(ValueError, match=r"such as 0,.*such as 'p?0'"):
        trained("both", rows=others, resume=True, max_steps=4, **saves)


def test_class_labels_are_groups_by_their_names(build):
    rows = Dataset.from_list([row | {"level": row["uid"] % 3} for row in ROWS])
    rows = rows.cast_column("level", ClassLabel(names=["medium", "easy", "hard"]))
    trainer = build("prompt", rows=rows, group_column="level")
    assert trainer.bin_names == ["easy", "hard", "medium"]
    order = {"bins": {"groups": ["hard", "medium", "easy"]}}
    trainer = build("prompt", rows=rows, group_column="level", gdro_options=order)
    assert trainer.bin_names == ["hard", "medium", "easy"]
