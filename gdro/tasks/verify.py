"""Verification of mathematical answers that cannot hang the program.

What math-verify does with a model's text can hang, also inside C code, where no signal or thread
can end it, and its own timeout works on the main thread alone. So it runs in processes of its own,
each killed when one answer takes longer than the limit.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import queue
import subprocess
import sys
import threading
import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

WORKER_FILE = Path(__file__).with_name("verify_worker.py")
START_SECONDS = 120.0
MEMORY_BYTES = 4 * 2**30


class VerifierPool:
    """Worker processes that verify answers, each of them killed when one answer takes too long.

    Workers are started when first needed and again after a kill. Use it as a context manager, or
    call :meth:`close`; one that is forgotten closes when it is collected or the program ends.

    Args:
        time_limit: seconds of wall clock for one answer, positive.
        workers: processes, at least 1; None takes the machine's cores, but no more than 4.

    Attributes:
        restarts: workers that had to be started anew, so far.

    Raises:
        ValueError: if a number is out of range.
        ImportError: if math-verify is not installed.
    """

    def __init__(self, time_limit: float = 5.0, workers: int | None = None):
        if not (time_limit > 0 and math.isfinite(time_limit)):
            raise ValueError(f"time_limit is {time_limit}; give a positive number of seconds")
        workers = min(4, os.cpu_count() or 1) if workers is None else workers
        if workers < 1:
            raise ValueError(f"workers is {workers}; give at least 1, or None to choose")
        if importlib.util.find_spec("math_verify") is None:
            raise ImportError("math-verify is not installed; pip install 'gdro[math]'")
        self._workers = [_Worker(time_limit) for _ in range(workers)]
        self._idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
        for worker in self._workers:
            self._idle.put(worker)
        self._finalizer = weakref.finalize(self, _stop_all, self._workers)

    @property
    def restarts(self) -> int:
        return sum(max(worker.starts - 1, 0) for worker in self._workers)

    def verify(self, pairs: Sequence[tuple[str, str | None]]) -> list[str]:
        """Outcome of each (gold, answer), both of them texts for math-verify to parse.

        Equal pairs are verified once. With None for an answer the gold alone is tried:
        whether it parses, equals itself and can be told from a number.

        Returns:
            Per pair "right", "wrong", "unparsed", "error", "bad_gold" or "gold" as the worker
            says; "timeout" where it was killed; "crash" where it died by itself.

        Raises:
            RuntimeError: if a worker cannot be started, or the pool is closed.
        """
        if not self._finalizer.alive:
            raise RuntimeError("this VerifierPool is closed; make a new one")
        distinct = list(dict.fromkeys(pairs))
        if not distinct:
            return []
        with ThreadPoolExecutor(min(len(self._workers), len(distinct))) as threads:
            outcomes = dict(zip(distinct, threads.map(self._verify_one, distinct), strict=True))
        return [outcomes[pair] for pair in pairs]

    def close(self) -> None:
        """End the workers. Closing twice does nothing."""
        self._finalizer()

    def __enter__(self) -> VerifierPool:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _verify_one(self, pair: tuple[str, str | None]) -> str:
        worker = self._idle.get()
        try:
            return worker.verify(pair)
        finally:
            self._idle.put(worker)


class _Worker:
    """One process, used by one thread at a time."""

    def __init__(self, time_limit: float):
        self.time_limit, self.starts = time_limit, 0
        self._process: subprocess.Popen[str] | None = None

    def verify(self, pair: tuple[str, str | None]) -> str:
        if self._process is None:
            self._start()
        reply, expired = self._exchange(json.dumps(pair) + "\n", self.time_limit)
        if reply and not expired:
            return reply
        self.stop()
        return reply or ("timeout" if expired else "crash")

    def stop(self) -> None:
        """Kill the process and wait for its end."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()  # closes the pipes and reaps

    def _start(self) -> None:
        # -P: this script's folder holds a math.py that must not stand in for Python's own
        options = ["-P", "-W", "ignore", str(WORKER_FILE)]
        orphan_seconds = str(math.ceil(2 * self.time_limit) + 1)
        self._process = subprocess.Popen(
            [sys.executable, *options, orphan_seconds, str(MEMORY_BYTES)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )
        self.starts += 1
        if self._exchange("", START_SECONDS)[0] != "ready":
            self.stop()
            raise RuntimeError(
                f"the verification worker did not start ({sys.executable} {' '.join(options)}); "
                "its own message stands on standard error above"
            )

    def _exchange(self, message: str, seconds: float) -> tuple[str, bool]:
        """Send and wait: the reply ("" if the process ended first), and whether it was killed."""
        process, expired = self._process, threading.Event()
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None

        def expire() -> None:
            expired.set()
            process.kill()

        timer = threading.Timer(seconds, expire)
        timer.daemon = True
        timer.start()
        try:
            process.stdin.write(message)
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            line = ""
        finally:
            timer.cancel()
            timer.join()
        # a line without its end was cut off by the kill
        return (json.loads(line) if line.endswith("\n") else ""), expired.is_set()


def _stop_all(workers: list[_Worker]) -> None:
    for worker in workers:
        worker.stop()
