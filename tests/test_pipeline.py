"""The main job as people start it: snakemake, papermill and real notebooks on the smoke profile."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from gdro.profiles import load_profile
from gdro.records import read_manifest
from gdro.results import read_runs

pytestmark = pytest.mark.slow
REPOSITORY = Path(__file__).parent.parent
RUNS = ["base/seed0", "grpo/seed0", "prompt/seed0", "rollout/seed0"]


def snakemake(runs, *options, profile="smoke"):
    command = [sys.executable, "-m", "snakemake", "--cores", "2", *options]
    command += ["--config", f"profile={profile}", f"runs={runs}"]
    paths = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PATH": paths}
    return subprocess.run(
        command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=900
    )


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    runs = tmp_path_factory.mktemp("pipeline") / "runs"
    result = snakemake(runs)
    assert result.returncode == 0, result.stdout + result.stderr
    return runs, result


def test_the_main_job_leaves_table_figures_and_records(finished):
    runs, result = finished
    manifest = read_manifest(runs / "results" / "manifest.json")
    for label in ("base", "GRPO", "Prompt-GDRO", "Rollout-GDRO"):
        assert f"| {label} |" in manifest["table"]
    names = {Path(path).name for path in manifest["figures"]}
    assert {f"fig{n}" for n in (1, 3, 4, 5, 6, 7, 8, 9)} <= {name.split("_")[0] for name in names}
    assert all((REPOSITORY / path).stat().st_size > 5_000 for path in manifest["figures"])
    read = read_runs(load_profile("smoke"), runs)
    assert {run["manifest"]["rollouts"] for run in read if run["variant"] != "base"} == {8 * 8 * 4}
    assert "step 8/8" in result.stdout + result.stderr  # progress is shown


def test_only_what_is_missing_is_run_again(finished):
    runs, _ = finished
    for run in ("prompt/seed0", "results"):
        (runs / run / "manifest.json").unlink()
    result = snakemake(runs, "--dry-run")
    assert result.returncode == 0
    planned = result.stdout + result.stderr
    assert "variant=prompt" in planned
    assert "variant=grpo" not in planned


def run_changed(tmp_path, variant):
    """The smoke profile with one variant alone, through snakemake."""
    profile = yaml.safe_load((REPOSITORY / "profiles" / "smoke.yaml").read_text())
    profile["variants"] = {"rollout": variant}
    path = REPOSITORY / "profiles" / f"changed-{os.getpid()}.yaml"
    path.write_text(yaml.safe_dump(profile))
    try:
        result = snakemake(tmp_path / "runs", profile=path.stem)
    finally:
        path.unlink()
    return result, result.stdout + result.stderr


def test_an_infeasible_budget_is_refused_before_the_base_is_trained(tmp_path):
    result, printed = run_changed(tmp_path, {"method": "rollout", "options": {"rollout": {"n_min": 9}}})
    assert result.returncode != 0
    assert "gdro.notebooks: 05_grpo_training.ipynb, cell" in printed
    assert not (tmp_path / "runs" / "base" / "seed0" / "manifest.json").exists()


def test_a_run_that_fails_while_it_trains_is_told_and_leaves_no_manifest(tmp_path):
    # steps so long that the weights are no numbers after the first
    result, printed = run_changed(tmp_path, {"method": "rollout", "train": {"learning_rate": 1.0e39}})
    assert result.returncode != 0
    assert "gdro.notebooks: 05_grpo_training.ipynb, cell" in printed
    assert "run.train()" in printed
    assert (tmp_path / "runs" / "base" / "seed0" / "manifest.json").exists()
    assert not (tmp_path / "runs" / "rollout" / "seed0" / "manifest.json").exists()


def test_an_unknown_profile_is_named(tmp_path):
    result = snakemake(tmp_path / "runs", profile="tniy")
    assert result.returncode != 0
    assert "tniy" in result.stdout + result.stderr


@pytest.mark.parametrize("executor", ["slurm"])
@pytest.mark.parametrize(
    ("profile", "gpus"), [("smoke", {"0"}), ("gpu-smoke", {"1"}), ("gpu-8b", {"1", "8"})]
)
def test_the_graph_can_be_handed_to_a_cluster(tmp_path, executor, profile, gpus):
    plugin = f"snakemake_executor_plugin_{executor}"
    pytest.importorskip(plugin, reason="the executor plugin is not installed")
    chosen = ["--executor", executor, "--jobs", "4", "--workflow-profile", "configs/slurm"]
    result = snakemake(tmp_path / "runs", "--dry-run", *chosen, profile=profile)
    printed = result.stdout + result.stderr
    assert result.returncode == 0, printed
    assert "rule train" in printed
    assert set(re.findall(r"\bgpu=(\d+)", printed)) == gpus  # the base is evaluated on one
    assert "nodes=1" in printed
