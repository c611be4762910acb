"""Two real processes (gloo, CPU) train as one process does with the same batch."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tiny_run
import torch
from safetensors.torch import load_file

from gdro.records import load_state, read_table

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning"),
]
SCRIPT = str(Path(__file__).parent / "two_process_run.py")


def launch(processes, *arguments, timeout=240):
    command = [sys.executable, SCRIPT]
    if processes > 1:
        launcher = ["-m", "torch.distributed.run", "--nproc-per-node", str(processes), "--standalone"]
        command = [sys.executable, *launcher, SCRIPT]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"}
    return subprocess.run(
        [*command, *map(str, arguments)], env=environment, capture_output=True, text=True, timeout=timeout
    )


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return tiny_run.make_base(tmp_path_factory.mktemp("base"))


def test_two_processes_do_what_one_does(base, tmp_path):
    folders = {}
    for processes in (1, 2):
        folders[processes] = tmp_path / str(processes)
        folders[processes].mkdir()
        result = launch(processes, base, folders[processes])
        assert result.returncode == 0, result.stderr[-3000:]
    one, two = folders[1], folders[2]

    # every rank holds the same controller, and it is the one process's, bit for bit
    states = [load_state(one / "controller0.safetensors")]
    states += [load_state(two / f"controller{rank}.safetensors") for rank in (0, 1)]
    np.testing.assert_equal(states[0], states[1])
    np.testing.assert_equal(states[0], states[2])
    records = [read_table(one / "record0.jsonl"), read_table(two / "record0.jsonl")]
    assert records[0] == records[1]
    planned = [n for row in records[0] for n in row["rollouts"] if n is not None]
    assert min(planned) < 4 < max(planned)

    # gradients are summed in another order, so the models agree to rounding
    models = [load_file(one / "weights0.safetensors")]
    models += [load_file(two / f"weights{rank}.safetensors") for rank in (0, 1)]
    start = load_file(base / "model.safetensors")
    for name, weight in models[0].items():
        assert torch.equal(models[1][name], models[2][name])
        moved = (weight - start[name]).abs().max()
        difference = (weight - models[1][name]).abs().max()
        assert difference < 0.02 * moved, (name, difference, moved)

    # stopped after step 8, in the second epoch, and resumed: the two processes end in the same place
    resumed = tmp_path / "resumed"
    resumed.mkdir()
    shutil.copytree(two / "checkpoint-8", resumed / "checkpoint-8")
    result = launch(2, base, resumed, "resume")
    assert result.returncode == 0, result.stderr[-3000:]
    assert read_table(resumed / "record1.jsonl") == records[1]
    for name, weight in load_file(resumed / "weights1.safetensors").items():
        assert torch.equal(weight, models[2][name])


def test_a_rank_that_dies_ends_the_job(base, tmp_path):
    result = launch(2, base, tmp_path, "die")
    assert result.returncode != 0
    assert "exitcode" in result.stderr
    assert not (tmp_path / "record0.jsonl").exists()
