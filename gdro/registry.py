"""The registry: methods by name, those of other packages too."""

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, TypeVar

from gdro.checks import build, need
from gdro.method import Method

METHODS: dict[str, type[Method]] = {}
AnyMethod = TypeVar("AnyMethod", bound=type[Method])


def register(name: str) -> Callable[[AnyMethod], AnyMethod]:
    """Class decorator that puts a `Method` into the registry under `name`.

    Defining a class of the same name again, as in a notebook cell, replaces it. ValueError if
    another class has the name.
    """

    def add(method: AnyMethod) -> AnyMethod:
        known = METHODS.get(name, method)
        again = (known.__module__, known.__qualname__) == (method.__module__, method.__qualname__)
        need(again, f"method name {name!r} is taken by {known!r}")
        method.name, METHODS[name] = name, method
        return method

    return add


def find_method(name: str) -> type[Method]:
    """The method registered under `name`; ValueError if there is none.

    For a name not known yet, the published methods of `gdro.peers` are imported, and then packages
    with the entry point `gdro.methods`, which register theirs.
    """
    if name not in METHODS:
        # here and by its name, since the peers themselves import this module
        import_module("gdro.peers")
    if name not in METHODS:
        for entry in entry_points(group="gdro.methods"):
            entry.load()
    if name not in METHODS:
        near = get_close_matches(str(name), METHODS, 3, 0.3) or ["grpo", "prompt", "rollout"]
        known = f"a name of docs/methods.md or docs/peers.md, such as {near}"
        raise ValueError(f"method must be {known}, got {name!r}")
    return METHODS[name]


def make_method(method: str | Method, preset: str, given: Mapping[str, Any]) -> Method:
    """A method from its name, or the object itself; options override those of the preset."""
    if isinstance(method, Method):
        new = not given and not hasattr(method, "run")  # it serves one controller
        found = f"{type(method).__name__} and {sorted(given)}"
        need(new, f"method must be a new object without options, got {found}")
        return method
    kind = find_method(method)
    chosen = dict(kind.presets.get(preset, {}))
    for name, value in given.items():
        nested = isinstance(chosen.get(name), dict) and isinstance(value, Mapping)
        chosen[name] = {**chosen[name], **value} if nested else value
    return build(f"options of method {method!r}", kind, chosen)
