"""Jobs: each in a process of its own, with its output in a log; and what such a process needs.

The console has one line, with the progress of all and the time left. A job that fails, or is
killed, stops no other. Processes are forked from one that has imported torch and TRL already.
"""

import ctypes
import fcntl
import multiprocessing
import os
import random
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import connection
from pathlib import Path
from typing import Any

from tqdm import tqdm

from gdro.checks import Refusal
from gdro_lab.experiments.spelling import import_methods, slug_of

PROGRESS = "GDRO_PROGRESS"
"""Names the file in which a job says how far it is; processes that it launches inherit it."""
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


def run_jobs(
    jobs: Sequence[Job],
    logs: Path,
    workers: int,
    preload: Sequence[str] = (),
    methods_from: str | None = None,
) -> dict[str, str]:
    """Run jobs, so many at once; return a line for each that failed, by its title.

    Args:
        jobs: started in their order.
        logs: folder of their output.
        workers: jobs at once.
        preload: modules that the process imports which the jobs are forked from. With a GPU or with
            Unsloth none: a job starts CUDA itself, and Unsloth must come before TRL.
        methods_from: a file whose methods each process registers.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*preload])
    waiting = [*jobs]
    running: dict[Any, Job] = {}
    failed: dict[str, str] = {}
    every = 0.1 if sys.stderr.isatty() else 60
    bar = tqdm(total=len(jobs), mininterval=every, smoothing=0, bar_format=BAR, disable=not jobs)
    try:
        while waiting or running:
            while waiting and len(running) < workers:
                job = waiting.pop(0)
                bar.set_description_str(job.title)
                given = (job, logs / f"{job.stem}.log", methods_from)
                process = context.Process(target=_play, args=given)
                process.start()
                running[process] = job
            connection.wait([process.sentinel for process in running], 0.5)
            for process, job in [*running.items()]:
                if process.exitcode is None:
                    continue
                del running[process]
                _progress_of(logs, job).unlink(missing_ok=True)
                if process.exitcode:
                    failed[job.title] = _line_of(process.exitcode, logs / f"{job.stem}.log", job)
                    bar.set_postfix_str(f"{len(failed)} failed")
            under_way = sum(read_progress(_progress_of(logs, job)) for job in running.values())
            bar.update(len(jobs) - len(waiting) - len(running) + under_way - bar.n)
    finally:
        bar.close()
        for process in running:
            process.terminate()
        for process in running:
            process.join()
    return failed


def _line_of(exitcode: int, log: Path, job: Job) -> str:
    """Why a job failed: the last line of its log."""
    reason = "its process was killed"
    if exitcode > 0:
        reason = log.read_text(errors="replace").strip().rpartition("\n")[2]
    return f"{job.stem} failed: {reason} (log: {log})"


def _play(job: Job, log: Path, methods_from: str | None) -> None:
    """In the process of a job: write all that it prints to its log, behind what is there."""
    end_with_parent()
    with log.open("ab") as stream:
        for descriptor in (1, 2):
            os.dup2(stream.fileno(), descriptor)
    os.environ[PROGRESS] = str(_progress_of(log.parent, job).absolute())
    set_up_process()
    try:
        import_methods(methods_from)
        job.function(*job.arguments)
    except Refusal as error:
        sys.exit(str(error))  # one line in place of a traceback


def _progress_of(logs: Path, job: Job) -> Path:
    return logs / f".{job.stem}.progress"


def report_progress(done: int, total: int) -> None:
    """Tell whoever started this job how far it is."""
    path = os.environ.get(PROGRESS)
    if path:
        Path(path).write_text(f"{done / total}")


def read_progress(path: Path) -> float:
    """The part that is done, by `report_progress`; 0 if it has written nothing yet."""
    try:
        return float(path.read_text())
    except (OSError, ValueError):
        return 0.0


@contextmanager
def only_process_in(folder: Path, name: str = ".lock") -> Iterator[None]:
    """Refuse (Refusal) a second process that holds this folder. The lock ends with the process."""
    folder.mkdir(parents=True, exist_ok=True)
    # of the process: one of the open file would be inherited by workers of a data loader
    with (folder / name).open("w") as lock:
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise Refusal(f"another process works in {folder}") from error
        yield


@contextmanager
def own_processes(number: int) -> Iterator[ProcessPoolExecutor]:
    """Processes that end with this block, or when this one is asked to end."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(number, context, set_up_process) as pool:
        try:
            yield pool
        except BaseException:  # SystemExit by a signal, too
            for process in multiprocessing.active_children():
                process.terminate()
            raise


def end_with_parent() -> None:
    """Ask the system to end this process when the one that started it ends, however it does."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


def set_up_process() -> None:
    """Set up a process that trains or evaluates: few threads, a clean end on SIGTERM."""
    import torch

    end_with_parent()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that launched processes end too
    # transformers restores a second process's optimizer to "cpu:1", unknown to torch.load
    torch.serialization.register_package(
        1, lambda storage: None, lambda storage, place: storage if place.startswith("cpu") else None
    )


def free_port() -> int:
    """A port of this machine that nothing listens on, outside the usual range of ephemeral ports.

    The system could give an ephemeral port to another process before the caller listens on it: an
    engine loads first.
    """
    while True:
        # unseeded, or runs of one seed would ask for the same port
        port = random.SystemRandom().randrange(20_000, 30_000)
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
        return port
