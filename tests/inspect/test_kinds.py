"""The same rollouts in every kind of log: shares are those counted here, by loops over groups."""

import os
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from helpers import write_lines
from inspect_logs import trl_rows, write_trl

import gdro.inspect
from gdro_lab.cli import main

STEPS = range(1, 7)
PASS_RATES = [0.0, 0.3, 0.9, 1.0]


def make_groups():
    """Groups of four rollouts: prompts, rewards and lengths, of which all is known."""
    rng = np.random.default_rng(0)
    for step in STEPS:
        for place, prompt in enumerate(rng.choice(30, 20, replace=False).tolist()):
            yield SimpleNamespace(
                step=step,
                place=place,
                uid=prompt,
                prompt=f"Question {prompt:02d}?".ljust(15 + prompt, "."),
                size=15 + prompt,
                rewards=(rng.random(4) < PASS_RATES[prompt % 4]).astype(float).tolist(),
                sizes=rng.integers(1, 40, 4).tolist(),
                discarded=place >= 15,
            )


GROUPS = list(make_groups())


def rows(make, step=None, places=range(4)):
    """What `make` makes of group, reward, length and place of each rollout, of a step or of all."""
    return [
        make(g, g.rewards[i], g.sizes[i], i)
        for g in GROUPS
        if step in (None, g.step)
        for i in places
    ]


def write_steps(folder, name, make):
    for step in STEPS:
        write_lines(folder / name.format(step=step), rows(make, step))


def of_trl(g, reward, size, _):
    row = {"step": g.step, "prompt": g.prompt, "completion": "x" * size, "right": reward}
    return row | {"advantage": 0.0}


def write_kind_trl(folder):
    write_trl(folder, [rows(of_trl, step) for step in STEPS])


def write_kind_gdro(folder):
    """GDROTrainer's table: two rollouts of each prompt, and two more in a second round."""

    def of_gdro(g, *rest):
        own = {"uid": str(g.uid), "rollout_group": g.place, "discarded": g.discarded}
        return of_trl(g, *rest) | own

    rounds = [[rows(of_gdro, step, places) for places in ((0, 1), (2, 3))] for step in STEPS]
    evaluated = [of_trl(GROUPS[0], 1.0, 3, 0) | {"uid": None, "rollout_group": -1}] * 3
    evaluated = [row | {"discarded": False} for row in evaluated]
    write_trl(folder, [first + second + evaluated for first, second in rounds])


def write_kind_verl(folder, keyed=True):
    def of_verl(g, reward, size, i):
        row = {"input": g.prompt, "output": "x" * size, "gts": "1", "score": reward}
        return row | {"step": g.step} | ({"uid": f"{g.step}-{g.place}_{i}_0"} if keyed else {})

    write_steps(folder, "{step}.jsonl", of_verl)


def write_kind_tinker(folder):
    def of_tinker(g, reward, size, i):
        turn = {"step_idx": 0, "ob_len": g.size, "ac_len": size, "reward": reward}
        row = {"split": "train", "iteration": g.step, "group_idx": g.place, "traj_idx": i}
        return row | {"tags": ["a"], "total_reward": reward, "final_reward": 0.0, "steps": [turn]}

    write_steps(folder, "iteration_{step:06d}/train_rollout_summaries.jsonl", of_tinker)
    write_lines(folder / "metrics.jsonl", [{"step": 1, "reward": 0.5}])


def of_prime(g, reward, size, _):
    usage = {"prompt_tokens": g.size - 3, "cached_input_tokens": 3, "completion_tokens": size}
    trained = {"agent": {"name": "solver", "trainable": True}, "calls": [{"usage": usage}]}
    trained |= {"rewards": {"right": {"score": 2 * reward, "weight": 0.5}}, "nodes": []}
    judge = {"agent": {"name": "judge", "trainable": False}, "rewards": {}, "calls": []}
    work = {"type": "train", "step": g.step}
    return {
        "id": "e",
        "task": {"type": "T", "data": {"prompt": g.prompt}, "key": g.prompt},
        "group": {"id": f"{g.step}-{g.place}"},
        "run": {"type": "train", "id": "r", "work": work},
        "ok": True,
        "traces": [judge, trained],
    }


