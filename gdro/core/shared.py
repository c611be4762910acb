"""An object whose calls may come from several threads: they run one at a time."""

from collections.abc import Callable
from functools import wraps
from threading import RLock
from typing import Any, Concatenate, ParamSpec, TypeVar

from gdro.core.saved import Saved

Given = ParamSpec("Given")
Reply = TypeVar("Reply")
AnyShared = TypeVar("AnyShared", bound="Shared")


class Shared(Saved):
    """A `Saved` with a lock of its own, which every copy makes anew."""

    def __init__(self) -> None:
        self._lock = RLock()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _lock=RLock())

    def state_dict(self) -> dict[str, Any]:
        """Nested dictionary of plain values and copies of arrays; ValueError where one is not finite."""
        with self._lock:
            return super().state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Inverse of `state_dict`; for other settings or a damaged state a ValueError, and nothing loaded."""
        with self._lock:
            super().load_state_dict(state)


def one_at_a_time(
    call: Callable[Concatenate[AnyShared, Given], Reply],
) -> Callable[Concatenate[AnyShared, Given], Reply]:
    """A method of a `Shared` that holds its lock."""

    @wraps(call)
    def locked(shared: AnyShared, *args: Given.args, **named: Given.kwargs) -> Reply:
        with shared._lock:
            return call(shared, *args, **named)

    return locked
