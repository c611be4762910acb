"""The same rollouts in every kind of log: shares are those that are counted here, by hand."""

import json
import os
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from helpers import write_lines
from inspect_logs import trl_rows, write_trl

import gdro.inspect
from gdro_lab.cli import main

STEPS = 6
PROMPTS = 20  # of a step


def make_groups(seed=0):
    """Groups of four rollouts: prompts, rewards and lengths of which all is known."""
    rng = np.random.default_rng(seed)
    groups = []
    for step in range(1, STEPS + 1):
        for place, prompt in enumerate(rng.choice(30, PROMPTS, replace=False)):
            size = 15 + int(prompt)
            groups.append(
                {
                    "step": step,
                    "place": place,
                    "prompt": f"Question {prompt:02d}?".ljust(size, "."),
                    "size": size,
                    "rewards": [float(r) for r in rng.random(4) < [0.0, 0.3, 0.9, 1.0][prompt % 4]],
                    "sizes": rng.integers(1, 40, 4).tolist(),
                    "discarded": place >= 15,
                }
            )
    return groups


GROUPS = make_groups()


def rows_of(group):
    """Each rollout's reward, length, and place in the group."""
    return zip(group["rewards"], group["sizes"], range(4), strict=True)


def write_kind_trl(folder):
    write_trl(
        folder,
        [
            [
                {
                    "step": step,
                    "prompt": g["prompt"],
                    "completion": "x" * size,
                    "right": reward,
                    "advantage": 0.0,
                }
                for g in GROUPS
                if g["step"] == step
                for reward, size, _ in rows_of(g)
            ]
            for step in range(1, STEPS + 1)
        ],
    )
    return {}


def gdro_rows(step):
    """Rows of GDROTrainer's table: two rollouts of each prompt, and two more in a second round."""
    rows = []
    for half in ((0, 1), (2, 3)):
        for g in (g for g in GROUPS if g["step"] == step):
            for reward, size, place in rows_of(g):
                if place in half:
                    row = {"step": step, "prompt": g["prompt"], "completion": "x" * size}
                    row |= {"right": reward, "advantage": 0.0, "uid": int(g["prompt"][9:11])}
                    row |= {"rollout_group": g["place"], "discarded": g["discarded"]}
                    rows.append(row)
    return rows


def write_kind_gdro(folder):
    write_trl(folder, [gdro_rows(step) for step in range(1, STEPS + 1)])
    return {}


def write_kind_verl(folder, keyed=True):
    for step in range(1, STEPS + 1):
        rows = [
            {"input": g["prompt"], "output": "x" * size, "gts": "1", "score": reward, "step": step}
            | ({"uid": f"{step}-{g['place']}_{place}_0"} if keyed else {})
            for g in GROUPS
            if g["step"] == step
            for reward, size, place in rows_of(g)
        ]
        write_lines(folder / f"{step}.jsonl", rows[::2] + rows[1::2])
    return {}


def write_kind_tinker(folder):
    for step in range(1, STEPS + 1):
        rows = [
            {"schema_version": 1, "split": "train", "iteration": step, "group_idx": g["place"]}
            | {"traj_idx": place, "tags": ["math"], "total_reward": reward, "final_reward": 0.0}
            | {"steps": [{"step_idx": 0, "ob_len": g["size"], "ac_len": size, "reward": reward}]}
            for g in GROUPS
            if g["step"] == step
            for reward, size, place in rows_of(g)
        ]
        write_lines(folder / f"iteration_{step:06d}" / "train_rollout_summaries.jsonl", rows)
    write_lines(folder / "metrics.jsonl", [{"step": 1, "reward": 0.5}])
    return {}


def episode(g, reward, size):
    usage = {"prompt_tokens": g["size"] - 3, "cached_input_tokens": 3, "completion_tokens": size}
    trained = {"agent": {"name": "solver", "trainable": True}, "calls": [{"usage": usage}]}
    trained |= {"rewards": {"right": {"score": 2 * reward, "weight": 0.5}}, "nodes": []}
    judge = {"agent": {"name": "judge", "trainable": False}, "rewards": {}, "calls": []}
    return {
        "id": "e",
        "env": {"id": "math"},
        "task": {"type": "T", "data": {"prompt": g["prompt"]}, "key": g["prompt"]},
        "group": {"id": f"{g['step']}-{g['place']}"},
        "run": {"type": "train", "id": "r", "work": {"type": "train", "step": g["step"]}},
        "ok": True,
        "traces": [judge, trained],
    }


