"""benchmarks/measure.py: commands within a time limit, partial results, and one real variant."""

import importlib.util
import json
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

pytest.importorskip("transformers")

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "measure.py"


@pytest.fixture
def measure():
    spec = importlib.util.spec_from_file_location("measure", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_out_of_time_ends_all_that_was_started(measure, tmp_path, monkeypatch):
    monkeypatch.setattr(measure, "SECONDS_TO_END", 0.5)
    script = """if True:
        import signal, subprocess, sys, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]).pid, flush=True)
        time.sleep(60)"""
    assert measure.run_within([sys.executable, "-c", script], 2.0, tmp_path / "log") == "out of time"
    child = int((tmp_path / "log").read_text())
    for _ in range(100):
        if not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE:
            return
        time.sleep(0.05)
    pytest.fail(f"process {child} is still there")


def call(*arguments):
    return subprocess.run(
        [sys.executable, SCRIPT, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=SCRIPT.parents[1],
    )


def test_an_unknown_variant_is_refused_and_a_failed_one_reported(tmp_path):
    out = tmp_path / "measured.json"
    assert "variant must be one of" in call("smoke", "--out", out, "--variants", "gpro").stderr
    assert not out.exists()
    result = call("smoke", "--out", out, "--variants", "grpo,prompt", "--minutes", 0)
    assert "not measured: grpo, prompt" in result.stderr
    assert json.loads(out.read_text())["variants"]["prompt"] == {"error": "out of time"}


@pytest.mark.slow
def test_the_figures_are_those_of_the_runs_own_records(tmp_path):
    out = tmp_path / "measured.json"
    result = call("smoke", "--out", out, "--variants", "grpo")
    assert result.returncode == 0, result.stderr
    measured = json.loads(out.read_text())
    assert {"torch", "trl"} <= set(measured["packages"])
    row = measured["variants"]["grpo"]
    assert (row["device"], row["steps"], row["rollouts"]) == ("cpu", 8, 8 * 8 * 4)
    step = row["seconds_a_step"]
    assert step.pop("all") == pytest.approx(sum(step.values())) == pytest.approx(row["seconds"]["train"] / 8)
    assert min(step.values()) >= 0
    assert row["tokens_per_second"] == pytest.approx(row["tokens"] / row["seconds"]["train"])
