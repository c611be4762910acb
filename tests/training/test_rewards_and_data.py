"""What users of TRL bring: rewards of all kinds, data without uids, a command line, dashboards."""

import logging
import re
from pathlib import Path

import numpy as np
import pytest
from conftest import TRAINS
from datasets import ClassLabel, Dataset
from scripted import ROWS, text_of
from tiny_run import all_right, half_right, make, nothing, same_weights, trained
from trl import TrlParser

from gdro.trainer import GDROConfig
from gdro.trl.data import read_uids
from gdro.uids import check_prompts, hash_of

pytestmark = TRAINS


def test_one_success_among_hundreds_does_not_hide_the_silence(base, tmp_path, caplog):
    batches = []

    def rare(completions, **columns):
        batches.append(len(completions))
        return [float(len(batches) % 9 == 0), *[0.0] * (len(completions) - 1)]

    with caplog.at_level(logging.WARNING, "gdro.trl.logs"):
        make(base, tmp_path, reward=rare, gdro_method="grpo", max_steps=12).train()
    assert ["success_threshold" in row.getMessage() for row in caplog.records] == [True]


@pytest.mark.parametrize(
    ("changes", "warned"),
    [
        ({"gdro_method": "pivotal"}, True),
        ({"gdro_method": "grpo"}, False),
        ({"gdro_method": "pivotal", "success_reward": "half_right"}, False),
        ({"gdro_method": "pivotal", "gdro_options": {"success_threshold": 1.5}}, False),
    ],
)
def test_a_format_reward_may_not_pass_for_the_answer_without_a_word(
    base, tmp_path, caplog, changes, warned
):
    with caplog.at_level(logging.WARNING, "gdro.trl.logs"):
        make(base, tmp_path, reward=[half_right, all_right], **changes)
    assert ["success_reward" in row.getMessage() for row in caplog.records] == [True] * warned


def test_rows_that_success_reward_leaves_out_are_judged_by_the_others(base, tmp_path):
    def first_half(completions, answer, **columns):
        values = half_right(completions, answer)
        return [value if r < 16 else None for r, value in enumerate(values)]

    def second_half(completions, answer, **columns):
        values = half_right(completions, answer)
        return [None if r < 16 else value for r, value in enumerate(values)]

    records = []
    for reward in ([first_half, second_half], [half_right]):
        changes = {"gdro_method": "rollout", "max_steps": 1}
        changes["success_reward"] = reward[0].__name__
        records.append(trained(base, tmp_path, reward=reward, **changes).record)
    assert records[0] == records[1]


@pytest.mark.parametrize("method", ["pivotal", "reinforce_ada"])
def test_one_of_the_rewards_can_say_what_is_correct(base, tmp_path, method):
    def bonus(completions, **columns):
        return [5.0] * len(completions)

    def first_batch(reward, **changes):
        changes |= {"gdro_method": method, "max_steps": 1}
        return trained(base, tmp_path, reward=reward, **changes).record[0]

    plain, both = first_batch(half_right), [bonus, half_right]
    named = first_batch(both, success_reward="half_right")
    for name in ("success", "rollouts", "signal"):
        assert named[name] == plain[name]
    assert set(named["success"]) - {0.0, 1.0, None}
    assert set(first_batch(both)["success"]) == {1.0, None}


@pytest.mark.parametrize("bad", [float("nan"), None, float("inf")])
@pytest.mark.parametrize("method", ["both", "reinforce_ada"])
def test_rows_without_a_reward_neither_train_nor_count(base, tmp_path, monkeypatch, bad, method):
    seen = []

    def judge(completions, answer, **columns):
        values = half_right(completions, answer)
        return [bad if r % 8 == 0 else value for r, value in enumerate(values)]

    trainer = make(base, tmp_path, reward=judge, gdro_method=method, max_steps=3)
    observe = trainer.controller.observe

    def watched(plan, group_ids, rewards, **given):
        seen.append(len(rewards))
        assert np.isfinite(rewards).all()
        return observe(plan, group_ids, rewards, **given)

    monkeypatch.setattr(trainer.controller, "observe", watched)
    trainer.train()
    assert seen[0] == 28
    assert [row["rollouts_spent"] for row in trainer.record] == [32] * 3
    assert np.isfinite(trainer._logs["advantages"]).all()


@pytest.mark.parametrize("method", ["pivotal", "reinforce_ada"])
def test_a_batch_without_any_reward_closes_its_plan(base, tmp_path, monkeypatch, method):
    trainer = make(base, tmp_path, reward=nothing, gdro_method=method, max_steps=1)
    plans = []
    plan = trainer.controller.plan

    def watched(uids):
        plans.append(plan(uids))
        return plans[-1]

    monkeypatch.setattr(trainer.controller, "plan", watched)
    trainer.train()
    with pytest.raises(ValueError, match="plan"):
        trainer.controller.cancel(plans[0])


def make_reward(check):
    def reward(completions, **columns):
        return [float(check(text_of(completion))) for completion in completions]

    return reward


