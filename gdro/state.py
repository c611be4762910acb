"""What a checkpoint holds of an object: attributes by name, and settings that must agree."""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import fields, is_dataclass
from typing import Any, ClassVar

import numpy as np

from gdro.checks import short


class Stateful:
    """An object whose attributes named in `state` travel in checkpoints.

    Each is a number, a bool, a string, None, a list of these, an array or another `Stateful`. After
    an error in the middle of a step the state may be partly updated: resume from the last
    checkpoint.
    """

    state: ClassVar[tuple[str, ...]] = ()
    """Names of the attributes that a checkpoint holds."""

    def settings(self) -> dict[str, Any]:
        """What a saved state must agree on: the class, and the plain fields of a dataclass."""
        settings = {"class": type(self).__name__}
        for field in fields(self) if is_dataclass(self) else ():  # type: ignore[var-annotated]
            value = getattr(self, field.name)
            if isinstance(value, np.ndarray):
                value = value.tolist()
            if isinstance(value, Mapping) and value:
                value = sorted(f"{name!r}: {item!r}" for name, item in value.items())
            if isinstance(value, bool | int | float | str | list | tuple | None):
                settings[field.name] = str(value)  # as text, since JSON knows no infinity
        return settings

    def check_kinds(self) -> None:
        """ValueError for an attribute that is not there, or that JSON changes: a dict, a tuple."""
        kinds = bool | int | float | str | list | np.ndarray | np.generic | Stateful | None
        for name in self.state:
            value = getattr(self, name, NotImplemented)  # which is of no kind
            is_object = isinstance(value, np.ndarray) and value.dtype.hasobject
            if is_object or not isinstance(value, kinds):
                raise ValueError(
                    f"state of {type(self).__name__!r} must name attributes that its `start` makes "
                    "of numbers, strings, lists and arrays of them or other states, got "
                    f"{name!r}, a {type(value).__name__}"
                )

    def state_dict(self) -> dict[str, Any]:
        """Nested dictionary of plain values and copies of arrays."""
        saved: dict[str, Any] = {"settings": self.settings()}
        for name in self.state:
            value = getattr(self, name)
            saved[name] = value.state_dict() if isinstance(value, Stateful) else deepcopy(value)
        return saved

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Inverse of `state_dict`; ValueError where parts are missing or settings differ."""
        self.check_state(state)
        for name in self.state:
            value = getattr(self, name)
            if isinstance(value, Stateful):
                value.load_state_dict(state[name])
            elif isinstance(value, np.ndarray):
                setattr(self, name, np.array(state[name], value.dtype))
            else:
                setattr(self, name, deepcopy(state[name]))

    def check_state(self, state: Mapping[str, Any]) -> None:
        """ValueError for a state that is not one of this object; nothing is loaded."""
        kind = type(self).__name__
        if not isinstance(state, Mapping):
            raise ValueError(f"state must be a state_dict of {kind}, got {short(state)}")
        missing = [name for name in ("settings", *self.state) if name not in state]
        if missing:
            raise ValueError(f"state of {kind} must have {missing}, got only {sorted(state)}")
        mine = self.settings()
        saved = state["settings"]
        differ = [name for name in saved | mine if saved.get(name) != mine.get(name)]
        if differ:
            pairs = {name: (saved.get(name), mine.get(name)) for name in differ}
            raise ValueError(
                f"settings of {kind} must be those of the saved state, "
                f"got (saved, present) {pairs!s:.500}"
            )
        for name in self.state:
            value = getattr(self, name)
            if isinstance(value, Stateful):
                value.check_state(state[name])
