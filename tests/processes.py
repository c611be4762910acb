"""Processes for trainings, forked from a server that has imported torch and TRL, which takes seconds."""

import multiprocessing
import os
import socket
import sys
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import forkserver
from unittest.mock import patch

CONTEXT = multiprocessing.get_context("forkserver")


@contextmanager
def server():
    """The server runs, and finds what this process finds."""
    with patch.dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path), OMP_NUM_THREADS="1"):
        CONTEXT.set_forkserver_preload(["sharded_run", "transformers.models.qwen3.modeling_qwen3"])
        forkserver.ensure_running()
        yield


def start(target, *arguments):
    """A process of `target(*arguments)`."""
    with server():
        process = CONTEXT.Process(target=target, args=arguments)
        process.start()
    return process


def run_ranks(processes, target, *arguments, **environment):
    """Run `target(*arguments)` in processes that know each other, as a launcher starts them."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(probe.getsockname()[1])}
    environment |= {"WORLD_SIZE": str(processes), "ACCELERATE_USE_CPU": "true"}
    with server(), ProcessPoolExecutor(processes, CONTEXT, max_tasks_per_child=1) as pool:
        ranks = [pool.submit(_rank, rank, environment, target, arguments) for rank in range(processes)]
        for future in ranks:
            future.result()


def _rank(rank, environment, target, arguments):
    os.environ |= environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    target(*arguments)
