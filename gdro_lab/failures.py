"""What a person reads when something fails: one line, and where the traceback is."""

import errno
import os
import shutil
import tempfile
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from gdro.checks import Refusal

# what says that a disk is full: the system, safetensors and Arrow; then torch, which hides the
# reason why it could not write
FULL = ("No space left on device", "Disk quota exceeded", "inline_container", "PytorchStreamWriter")
EXPECTED = (ValueError, TypeError, ImportError, OSError)
"""How libraries refuse a value; other errors may be faults of ours."""
LITTLE = 2**20  # bytes that a full disk may still have


@contextmanager
def at_the_door() -> Iterator[None]:
    """Code of others that checks what the user has handed in: its errors become a `Refusal`.

    One that may be a fault of ours names a log with its traceback, too.
    """
    try:
        yield
    except Refusal:
        raise
    except Exception as error:
        if is_full_disk(error):
            raise
        text = " ".join(str(error).split())
        if not text or not isinstance(error, EXPECTED):
            text = f"{in_one_line(error)} ({write_log(error)})"
        raise Refusal(text) from error


def in_one_line(error: BaseException, places: Iterable[str | Path] = ()) -> str:
    """An error as one line, with its type where the text alone would say little.

    places: where files were written, besides temporary ones and the hub's, if a disk is full.
    """
    if is_full_disk(error):
        return full_disks(places)
    text = " ".join(str(error).split())
    if isinstance(error, Refusal):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def write_log(error: BaseException) -> str:
    """Write the traceback to a temporary file, and say where; print it if that cannot be done."""
    text = "".join(traceback.format_exception(error))
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="gdro-", suffix=".log", delete=False, encoding="utf-8", errors="replace"
        ) as log:
            log.write(text)
    except OSError as reason:  # the disk is full, or no folder can be written
        return f"no log could be written: {reason}; the traceback:\n{text}"
    return f"traceback: {log.name}"


def is_full_disk(error: BaseException | None) -> bool:
    """Whether an error, or one that it came from, says that a file could not be written."""
    while error is not None:
        if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT):
            return True
        if any(sign in str(error) for sign in FULL):
            return True
        error = error.__cause__ or error.__context__
    return False


def full_disks(places: Iterable[str | Path]) -> str:
    """A sentence on a full disk, with those of the places that have no room left."""
    hub = os.environ.get("HF_HOME", "~/.cache/huggingface")
    more = (".", tempfile.gettempdir(), os.path.expanduser(hub))
    there = [_existing(Path(place)) for place in (*places, *more)]
    full = [str(place) for place in dict.fromkeys(there) if shutil.disk_usage(place).free < LITTLE]
    return f"the disk is full: {', '.join(full) or 'no room is left for what was written'}"


def _existing(path: Path) -> Path:
    """The folder itself, or the nearest around it that is there."""
    path = path.absolute()
    return next(folder for folder in (path, *path.parents) if folder.is_dir())