def write_kind_prime(folder):
    for step in range(1, STEPS + 1):
        rows = [
            episode(g, reward, size)
            for g in GROUPS
            if g["step"] == step
            for reward, size, _ in rows_of(g)
        ]
        for subset, kept in (("all", rows), ("effective", rows[:8])):
            path = folder / "rollouts" / f"step_{step}" / "train" / subset / "traces.jsonl"
            write_lines(path, kept)
    return {}


def table_rows():
    return [
        {"step": g["step"], "prompt": g["prompt"], "reward": reward, "place": g["place"]}
        | {"completion": "x" * size, "tokens": size, "prompt_tokens": g["size"], "i": place}
        for g in GROUPS
        for reward, size, place in rows_of(g)
    ]


def write_kind_csv(folder):
    table = pd.DataFrame(table_rows()).sample(frac=1, random_state=0)
    table = table.rename(columns={"prompt": "q", "reward": "r", "step": "when", "tokens": "t"})
    table = table.rename(columns={"prompt_tokens": "pt"})
    table.to_csv(folder / "a.csv", index=False)
    return {"prompt": "q", "reward": "r", "step": "when", "tokens": "t", "prompt_tokens": "pt"}


def write_kind_nested(folder):
    rows = [
        {"meta": {"at": {"step": row["step"]}}, "task": {"data": {"prompt": row["prompt"]}}}
        | {"turns": [{"out": row["tokens"] - 1}, {"out": 1}], "in": [row["prompt_tokens"], 7]}
        | {"scores": [{"value": row["reward"]}]}
        for row in table_rows()
    ]
    pd.DataFrame(rows).to_parquet(folder / "a.parquet")
    names = {"prompt": "task.data.prompt", "reward": "scores.0.value", "step": "meta.at.step"}
    return names | {"tokens": "turns.out", "prompt_tokens": "in.0"}


def write_kind_lists(folder):
    rows = [
        {"step": g["step"], "prompt": g["prompt"], "group_rewards": g["rewards"]}
        | {"tokens": g["sizes"], "prompt_tokens": g["size"]}
        for g in GROUPS
    ]
    write_lines(folder / "a.jsonl", rows)
    return {}


def write_kind_generations(folder):
    rows = [
        {"problem_id": f"{row['step']}-{row['place']}", "generation_index": row["i"]}
        | {"scalar_reward": row["reward"], "completion_tokens": row["tokens"]}
        for row in table_rows()
    ]
    write_lines(folder / "a.jsonl", rows)
    return {}


def write_kind_groups(folder):
    """Groups are numbered anew in each step, and prompts are told apart by a path in each."""
    rows = [
        {"iteration": row["step"], "group": row["place"], "reward": row["reward"]}
        | {"prompt": f"/tmp/{number} {row['prompt']}"}
        for number, row in enumerate(table_rows())
    ]
    write_lines(folder / "a.jsonl", rows)
    return {"prompt": "none"}


def write_kind_rewards(folder):
    rows = [{key: row[key] for key in ("step", "place", "reward")} for row in table_rows()]
    pd.DataFrame(rows).rename(columns={"place": "group_id"}).to_parquet(folder / "a.parquet")
    return {}


KINDS = {  # what is computed is counted in what each has
    "trl": (write_kind_trl, "characters"),
    "gdro": (write_kind_gdro, "characters"),
    "verl": (write_kind_verl, "characters"),
    "verl without keys": (lambda folder: write_kind_verl(folder, keyed=False), "characters"),
    "tinker-cookbook": (write_kind_tinker, "tokens"),
    "prime-rl": (write_kind_prime, "tokens"),
    "csv": (write_kind_csv, "tokens"),
    "nested": (write_kind_nested, "tokens"),
    "lists of rewards": (write_kind_lists, "tokens"),
    "generations": (write_kind_generations, "completion tokens"),
    "prompts with a path": (write_kind_groups, "rollouts"),
    "rewards alone": (write_kind_rewards, "rollouts"),
}


