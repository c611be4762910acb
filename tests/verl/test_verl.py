"""gdro in the real verl, in an environment that has it.

A CPU platform and an engine of transformers take the place of a GPU and vLLM (verl_on_cpu.py); its
trainer, Ray, queue, FSDP2 and checkpoints are verl's own.
"""

import json
import os
import signal
import subprocess
import tempfile
import time
from collections import Counter
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest
from conftest import PATIENCE
from processes import REPOSITORY, needs, python_of, run_in
from pyarrow import parquet

from gdro.files import load_state
from gdro.verl.rows import uids_of

pytestmark = needs("verl")
HERE = Path(__file__).parent
PROMPTS, MEAN = 8, 4
OPTIONS = (HERE / "options.txt").read_text().split()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """What verl_in_process.py leaves: model, data and a report."""
    folder = tmp_path_factory.mktemp("verl")
    run_in("verl", HERE / "verl_in_process.py", folder, cwd=folder)
    return folder


@pytest.fixture(scope="module")
def report(folder):
    return json.loads((folder / "report.json").read_text())


@contextmanager
def verl(folder):
    """verl at work, as its users start it, on two ranks and with two workers of its agents."""
    run = folder / "run"
    run.mkdir(exist_ok=True)
    paths = os.pathsep.join(map(str, [REPOSITORY, REPOSITORY / "tests", HERE]))
    own = {
        "PYTHONPATH": paths,
        "OMP_NUM_THREADS": "1",
        "GDRO_WATCH": str(run / "notes.jsonl"),
        "VERL_USE_EXTERNAL_MODULES": "verl_on_cpu,verl_watch",
        "HF_HUB_OFFLINE": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_AUTH_MODE": "disabled",  # or Ray writes a key into the home folder
        "RAY_enable_worker_prestart": "0",
    }
    command = [python_of("verl"), "-m", "verl.trainer.main_ppo"]
    command += ["--config-path=pkg://gdro.verl", "--config-name=gdro", *OPTIONS]
    command += [
        f"data.train_files={folder / 'train.parquet'}",
        f"data.val_files={folder / 'held_out.parquet'}",
        f"actor_rollout_ref.model.path={folder / 'model'}",
        f"reward.custom_reward_function.path={HERE / 'verl_reward.py'}",
        "actor_rollout_ref.rollout.agent.num_workers=2",
        "trainer.n_gpus_per_node=2",
        "+ray_kwargs.ray_init.num_gpus=2",
        "gdro.method=every_second",
        "gdro.pass_rate_column=pass_rate",
        "trainer.total_training_steps=4",
        "trainer.save_freq=2",
        "trainer.test_freq=4",
        f"trainer.default_local_dir={run}",
        f"trainer.rollout_data_dir={run / 'rollouts'}",
        f"trainer.validation_data_dir={run / 'validation'}",
    ]
    # Ray's sockets need a short path
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as temporary:
        command += [f"+ray_kwargs.ray_init._temp_dir={temporary}"]
        with (run / "log.txt").open("a") as log:
            process = subprocess.Popen(
                command,
                cwd=run,
                env=os.environ | own,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # Ray's processes end with it
            process.wait(PATIENCE)


def notes(run):
    path = run / "notes.jsonl"
    return read_lines(path) if path.exists() else []


def read_lines(path):
    # not splitlines(): a rollout may hold any separator of lines, and verl writes it as it is
    return [json.loads(line) for line in path.read_text().split("\n") if line]


def came_back(run, step, kind="rollouts"):
    """Rollouts of each prompt, by its number, which its text begins with."""
    rows = read_lines(run / kind / f"{step}.jsonl")
    return Counter(int(row["input"].split("user\n")[1].split(" +")[0]) for row in rows)


@pytest.fixture(scope="module")
def plans(folder):
    """Plans of a run that is killed in step 3, and after its checkpoint of step 2 was resumed."""
    run = folder / "run"
    with verl(folder) as process:
        while len(notes(run)) < 3 and process.poll() is None:
            time.sleep(0.5)
    before = notes(run)
    assert len(before) == 3, (run / "log.txt").read_text()[-5000:]
    with verl(folder) as process:
        process.wait(PATIENCE)
    assert process.returncode == 0, (run / "log.txt").read_text()[-5000:]
    return before, notes(run)[3:]


def test_batches_and_group_sizes_that_come_back_are_those_of_the_plan(folder, plans):
    """Of prompts in verl's order and of drawn ones."""
    before, after = plans
    data = parquet.read_table(folder / "train.parquet").to_pylist()
    number_of = {uid: number for number, uid in enumerate(uids_of(data))}
    assert len(number_of) == 32
    for step, plan in enumerate(before[:2] + after, start=1):
        assert sum(plan["rollouts"]) == MEAN * PROMPTS
        assert len(set(plan["uids"])) == PROMPTS
        planned = zip(plan["uids"], plan["rollouts"], strict=True)
        wanted = {number_of[uid]: rollouts for uid, rollouts in planned}
        assert came_back(folder / "run", step) == wanted


def test_an_index_of_its_own_is_the_uid_of_a_row():
    rows = [{"prompt": "a", "extra_info": {"index": n}} for n in (7, 3)]
    assert uids_of(rows).tolist() == [7, 3]
    again = uids_of([*rows, rows[0]])  # several files may be numbered from 0 each
    assert len(set(again)) == 3
    assert again[2] == f"{again[0]}#2"


def test_the_numbers_of_each_step_are_logged_and_validation_is_verls_own(folder, plans):
    lines = (folder / "run" / "log.txt").read_text().splitlines()
    steps = [line for line in lines if "gdro/" in line]
    assert len(steps) >= 3  # the kill may cost the line of step 2
    assert all("gdro/mean_reward" in step and "gdro/share/" in step for step in steps)
    assert came_back(folder / "run", 4, "validation") == dict.fromkeys(range(4), 1)


def test_a_killed_run_goes_on_with_the_state_and_the_plan_of_its_checkpoint(folder, plans):
    before, after = plans
    run = folder / "run"
    state = load_state(run / "global_step_2" / "gdro_state.json")
    np.testing.assert_equal(load_state(run / "loaded.json"), state["controller"])
    assert state["controller"]["step"] == 2
    assert [plan["number"] for plan in after] == [2, 3]
    assert after[0] == before[2]  # prompts and rollouts of the step that was lost
    assert len(set(before[0]["rollouts"])) > 1  # in the first step, by the column of pass rates


def test_grpo_has_verls_own_advantages(report):
    """On groups of several sizes, with padding and rollouts of several outputs."""
    assert report["rows"] > report["rollouts"] > report["prompts"] > 2
    assert report["largest"] > 0.5
    assert report["padding"] == 0
    # the last one is the controller's own, beside verl's without σ
    differences = [report[name] for name in ("grpo", "unnormalized", "dr_grpo")]
    assert max(differences) < 1e-6


def test_what_verl_cannot_give_is_refused(report):
    for named, message in report["refused"].items():
        assert named in message
    # by verl's own command in one sentence, before Ray
    ended = report["command"]
    assert "several generations" in ended["said"]
    assert not ended["has_started"]
