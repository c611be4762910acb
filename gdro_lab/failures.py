"""Errors that libraries raise about a person's input, as sentences."""

from collections.abc import Iterator
from contextlib import contextmanager

from gdro.checks import Refusal


@contextmanager
def at_the_door(what: str) -> Iterator[None]:
    """Turn an error that a library raises about the user's input into a `Refusal`."""
    try:
        yield
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise Refusal(f"{what}: {reason}") from error
