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
    folder = tmp_path_factory.mktemp("verl")
    run_in("verl", HERE / "make_run.py", folder)
    return folder


@contextmanager
def verl(folder, name, *options, workers=1, data="numbered"):
    """verl at work in a folder of the run, as its users start it; what it notes and prints."""
    run = folder / name
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
        f"data.train_files={folder / data}.parquet",
        f"data.val_files={folder / 'held_out.parquet'}",
        f"actor_rollout_ref.model.path={folder / 'model'}",
        f"actor_rollout_ref.rollout.agent.num_workers={workers}",
        f"reward.custom_reward_function.path={HERE / 'verl_reward.py'}",
        f"trainer.n_gpus_per_node={workers}",
        f"+ray_kwargs.ray_init.num_gpus={workers}",
        f"trainer.default_local_dir={run}",
        f"trainer.rollout_data_dir={run / 'rollouts'}",
        f"trainer.validation_data_dir={run / 'validation'}",
        *options,
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


def finish(folder, name, *options, **settings):
    """Run to the end; the plans, the lines of the console."""
    with verl(folder, name, *options, **settings) as process:
        process.wait(PATIENCE)
    log = (folder / name / "log.txt").read_text()
    assert process.returncode == 0, log[-5000:]
    return notes(folder / name), [line for line in log.splitlines() if "gdro/" in line]


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
def pivotal(folder):
    """Six steps of pivotal, which draws; validation at the end."""
    options = ["gdro.method=pivotal", "trainer.total_training_steps=6", "trainer.test_freq=6"]
    return finish(folder, "pivotal", *options)


def test_pivotal_draws_each_batch_and_is_logged(folder, pivotal):
    plans, steps = pivotal
    assert [plan["number"] for plan in plans] == list(range(6))
    assert len(steps) == 6
    assert all("gdro/mean_reward" in step and "gdro/share/" in step for step in steps)
    assert len({tuple(sorted(plan["uids"])) for plan in plans}) > 1
    for step, plan in enumerate(plans, start=1):  # extra_info.index is the identity
        assert len(set(plan["uids"])) == PROMPTS
        assert came_back(folder / "pivotal", step) == dict.fromkeys(plan["uids"], MEAN)


def test_validation_is_verls_own(folder, pivotal):
    assert came_back(folder / "pivotal", 6, "validation") == dict.fromkeys(range(4), 1)


@pytest.fixture(scope="module")
def killed(folder):
    """`rollout_prompts` on two ranks and two workers, killed in step 5, checkpoint at step 4.

    The rows have no index, so a uid is a hash of the row.
    """
    run = folder / "rollout"
    options = ["gdro.method=rollout_prompts", "gdro.pass_rate_column=pass_rate"]
    options += ["trainer.save_freq=4", "trainer.total_training_steps=6"]
    with verl(folder, "rollout", *options, workers=2, data="plain") as process:
        while len(notes(run)) < 5 and process.poll() is None:
            time.sleep(0.5)
    before = notes(run)
    assert len(before) == 5, (run / "log.txt").read_text()[-5000:]
    after, _ = finish(folder, "rollout", *options, workers=2, data="plain")
    return before, after[len(before) :]


def test_group_sizes_that_come_back_are_those_of_the_plan(folder, killed):
    before, after = killed
    data = parquet.read_table(folder / "plain.parquet").to_pylist()
    number_of = {uid: number for number, uid in enumerate(uids_of(data))}
    assert len(number_of) == 32
    for step, plan in enumerate(before[:4] + after, start=1):
        assert sum(plan["rollouts"]) == MEAN * PROMPTS
        planned = zip(plan["uids"], plan["rollouts"], strict=True)
        wanted = {number_of[uid]: rollouts for uid, rollouts in planned}
        assert came_back(folder / "rollout", step) == wanted


def test_a_killed_run_goes_on_with_the_state_and_the_plan_of_its_checkpoint(folder, killed):
    before, after = killed
    run = folder / "rollout"
    saved = run / "global_step_4" / "gdro_state.json"
    state = load_state(saved)
    np.testing.assert_equal(load_state(run / "loaded.json"), state["controller"])
    assert state["controller"]["step"] == 4
    assert [plan["number"] for plan in after] == [4, 5]
    assert after[0] == before[4]  # prompts and rollouts of the step that was lost
    assert len(set(after[0]["rollouts"])) > 1  # in the second epoch, by what was learned
    assert len(set(before[0]["rollouts"])) > 1  # in the first, by the column of pass rates


@pytest.fixture(scope="module")
def in_process(folder):
    run_in("verl", HERE / "verl_in_process.py", folder / "report.json")
    return json.loads((folder / "report.json").read_text())


def test_grpo_has_verls_own_advantages(in_process):
    """On groups of several sizes, with padding and rollouts of several outputs."""
    assert in_process["rows"] > in_process["rollouts"] > in_process["prompts"] > 2
    assert in_process["largest"] > 0.5
    assert in_process["padding"] == 0
    # the last one is the controller's own, beside verl's without σ
    differences = [in_process[name] for name in ("grpo", "unnormalized", "dr_grpo")]
    assert max(differences) < 1e-6


def test_what_verl_cannot_give_is_refused(in_process):
    for named, message in in_process["refused"].items():
        assert named in message


def test_it_is_refused_in_one_sentence_before_ray(folder):
    with verl(folder, "refused", "gdro.method=dapo") as process:
        assert process.wait(PATIENCE) == 1
    log = (folder / "refused" / "log.txt").read_text()
    assert "several generations" in log.splitlines()[-1]
    assert "Traceback" not in log
    assert "Ray" not in log
