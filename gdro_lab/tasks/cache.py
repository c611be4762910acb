"""Folders that take long to make, such as models: made once, complete and checked, or absent."""

import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from gdro.checks import Refusal
from gdro.files import LEDGER, fault_of, write_ledger

A_DAY = 86_400  # seconds


def find_made(*folders: Path) -> Path | None:
    """Return the first of these folders that was completed, if any.

    Raises:
        Refusal: a file of it was altered since.
    """
    for folder in folders:
        if not (folder / LEDGER).is_file():
            continue
        fault = fault_of(folder)
        if fault is not None:
            raise Refusal(f"{fault}; delete {folder} to make it again")
        return folder
    return None


def find_or_make(target: Path, make: Callable[[Path], None], *shipped: Path) -> Path:
    """Return a folder that was completed, or make it.

    It is made with its ledger, beside the target, and moved there when it is complete.

    Args:
        target: the folder; one without a ledger is replaced.
        make: writes the folder whose path it is given. What it leaves beside that is removed.
        shipped: folders that serve as well, where they are.

    Raises:
        Refusal: a file of a completed folder was altered since.
    """
    made = find_made(target, *shipped)
    if made is not None:
        return made
    target.parent.mkdir(parents=True, exist_ok=True)
    for left in target.parent.glob(".making-*"):  # of processes that were killed
        if time.time() - left.stat().st_mtime > A_DAY:
            shutil.rmtree(left, ignore_errors=True)
    # Beside the target: a move is atomic only within one file system.
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".making-") as making:
        work = Path(making) / target.name
        make(work)
        write_ledger(work)
        # safetensors gives its files to their owner alone, and a cache may be shared
        readable = (work / LEDGER).stat().st_mode
        for path in work.rglob("*"):
            if path.is_file():
                path.chmod(readable)
        if not (target / LEDGER).is_file():  # another process may have made the same meanwhile
            shutil.rmtree(target, ignore_errors=True)
            os.replace(work, target)
    return target
