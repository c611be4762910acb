"""`gdro run`: what it leaves, runs again, and does where it is stopped or refuses."""

import os
import random
import re
import signal
import subprocess
import sys
import time

import psutil
import pytest
import yaml
from conftest import PATIENCE, SMALL_PROFILE
from processes import REPOSITORY, gdro

from gdro_lab.experiments.records import read_result
from gdro_lab.experiments.runner import Job, run_jobs
from gdro_lab.machine import free_port

ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY)}
TWO = {"grpo": {"method": "grpo", "label": "GRPO"}, "both": {"method": "both", "label": "Both"}}
FAILS = """
from gdro import Method, register

@register("fails")
class Fails(Method):
    def update(self, batch):
        raise RuntimeError("it fails on purpose")
"""


def write_profile(folder, fields):
    """The small profile with other fields, in a folder outside the repository."""
    profile = SMALL_PROFILE | {"seeds": [0], "base": {"steps": 30, "batch_size": 32}} | fields
    (folder / "own.yaml").write_text(yaml.safe_dump(profile))


def start(folder, fields):
    """`gdro run` of such a profile, as people start it."""
    write_profile(folder, fields)
    command = [sys.executable, "-m", "gdro_lab", "run", "own.yaml"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen(command, cwd=folder, env=ENVIRONMENT, **pipes)


def run(folder, fields, *words):
    """The same from this process, which saves most imports: its exit code and console."""
    write_profile(folder, fields)
    ended = gdro(folder, "run", "own.yaml", *words)
    return ended.exit_code, ended.output


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run in which one variant fails, and the next, with another label and without that variant.

    In between, an evaluation is lost. (folder of the runs, both consoles, when files were written)
    """
    folder = tmp_path_factory.mktemp("run")
    (folder / "fails.py").write_text(FAILS)
    three = {"variants": {"bad": {"method": "fails"}} | TWO, "methods_from": "fails.py"}
    code, first = run(folder, three, "--cores", "1")
    assert code == 1, first
    runs = folder / "runs" / "own"
    written = {path: path.stat().st_mtime_ns for path in runs.glob("*/*/*.json*")}
    (runs / "both" / "seed0" / "manifest.json").unlink()
    code, second = run(folder, {"variants": TWO | {"grpo": TWO["grpo"] | {"label": "Renamed"}}})
    assert code == 0, second
    return runs, first, second, written


def test_it_leaves_records_table_and_figures(runs):
    folder, _, printed, _ = runs
    for variant in TWO:
        assert len(read_result(folder / variant / "seed0")["record"]) == 6
    table = (folder / "results" / "table.md").read_text()
    assert table in printed
    for label in ("base", "Renamed", "Both"):
        assert f"| {label} |" in re.sub(" +", " ", table)
    names = {path.stem.split("_")[0] for path in (folder / "figures").glob("*.png")}
    assert {f"fig{n}" for n in (1, 3, 4, 5, 6, 7, 8, 9)} <= names


def test_a_job_that_fails_is_named_and_stops_no_other(runs):
    folder, printed, _, written = runs
    assert "bad-0 failed" in printed
    assert "it fails on purpose" in printed
    assert not list((folder / "bad" / "seed0").glob("*.json*"))
    assert folder / "both" / "seed0" / "manifest.json" in written


def test_only_what_is_missing_is_run_again(runs):
    folder, _, _, written = runs
    again = {path for path, then in written.items() if path.stat().st_mtime_ns != then}
    both = folder / "both" / "seed0"
    assert again == {both / "manifest.json", both / "evaluation.jsonl"}


NO_SECOND_BASE = """
from gdro_lab.experiments import play
make = play.tiny_base
def tiny_base(task, *, seed, **options):
    if seed == 1:
        raise RuntimeError("it fails on purpose")
    return make(task, seed=seed, **options)
play.tiny_base = tiny_base
"""


def test_a_base_that_fails_stops_only_the_runs_that_start_from_it(tmp_path):
    """And the same command plays them, where the base can be made."""
    fields = {"seeds": [0, 1], "one_task": False, "evaluation": {"samples": 8, "k": 4}}
    fields |= {"variants": {"grpo": {"method": "grpo"}}, "methods_from": "own.py"}
    (tmp_path / "own.py").write_text(NO_SECOND_BASE)
    code, printed = run(tmp_path, fields)
    assert code == 1
    assert "base-tiny-1 failed" in printed
    done = sorted(tmp_path.glob("runs/own/*/*/manifest.json"))
    assert [path.parent.name for path in done] == ["seed0", "seed0"]
    written = [path.stat().st_mtime_ns for path in done]
    (tmp_path / "own.py").write_text("")
    code, printed = run(tmp_path, fields)
    assert code == 0, printed
    assert [path.stat().st_mtime_ns for path in done] == written
    assert len(list(tmp_path.glob("runs/own/*/*/manifest.json"))) == 4


LONG = {
    "variants": {"long": {"method": "both"}},
    "train": {"max_steps": 20_000, "prompts_per_step": 8, "save_steps": 2},
}


def until(holds, process):
    while process.poll() is None and not holds():
        time.sleep(0.1)


def test_killed_it_ends_its_jobs(runs):
    """Beside the runs, whose base is used. Stopped: with the second run, below."""
    folder, *_ = runs
    with start(folder.parents[1], LONG) as process:
        # any checkpoint: the first ones are soon removed
        until(lambda: list(folder.rglob("checkpoint-*/gdro_ledger.json")), process)
        jobs = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        process.communicate(timeout=PATIENCE)
    assert jobs
    assert psutil.wait_procs(jobs, timeout=PATIENCE)[1] == []


def test_a_job_that_is_killed_is_named_and_stops_no_other(tmp_path):
    """As the kernel does where memory runs out."""
    kill = Job("killed", signal.raise_signal, (signal.SIGKILL,))
    jobs = [kill, *(Job(f"quick {i}", id, (i,)) for i in range(4))]
    failed = run_jobs(jobs, tmp_path, 2, ["gdro_lab.experiments.runner", "torch"])
    assert list(failed) == ["killed"]
    assert failed["killed"].startswith("killed failed: its process was killed")
    assert len(list(tmp_path.glob("quick-*.log"))) == 4


def test_what_a_process_has_started_ends_with_it():
    """As a training with vLLM, whose process is a child of the run's."""
    code = "import time; from gdro_lab.machine import own_processes, set_up_process\n"
    code += "if __name__ == '__main__':\n set_up_process()\n with own_processes(1) as pool:\n"
    code += "  pool.submit(abs, 0).result()\n  task = pool.submit(time.sleep, 600)\n"
    code += "  print('up', flush=True)\n  task.result()"
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE) as first:
        assert first.stdout.readline() == b"up\n"
        started = psutil.Process(first.pid).children(recursive=True)
        first.terminate()
        assert first.wait(timeout=PATIENCE) == 143
    assert started
    assert psutil.wait_procs(started, timeout=PATIENCE)[1] == []


def test_runs_of_one_seed_get_different_ports():
    ports = set()
    for _ in range(50):
        random.seed(0)
        ports.add(free_port())
    assert len(ports) > 25


def test_a_second_run_in_a_folder_leaves_the_first_alone(runs):
    folder, *_ = runs
    log = folder / "logs" / "long-0.log"
    log.unlink(missing_ok=True)  # of the test before, or the second run may be the first to start
    with start(folder.parents[1], LONG) as process:
        until(lambda: log.is_file() and "step" in log.read_text(), process)
        code, printed = run(folder.parents[1], LONG)
        assert code == 2
        assert "another process works in" in printed
        assert "step" in log.read_text()
        jobs = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert jobs
    assert psutil.wait_procs(jobs, timeout=PATIENCE)[1] == []
