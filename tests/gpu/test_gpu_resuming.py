"""A training that is killed resumes to the same record and weights; steps can be tried."""

import needs_gpu  # noqa: F401
import pytest
from watch import CACHE, check_resuming, small_profile

from gdro_lab.experiments.play import open_training


@pytest.mark.parametrize("kind", ["full", "lora"])
def test_a_killed_training_resumes(tmp_path, kind):
    check_resuming(tmp_path, {"kind": kind})


def test_tried_steps_say_seconds_and_memory(tmp_path, capfd):
    open_training(small_profile("both").run("one", 0), tmp_path, CACHE).try_steps(2)
    [line] = [line for line in capfd.readouterr().out.splitlines() if "GiB" in line]
    assert float(line.split()[1]) > 0
    assert float(line.split(", ")[1].split()[0]) > 0.1
