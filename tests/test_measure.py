"""The measuring script on a real (tiny) profile, and the runner of commands below it."""

import json
import os
import subprocess
import sys
import time

import psutil
import pytest
import yaml
from test_training_notebook import CHAIN

from gdro import processes
from gdro.measure import STAGES, stage_seconds
from gdro.processes import stream

VARIANTS = {
    "grpo": {"method": "grpo", "label": "GRPO"},
    # its weights are no numbers after the first step, so generating fails
    "broken": {"method": "rollout", "label": "broken", "train": {"learning_rate": 1.0e39}},
    "both": {"method": "both", "label": "both games"},
}


@pytest.mark.slow
def test_what_can_be_measured_is_kept_and_what_fails_is_told(tmp_path):
    path, out = tmp_path / "small.yaml", tmp_path / "out"
    path.write_text(yaml.safe_dump(CHAIN | {"variants": VARIANTS}))
    command = [sys.executable, "-m", "gdro.measure", str(path), "--out", str(out)]
    command += ["--variants", "grpo,broken,both", "--cache-dir", str(tmp_path / "bases")]
    result = subprocess.run(
        command, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=300
    )
    assert result.returncode != 0
    assert "not measured: broken" in result.stderr
    measured = json.loads((out / "measured.json").read_text())
    rows = {row["variant"]: row for row in measured["rows"]}
    assert "failed with exit code" in rows["broken"]["error"]
    for name in ("grpo", "both"):
        stages = stage_seconds(rows[name])
        assert list(stages) == list(STAGES)
        assert min(stages.values()) >= 0
        assert min(stages["generate"], stages["rest"]) > 0
        assert sum(stages.values()) == pytest.approx(rows[name]["seconds"]["train"] / 3)
        assert rows[name]["rollouts"] == 3 * 8 * 4
        assert rows[name]["device"] == "cpu"
    table = (out / "table.md").read_text()
    assert "| GRPO | full |" in table
    assert "broken: not measured" in table
    assert (out / "stages.png").stat().st_size > 5_000


def test_an_unknown_variant_is_refused_before_anything_runs(tmp_path):
    command = [sys.executable, "-m", "gdro.measure", "smoke", "--out", str(tmp_path), "--variants", "gpro"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert result.returncode != 0
    assert "variant must be one of" in result.stderr
    assert not list(tmp_path.iterdir())


def test_output_is_passed_on(capfd):
    stream([sys.executable, "-c", "print('one'); print('two')"], "it")
    assert capfd.readouterr().out == "one\ntwo\n"


def test_a_failing_command_tells_its_last_lines():
    script = "import sys; print('before'); sys.exit('the reason')"
    with pytest.raises(RuntimeError, match=r"(?s)it failed with exit code 1.*the reason"):
        stream([sys.executable, "-c", script], "it")


def test_a_command_that_takes_too_long_is_ended():
    start = time.monotonic()
    with pytest.raises(RuntimeError, match="took longer than its 1 s"):
        stream([sys.executable, "-c", "import time; time.sleep(60)"], "it", seconds=1.0)
    assert time.monotonic() - start < 30


DEAF_WITH_CHILD = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
print(child.pid, flush=True)
time.sleep(60)
"""


def test_what_does_not_listen_is_ended_by_force_with_all_it_started(monkeypatch, capfd):
    monkeypatch.setattr(processes, "SECONDS_TO_END", 0.5)
    start = time.monotonic()
    with pytest.raises(RuntimeError, match="took longer than its 2 s"):
        stream([sys.executable, "-c", DEAF_WITH_CHILD], "it", seconds=2.0)
    assert time.monotonic() - start < 30
    child = int(capfd.readouterr().out)
    for _ in range(100):
        # a zombie has ended; it waits for whoever took it over
        if not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE:
            return
        time.sleep(0.05)
    pytest.fail(f"process {child} is still there")
