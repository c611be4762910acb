"""What a checkpoint holds of an object, and the checks of what comes back from one."""

import inspect
import math
import re
from typing import Any, ClassVar

import numpy as np

from gdro.checks import check_int, check_number


class Saved:
    """Settings that a saved state must agree on, and the attributes that `state` names.

    Such an attribute is an array, a count (an integer ≥ 0), a float, a string, a dictionary of these, or
    another `Saved`.
    """

    state: ClassVar[tuple[str, ...]] = ()
    resizes: ClassVar[bool] = (
        False  # whether the first axis of arrays may have any length, as that of prompts has
    )

    def settings(self) -> dict[str, Any]:
        """Plain values: the constructor's arguments that are kept under their own names."""
        given = {name: getattr(self, name, None) for name in inspect.signature(type(self)).parameters}
        return {"class": type(self).__name__} | {name: _plain(value) for name, value in given.items()}

    def state_dict(self) -> dict[str, Any]:
        """Nested dictionary of plain values and copies of arrays."""
        return {"settings": self.settings()} | {
            _key(name): _copied(getattr(self, name)) for name in self.state
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Inverse of `state_dict`; ValueError for other settings or a damaged state."""
        what = type(self).__name__
        try:
            mine, theirs = self.settings(), state["settings"]
            names = [name for name in mine | theirs if mine.get(name) != theirs.get(name)]
            if names:
                raise ValueError(
                    f"the saved {what} has other settings (saved, wanted): "
                    f"{ {name: (theirs.get(name), mine.get(name)) for name in names} }; "
                    "resume with the settings of the run that saved it"
                )
            for name in self.state:
                mine, theirs = getattr(self, name), state[_key(name)]
                setattr(self, name, self._loaded(f"{_key(name)} of {what}", mine, theirs))
        except (KeyError, TypeError, AttributeError, IndexError) as error:
            raise ValueError(f"the saved {what} is damaged ({error!r}); use a whole checkpoint") from error

    def _loaded(self, what: str, mine: Any, theirs: Any) -> Any:
        if isinstance(mine, Saved):
            mine.load_state_dict(theirs)
            return mine
        if isinstance(mine, dict):
            if mine.keys() != theirs.keys():
                raise KeyError(f"{what} has {sorted(theirs)}, not {sorted(mine)}")
            return {
                name: self._loaded(f"{name} in {what}", value, theirs[name]) for name, value in mine.items()
            }
        if isinstance(mine, np.ndarray):
            array, free = np.array(theirs), int(self.resizes)
            same = (array.dtype, array.ndim, array.shape[free:]) == (mine.dtype, mine.ndim, mine.shape[free:])
            if not same or (array.dtype.kind == "f" and not np.isfinite(array).all()):
                raise ValueError(
                    f"the saved {what} must be finite {mine.dtype} of shape {mine.shape}, got {array}; "
                    "use a whole checkpoint"
                )
            return array
        if isinstance(mine, float):
            return check_number(f"the saved {what}", theirs)
        if isinstance(mine, int) and not isinstance(mine, bool):
            return check_int(f"the saved {what}", theirs, 0)
        return theirs


def _plain(value: Any) -> Any:
    """A value as JSON can hold it; None for what is no plain value."""
    if isinstance(value, np.ndarray | list | tuple):
        return [_plain(v) for v in np.asarray(value).tolist()]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if isinstance(value, bool | int | float | str) else None


def _key(name: str) -> str:
    """Name of an attribute without its axes."""
    return re.sub("_[A-Z]+$", "", name)


def _copied(value: Any) -> Any:
    if isinstance(value, Saved):
        return value.state_dict()
    if isinstance(value, dict):
        return {name: _copied(v) for name, v in value.items()}
    return value.copy() if isinstance(value, np.ndarray) else value