def write_kind_prime(folder):
    write_steps(folder, "rollouts/step_{step}/train/all/traces.jsonl", of_prime)
    some = rows(of_prime)[:8]
    write_lines(folder / "rollouts" / "step_1" / "train" / "effective" / "traces.jsonl", some)


def write_kind_csv(folder):
    def of_csv(g, reward, size, _):
        return {"q": g.prompt, "r": reward, "when": g.step, "t": size, "pt": g.size, "noise": "7"}

    pd.DataFrame(rows(of_csv)).sample(frac=1, random_state=0).to_csv(folder / "a.csv", index=False)
    return {"prompt": "q", "reward": "r", "step": "when", "tokens": "t", "prompt_tokens": "pt"}


def write_kind_nested(folder):
    def of_nested(g, reward, size, _):
        task = {"data": {"prompt": g.prompt}, "at": {"step": g.step}}
        turns = [{"out": size - 1}, {"out": 1}]
        return {"task": task, "turns": turns, "in": [g.size, 7], "scores": [{"value": reward}]}

    pd.DataFrame(rows(of_nested)).to_parquet(folder / "a.parquet")
    names = {"prompt": "task.data.prompt", "reward": "scores.0.value", "step": "task.at.step"}
    return names | {"tokens": "turns.out", "prompt_tokens": "in.0"}


def write_kind_lists(folder):
    lines = [
        {"step": g.step, "prompt": g.prompt, "group_rewards": g.rewards}
        | {"tokens": g.sizes, "prompt_tokens": g.size}
        for g in GROUPS
    ]
    write_lines(folder / "a.jsonl", lines)


def write_kind_generations(folder):
    def of_generation(g, reward, size, i):
        row = {"problem_id": f"{g.step}-{g.place}", "generation_index": i}
        return row | {"scalar_reward": reward, "completion_tokens": size}

    write_lines(folder / "a.jsonl", rows(of_generation))


def write_kind_paths(folder):
    """Groups are numbered anew in each step, and each prompt has a path of its own."""

    def of_path(g, reward, _, i):
        prompt = f"/tmp/{g.step}/{g.place}/{i} {g.prompt}"
        return {"iteration": g.step, "group": g.place, "reward": reward, "prompt": prompt}

    write_lines(folder / "a.jsonl", rows(of_path))
    return {"prompt": "none"}


def write_kind_rewards(folder):
    def of_reward(g, reward, _, i):
        return {"step": g.step, "group_id": g.place, "reward": reward}

    pd.DataFrame(rows(of_reward)).to_parquet(folder / "a.parquet")


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
    "prompts with a path": (write_kind_paths, "rollouts"),
    "rewards alone": (write_kind_rewards, "rollouts"),
}


def counted(unit, keeps_discarded):
    """Shares of groups, and of what is computed, by loops over the groups."""
    kinds = {"solved": 0, "failed": 0, "mixed": 0}
    computed = needed = shared = 0
    for g in GROUPS:
        total = sum(g.rewards)
        kinds["solved" if total == 4 else "failed" if total == 0 else "mixed"] += 1
        if g.discarded and not keeps_discarded:
            continue
        sizes = [1] * 4 if unit == "rollouts" else g.sizes
        prompt = g.size if unit in ("tokens", "characters") else 0
        last = unit == "tokens"
        once = max(prompt - last, 0) + sum(size + last for size in sizes)
        computed += 4 * prompt + sum(sizes)
        shared += once
        needed += once if 0 < total < 4 else 0
    shares = {kind: count / len(GROUPS) for kind, count in kinds.items()}
    return shares, {"of": unit, "share": needed / computed, "share_with_beta": shared / computed}


