"""Processes of tests: forked with their imports, or of the engines' environments."""

import multiprocessing
import os
import signal
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from contextlib import chdir, contextmanager
from multiprocessing import forkserver
from pathlib import Path
from unittest.mock import patch

import pytest
from click.testing import CliRunner
from conftest import PATIENCE

from gdro.registry import METHODS
from gdro_lab.cli import main
from gdro_lab.machine import free_port

REPOSITORY = Path(__file__).parents[1]
CONTEXT = multiprocessing.get_context("forkserver")


@contextmanager
def server():
    """The server runs, and finds what this process finds."""
    with patch.dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path), OMP_NUM_THREADS="1"):
        CONTEXT.set_forkserver_preload(
            ["processes", "sharded_run", "transformers.models.qwen3.modeling_qwen3"]
        )
        forkserver.ensure_running()
        yield


def start(target, *arguments):
    """A process of `target(*arguments)`."""
    with server():
        process = CONTEXT.Process(target=target, args=arguments)
        process.start()
    return process


def gdro(folder, *words):
    """The command `gdro` in this process, in a folder; its jobs are processes of their own."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        with chdir(folder), patch.dict(os.environ, OMP_NUM_THREADS="1"), patch.dict(METHODS):
            return CliRunner().invoke(main, words)
    finally:
        signal.signal(signal.SIGTERM, before)


def run_ranks(processes, target, *arguments, **environment):
    """Run `target(*arguments)` in processes that know each other, as a launcher starts them."""
    environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    environment |= {"WORLD_SIZE": str(processes), "ACCELERATE_USE_CPU": "true"}
    with server(), ProcessPoolExecutor(processes, CONTEXT, max_tasks_per_child=1) as pool:
        ranks = [
            pool.submit(_rank, rank, environment, target, arguments) for rank in range(processes)
        ]
        # the last one first: if it has died, the others fail because of it
        for future in reversed(ranks):
            future.result()


def _rank(rank, environment, target, arguments):
    os.environ |= environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    target(*arguments)


def python_of(engine):
    return REPOSITORY / f".venv-{engine}" / "bin" / "python"


def needs(engine):
    reason = f"no {engine}: `make setup-engines` brings it"
    return pytest.mark.skipif(not python_of(engine).exists(), reason=reason)


def run_in(engine, *words, cwd=REPOSITORY, **options):
    """Run python in an environment of `make setup-engines`; what it prints where it fails."""
    paths = os.pathsep.join(map(str, [REPOSITORY, REPOSITORY / "tests"]))
    own = {"OMP_NUM_THREADS": "1", "PYTHONPATH": paths, "UNSLOTH_ALLOW_CPU": "1"}
    if engine == "unsloth":  # vLLM's tests, on the other worker, may have accelerate's own port
        own["MASTER_PORT"] = str(free_port())
    options |= {"capture_output": True, "text": True, "timeout": PATIENCE}
    command = [str(python_of(engine)), *map(str, words)]
    run = subprocess.run(command, cwd=cwd, env=os.environ | own, **options)
    assert run.returncode == 0, run.stderr[-3000:]
