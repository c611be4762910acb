"""Objects whose state is saved in checkpoints, and restored where a step fails half-way."""

import inspect
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, ClassVar

import numpy as np

from gdro.core.checks import check_options


class Saved:
    """An object with settings, which a saved state must agree on, and a state, which travels in checkpoints.

    Attributes:
        state: names of the attributes that a checkpoint holds. Each is an array of numbers, a count
            (an integer ≥ 0), a number, a bool, a string or another `Saved`, and keeps its type, dtype and
            shape during the run.
        by_prompt: those among them that are arrays with one row per prompt seen. Their first axis grows.
    """

    state: ClassVar[tuple[str, ...]] = ()
    by_prompt: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        """Of a dataclass: its options must lie in their domains."""
        check_options(self)

    def settings(self) -> dict[str, Any]:
        """Plain values: the constructor's arguments that are kept under their own names."""
        given = {name: getattr(self, name, None) for name in inspect.signature(type(self)).parameters}
        return {"class": type(self).__name__} | {name: _plain(value) for name, value in given.items()}

    def state_dict(self) -> dict[str, Any]:
        """Nested dictionary of plain values and copies of arrays; ValueError where one is not finite."""
        saved = {"settings": self.settings()}
        for name in self.state:
            value = getattr(self, name)
            if not _finite(value):
                remedy = "keep NaN and infinities out of the state"
                raise ValueError(f"{type(self).__name__}.{name} must be finite, got {value}; {remedy}")
            saved[name] = value.state_dict() if isinstance(value, Saved) else _copied(value)
        return saved

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Inverse of `state_dict`; for other settings or a damaged state a ValueError, and nothing loaded."""
        what = f"the saved {type(self).__name__}"
        try:
            with all_or_nothing(self.undo()):
                mine, theirs = self.settings(), state["settings"]
                if names := [name for name in mine | theirs if mine.get(name) != theirs.get(name)]:
                    raise ValueError(
                        f"{what} has other settings (saved, wanted): "
                        f"{ {name: (theirs.get(name), mine.get(name)) for name in names} }; "
                        "resume with the settings of the run that saved it"
                    )
                if unknown := set(state) - {"settings", *self.state}:
                    remedy = "resume with the version that saved it"
                    raise ValueError(f"{what} is of another version: it has {sorted(unknown)} too; {remedy}")
                for name in self.state:
                    self._load(name, getattr(self, name), state[name])
                self.check_loaded()
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{what} is damaged ({error!r}); use a whole checkpoint") from error

    def check_loaded(self) -> None:
        """Called when everything is loaded: raises a ValueError where the parts do not fit together."""

    def _load(self, name: str, mine: Any, theirs: Any) -> None:
        if isinstance(mine, Saved):
            return mine.load_state_dict(theirs)
        theirs, growing = np.array(theirs) if isinstance(mine, np.ndarray) else theirs, name in self.by_prompt
        # another dtype or shape would fail later, in the middle of a step
        if kind_of(theirs, growing) != (wanted := kind_of(mine, growing)) or not _finite(theirs):
            what = f"the saved {name} of {type(self).__name__}"
            raise ValueError(f"{what} must be finite, {wanted}, got {theirs!r}; use a whole checkpoint")
        return setattr(self, name, theirs)

    def kinds(self) -> dict[str, Any]:
        """What each attribute in `state` is; ValueError if a checkpoint could not hold one."""
        kinds: dict[str, Any] = {}
        for name in (*self.state, *self.by_prompt):
            value, growing = getattr(self, name, None), name in self.by_prompt
            if isinstance(value, Saved) and not growing:
                kinds[name] = value.kinds()
            else:
                kinds[name] = kind_of(value, growing)
        if wrong := [name for name, kind in kinds.items() if kind is None or name not in self.state]:
            raise ValueError(
                f"{type(self).__name__}.{wrong[0]} must be an array of numbers, a count, a number, a bool or "
                f"a string, got {getattr(self, wrong[0], None)!r}; set it in `start` and name it in `state`; "
                "only arrays go into `by_prompt`"
            )
        return kinds

    def undo(self, rows: np.ndarray | None = None) -> Callable[[], None]:
        """A function that puts the state back as it is now; of arrays by prompt only `rows`, if given."""
        # One row per prompt of the data set can be a lot to copy at each step, so `rows` limits it to those
        # that the step can change.
        undos: list[Callable] = []
        for name in self.state:
            value = getattr(self, name)
            if isinstance(value, Saved):
                undos.append(value.undo(rows))
            elif rows is not None and name in self.by_prompt:
                undos.append(partial(value.__setitem__, rows, value[rows]))
            else:
                undos.append(partial(setattr, self, name, _copied(value)))

        def undo_all() -> None:
            for undo in undos:
                undo()

        return undo_all


@contextmanager
def all_or_nothing(*undos: Callable[[], None]) -> Iterator[None]:
    """Undo what the block has done if it does not come to its end."""
    try:
        yield
    except BaseException:  # also Ctrl-C, or the state would be left half-way
        for undo in undos:
            undo()
        raise


def kind_of(value: Any, growing: bool = False) -> str | tuple | None:
    """The dtype and shape of an array or the kind of another value; None if a state cannot hold it."""
    # `growing` as a number: an array that grows needs a first axis, another may have none
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf" and value.ndim >= growing:
        return value.dtype, ("any number", *value.shape[1:]) if growing else value.shape
    if growing:
        return None
    if isinstance(value, Saved | bool | str):
        return type(value).__name__
    if isinstance(value, float | np.floating):
        return "number"
    return "count" if isinstance(value, int | np.integer) and value >= 0 else None


def _finite(value: Any) -> bool:
    return not isinstance(value, np.ndarray | float) or bool(np.isfinite(value).all())


def _copied(value: Any) -> Any:
    return value.copy() if isinstance(value, np.ndarray) else value


def _plain(value: Any) -> Any:
    """The value in a form that JSON can hold; None where it has none."""
    if isinstance(value, np.ndarray | list | tuple):
        return [_plain(v) for v in np.asarray(value).tolist()]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if isinstance(value, bool | int | float | str) else None
