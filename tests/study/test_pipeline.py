"""The main job as people start it: snakemake, papermill and real notebooks on the smoke profile."""

import fcntl
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import yaml
from conftest import PATIENCE

from gdro.study.console import progress_of, read_jobs
from gdro.training.records import read_manifest

REPOSITORY = Path(__file__).parents[2]
RUN = "-m", "gdro", "run"
ENVIRONMENT = os.environ | {
    "OMP_NUM_THREADS": "1",
    "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
}


def start(*arguments):
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen([sys.executable, *map(str, arguments)], cwd=REPOSITORY, env=ENVIRONMENT, **pipes)


def run(*arguments):
    """Exit code and console of `python …`."""
    with start(*arguments) as process:
        printed, _ = process.communicate(timeout=PATIENCE)
    return process.returncode, printed


def arguments_of(process):
    try:
        return process.cmdline()
    except psutil.Error:  # it has just ended
        return []


def changed(folder, **fields):
    """The smoke profile with other fields and one variant alone, at a path of its own."""
    profile = yaml.safe_load((REPOSITORY / "profiles" / "smoke.yaml").read_text())
    path = folder / "changed.yaml"
    profile |= {"base": {"steps": 30, "batch_size": 32}, "variants": {"rollout": {"method": "rollout"}}}
    path.write_text(yaml.safe_dump(profile | fields))
    return path


FAILS = """
from gdro import Method, register

@register("fails")
class Fails(Method):
    def update(self, batch):
        raise RuntimeError("it fails on purpose")
"""
TWO = {"grpo": {"method": "grpo", "label": "GRPO"}, "both": {"method": "both", "label": "Both"}}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pipeline")
    profile = changed(folder, variants=TWO)
    status = subprocess.check_output(["git", "status", "--porcelain"], cwd=REPOSITORY)
    code, printed = run(*RUN, profile, "--runs", folder / "runs")
    assert code == 0, printed
    assert subprocess.check_output(["git", "status", "--porcelain"], cwd=REPOSITORY) == status
    return profile, folder / "runs", printed


@pytest.mark.slow
def test_the_main_job_leaves_table_figures_and_records(finished):
    _, runs, _ = finished
    manifest = read_manifest(runs / "results" / "manifest.json")
    for label in ("base", "GRPO", "Both"):
        assert f"| {label} |" in re.sub(" +", " ", manifest["table"])
    names = {Path(path).name.split("_")[0] for path in manifest["figures"]}
    assert {f"fig{n}" for n in (1, 3, 4, 5, 6, 7, 8, 9)} <= names
    for path in manifest["figures"]:
        assert (REPOSITORY / path).stat().st_size > 5_000
        assert (REPOSITORY / path).is_relative_to(runs / "figures")
    for variant in TWO:
        assert read_manifest(runs / variant / "seed0" / "manifest.json")["rollouts"] == 8 * 8 * 4


@pytest.mark.slow
def test_the_console_has_a_line_a_job(finished):
    _, runs, printed = finished
    jobs = ["base", "results"]
    jobs += [f"train-{name}-seed0" for name in ("grpo", "both")]
    jobs += [f"evaluate-{name}-seed0" for name in ("base", "grpo", "both")]
    ended = re.findall(r"^(\S+) +done in \d+ s \(\d+ of 7 jobs\)$", printed, re.MULTILINE)
    assert sorted(ended) == sorted(jobs)
    before_the_table = printed[: printed.index("Scores on held-out prompts")]
    lines = before_the_table.splitlines()[1:]
    assert [line for line in lines if not re.match(r"\S+ +(done|start|finish|\d+/\d+)", line)] == []
    assert "step 8/8" in (runs / "logs" / "train-grpo-seed0.log").read_text()


@pytest.mark.slow
def test_only_what_is_missing_is_run_again(finished, tmp_path):
    path, runs, _ = finished
    (runs / "both" / "seed0" / "manifest.json").unlink()
    (runs / "results" / "manifest.json").unlink()
    options = ["-m", "snakemake", "--cores", "2", "--dry-run", "--config", f"runs={runs}"]
    # a renamed label and title repeat no run; another number of samples repeats evaluations alone
    renamed = {"title": "Renamed", "variants": TWO | {"grpo": {"method": "grpo", "label": "Renamed"}}}
    for fields in (renamed, renamed | {"evaluation": {"samples": 8, "k": 4}}):
        (tmp_path / path.name).write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | fields))
        code, planned = run(*options, f"profile={tmp_path / path.name}")
        assert code == 0, planned
        assert set(re.findall(r"rule (\w+):", planned)) == {"evaluate", "results"}
        assert "variant=both" in planned
        assert ("variant=grpo" in planned) == ("evaluation" in fields)