def counted(unit, keeps_discarded):
    """Shares of groups, and of what is computed, by loops over the groups."""
    kinds = {"solved": 0, "failed": 0, "mixed": 0}
    computed = needed = shared = 0
    for g in GROUPS:
        total = sum(g["rewards"])
        kinds["solved" if total == 4 else "failed" if total == 0 else "mixed"] += 1
        if g["discarded"] and not keeps_discarded:
            continue
        sizes = [1] * 4 if unit == "rollouts" else g["sizes"]
        prompt = g["size"] if unit in ("tokens", "characters") else 0
        last = unit == "tokens"
        once = max(prompt - last, 0) + sum(size + last for size in sizes)
        computed += 4 * prompt + sum(sizes)
        shared += once
        needed += once if 0 < total < 4 else 0
    shares = {kind: count / len(GROUPS) for kind, count in kinds.items()}
    return shares, needed / computed, shared / computed


@pytest.mark.parametrize("kind", KINDS)
def test_shares_of_every_kind_of_log_are_those_counted_by_hand(tmp_path, kind):
    write, unit = KINDS[kind]
    columns = write(tmp_path)
    paths = [tmp_path] if len(list(tmp_path.iterdir())) > 1 else list(tmp_path.iterdir())
    rollouts = gdro.inspect.read(*paths, **columns)
    found = gdro.inspect.summarize(rollouts)
    shares, needed, shared = counted(unit, keeps_discarded=kind != "gdro")
    assert found["groups"] == pytest.approx(shares)
    assert found["silent"] == pytest.approx(1 - shares["mixed"])
    assert found["needed"] == pytest.approx(
        {"of": unit, "share": needed, "share_with_beta": shared}
    )
    assert found["rollouts"] == 4 * len(GROUPS)
    assert found["withheld"] is None
    text = gdro.inspect.page(found, "log")
    assert len(text.splitlines()) <= 40
    assert max(map(len, text.splitlines())) <= 100


def test_a_group_of_prime_rl_may_end_in_a_later_step_and_an_episode_may_fail(tmp_path):
    g = GROUPS[0] | {"step": 1}
    late = [episode(g | {"step": 2}, 1.0, 5) | {"group": {"id": "1-0"}}]
    failed = [episode(g, 0.0, 5) | {"traces": [], "ok": False}]
    rows = {1: [episode(g | {"place": 0}, 0.0, 5), *failed], 2: late}
    for step, some in rows.items():
        write_lines(tmp_path / f"step_{step}" / "train" / "all" / "traces.jsonl", some)
    found = gdro.inspect.summarize(gdro.inspect.read(tmp_path))
    assert (found["rollouts"], found["groups"]["mixed"], found["steps"]) == (2, 1, 1)
    assert any("no reward" in note for note in found["notes"])


def notes_of(folder, **columns):
    return " ".join(gdro.inspect.summarize(gdro.inspect.read(folder, **columns))["notes"])