@pytest.mark.parametrize("kind", KINDS)
def test_shares_of_every_kind_of_log_are_those_counted_by_hand(tmp_path, kind):
    write, unit = KINDS[kind]
    columns = write(tmp_path) or {}
    found = gdro.inspect.summarize(gdro.inspect.read(tmp_path, **columns))
    shares, needed = counted(unit, keeps_discarded=kind != "gdro")
    assert found["groups"] == pytest.approx(shares)
    assert found["silent"] == pytest.approx(1 - shares["mixed"])
    assert found["needed"] == pytest.approx(needed)
    assert found["rollouts"] == 4 * len(GROUPS)
    assert found["withheld"] is None
    text = gdro.inspect.page(found, "log")
    assert len(text.splitlines()) <= 40
    assert max(map(len, text.splitlines())) <= 100


def test_a_group_of_prime_rl_may_end_in_a_later_step_and_an_episode_may_fail(tmp_path):
    wrong, right = (of_prime(GROUPS[0], reward, 5, 0) for reward in (0.0, 1.0))
    right["run"]["work"]["step"] = 2
    for step, episodes in {1: [wrong, wrong | {"traces": [], "ok": False}], 2: [right]}.items():
        write_lines(tmp_path / f"step_{step}" / "train" / "all" / "traces.jsonl", episodes)
    found = gdro.inspect.summarize(gdro.inspect.read(tmp_path))
    assert (found["rollouts"], found["groups"]["mixed"], found["steps"]) == (2, 1, 1)
    assert any("no reward" in note for note in found["notes"])


def test_a_length_of_a_whole_group_is_no_length_of_its_rollouts(tmp_path):
    row = {"prompt": "a", "group_rewards": [0, 1], "tokens": 5, "completion": "the best"}
    rollouts = gdro.inspect.read(write_lines(tmp_path / "a.jsonl", [row, row]))
    assert (rollouts.lengths_R, len(set(rollouts.groups_R.tolist()))) == (None, 2)
    assert not rollouts.about.notes


def test_a_rollout_at_the_mean_of_its_group_needs_no_computation(tmp_path):
    rows = [
        {"prompt": "a", "reward": reward, "tokens": 10, "prompt_tokens": 100}
        for reward in (0.1, 0.2, 0.3)  # of which the mean is .2 only to rounding
    ]
    found = gdro.inspect.summarize(gdro.inspect.read(write_lines(tmp_path / "a.jsonl", rows)), 0.2)
    assert found["needed"]["share"] == pytest.approx((99 + 2 * 11) / 330)
    assert found["needed"]["share_with_beta"] == pytest.approx((99 + 3 * 11) / 330)


def test_sums_that_differ_by_rounding_are_equal(tmp_path):
    rows = [{"prompt": "a", "step": 1, "x": x, "y": y} for x, y in ((0.1, 0.2), (0.3, 0.0))]
    log = write_lines(tmp_path / "a.jsonl", rows)
    rollouts = gdro.inspect.read(log, reward=("x", "y"))
    assert gdro.inspect.form_groups(rollouts, 0).is_flat_G.all()


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
    resumed = notes_of(write_trl(tmp_path / "resumed", [trl_rows(step) for step in (5, 6, 7)]))
    assert ("4 of 7 steps" in resumed, "logging_steps" in resumed) == (True, False)


def test_files_of_an_earlier_run_and_rows_of_an_evaluation_are_said(tmp_path):
    folder = write_trl(tmp_path / "twice", [trl_rows(step) for step in range(1, 7)])
    files = sorted(folder.rglob("*.parquet"))
    for hour, file in enumerate(files[3:] + files[:3]):
        os.utime(file, (3600 * hour, 3600 * hour))
    assert files[3].name in notes_of(folder)
    own = {"uid": "a", "rollout_group": 0, "discarded": False}
    steps = [[row | own for row in trl_rows(step, [[1, 0]])] for step in (1, 2)]
    steps[0] = [row | {"uid": None, "rollout_group": -1} for row in steps[0]]
    notes = notes_of(write_trl(tmp_path / "evaluated", steps))
    assert ("evaluation" in notes, "logging_steps" in notes) == (True, False)


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
