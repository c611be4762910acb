"""Checks of input at the public boundary: each raises a ValueError with name, value and remedy.

Options of a dataclass are declared with `option` and checked by `check_options`; everything else is checked
where it comes in, by the function for its type.
"""

import inspect
import math
from collections.abc import Callable, Collection
from dataclasses import field, fields
from typing import Any, NoReturn

import numpy as np
from numpy.typing import ArrayLike


def _refuse(name: str, wanted: str, value: Any, remedy: str) -> NoReturn:
    raise ValueError(f"{name} must be {wanted}, got {value}; {remedy}")


def _interval(low: float, high: float, open_low: bool, open_high: bool) -> str:
    left = "(" if open_low or low == -math.inf else "["
    return f"{left}{low:g}, {high:g}{')' if open_high or high == math.inf else ']'}"


def check_choice(name: str, value: Any, choices: Collection) -> None:
    """Refuse a value that is not one of the named choices."""
    # `True == 1`, so a bool is only a choice where a bool is listed
    if not any(value == choice and type(value) is type(choice) for choice in choices):
        _refuse(name, f"one of {list(choices)}", repr(value), "choose one of these")


def check_int(name: str, value: Any, low: int, high: int | None = None, remedy: str = "") -> int:
    """Return `value` as an int; refuse anything but an integer in [low, high] (bools too)."""
    is_int = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not is_int or value < low or (high is not None and value > high):
        wanted = f"an integer of at least {low}" if high is None else f"an integer in [{low}, {high}]"
        _refuse(name, wanted, repr(value), remedy or "choose such a value")
    return int(value)


def check_number(
    name: str,
    value: Any,
    low: float = -math.inf,
    high: float = math.inf,
    *,
    open_low: bool = False,
    open_high: bool = False,
    infinite: bool = False,
    remedy: str = "",
) -> float:
    """Return `value` as a float; refuse what is no number in the interval, and infinity unless `infinite`."""
    number = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
    inside = number and low <= value <= high and (infinite or math.isfinite(value))
    if not inside or (open_low and value == low) or (open_high and value == high):
        wanted = f"a number in {_interval(low, high, open_low, open_high)}"
        _refuse(name, wanted, repr(value), remedy or "choose such a value")
    return float(value)


def check_array(
    name: str,
    values: Any,
    shape: tuple[int, ...] | None = None,
    low: float = -math.inf,
    high: float = math.inf,
    *,
    whole: bool = False,
    nan: bool = False,
    open_low: bool = False,
    remedy: str = "",
) -> np.ndarray:
    """Return `values` as an array; refuse another shape and what is no finite number in the interval.

    With `whole` only integers pass, with `nan` NaN does too.
    """
    wanted = "integers" if whole else "finite numbers"
    try:
        array = np.asarray(values)
    except (TypeError, ValueError, RuntimeError) as error:  # a ragged list, a tensor in bfloat16
        raise ValueError(f"{name} must be {wanted} that numpy can hold: {error}; convert them") from error
    if array.size and array.dtype.kind not in ("iu" if whole else "iufb"):
        _refuse(name, wanted, f"dtype {array.dtype}", remedy or "convert them")
    if shape is not None and array.shape != shape:
        _refuse(name, f"{wanted} of shape {shape}", f"shape {array.shape}", remedy or "give one per entry")
    array = array.astype(np.int64 if whole else float, copy=False)  # the caller's own where it fits
    good = np.isfinite(array) & (array <= high) & ((array > low) if open_low else (array >= low))
    if nan:
        good |= np.isnan(array)
    if not good.all():
        place = int(good.ravel().argmin())
        found = f"{array.ravel()[place]} at position {place} ({(~good).sum()} of {array.size})"
        interval = _interval(low, high, open_low, False)
        _refuse(name, f"{wanted} in {interval}", found, remedy or "correct it or leave it out")
    return array


def check_shares(name: str, values: ArrayLike) -> np.ndarray:
    """Return `values` as a float array; refuse what is not ≥ 0 with sum one along the last axis."""
    array = check_array(name, values, low=0)
    if array.ndim == 0 or not np.allclose(array.sum(axis=-1), 1.0, atol=1e-6):
        _refuse(name, "≥ 0 and sum to one over the bins", array, "divide by the sum")
    return array


def option(default: Any, check: Callable, *domain: Any, optional: bool = False, **rules: Any) -> Any:
    """A dataclass field that `check(name, value, *domain, **rules)` checks; None passes if `optional`."""
    how = {"check": check, "domain": domain, "optional": optional, "rules": rules}
    return field(default=default, metadata=how)


def check_options(options: Any, owner: str = "") -> None:
    """Check the fields of a dataclass that are declared with `option`; numbers become plain ones.

    A refusal names the owner, by default the class: "PromptGDRO(eta=…) must be …".
    """
    for one in fields(options):
        value, how = getattr(options, one.name), one.metadata
        if how and not (value is None and how["optional"]):
            name = f"{owner or type(options).__name__}({one.name}=…)"
            checked = how["check"](name, value, *how["domain"], **how["rules"])
            object.__setattr__(options, one.name, value if checked is None else checked)  # frozen ones too


def build(name: str, kind: Callable, options: Any, **given: Any) -> Any:
    """`kind(**given, **options)`; refuse options that are not further arguments of it."""
    try:
        return kind(**given, **options)
    except TypeError as error:
        names = [argument for argument in inspect.signature(kind).parameters if argument not in given]
        remedy = f"{error}: it takes {names}"
        raise ValueError(f"{name} must be arguments of {kind.__name__}, got {options!r}; {remedy}") from error