def test_steps_that_are_not_in_the_log_are_said(tmp_path):
    every_tenth = write_trl(tmp_path / "tenth", [trl_rows(step) for step in (10, 20, 30, 40)])
    assert "9 of 10 steps" in notes_of(every_tenth)
    assert "logging_steps=1" in notes_of(every_tenth)
    holes = write_trl(tmp_path / "holes", [trl_rows(step) for step in (1, 2, 5)])
    assert "2 of 5 steps" in notes_of(holes)
    # a batch that serves two steps is in the log twice, and nothing is missing
    again = [[row | {"step": step} for row in trl_rows(step // 2)] for step in (2, 3, 4, 5)]
    assert "not in this log" not in notes_of(write_trl(tmp_path / "again", [trl_rows(1), *again]))


STAGED = [[0.1, 0.4, 1.0, 0.4], [0.4] * 4, [1.0] * 4, [0.1, 0.1, 0.1, 0.4]]


def test_of_staged_rewards_it_says_only_what_needs_no_threshold(tmp_path):
    folder = write_trl(tmp_path, [trl_rows(step, STAGED) for step in range(1, 31)])
    found = gdro.inspect.summarize(gdro.inspect.read(folder))
    assert (found["threshold"], found["groups"], found["silent"]) == (None, None, 0.5)
    assert "--threshold" in gdro.inspect.page(found)
    ended = CliRunner().invoke(main, ["inspect", str(folder), "--out", str(tmp_path / "a.png")])
    assert (ended.exit_code, (tmp_path / "a.png").exists()) == (2, False)
    named = gdro.inspect.summarize(gdro.inspect.read(folder), threshold=0.9)
    assert named["groups"] == {"solved": 0.25, "failed": 0.5, "mixed": 0.25}


@pytest.mark.parametrize(("steps", "unscored"), [(1, 0), (30, 60)])
def test_few_groups_or_many_lost_rows_carry_no_conclusion(tmp_path, steps, unscored):
    rows = [trl_rows(step) for step in range(1, steps + 1)]
    for row in [row for step in rows for row in step][1 : unscored + 1]:
        row["accuracy"] = None
    found = gdro.inspect.summarize(gdro.inspect.read(write_trl(tmp_path, rows)))
    assert found["withheld"] is not None
    assert "GDROConfig" not in gdro.inspect.page(found)


def test_where_all_is_solved_no_interval_has_zero_width(tmp_path):
    rows = [trl_rows(step, [[1, 1]] * 4) for step in range(1, 31)]
    found = gdro.inspect.summarize(gdro.inspect.read(write_trl(tmp_path, rows)))
    ends = [found["silent_interval"], *found["groups_interval"].values()]
    ends += found["pass_rates"]["interval"] + list(found["mixed_by_n_interval"].values())
    ends += [end for part in found["over_the_run"] for end in part["interval"].values()]
    assert all(high - low > 1e-3 for low, high in ends)


def test_fifths_of_the_run_are_of_whole_steps(tmp_path):
    rows = [trl_rows(step, [[1, 0]] if step < 7 else [[1, 1]] * 9) for step in range(1, 8)]
    parts = gdro.inspect.summarize(gdro.inspect.read(write_trl(tmp_path, rows)))["over_the_run"]
    assert [part["from_step"] for part in parts] == [1, 3, 4, 6, 7]
    assert [part["mixed"] for part in parts] == [1, 1, 1, 1, 0]


def test_a_pointer_of_git_lfs_is_named_as_one(tmp_path):
    path = tmp_path / "a.parquet"
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
    with pytest.raises(ValueError, match="Git LFS"):
        gdro.inspect.read(path)


@pytest.mark.parametrize("group", [None, "g"])
def test_prompts_that_are_unique_are_met_with_what_helps(tmp_path, group):
    rows = [{"prompt": f"path {n}", "reward": n % 2, "g": n // 4} for n in range(16)]
    path = write_lines(tmp_path / "a.jsonl", rows)
    with pytest.raises(ValueError, match="--prompt none" if group else "--prompt COLUMN"):
        gdro.inspect.read(path, group=group) and notes_of(path, group=group)


def test_a_full_disk_leaves_no_picture(tmp_path):
    folder = write_trl(tmp_path / "log", [trl_rows(1)])
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000));"
        "from gdro_lab.cli import main; main(sys.argv[1:])"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code, "inspect", str(folder), "--out", str(tmp_path / "a.png")],
        capture_output=True,
        text=True,
        env=os.environ | {"MPLCONFIGDIR": str(tmp_path / "config")},
    )
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.splitlines()[-1].startswith("gdro inspect: out must be")
    assert not list(tmp_path.glob("*.png")) + list(tmp_path.glob(".*.png"))


def test_a_log_that_its_trainer_counted_otherwise_says_so(tmp_path):
    folder = write_trl(tmp_path, [trl_rows(1)])
    summary = gdro.inspect.summarize(gdro.inspect.read(folder))
    (tmp_path / "inspect.json").write_text(json.dumps(summary))
    assert "trainer itself" not in gdro.inspect.inspect_logs([folder])
    (tmp_path / "inspect.json").write_text(json.dumps(summary | {"rollouts": 32}))
    assert "trainer itself" in gdro.inspect.inspect_logs([folder / "completions"])
