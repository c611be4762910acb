"""A batch of jobs, each in a process of its own, with its output in a log.

The console has one line, with the progress of all and the time left. A job that fails, or is
killed, stops no other. Processes are forked from one that has imported torch and TRL already.
"""

import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from tqdm import tqdm

from gdro.checks import Refusal
from gdro_lab.experiments.processes import (
    PROGRESS,
    end_with_parent,
    read_progress,
    set_up_process,
)
from gdro_lab.experiments.profile import Profile
from gdro_lab.experiments.spelling import import_methods, slug_of
from gdro_lab.failures import at_the_door, in_one_line

BAR = "{desc} {percentage:3.0f}%, {elapsed} elapsed, {remaining} left{postfix}"


@dataclass(frozen=True)
class Job:
    """A function to call in a process of its own."""

    title: str
    function: Callable[..., Any]
    """Of a module that does not import torch: a job of Unsloth imports that first."""
    arguments: tuple[Any, ...] = ()

    @property
    def stem(self) -> str:
        """What the names of its files in logs/ begin with."""
        return "-".join(slug_of(word) for word in self.title.split())


class Jobs:
    """Runs jobs, so many at once, and keeps what went wrong.

    Args:
        profile: whose methods each process registers.
        logs: folder of their output.
        workers: jobs at once.
        preload: modules that the process imports which the jobs are forked from. With a GPU or with
            Unsloth none: a job starts CUDA itself, and Unsloth must come before TRL.
    """

    def __init__(self, profile: Profile, logs: Path, workers: int, preload: Sequence[str]) -> None:
        self.profile = profile
        self.logs = logs
        self.workers = workers
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload([*preload])
        self.failed: dict[str, str] = {}
        """A line for each job that failed, by its title."""
        self.stopped = threading.Event()

    def check(self, job: Job) -> None:
        """Run a job that refuses (Refusal) or does nothing, without a log."""
        with self._process() as process:
            self._wait([process.submit(_check, self.profile, job)])

    def run(self, jobs: Sequence[Job]) -> None:
        """Run jobs, as many at once as there are workers."""
        every = 0.1 if sys.stderr.isatty() else 60
        bar = tqdm(
            total=len(jobs), mininterval=every, smoothing=0, bar_format=BAR, disable=not jobs
        )
        with bar, ThreadPoolExecutor(self.workers) as threads:
            self._wait([threads.submit(self._run_job, job, bar) for job in jobs])

    def _wait(self, futures: Sequence[Future]) -> None:
        """Wait for all; on Ctrl-C or SIGTERM, end their processes and start no other."""
        try:
            for future in futures:
                future.result()
        except KeyboardInterrupt:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second one would be a traceback
            self.stopped.set()
            ended: set[BaseProcess] = set()
            while wait(futures, 0.1).not_done:  # again: a job may be about to start
                running = set(multiprocessing.active_children())
                for process in running - ended:
                    process.terminate()
                ended |= running
            raise

    def _run_job(self, job: Job, bar: tqdm) -> None:
        """Run a job, and move the common progress bar as it goes on."""
        if self.stopped.is_set():
            return
        log = self.logs / f"{job.stem}.log"
        progress = self.logs / f".{job.stem}.progress"
        bar.set_description_str(job.title)
        done = 0.0
        with self._process() as process:
            future = process.submit(_run_logging, self.profile, job, log, progress)
            while wait([future], 0.5).not_done:
                now = read_progress(progress)
                bar.initial += 0.0 if done else now  # done before it resumed
                bar.update(now - done)
                done = now
            reason = _reason_of(future)
        progress.unlink(missing_ok=True)
        if reason is not None:
            self.failed[job.title] = f"{job.stem} failed: {reason} (log: {log})"
            bar.set_postfix_str(f"{len(self.failed)} failed")
        bar.update(1 - done)

    def _process(self) -> ProcessPoolExecutor:
        """A process for one job, which ends with this one."""
        # a pool of its own, since a process that is killed ends all others of its pool
        return ProcessPoolExecutor(1, self.context, end_with_parent)


def _reason_of(future: Future) -> str | None:
    """Why a job failed, in a line; None where it did not."""
    error = future.exception()
    if error is None:
        return future.result()
    if isinstance(error, BrokenProcessPool):
        return "its process was killed"
    return in_one_line(error)


def _check(profile: Profile, job: Job) -> None:
    """In the process of a check: raise what is refused, and print nothing."""
    with open(os.devnull, "wb") as nowhere:
        _print_to(nowhere.fileno())
    try:
        with at_the_door():
            _call(profile, job)
    except Exception as error:
        raise Refusal(in_one_line(error)) from None  # some errors cannot be pickled


def _run_logging(profile: Profile, job: Job, log: Path, progress: Path) -> str | None:
    """In the process of a job: write all that it prints to its log, behind what is there.

    Returns:
        Why it failed, in a line; None where it did not.
    """
    try:
        with log.open("ab") as stream:
            _print_to(stream.fileno())
        os.environ[PROGRESS] = str(progress.absolute())
        set_up_process()
        _call(profile, job)
    except Exception as error:
        if not isinstance(error, Refusal):
            traceback.print_exc()
        reason = in_one_line(error)
        print(reason, file=sys.stderr)
        return reason
    return None


def _call(profile: Profile, job: Job) -> None:
    import_methods(profile.methods_from)
    job.function(*job.arguments)


def _print_to(descriptor: int) -> None:
    """Let this process print to an open file."""
    for stream in (1, 2):
        os.dup2(descriptor, stream)