@pytest.mark.slow
def test_an_infeasible_budget_is_refused_before_anything_starts(tmp_path):
    variants = {"rollout": {"method": "rollout", "options": {"n_min": 9}}}
    code, printed = run(*RUN, changed(tmp_path, variants=variants), "--runs", tmp_path / "runs")
    assert code == 2
    assert "gdro run: " in printed
    assert "n_min" in printed
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_a_training_that_fails_is_named_and_leaves_no_record(finished, tmp_path):
    (tmp_path / "fails.py").write_text(FAILS)
    own = {"methods_from": str(tmp_path / "fails.py"), "variants": {"rollout": {"method": "fails"}}}
    shutil.copytree(finished[1] / "base", tmp_path / "runs" / "base")  # it need not be made again
    code, printed = run(*RUN, changed(tmp_path, **own), "--runs", tmp_path / "runs")
    assert code != 0
    assert "train-rollout-seed0 failed. The end of" in printed
    assert "it fails on purpose" in printed
    assert printed.endswith("Complete jobs are kept. Fix the cause and run the same command again.\n")
    assert (tmp_path / "runs" / "base" / "model.txt").exists()
    left = {path.name for path in (tmp_path / "runs" / "rollout" / "seed0").glob("*")}
    assert not left & {"record.jsonl", "training.json", "notebook.json", "manifest.json"}


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["stopped", "console", "snakemake", "papermill"])
def test_whoever_is_killed_takes_the_training_with_it_and_the_same_command_resumes(
    finished, tmp_path, victim
):
    train = {"max_steps": 2000, "prompts_per_step": 8, "save_steps": 500}
    path, runs = changed(tmp_path, train=train), tmp_path / "runs"
    shutil.copytree(finished[1] / "base", runs / "base")  # it need not be made again
    log, deadline = runs / "logs" / "train-rollout-seed0.log", time.monotonic() + PATIENCE
    with start(*RUN, path, "--runs", runs) as process:
        trains = False
        while not trains and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.1)
            family = psutil.Process(process.pid).children(recursive=True)  # snakemake, papermill, the kernel
            if victim == "papermill":
                trains = log.is_file() and "from step 0" in log.read_text()
            else:
                trains = any("ipykernel_launcher" in arguments_of(member) for member in family)
        assert trains
        named = {"snakemake": "snakemake", "papermill": "notebook"}.get(victim)
        if victim == "stopped":
            process.send_signal(signal.SIGTERM)
        elif victim == "console":
            process.kill()
        else:
            next(member for member in family if named in arguments_of(member)).kill()
        printed, _ = process.communicate(timeout=PATIENCE)
    assert ("the same command resumes" in printed) == (victim == "stopped")
    assert ("snakemake was killed by signal 9; run" in printed) == (victim == "snakemake")
    assert psutil.wait_procs(family, timeout=PATIENCE)[1] == []
    if victim == "snakemake":  # no lock is left that would have to be removed by hand
        changed(tmp_path, train=train | {"max_steps": 8, "save_steps": 4})
        code, printed = run(*RUN, path, "--runs", runs, "--until", "train")
        assert code == 0, printed
        assert "train-rollout-seed0" in printed


@pytest.mark.slow
def test_two_runs_in_one_folder_are_refused(tmp_path):
    (tmp_path / "logs").mkdir()
    with (tmp_path / "logs" / ".lock").open("w") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX)
        code, printed = run(*RUN, "smoke", "--runs", tmp_path)
    assert (code, "another process works in" in printed) == (2, True)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("", "starting"),
        ("a, seed 0: step 75/150, 40 s left\n", "75/150, 40 s left"),
        (
            "base: 1%| | 1/800 [00:00<?, ?it/s]\rbase: 45%|█ | 360/800 [01:20<01:38, 4.5it/s]",
            "360/800, 01:38 left",
        ),
        ("a, seed 0: step 150/150, 0 s left\n", "finishing"),
    ],
)
def test_progress_is_what_the_log_says_last(tmp_path, text, shown):
    (tmp_path / "job.log").write_text(text)
    assert progress_of(tmp_path / "job.log") == shown


def test_the_events_say_what_runs_ended_and_failed(tmp_path):
    events, log = tmp_path / "events.jsonl", Path("a.log")
    assert read_jobs(events) == (0, [], [], [])
    text = '{"total": 2}\n{"started": 4, "log": ["a.log"]}\n'
    for further, jobs in [
        ("", (2, [log], [], [])),
        ('{"finished": 4}', (2, [log], [], [])),  # half written: no line yet
        ('{"finished": 4}\n', (2, [], [log], [])),
        ('{"failed": 4}\n', (2, [], [], [log])),
    ]:
        events.write_text(text + further)
        assert read_jobs(events) == jobs


@pytest.mark.slow
@pytest.mark.parametrize("profile", ["gym", "gpu-gym"])  # worlds have braces in their settings
def test_a_profile_of_a_world_becomes_a_graph(tmp_path, profile):
    options = ("--cores", "2", "--dry-run", "--config", f"profile={profile}", f"runs={tmp_path / 'runs'}")
    code, printed = run("-m", "snakemake", *options)
    assert code == 0, printed


@pytest.mark.slow
@pytest.mark.parametrize(
    ("profile", "gpus", "minutes"), [("gpu-smoke", {"1"}, "60"), ("gpu-8b", {"0", "8"}, "4320")]
)
def test_the_graph_can_be_handed_to_a_cluster(tmp_path, profile, gpus, minutes):
    pytest.importorskip("snakemake_executor_plugin_slurm", reason="the executor plugin is not installed")
    code, printed = run(
        "-m", "snakemake", "--cores", "2", "--dry-run", "--executor", "slurm", "--jobs", "4",
        "--workflow-profile", "configs/slurm", "--config", f"profile={profile}", f"runs={tmp_path / 'runs'}",
    )  # fmt: skip
    assert code == 0, printed
    assert {"base", "train", "evaluate"} <= set(re.findall(r"rule (\w+)", printed))
    # the base takes one where the profile makes it, none where it names a model
    assert set(re.findall(r"\bgpu=(\d+)", printed)) == gpus
    assert "nodes=1" in printed
    # of base, training and evaluation; of a training it is the profile's `hours`
    assert set(re.findall(r"runtime=(\d+)", printed)) == {"30", minutes, "240"}
