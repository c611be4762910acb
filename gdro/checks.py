"""Checks where input enters: options and arguments by pydantic, arrays by `check_array`.

What fails is a ValueError with the argument's name and the value it got. Inside, nothing is checked
again.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import field
from functools import lru_cache
from typing import Annotated, Any, TypeVar, dataclass_transform

import numpy as np
import pydantic
from numpy.typing import ArrayLike
from pydantic import BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError

LARGEST = 1e100  # of a reward, loss, weight or advantage: squares and products of two stay finite
LARGEST_STEP = 1e6  # of a step size: beyond it the same bin or arm is chosen, until it overflows

STRICT = ConfigDict(strict=True, extra="forbid", arbitrary_types_allowed=True, allow_inf_nan=False)


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


# Types of options. pydantic takes no numpy scalars where it is strict, so they are converted first.
Int = Annotated[int, BeforeValidator(_plain)]
Float = Annotated[float, BeforeValidator(_plain)]
Index = Annotated[Int, Field(ge=0)]
Count = Annotated[Int, Field(ge=1)]
Share = Annotated[Float, Field(ge=0, le=1)]
PositiveShare = Annotated[Float, Field(gt=0, le=1)]
NonNegative = Annotated[Float, Field(ge=0)]
Positive = Annotated[Float, Field(gt=0)]
Bound = Annotated[float, Field(gt=0, allow_inf_nan=True), BeforeValidator(_plain)]  # inf: none
StepSize = Annotated[Float, Field(ge=0, le=LARGEST_STEP)]

AnyClass = TypeVar("AnyClass", bound=type)


@dataclass_transform(eq_default=False, field_specifiers=(field, Field))
def options(kind: AnyClass) -> AnyClass:
    """Class decorator: a dataclass whose fields pydantic checks, strictly, when one is made."""
    return pydantic.dataclasses.dataclass(eq=False, config=STRICT)(kind)  # type: ignore[return-value]


def check(name: str, value: Any, kind: Any = float, **bounds: float) -> Any:
    """Return a value of a type (int, Literal["a", "b"]) within bounds: ge, gt, le, lt."""
    try:
        return _adapter(kind, **bounds).validate_python(_plain(value))
    except ValidationError as error:
        message = error.errors(include_url=False)[0]["msg"].removeprefix("Input should ")
        raise ValueError(f"{name} must {message}, got {value!r}") from None


@lru_cache(256)
def _adapter(kind: Any, **bounds: float) -> TypeAdapter:
    kind = Annotated[kind, Field(**bounds)] if bounds else kind  # type: ignore[arg-type]
    return TypeAdapter(kind, config=STRICT)


def build(name: str, kind: Callable, given: Mapping[str, Any], **more: Any) -> Any:
    """`kind(**more, **given)`; arguments that it does not take are a ValueError too."""
    try:
        return kind(**more, **given)
    except TypeError as error:
        found = f"got {given!r} ({error})"
        raise ValueError(f"{name} must be arguments of {kind.__name__}, {found}") from error


def refuse(when: Any, why: str) -> None:
    """ValueError with a sentence where a condition holds: for settings that do not agree."""
    if when:
        raise ValueError(why)


def check_array(
    name: str,
    values: Any,
    shape: tuple[int, ...] | None = None,
    low: ArrayLike = -math.inf,
    high: ArrayLike = math.inf,
    *,
    whole: bool = False,
    nan: bool = False,
    open_low: bool = False,
) -> np.ndarray:
    """Return `values` as an array of floats, of integers where `whole`.

    All must be finite and in [low, high], or (low, high] with `open_low`; with `nan` NaN passes.
    The bounds are numbers or arrays of the same shape.
    """
    array = np.asarray(values)
    wanted = "integers" if whole else "numbers"
    typed = not array.size or array.dtype.kind in ("iu" if whole else "iufb")
    if not typed or shape not in (None, array.shape):
        wanted += "" if shape is None else f" of shape {shape}"
        raise ValueError(f"{name} must be {wanted}, got {array!s:.80} ({array.dtype})")
    array = array.astype(np.int64 if whole else float, copy=False)
    good = np.isfinite(array) & (array <= high) & ((array > low) if open_low else (array >= low))
    if nan:
        good |= np.isnan(array)
    if not good.all():
        place = int(good.ravel().argmin())
        low, high = (np.broadcast_to(bound, array.shape).ravel()[place] for bound in (low, high))
        interval = f"{'(' if open_low else '['}{low:g}, {high:g}]"
        found = f"{array.ravel()[place]} at position {place}"
        raise ValueError(f"{name} must be finite {wanted} in {interval}, got {found}")
    return array
