"""A process that ends with the one that started it, however that ends; a lock that ends with its process."""

import ctypes
import fcntl
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
PARENT = "GDRO_PARENT"  # the process id that a job expects its parent to have


def end_with_parent(signum: int = signal.SIGTERM) -> None:
    """Have Linux send `signum` to this process when its parent has died; elsewhere, do nothing.

    A parent that died before this call is noticed where its process id is in $GDRO_PARENT, which the jobs of
    the Snakefile set.
    """
    expected = os.environ.pop(PARENT, None)  # of this process, not of those that it starts
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signum)
        if expected not in (None, str(os.getppid())):
            sys.exit(128 + signum)


@contextmanager
def only_process_in(folder: Path, name: str = ".lock") -> Iterator[None]:
    """Refuse (ValueError) a second process that holds this folder. The lock ends with the process.

    It is a lock of the process, not of the open file, which workers of a data loader would inherit.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / name).open("w") as lock:
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ValueError(f"another process works in {folder}; wait for it, or end it") from error
        yield
