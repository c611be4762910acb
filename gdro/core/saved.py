"""What a checkpoint holds of an object, and the checks of what comes back from one."""

import inspect
import math
from typing import Any, ClassVar

import numpy as np

from gdro.core.checks import check_int, check_number, check_options


class Saved:
    """Settings that a saved state must agree on, and the attributes that `state` names.

    Such an attribute is an array, a count (an integer ≥ 0), a float, a string or another `Saved`. The first
    axis of an array whose name ends in _D, as many as prompts were seen, may have any length.
    """

    state: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        """Of a dataclass: its options must lie in their domains."""
        check_options(self)

    def settings(self) -> dict[str, Any]:
        """Plain values: the constructor's arguments that are kept under their own names."""
        given = {name: getattr(self, name, None) for name in inspect.signature(type(self)).parameters}
        return {"class": type(self).__name__} | {name: _plain(value) for name, value in given.items()}

    def state_dict(self) -> dict[str, Any]:
        """Nested dictionary of plain values and copies of arrays."""
        return {"settings": self.settings()} | {name: _copied(getattr(self, name)) for name in self.state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Inverse of `state_dict`; ValueError for other settings or a damaged state."""
        what = type(self).__name__
        try:
            mine, theirs = self.settings(), state["settings"]
            if names := [name for name in mine | theirs if mine.get(name) != theirs.get(name)]:
                raise ValueError(
                    f"the saved {what} has other settings (saved, wanted): "
                    f"{ {name: (theirs.get(name), mine.get(name)) for name in names} }; "
                    "resume with the settings of the run that saved it"
                )
            if unknown := set(state) - {"settings", *self.state}:
                raise ValueError(
                    f"the saved {what} is of another version: it has {sorted(unknown)} too; "
                    "resume with the version that saved it"
                )
            for name in self.state:
                self._load(name, getattr(self, name), state[name])
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"the saved {what} is damaged ({error!r}); use a whole checkpoint") from error

    def _load(self, name: str, mine: Any, theirs: Any) -> None:
        what, free = f"the saved {name} of {type(self).__name__}", int(name.endswith("_D"))
        if isinstance(mine, Saved):
            return mine.load_state_dict(theirs)
        if isinstance(mine, np.ndarray):
            theirs = np.array(theirs)
            same = theirs.dtype == mine.dtype and theirs.ndim == mine.ndim
            sound = same and theirs.shape[free:] == mine.shape[free:] and np.isfinite(theirs).all()
            if not sound:
                wanted = f"finite {mine.dtype} of shape {mine.shape}"
                raise ValueError(f"{what} must be {wanted}, got {theirs}; use a whole checkpoint")
        elif isinstance(mine, float):
            check_number(what, theirs)
        elif isinstance(mine, int):
            check_int(what, theirs, 0)
        setattr(self, name, theirs)
        return None


def _copied(value: Any) -> Any:
    if isinstance(value, Saved):
        return value.state_dict()
    return value.copy() if isinstance(value, np.ndarray) else value


def _plain(value: Any) -> Any:
    """A value as JSON can hold it; None for what is no plain value."""
    if isinstance(value, np.ndarray | list | tuple):
        return [_plain(v) for v in np.asarray(value).tolist()]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if isinstance(value, bool | int | float | str) else None
