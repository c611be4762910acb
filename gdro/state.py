"""What a checkpoint holds of an object: attributes by name, and settings that must agree."""

from dataclasses import fields, is_dataclass
from typing import Any, ClassVar

import numpy as np


class Saved:
    """An object whose attributes named in `state` travel in checkpoints.

    Each is a number, a bool, a string, an array of numbers or another `Saved`. After an error in
    the middle of a step the state may be half-way: resume from the last checkpoint.
    """

    state: ClassVar[tuple[str, ...]] = ()

    def settings(self) -> dict[str, Any]:
        """What a saved state must agree on: the class, and the plain fields of a dataclass."""
        settings = {"class": type(self).__name__}
        for field in fields(self) if is_dataclass(self) else ():  # type: ignore[var-annotated]
            value = getattr(self, field.name)
            if isinstance(value, np.ndarray):
                value = value.tolist()
            if isinstance(value, bool | int | float | str | list | None):
                settings[field.name] = str(value)  # as text, since JSON knows no infinity
        return settings

    def state_dict(self) -> dict[str, Any]:
        """Nested dictionary of plain values and copies of arrays."""
        saved: dict[str, Any] = {"settings": self.settings()}
        for name in self.state:
            value = getattr(self, name)
            if isinstance(value, Saved):
                value = value.state_dict()
            saved[name] = value.copy() if isinstance(value, np.ndarray) else value
        return saved

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Inverse of `state_dict`; ValueError where the saved settings are others."""
        saved, wanted = state["settings"], self.settings()
        if differ := [name for name in saved | wanted if saved.get(name) != wanted.get(name)]:
            values = {name: (saved.get(name), wanted.get(name)) for name in differ}
            raise ValueError(
                f"settings of {type(self).__name__} must be those of the saved state, "
                f"got (saved, wanted) {values!s:.500}"
            )
        for name in self.state:
            value = getattr(self, name)
            if isinstance(value, Saved):
                value.load_state_dict(state[name])
            else:
                array = isinstance(value, np.ndarray)
                setattr(self, name, np.array(state[name], value.dtype) if array else state[name])
