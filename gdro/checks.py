"""Checks where input enters: options and arguments by pydantic, arrays by `check_array`.

What fails is a ValueError of one sentence with the argument's name and the value it got. Inside,
nothing is checked again.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import field
from functools import wraps
from typing import Annotated, Any, TypeVar, dataclass_transform

import numpy as np
import pydantic
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
    kind = pydantic.dataclasses.dataclass(eq=False, config=STRICT)(kind)  # type: ignore[assignment]
    make = kind.__init__  # type: ignore[misc]

    @wraps(make)
    def __init__(self: Any, *values: Any, **named: Any) -> None:
        try:
            make(self, *values, **named)
        except ValidationError as error:
            raise ValueError(f"{kind.__name__}: {_sentence(error)}") from None

    kind.__init__ = __init__  # type: ignore[misc]
    return kind


def check(name: str, value: Any, kind: Any = float, **bounds: float) -> Any:
    """Return a value of a type (int, Literal["a", "b"]) within bounds: ge, gt, le, lt."""
    kind = Annotated[kind, Field(**bounds)] if bounds else kind  # type: ignore[call-overload]
    try:
        return TypeAdapter(kind, config=STRICT).validate_python(_plain(value))
    except ValidationError as error:
        raise ValueError(f"{name} {_sentence(error)}") from None


def _sentence(error: ValidationError) -> str:
    """The first finding of pydantic: argument, what it should be, value."""
    first = error.errors(include_url=False)[0]
    if first["type"] == "value_error":  # raised by `__post_init__`, a sentence already
        return str(first["ctx"]["error"])
    where = ".".join(map(str, first["loc"]))
    message = first["msg"].removeprefix("Input ")
    return f"{where} {message[0].lower()}{message[1:]}, got {_short(first['input'])}".lstrip()


def _short(value: Any) -> str:
    """A value on one line, of at most 80 characters."""
    return " ".join(repr(value).split())[:80]


def build(name: str, kind: Callable, given: Mapping[str, Any], **more: Any) -> Any:
    """`kind(**more, **given)`; arguments that it does not take are a ValueError too."""
    try:
        return kind(**more, **given)
    except TypeError as error:
        found = f"got {given!r} ({error})"
        raise ValueError(f"{name} must be arguments of {kind.__name__}, {found}") from error


def need(holds: Any, why: str) -> None:
    """Raise a ValueError with this sentence unless the condition holds."""
    if not holds:
        raise ValueError(why)


def check_array(
    name: str,
    values: Any,
    shape: tuple[int, ...] | None = None,
    low: Any = -math.inf,
    high: Any = math.inf,
    *,
    whole: bool = False,
) -> np.ndarray:
    """Return `values` as an array of floats, of integers where `whole`, finite and in [low, high].

    The bounds are numbers or arrays of the same shape.
    """
    try:
        array = np.asarray(values)
    except (TypeError, ValueError, RuntimeError) as error:  # a ragged list, a tensor on a GPU
        raise ValueError(f"{name} must be an array, got {_short(values)} ({error})") from None
    wanted = "integers" if whole else "numbers"
    typed = not array.size or array.dtype.kind in ("iu" if whole else "iufb")
    if not typed or shape not in (None, array.shape):
        wanted += "" if shape is None else f" of shape {shape}"
        raise ValueError(f"{name} must be {wanted}, got {_short(array)} ({array.dtype})")
    array = array.astype(np.int64 if whole else float, copy=False)
    good = np.isfinite(array) & (array >= low) & (array <= high)
    if not good.all():
        place = int(good.ravel().argmin())
        low, high = (np.broadcast_to(bound, array.shape).ravel()[place] for bound in (low, high))
        found = f"{array.ravel().tolist()[place]} at position {place}"
        raise ValueError(f"{name} must be finite {wanted} in [{low:g}, {high:g}], got {found}")
    return array
