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

import pytest
from conftest import PATIENCE
from processes import REPOSITORY, needs, python_of, run_in

from gdro.files import load_state

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
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def sizes(run, step, kind="rollouts"):
    """Rollouts of each prompt that came back in a step."""
    rows = map(json.loads, (run / kind / f"{step}.jsonl").read_text().splitlines())
    return Counter(row["uid"].split("_")[0] for row in rows).values()


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
    # extra_info.index is the identity
    assert all(set(plan["uids"]) <= set(range(32)) for plan in plans)
    # the first batch is any eight, and later ones return to prompts that pay
    assert all(len(set(plan["uids"])) == PROMPTS for plan in plans)
    assert len({tuple(sorted(plan["uids"])) for plan in plans}) > 1
    for step in range(1, 7):
        assert list(sizes(folder / "pivotal", step)) == [MEAN] * PROMPTS
        assert drawn(folder / "pivotal", step) == sorted(plans[step - 1]["uids"])


def test_validation_is_verls_own(folder, pivotal):
    assert list(sizes(folder / "pivotal", 6, "validation")) == [1] * 4


def drawn(run, step):
    """Numbers of the prompts that were trained on, out of their texts."""
    rows = map(json.loads, (run / "rollouts" / f"{step}.jsonl").read_text().splitlines())
    return sorted({int(row["input"].split("user\n")[1].split(" +")[0]) for row in rows})


@pytest.fixture(scope="module")
def killed(folder):
    """`rollout` on two ranks and two agent workers, killed in step 5 with a checkpoint of step 3.

    The rows have no index, so a uid is a hash of the row.
    """
    run = folder / "rollout"
    options = ["gdro.method=rollout", "gdro.options={rollout: {eta: 20.0}}"]
    options += ["trainer.save_freq=3", "trainer.total_training_steps=6"]
    with verl(folder, "rollout", *options, workers=2, data="plain") as process:
        while len(notes(run)) < 5 and process.poll() is None:
            time.sleep(0.5)
    before = notes(run)
    assert len(before) == 5, (run / "log.txt").read_text()[-5000:]
    after, _ = finish(folder, "rollout", *options, workers=2, data="plain")
    return before, after[len(before) :]


def test_group_sizes_that_come_back_are_those_of_the_plan(folder, killed):
    before, after = killed
    plans = before[:3] + after
    for step, plan in enumerate(plans, start=1):
        assert sum(plan["rollouts"]) == MEAN * PROMPTS
        assert sorted(sizes(folder / "rollout", step)) == sorted(plan["rollouts"])
    assert len({n for plan in plans for n in plan["rollouts"]}) > 1
    assert all(len(uid) == 16 for plan in plans for uid in plan["uids"])


def test_a_killed_run_goes_on_with_the_state_and_the_plan_of_its_checkpoint(folder, killed):
    before, after = killed
    run = folder / "rollout"
    saved = run / "global_step_3" / "gdro_state.json"
    assert (run / "loaded.json").read_bytes() == saved.read_bytes()
    assert load_state(saved)["step"] == 3
    assert [plan["number"] for plan in after] == [3, 4, 5]
    assert after[0] == before[3]  # prompts and rollouts of the step that was lost


def test_grpo_has_verls_own_advantages(folder):
    """On groups of several sizes, with padding and rollouts of several outputs."""
    run_in("verl", HERE / "verl_advantages.py", folder / "advantages.json")
    found = json.loads((folder / "advantages.json").read_text())
    assert found["rows"] > found["rollouts"] > found["prompts"] > 2
    assert found["largest"] > 0.5
    assert found["grpo"] < 1e-6
    assert found["unnormalized"] < 1e-6
    assert 0 < found["dr_grpo"] < 1e-6  # the controller's, in float64, and verl's without σ
    assert found["padding"] == 0


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ([], "gdro.method"),
        (["gdro.method=dapo"], "several generations"),
        (["gdro.method=raft"], "kept texts"),
        (["gdro.method=pivotal", "algorithm.filter_groups.enable=True"], "filter_groups"),
        (["gdro.method=pivotal", "gdro.options={m_max: 8}"], "m_max"),
    ],
)
def test_what_cannot_be_done_is_refused_in_one_sentence_before_ray(folder, options, named):
    with verl(folder, "refused", *options) as process:
        assert process.wait(PATIENCE) == 1
    log = folder / "refused" / "log.txt"
    assert named in log.read_text()
    assert "Traceback" not in log.read_text()
    assert "Ray" not in log.read_text()
    log.unlink()
