"""Logs of TRL, verl and others: equal rollouts give equal groups, and what is bad is named."""

import json

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from helpers import write_lines
from inspect_logs import GROUPS, trl_rows, verl_rows, write_trl, write_verl

import gdro.inspect
from gdro_lab.cli import main

SHARES = {"solved": 0.25, "failed": 0.25, "mixed": 0.5}


def summary_of(*paths, **columns):
    return gdro.inspect.summarize(gdro.inspect.read(*paths, **columns))


def counts_of(*paths, **columns):
    """(step, rollouts, correct) of each group, sorted."""
    groups = gdro.inspect.form_groups(gdro.inspect.read(*paths, **columns), 0.0)
    return sorted(zip(groups.steps_G, groups.trials_G, groups.hits_G, strict=True))


EXPECTED = [(step, 4, hits) for step in (9, 10) for hits in (0, 1, 2, 4)]


def test_the_same_rollouts_are_found_wherever_their_files_are(tmp_path):
    rows = [trl_rows(9), trl_rows(10)]
    trl = write_trl(tmp_path / "trl", rows)
    run = tmp_path / "runs" / "grpo" / "seed0"
    write_trl(run / "checkpoints-a", rows)
    write_lines(run / "record.jsonl", [{"step": 1}])
    old = write_verl(tmp_path / "old", keyed=False)
    (old / "10.jsonl").rename(old / "².jsonl")
    for folder in (trl, trl / "completions", run, run.parent, write_verl(tmp_path / "new"), old):
        assert counts_of(folder) == EXPECTED
    assert counts_of(*(trl / "completions").iterdir()) == EXPECTED


def test_a_prompt_in_two_places_of_a_step_is_two_groups_where_the_file_says_so(tmp_path):
    twice = trl_rows(1) + trl_rows(1, [[0, 0, 0, 0]])
    trl = write_trl(tmp_path / "trl", [twice])
    assert summary_of(trl)["groups"] == {"solved": 0.2, "failed": 0.4, "mixed": 0.4}
    # adjacent groups of one prompt, behind a group that an evaluation has cut, in two files
    some = trl_rows(1, GROUPS * 2)[2:]
    for row in some[6:10]:
        row["prompt"] = "What is 1?"
    trl = write_trl(tmp_path / "adjacent", [some, [row | {"completion": ""} for row in some]])
    whole = [(1, 4, hits) for hits in (0, 0, 1, 1, 2, 4, 4)]
    assert counts_of(trl) == sorted([*whole * 2, (1, 2, 1), (1, 2, 1)])
    verl = verl_rows(1) + [
        row | {"uid": f"other_{i}_0"} for i, row in enumerate(verl_rows(1, [[0, 0]]))
    ]
    path = write_lines(tmp_path / "verl" / "1.jsonl", verl)
    assert summary_of(path)["groups"] == {"solved": 0.2, "failed": 0.4, "mixed": 0.4}
    named = [{"prompt": "a", "reward": r, "step": 1, "group": g} for r, g in ((1, 1), (0, 2)) * 2]
    path = write_lines(tmp_path / "named.jsonl", named)
    assert summary_of(path)["groups"] == {"solved": 0.5, "failed": 0.5, "mixed": 0.0}
    assert summary_of(path, group="none")["groups"]["mixed"] == 1


