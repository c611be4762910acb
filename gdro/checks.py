"""Checks of input at the public boundary: each raises a ValueError with name, value and remedy."""

import inspect
import math
from collections.abc import Callable, Collection
from typing import Any

import numpy as np
from numpy.typing import ArrayLike


def _refuse(name: str, wanted: str, value: Any, remedy: str) -> None:
    raise ValueError(f"{name} must be {wanted}, got {value!r}" + (f"; {remedy}" if remedy else ""))


def check_choice(name: str, value: Any, choices: Collection) -> None:
    """Refuse a value that is not one of the named choices."""
    # `True == 1`, so a bool is only a choice where a bool is listed
    if not any(value == choice and type(value) is type(choice) for choice in choices):
        raise ValueError(f"{name} must be one of {list(choices)}, got {value!r}")


def check_int(name: str, value: Any, low: int, high: int | None = None, remedy: str = "") -> int:
    """Return `value` as an int; refuse anything but an integer in [low, high] (bools too)."""
    wanted = f"an integer of at least {low}" if high is None else f"an integer in [{low}, {high}]"
    is_int = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not is_int or value < low or (high is not None and value > high):
        _refuse(name, wanted, value, remedy)
    return int(value)


def check_number(
    name: str,
    value: Any,
    low: float = -math.inf,
    high: float = math.inf,
    *,
    open_low: bool = False,
    open_high: bool = False,
    remedy: str = "",
) -> float:
    """Return `value` as a float; refuse what is no finite number in the interval."""
    left = "(" if open_low or low == -math.inf else "["
    right = ")" if open_high or high == math.inf else "]"
    number = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
    inside = number and math.isfinite(value) and low <= value <= high
    if not inside or (open_low and value == low) or (open_high and value == high):
        _refuse(name, f"a number in {left}{low:g}, {high:g}{right}", value, remedy)
    return float(value)


def check_array(
    name: str,
    values: Any,
    shape: tuple[int, ...],
    low: float = -math.inf,
    high: float = math.inf,
    *,
    whole: bool = False,
    nan: bool = False,
    remedy: str = "",
) -> np.ndarray:
    """Return `values` as an array; refuse another shape and what is no finite number in [low, high].

    With `whole` only integers pass, with `nan` NaN does too.
    """
    wanted = f"{'integers' if whole else 'finite numbers'} in [{low}, {high}] of shape {shape}"
    try:
        array = np.asarray(values)
    except ValueError as error:  # a ragged list
        raise ValueError(f"{name} must be {wanted}: {error}") from error
    good = array.shape == shape and (array.dtype.kind in ("iu" if whole else "iuf") or not array.size)
    known = array[~np.isnan(array)] if good and nan else array
    if good and known.size:
        least, most = known.min(), known.max()  # a NaN makes both NaN, and every comparison false
        good = low <= least and most <= high and -math.inf < least and most < math.inf
    if not good:
        _refuse(name, wanted, values, remedy)
    return array.astype(np.int64 if whole else float, copy=False)


def check_finite(name: str, values: ArrayLike) -> np.ndarray:
    """Return `values` as a float array; refuse NaN, infinity and what holds no numbers."""
    try:
        array = np.asarray(values, float)
    except (TypeError, ValueError, RuntimeError) as error:  # strings, ragged lists, a tensor in bfloat16
        raise ValueError(f"{name} must be numbers that numpy can hold ({error}); convert them") from error
    bad = np.flatnonzero(~np.isfinite(array))
    if bad.size:
        raise ValueError(
            f"{name} must be finite, got {array.ravel()[bad[0]]} at position {bad[0]} "
            f"({bad.size} of {array.size}); fix what computes them"
        )
    return array


def check_shares(name: str, values: ArrayLike) -> np.ndarray:
    """Return `values` as a float array; refuse what is not ≥ 0 with sum one along the last axis."""
    array = check_finite(name, values)
    if array.ndim == 0 or (array < 0).any() or not np.allclose(array.sum(axis=-1), 1.0, atol=1e-6):
        raise ValueError(f"{name} must be ≥ 0 and sum to one over the bins, got {array}; divide by the sum")
    return array


def check_options(name: str, options: Any, function: Callable) -> dict[str, Any]:
    """Return a copy of `options`; refuse anything but a mapping from argument names of `function`."""
    signature = inspect.signature(function)
    try:
        signature.bind_partial(**options)
    except TypeError as error:
        remedy = f"{error}: it takes {list(signature.parameters)}"
        _refuse(name, f"arguments of {function.__name__}", options, remedy)
    return dict(options)
