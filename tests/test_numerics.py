"""The numerics: an explicit call, and nothing that an import or a controller changes."""

import os
import subprocess
import sys
from unittest.mock import patch

import pytest

from gdro_lab import numerics

UNCHANGED = """
import os
import torch

def settings():
    return (
        dict(os.environ), torch.get_num_threads(), torch.get_num_interop_threads(),
        torch.get_default_dtype(), torch.are_deterministic_algorithms_enabled(),
        torch.get_float32_matmul_precision(), torch.backends.cpu.get_cpu_capability(),
    )

before = settings()
import gdro
import gdro_lab
gdro.GDROController("dapo")
try:
    gdro.GDROController("dappo")
except ValueError:
    pass
else:
    raise AssertionError
assert settings() == before
"""


def test_imports_and_controllers_leave_the_process_as_it_is():
    environment = {name: os.environ[name] for name in os.environ.keys() - numerics.VARIABLES}
    command = [sys.executable, "-c", UNCHANGED]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("machine", ["x86_64", "AMD64", "arm64"])
def test_the_call_sets_what_is_not_set_where_it_has_a_meaning(machine, monkeypatch):
    monkeypatch.setattr("platform.machine", lambda: machine)
    monkeypatch.setattr(numerics, "_set_here", set())
    others = {name: os.environ[name] for name in os.environ.keys() - numerics.VARIABLES}
    with patch.dict(os.environ, others | {"OMP_NUM_THREADS": "7"}, clear=True):
        numerics.fix()
        set_now = {name: os.environ[name] for name in numerics.VARIABLES if name in os.environ}
    chosen = {} if machine == "arm64" else numerics.VARIABLES
    assert set_now == {**chosen, "OMP_NUM_THREADS": "7"}


def test_what_the_call_set_for_torch_is_taken_back_and_nothing_else(monkeypatch):
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setattr(numerics, "_set_here", set())
    for name in numerics.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MKL_CBWR", "AVX2")  # the user's own
    numerics.fix()
    numerics.leave_torch_free()
    left = {name: os.environ.get(name) for name in numerics.VARIABLES}
    taken_back = {"ATEN_CPU_CAPABILITY": None, "TORCHINDUCTOR_CACHE_DIR": None}
    assert left == numerics.VARIABLES | taken_back | {"MKL_CBWR": "AVX2"}