@pytest.mark.parametrize("uid", ["g_{p}_0", "{p}", "row {p} {i}"])
def test_verl_may_name_groups_or_only_rollouts(tmp_path, uid):
    rows = verl_rows(1)
    for place, row in enumerate(rows):
        row["uid"] = uid.format(p=place // 4, i=place % 4)
    assert counts_of(write_lines(tmp_path / "1.jsonl", rows)) == [(1, 4, h) for h in (0, 1, 2, 4)]


def test_of_a_session_of_several_outputs_verl_judges_the_last(tmp_path):
    rows = [row | {"uid": row["uid"][:-1] + "1"} for row in verl_rows(1)]
    earlier = [row | {"score": 1 - row["score"]} for row in verl_rows(1)]
    padding = [row | {"uid": f"pad{'0' * 32}_{i}_0"} for i, row in enumerate(rows[:2])]
    path = write_lines(tmp_path / "1.jsonl", rows + earlier + padding)
    assert counts_of(path) == [(1, 4, hits) for hits in (0, 1, 2, 4)]


@pytest.mark.parametrize("more", [{}, {"tokens": 3}])
def test_a_batch_that_trl_logs_again_is_counted_once(tmp_path, more):
    again = [row | {"step": 2} for row in trl_rows(1)]
    steps = [trl_rows(1), again, trl_rows(3)]
    found = summary_of(write_trl(tmp_path, [[row | more for row in rows] for rows in steps]))
    assert (found["rollouts"], found["steps"], len(found["notes"])) == (32, 2, 1)


def test_rollouts_without_a_reward_of_trl_are_left_out_and_others_summed(tmp_path):
    rows = [row | {"format": 0.5} for row in trl_rows(1)]
    rows[0] |= {"accuracy": None, "format": None}
    rows[1] |= {"accuracy": None}
    rollouts = gdro.inspect.read(write_trl(tmp_path, [rows]))
    expected = [0.5] + [row["accuracy"] + 0.5 for row in rows[2:]]
    assert rollouts.rewards_R.tolist() == expected
    assert len(rollouts.about.notes) == 2
    chosen = gdro.inspect.read(tmp_path, reward="accuracy")
    assert len(chosen) == 14


@pytest.mark.parametrize("role", ["step", "tokens", "group"])
def test_a_column_of_trl_that_is_not_to_be_used_is_no_reward(tmp_path, role):
    rows = [row | {"tokens": 7, "group": 5} for row in trl_rows(1)]
    expected = [row["accuracy"] for row in rows]
    unused = gdro.inspect.read(write_trl(tmp_path / "none", [rows]), **{role: "none"})
    rows = [row | {"other": 9} for row in rows]
    replaced = gdro.inspect.read(write_trl(tmp_path / "other", [rows]), **{role: "other"})
    assert unused.rewards_R.tolist() == replaced.rewards_R.tolist() == expected


def test_a_reward_of_trl_that_comes_later_is_counted_or_refused(tmp_path):
    steps = [trl_rows(1), [row | {"format": 0.5} for row in trl_rows(2)]]
    folder = write_trl(tmp_path / "new", steps)
    with pytest.raises(ValueError, match="format"):
        gdro.inspect.read(folder)
    assert len(gdro.inspect.read(folder, reward="accuracy")) == 32
    late = [row | {"format": None, "image": None, "parsed": None} for row in trl_rows(1)]
    empty = [row | {"image": None, "parsed": "7"} for row in trl_rows(2)]
    assert len(gdro.inspect.read(write_trl(tmp_path / "empty", [late, empty]))) == 32
    folder = write_trl(tmp_path / "none", [late, steps[1]])
    with pytest.raises(ValueError, match="format"):
        gdro.inspect.read(folder)
    rollouts = gdro.inspect.read(folder, reward=["accuracy", "format"])
    assert rollouts.rewards_R[16:].tolist() == [row["accuracy"] + 0.5 for row in steps[1]]


def test_trls_rows_may_be_sorted_or_shuffled_and_have_an_index(tmp_path):
    rows = pd.DataFrame(trl_rows(9) + trl_rows(10))
    for place, order in enumerate([["accuracy"], ["completion"]]):
        path = tmp_path / f"{place}.csv"
        rows.sort_values(order).to_csv(path)
        assert counts_of(path) == EXPECTED
        rows.sort_values(order).to_parquet(path.with_suffix(".parquet"))
        assert counts_of(path.with_suffix(".parquet")) == EXPECTED


LONG = [0] * 2000
NESTED = {
    "long arrays": [{"ids": [*LONG, place, *LONG]} for place in range(2)],
    "calls of tools": [[{"role": "a", "content": None, "calls": [{"name": n}]}] for n in "ab"],
}


@pytest.mark.parametrize("kind", NESTED)
def test_prompts_that_differ_anywhere_are_told_apart(tmp_path, kind):
    rows = [{"prompt": prompt, "reward": 1} for prompt in NESTED[kind] * 2]
    pd.DataFrame(rows).to_parquet(tmp_path / "a.parquet")
    lines = write_lines(tmp_path / "a.jsonl", rows)
    assert counts_of(tmp_path / "a.parquet") == counts_of(lines) == [(0, 2, 2)] * 2


IDS = {
    "zeros": ["7", "07"],
    "words for nothing": ["NA", "null"],
    "large numbers": [2**53, 2**53 + 1],
    "numbers and words": [1, 10, "x"],
}


@pytest.mark.parametrize("column", ["prompt", "group"])
@pytest.mark.parametrize("kind", IDS)
def test_prompts_and_groups_are_told_apart_as_they_are_written(tmp_path, monkeypatch, kind, column):
    monkeypatch.setattr("gdro.inspect.files.PART", 2)
    ids = IDS[kind]
    rows = [{"prompt": "a", "reward": 1} | {column: name} for name in ids * 2]
    table = tmp_path / "a.csv"
    table.write_text(
        "\n".join([",".join(rows[0]), *(",".join(map(str, r.values())) for r in rows)])
    )
    expected = [(0, 2, 2)] * len(ids)
    assert counts_of(table) == counts_of(write_lines(tmp_path / "a.jsonl", rows)) == expected


def test_lists_of_rewards_are_groups_also_behind_empty_ones(tmp_path):
    rows = [{"prompt": "a", "reward": rewards} for rewards in ([], [1, 1], [0, 0])]
    files = write_lines(tmp_path / "1.jsonl", rows[:2]), write_lines(tmp_path / "2.jsonl", rows[2:])
    assert counts_of(*files) == [(0, 2, 0), (0, 2, 2)]


def test_without_steps_a_prompt_is_a_group_and_it_is_said(tmp_path):
    table = pd.DataFrame(trl_rows(1) + trl_rows(2)).drop(columns=["advantage", "step"])
    table.to_csv(tmp_path / "a.csv", index=False)
    found = summary_of(tmp_path / "a.csv", reward="accuracy")
    assert (found["rollouts_per_group"], found["steps"], len(found["notes"])) == (8, None, 1)


def test_what_is_correct_is_said_where_rewards_are_not_zero_and_one(tmp_path):
    graded = trl_rows(1, [[0.2, 0.9], [0.2, 0.2], [0, 0.9]])
    found = summary_of(write_trl(tmp_path / "graded", [graded]))
    assert found["groups"] == {"solved": 2 / 3, "failed": 0, "mixed": 1 / 3}
    assert found["silent"] == pytest.approx(1 / 3)
    assert len(found["notes"]) == 2
    rollouts = gdro.inspect.read(tmp_path / "graded")
    above = gdro.inspect.summarize(rollouts, threshold=0.5)
    assert above["groups"] == pytest.approx({"solved": 0, "failed": 1 / 3, "mixed": 2 / 3})
    one_or_two = [[reward + 1 for reward in group] for group in ([1, 0], [0, 0], [1, 1], [0, 1])]
    found = summary_of(write_trl(tmp_path / "two", [trl_rows(1, one_or_two)]))
    assert (found["groups"], found["threshold"]) == (SHARES, 1)
    # TRL writes float32 as float64: .1 is .10000000149, and not above .1
    rows = [row | {"accuracy": max(row["accuracy"], float(np.float32(0.1)))} for row in trl_rows(1)]
    rollouts = gdro.inspect.read(write_trl(tmp_path / "format", [rows]))
    assert gdro.inspect.summarize(rollouts, threshold=0.1)["groups"] == SHARES


def log(tmp_path, text):
    (tmp_path / "log.csv").write_text(text)
    return [tmp_path / "log.csv"]


def jsonl(tmp_path, *rows):
    return [write_lines(tmp_path / "log.jsonl", rows)]


def cut(tmp_path):
    """A log whose last file was cut while it was written."""
    folder = write_trl(tmp_path, [trl_rows(1)])
    [last] = folder.rglob("*.parquet")
    last.write_bytes(last.read_bytes()[:-30])
    return [folder]


def two_runs(tmp_path):
    for seed in ("seed0", "seed1"):
        write_trl(tmp_path / "grpo" / seed, [trl_rows(1)])
    return [tmp_path]


def late_column(tmp_path):
    rows = [{"prompt": "a", "reward": reward} for reward in (0, 1)]
    late = [row | {"group": "g"} for row in rows]
    return [write_lines(tmp_path / "1.jsonl", rows), write_lines(tmp_path / "2.jsonl", late)]


ROW = {"prompt": "a", "reward": 1, "step": 1}
BAD = {
    "no reward": lambda tmp: log(tmp, "prompt,step\na,1\na,1\n"),
    "no prompt": lambda tmp: log(tmp, "reward,step\n1,1\n1,1\n"),
    "words as rewards": lambda tmp: log(tmp, "prompt,reward,step\na,good,1\na,bad,1\n"),
    "a text as reward": lambda tmp: jsonl(tmp, ROW, ROW | {"reward": "1"}),
    "NaN": lambda tmp: jsonl(tmp, ROW, ROW | {"reward": float("nan")}),
    "a list as reward": lambda tmp: jsonl(tmp, ROW, ROW | {"reward": [1]}),
    "a step in words": lambda tmp: jsonl(tmp, ROW, ROW | {"step": "one"}),
    "no prompt in a row": lambda tmp: jsonl(tmp, ROW, ROW | {"prompt": None}),
    "negative tokens": lambda tmp: jsonl(tmp, ROW | {"tokens": 3}, ROW | {"tokens": -3}),
    "lists and numbers": lambda tmp: [
        *jsonl(tmp, ROW | {"reward": [1, 1]}),
        write_lines(tmp / "log2.jsonl", [ROW, ROW]),
    ],
    "tokens of a turn": lambda tmp: jsonl(
        tmp, *[ROW | {"tokens": [{"out": 3}, {"out": None}]}] * 2
    ),
    "one rollout a prompt": lambda tmp: jsonl(tmp, ROW, ROW | {"prompt": "b"}),
    "a list": lambda tmp: jsonl(tmp, [1, 2]),
    "an empty file": lambda tmp: jsonl(tmp),
    "a column twice": lambda tmp: log(tmp, "prompt,reward,reward\na,1,0\na,0,1\n"),
    "too many cells": lambda tmp: log(tmp, "prompt,reward,step\na,1,1\na,1,1,1,1\n"),
    "cut Parquet": cut,
    "another schema": lambda tmp: [write_lines(tmp / "traces.jsonl", [{"task": 1, "traces": []}])],
    "an empty folder": lambda tmp: [tmp],
    "nothing there": lambda tmp: [tmp / "none"],
    "two runs": two_runs,
    "a column from the second file on": late_column,
}


@pytest.mark.parametrize("kind", BAD)
def test_what_is_bad_gets_one_sentence_and_nothing_is_written(tmp_path, kind):
    paths = BAD[kind](tmp_path)
    before = sorted(tmp_path.rglob("*"))
    picture = tmp_path / "waste.png"
    named = ["--tokens", "tokens.out"] if kind == "tokens of a turn" else []
    ended = CliRunner().invoke(main, ["inspect", *map(str, paths), "--out", str(picture), *named])
    assert ended.exit_code == 2, ended.output
    assert (ended.stdout, len(ended.stderr.splitlines())) == ("", 1)
    assert sorted(tmp_path.rglob("*")) == before


def test_options_that_do_not_fit_are_refused(tmp_path):
    folder = write_trl(tmp_path, [trl_rows(1)])
    (tmp_path / "folder.png").mkdir()
    pictures = [str(tmp_path / name) for name in ("a.txt", "none_such/a.png", "folder.png")]
    words = [["--reward", "none_such"], ["--step", "none_such"], ["--threshold", "nan"]]
    for more in words + [["--out", picture] for picture in pictures]:
        ended = CliRunner().invoke(main, ["inspect", str(folder), *more])
        assert (ended.exit_code, ended.stdout, len(ended.stderr.splitlines())) == (2, "", 1)


def test_the_command_prints_a_page_or_json_and_draws_a_picture(tmp_path):
    folder = write_trl(tmp_path, [trl_rows(step) for step in range(1, 6)])
    picture = tmp_path / "waste.png"
    ended = CliRunner().invoke(main, ["inspect", str(folder), "--out", str(picture)])
    assert ended.exit_code == 0, ended.output
    assert max(map(len, ended.stdout.splitlines()[1:])) <= 100
    assert picture.read_bytes()[:4] == b"\x89PNG"
    ended = CliRunner().invoke(main, ["inspect", str(folder), "--json"])
    found = json.loads(ended.stdout)
    assert found["groups"] == SHARES
    assert (found["rollouts"], found["tokens"], found["pass_rate"]) == (80, None, 7 / 16)
    assert [*found["mixed_by_n"]] == ["2", "4", "8", "16", "32", "64"]
    assert picture.stat().st_size > 10_000


EXTREMES = {
    "all failed": [[0, 0, 0]] * 5,
    "one prompt": [[0, 1]],
    "unequal groups": [[1, 0], [1] * 3 + [0] * 97, [0] * 5, [1] * 64],
    "singles beside a group": [[1], [0], [1, 0, 0, 0]],
    "tiny rewards": [[1e-300, 0, 0, 1e-300], [0, 0]],
    "large rewards": [[1e12, -1e12], [1e12, 1e12]],
}


@pytest.mark.parametrize("kind", EXTREMES)
def test_extreme_logs_have_a_page_a_picture_and_finite_numbers(tmp_path, kind):
    rows = [trl_rows(step, EXTREMES[kind]) for step in range(3)]
    picture = tmp_path / "waste.svg"
    write_trl(tmp_path, rows)
    ended = CliRunner().invoke(main, ["inspect", str(tmp_path), "--out", str(picture), "--json"])
    assert ended.exit_code == 0, ended.output
    found = json.loads(ended.stdout)
    assert gdro.inspect.page(found)
    assert picture.stat().st_size > 10_000
    assert sum(found["groups"].values()) == pytest.approx(1)
    shares = [*found["mixed_by_n"].values()]
    assert sorted(shares) == shares
    assert 0 <= shares[0] <= shares[-1] <= 1
