"""The registry: methods by name, those of other packages too."""

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from functools import cached_property
from importlib.metadata import entry_points
from inspect import isfunction
from typing import Any, TypeVar

from gdro.checks import Refusal, build, check, short
from gdro.method import Method

METHODS: dict[str, type[Method]] = {}
"""Those imported so far; `method_names` has all."""
HELPERS = {"begin", "overrides", "grow", "samples_again"}
"""Functions of `Method` that methods call, and do not override."""
MethodClass = TypeVar("MethodClass", bound=type[Method])


def register(name: str) -> Callable[[MethodClass], MethodClass]:
    """Class decorator that puts a `Method` into the registry under `name`.

    Defining a class of the same name again, as in a notebook cell, replaces it. ValueError if
    another class has the name.
    """
    check("register's name", name, str)

    def add(method: MethodClass) -> MethodClass:
        present = METHODS.get(name, method)
        is_same_module = present.__module__ == method.__module__
        if not is_same_module or present.__qualname__ != method.__qualname__:
            raise ValueError(f"method name {name!r} is taken by {present!r}; choose another")
        method.name = name
        METHODS[name] = method
        return method

    return add


def method_names() -> list[str]:
    """Names of all methods: the package's own, those of `gdro.peers` and of other packages."""
    _import_packages()
    return sorted(METHODS)


def find_method(name: str) -> type[Method]:
    """The method registered under `name`; Refusal if there is none.

    For a name not known yet, what has the entry point `gdro.methods` is imported: `gdro.peers`, and
    other packages.
    """
    if not isinstance(name, str):
        raise Refusal(f"method must be a name or a Method, got {short(name)}")
    if name not in METHODS:
        _import_packages()
    if name not in METHODS:
        near = get_close_matches(name, METHODS, 3, 0.3) or ["grpo", "prompt", "rollout"]
        raise Refusal(
            f"method must be a name of docs/peers.md, such as {near}, "
            f"got {name!r}; import the module of your own first"
        )
    return METHODS[name]


def _import_packages() -> None:
    for entry in entry_points(group="gdro.methods"):
        entry.load()


def check_hooks(kind: type[Method]) -> None:
    """Refuse a method with a name almost like that of a hook which it does not override.

    `alocate`, or a property `need_losses`, would never be asked for, and `draws` in place of `draw`
    would hide the property: the method would silently train as GRPO.
    """
    known = {name: value for name, value in vars(Method).items() if _is_hook(value)}
    hooks = [name for name in known if name not in HELPERS]
    own: list[str] = []
    for parent in kind.__mro__[: kind.__mro__.index(Method)]:
        for name, value in vars(parent).items():
            if isfunction(value) and isinstance(known.get(name), property):
                raise ValueError(
                    f"{kind.__name__} must have {name!r} as a property, got a function; did you "
                    f"mean {get_close_matches(name, set(hooks) - {name}, 1, 0)}?"
                )
            if not _is_hook(value) or name.startswith("_") or name in known:
                continue
            own.append(name)
            for hook in get_close_matches(name, hooks, 1, 0.85):
                if getattr(kind, hook) is getattr(Method, hook):
                    raise ValueError(
                        f"{kind.__name__} must not have {name!r} beside the default "
                        f"{hook!r}; correct its name, or choose one that is less alike"
                    )
    if own and all(getattr(kind, hook) is getattr(Method, hook) for hook in hooks):
        raise ValueError(f"{kind.__name__} must override one of {hooks}, got only {own}")


def _is_hook(value: object) -> bool:
    """Whether a method can override it; a capability may be a plain `needs_losses = True`."""
    kinds = (property, cached_property, staticmethod, bool)
    return isfunction(value) or isinstance(value, kinds)


def make_method(method: str | Method, preset: str, given: Mapping[str, Any]) -> Method:
    """A method from its name, or the object itself; what is given overrides the preset."""
    if isinstance(method, Method):
        kind = type(method).__name__
        if given or (preset != "default" and preset in method.presets):
            raise ValueError(
                f"method must be a name where it gets options or preset {preset!r}, got a {kind} "
                f"and {sorted(given)}: give options to {kind}"
            )
        if hasattr(method, "run"):
            raise ValueError(f"method must be new, got a {kind} that serves another controller")
        check_hooks(type(method))
        return method
    factory = find_method(method)
    check_hooks(factory)
    options = f"options of method {method!r}"
    given = check(options, given, Mapping[str, object])
    arguments = dict(factory.presets.get(preset, {}))
    for name, value in given.items():
        default = arguments.get(name)
        if isinstance(default, dict) and isinstance(value, Mapping):
            value = {**default, **value}
        arguments[name] = value
    return build(options, factory, arguments)
