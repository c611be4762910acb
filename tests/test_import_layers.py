"""The contracts of pyproject.toml, by import-linter: imports run downward."""

import subprocess
import sys
from pathlib import Path

import gdro


def test_imports_run_downward():
    command = [Path(sys.executable).with_name("lint-imports"), "--no-cache"]
    root = Path(gdro.__file__).parents[1]
    run = subprocess.run(command, cwd=root, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout
