"""An object whose calls may come from several threads: they run one at a time."""

from collections.abc import Callable
from functools import wraps
from threading import RLock
from typing import Any, TypeVar, cast

from gdro.core.saved import Saved

AnyCall = TypeVar("AnyCall", bound=Callable[..., Any])


def one_at_a_time(call: AnyCall) -> AnyCall:
    """A method of a `Shared` that holds its lock."""

    @wraps(call)
    def locked(shared: "Shared", *args: Any, **named: Any) -> Any:
        with shared._lock:
            return call(shared, *args, **named)

    return cast(AnyCall, locked)


class Shared(Saved):
    """A `Saved` with a lock of its own."""

    # a lock can be neither copied nor pickled, so every copy makes a new one
    def __init__(self) -> None:
        self._lock = RLock()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _lock=RLock())

    state_dict = one_at_a_time(Saved.state_dict)
    load_state_dict = one_at_a_time(Saved.load_state_dict)