def test_a_success_reward_that_no_reward_or_two_are_called_is_refused(build, trained):
    alike = [make_reward(bool), make_reward(lambda text: len(text) % 2)]
    for name in ("reward", "accuracy"):
        with pytest.raises(ValueError, match=f"success_reward.*{name}"):
            build("pivotal", alike, success_reward=name)
    # without it TRL copes, and so do we, with the sum of both
    stock, ours = (trained(method, list(alike), rows=ROWS) for method in (None, "grpo"))
    assert same_weights(stock, ours)


@pytest.mark.parametrize(("reward", "trains"), [(half_right, True), (all_right, False)])
def test_tokens_of_flat_groups_are_not_trained(base, tmp_path, reward, trains):
    row = trained(base, tmp_path, reward=reward, max_steps=1, gdro_method="grpo").record[0]
    assert (row["trained_tokens"] > 0) == trains
    assert row["trained_tokens"] < row["tokens"]  # which holds the prompts


def test_a_uid_is_a_hash_of_the_row():
    rows = [{"prompt": f"p{n}", "answer": n} for n in (1, 2, 3, 2)]
    _, uids, hashes, _ = read_uids(Dataset.from_list(rows), "uid")
    hashes_of_rows = [hash_of(row) for row in rows]
    assert uids.tolist() == [*hashes_of_rows[:3], f"{hashes_of_rows[1]}#2"]
    assert hash_of(rows[0]) == "6395b0983c549342"  # in every session
    _, backwards, same, _ = read_uids(Dataset.from_list(rows[::-1]).with_format("torch"), "uid")
    assert sorted(backwards) == sorted(uids)
    assert sorted(same) == sorted(hashes)
    with pytest.raises(ValueError, match=r"uid_column.* 3 more than once"):
        read_uids(Dataset.from_list([{"prompt": "p", "uid": 3}] * 2).with_format("torch"), "uid")
    with pytest.raises(ValueError, match=r"train_dataset.*tuple"):
        read_uids(tuple(rows), "uid")


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
        read_uids(data, "user")


USER = {"role": "user", "content": "a"}
GROWN = [
    ({"prompt": [USER]}, {"prompt": [USER]}, {"prompt": [USER | {"name": "guest"}]}),
    ({"prompt": "a"}, {"prompt": "a", "hint": None}, {"prompt": "b", "hint": "h"}),
    ({"prompt": "a", "n": 1}, {"prompt": "a", "n": 1.0}, {"prompt": "b", "n": 1.5}),
]


@pytest.mark.parametrize(("row", "same", "new"), GROWN)
def test_rows_that_join_leave_the_others_what_they_are(row, same, new):
    before = read_uids(Dataset.from_list([row]), "uid")
    after = read_uids(Dataset.from_list([same, new]), "uid")
    assert before.uids_D[0] == after.uids_D[0]
    saved = {"uids": before.uids_D.tolist(), "hashes": before.hashes_D.tolist()}
    check_prompts(after.uids_D, after.hashes_D, saved)


def test_class_labels_are_groups_by_their_names(build):
    rows = Dataset.from_list([row | {"level": row["uid"] % 3} for row in ROWS])
    rows = rows.cast_column("level", ClassLabel(names=["medium", "easy", "hard"]))
    trainer = build("prompt", rows=rows, group_column="level")
    assert trainer.bin_names == ["easy", "hard", "medium"]
    order = {"bins": {"groups": ["hard", "medium", "easy"]}}
    trainer = build("prompt", rows=rows, group_column="level", gdro_options=order)
    assert trainer.bin_names == ["hard", "medium", "easy"]


def test_another_data_set_in_a_made_trainer_is_refused(base, tmp_path):
    trainer = make(base, tmp_path, gdro_method="grpo", max_steps=1)
    trainer.train_dataset = trainer.train_dataset.select(range(16))
    with pytest.raises(ValueError, match="train_dataset"):
        trainer.train()


def test_the_command_line_takes_json(tmp_path):
    words = f"--output_dir {tmp_path} --gdro_method rollout --bf16 false --use_cpu true".split()
    words += ["--gdro_options", '{"bins": {"k": 8}}']
    [args] = TrlParser(GDROConfig).parse_args_and_config(words)
    assert args.gdro_options == {"bins": {"k": 8}}
    with pytest.raises(ValueError, match=r"gdro_options.*'k=3'"):
        TrlParser(GDROConfig).parse_args_and_config([*words[:-1], "k=3"])


def test_the_page_names_every_key_of_the_log(base, tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "trainer.md").read_text("utf-8")
    logged = set()
    for method in ("both", "pivotal", "dapo"):
        trainer = trained(base, tmp_path, gdro_method=method, log_bins=True)
        names = {name for row in trainer.state.log_history for name in row}
        for name in sorted(name for name in names if name.startswith("gdro/")):
            key, _, place = name.rpartition("/")
            logged.add(f"{key}/BIN" if place in trainer.bin_names else name)
    assert set(re.findall(r"^\| `(gdro/[^`]+)` \|", page, re.MULTILINE)) == logged
