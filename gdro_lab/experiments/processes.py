"""Processes that train or evaluate: one a folder, with progress, ended when their parent ends."""

import fcntl
import multiprocessing
import os
import random
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from gdro.checks import Refusal

PROGRESS = "GDRO_PROGRESS"
"""Names the file in which a job says how far it is; processes that it launches inherit it."""
LAUNCHER = "GDRO_LAUNCHER"
"""Names the process that started a launcher; those that it launches inherit it."""
GRACE = 30
"""Seconds that a process has to end by itself."""


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


def check_folder(folder: Path) -> None:
    """Refuse (Refusal) a folder that cannot be written, before anything is computed for it."""
    try:
        places = (folder, *folder.absolute().parents)
        outer = next(path for path in places if path.exists() or path.is_symlink())
        if not outer.is_dir() or not os.access(outer, os.W_OK):
            raise OSError(f"{outer} is no folder of yours")
    except OSError as error:
        raise Refusal(f"{folder} cannot be written: {error}") from error


@contextmanager
def only_process_in(folder: Path, name: str = ".lock") -> Iterator[None]:
    """Refuse (Refusal) a second process that holds this folder. The lock ends with the process.

    It is a lock of the process: one of the open file would be inherited by workers of a data
    loader. Where no file was written, the folders that were made are removed again.
    """
    check_folder(folder)
    missing = [outer for outer in (folder, *folder.parents) if not outer.exists()]
    path = folder / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = path.open("w")
    except OSError as error:
        raise Refusal(f"{folder} cannot be written: {error}") from error
    with lock:
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # FileNotFoundError or another file: the process that held it has just removed it
            if not os.path.samestat(path.stat(), os.fstat(lock.fileno())):
                raise OSError
        except OSError as error:
            raise Refusal(f"another process works in {folder}") from error
        try:
            yield
        finally:
            if not any(path.is_file() for path in folder.rglob("*") if path.name != name):
                path.unlink(missing_ok=True)
                _remove_empty(folder, missing)


def _remove_empty(folder: Path, missing: Sequence[Path]) -> None:
    """Remove empty folders: those in a folder, then it and its parents, if they were missing."""
    inner = sorted((path for path in folder.rglob("*") if path.is_dir()), reverse=True)
    for path in (*inner, *missing):
        if path.is_dir() and not any(path.iterdir()):
            path.rmdir()


def _end() -> None:
    """End this process, and give it a while to do so in order."""
    os.kill(os.getpid(), signal.SIGTERM)  # so that what it launched ends, too
    time.sleep(GRACE)
    os._exit(143)


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)  # sends nothing
    except ProcessLookupError:
        return False
    return True


def end_with_parent() -> None:
    """Make this process end when the one that started it does, however that was killed."""
    parent = multiprocessing.parent_process()
    assert parent is not None  # pools alone call this, in their processes

    def watch() -> None:
        parent.join()
        _end()

    threading.Thread(target=watch, daemon=True).start()


@contextmanager
def own_processes(number: int) -> Iterator[ProcessPoolExecutor]:
    """Processes that do a task each and then end, or when this one is asked to end."""
    with ProcessPoolExecutor(
        number, multiprocessing.get_context("spawn"), _begin, max_tasks_per_child=1
    ) as pool:
        try:
            yield pool
        except BaseException:  # SystemExit by a signal, too
            for process in multiprocessing.active_children():
                process.terminate()
            raise


def _begin() -> None:
    end_with_parent()
    set_up_process()


def end_with_launcher() -> None:
    """Make this process end when its launcher ends, or the process that started the launcher."""
    if LAUNCHER not in os.environ:
        return
    launcher = int(os.environ[LAUNCHER])
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent and _lives(launcher):
            time.sleep(1)
        _end()

    threading.Thread(target=watch, daemon=True).start()


def free_port() -> int:
    """A port of this machine that nothing listens on, outside the usual range of ephemeral ports.

    The system could give an ephemeral port to another process before the caller listens on it: an
    engine loads first.
    """
    while True:
        # unseeded, or runs of one seed would ask for the same port
        port = random.SystemRandom().randrange(20_000, 30_000)
        if not _is_taken(port):
            return port


def _is_taken(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return True
    return False


def check_threads() -> int:
    """The threads that OMP_NUM_THREADS asks for, by default 1; Refusal where that is no number."""
    threads = os.environ.get("OMP_NUM_THREADS", "1")
    if not re.fullmatch("[1-9][0-9]{0,3}", threads):
        raise Refusal(f"OMP_NUM_THREADS must be a number from 1 to 9999, got {threads[:20]!r}")
    return int(threads)


def set_up_process() -> None:
    """Set up a process that trains or evaluates: few threads, a clean end on SIGTERM."""
    import torch

    torch.set_num_threads(check_threads())
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that launched processes end too
    # transformers restores a second process's optimizer to "cpu:1", unknown to torch.load
    torch.serialization.register_package(
        1, lambda storage: None, lambda storage, place: storage if place.startswith("cpu") else None
    )
