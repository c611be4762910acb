"""What a person reads when something fails: one line, and where the traceback is."""

import errno
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from gdro.checks import Refusal

# in messages about a full disk: of the system, safetensors and Arrow; then of torch, which does not
# say why it could not write
FULL = ("No space left on device", "Disk quota exceeded", "inline_container", "PytorchStreamWriter")
EXPECTED = (ValueError, TypeError, ImportError, OSError)
"""Errors with which libraries refuse a value; others may be bugs of ours."""


@contextmanager
def at_the_door(what: str = "") -> Iterator[None]:
    """Turn an error that a library raises about the user's input into a `Refusal`.

    `what` begins the sentence. Without it, the sentence also names a log with the traceback where
    the error may be a bug of ours.
    """
    try:
        yield
    except Exception as error:
        if what:
            raise Refusal(f"{what}: {in_one_line(error)}") from error
        if isinstance(error, Refusal) or is_full_disk(error):
            raise
        text = " ".join(str(error).split())
        if not text or not isinstance(error, EXPECTED):
            text = f"{in_one_line(error)} ({write_log(error)})"
        raise Refusal(text) from error


def in_one_line(error: BaseException) -> str:
    """An error as one line, with its type where the text alone would say little."""
    text = " ".join(str(error).split())
    if is_full_disk(error):
        return f"the disk is full: {text}"
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
