"""A batch of jobs, each in a process of its own, with its output in a log.

The console has a line a job, with its progress and time left. A job that fails, or is killed, stops
no other. Processes are forked from one that has imported torch and TRL already.
"""

import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from pkgutil import resolve_name
from queue import SimpleQueue
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
from gdro_lab.experiments.spelling import slug_of
from gdro_lab.failures import at_the_door, in_one_line

BAR = "{desc:28} {percentage:3.0f}%, {elapsed} elapsed, {remaining} left{postfix}"
MANY = 30
"""With more jobs than this the line of a job goes when it is done."""


@dataclass(frozen=True)
class Job:
    """A function to call in a process of its own."""

    title: str
    target: str
    """Where the function is, as in "package.module:function": a name, since the console's process
    must not import torch, and a job of Unsloth imports that first."""
    arguments: tuple[Any, ...] = ()

    @property
    def stem(self) -> str:
        """What the names of its files in logs/ begin with."""
        return "-".join(slug_of(word) for word in self.title.split())


class Pool:
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
        self.failed: list[str] = []
        """A line for each job that failed."""
        self.stopped = threading.Event()
        self.lines = SimpleQueue[int]()
        """Lines of the console that no job has."""
        for line in range(workers):
            self.lines.put(line)

    def check(self, job: Job) -> None:
        """Run a job that refuses (Refusal) or does nothing, without a log."""
        with self._process() as process:
            self._wait([process.submit(_check, self.profile, job)])

    def run(self, jobs: Sequence[Job]) -> bool:
        """Run jobs, as many at once as there are workers; return whether none failed."""
        before = len(self.failed)
        keeps_lines = len(jobs) <= MANY
        with (
            ThreadPoolExecutor(self.workers) as threads,
            tqdm(desc="jobs", total=len(jobs), disable=keeps_lines, smoothing=0) as overall,
        ):
            self._wait([threads.submit(self._run_job, job, overall) for job in jobs])
        return len(self.failed) == before

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

    def _run_job(self, job: Job, overall: tqdm) -> None:
        """Run a job, with a line of progress."""
        if self.stopped.is_set():
            return
        keeps_line = overall.disable
        log = self.logs / f"{job.stem}.log"
        progress = self.logs / f".{job.stem}.progress"
        line = self.lines.get()
        bar = tqdm(
            desc=job.title,
            total=1,
            position=line + (0 if keeps_line else 1),
            leave=keeps_line,
            mininterval=0.1 if sys.stderr.isatty() else 60,
            bar_format=BAR,
        )
        try:
            with bar, self._process() as process:
                future = process.submit(_run_logging, self.profile, job, log, progress)
                while wait([future], 0.5).not_done:
                    _show(bar, progress)
                reason = _reason_of(future)
                if reason is None:
                    bar.n = bar.total
                else:
                    bar.set_postfix_str("failed")
                    self.failed.append(f"{job.stem} failed: {reason} (log: {log})")
        finally:  # other jobs wait for the line
            self.lines.put(line)
            progress.unlink(missing_ok=True)
            overall.update()

    def _process(self) -> ProcessPoolExecutor:
        """A process for one job, which ends with this one."""
        # of a larger pool, a process that is killed would end all others
        return ProcessPoolExecutor(1, self.context, end_with_parent)


def _reason_of(future: Future) -> str | None:
    """Why a job failed, in a line; None where it did not."""
    error = future.exception()
    if error is None:
        return future.result()
    if isinstance(error, BrokenProcessPool):
        return "its process was killed"
    return in_one_line(error)


def _show(bar: tqdm, progress: Path) -> None:
    """Move a job's bar to where the job is."""
    place = read_progress(progress)
    if place is not None:
        done, total = place
        if bar.total != total:  # the first report of a job that resumes may be far on
            bar.total = total
            bar.initial = done
            bar.n = done
            bar.last_print_n = done
            bar.start_t = bar.last_print_t = time.time()
        bar.update(done - bar.n)


def _check(profile: Profile, job: Job) -> None:
    """In the process of a check: raise what is refused, and print nothing."""
    with open(os.devnull, "wb") as nowhere:
        _print_to(nowhere.fileno())
    try:
        with at_the_door():
            _call(profile, job)
    except Exception as error:
        raise Refusal(in_one_line(error)) from None  # of any library, and not all can be sent


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
        folders = [log, *(folder for folder in job.arguments if isinstance(folder, str | Path))]
        reason = in_one_line(error, folders)
        print(reason, file=sys.stderr)
        return reason
    return None


def _call(profile: Profile, job: Job) -> None:
    profile.import_methods()
    resolve_name(job.target)(*job.arguments)


def _print_to(descriptor: int) -> None:
    """Let this process print to an open file."""
    for stream in (1, 2):
        os.dup2(descriptor, stream)
