"""Checks where input enters: options and arguments by pydantic, arrays by `check_array`.

What fails is a ValueError of one sentence with the argument's name and the value it got. Inside,
nothing is checked again.
"""

import math
from collections.abc import Mapping
from dataclasses import field, fields
from functools import lru_cache, wraps
from inspect import signature
from typing import Annotated, Any, TypeVar, dataclass_transform

import numpy as np
import pydantic
from numpy.typing import ArrayLike
from pydantic import BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError

LARGEST = 1e100  # of a reward, loss, weight or advantage: squares and products of two stay finite
MOST = 100_000  # rollouts of a prompt, or steps and visits that are kept: arrays have as many
LARGEST_STEP = 1e6  # of a step size: a larger one changes no choice, and in the end overflows

STRICT = ConfigDict(strict=True, extra="forbid", arbitrary_types_allowed=True, allow_inf_nan=False)


def _plain(value: object) -> object:
    return value.item() if isinstance(value, np.generic) else value


# Types of options. pydantic takes no numpy scalars where it is strict, so they are converted first.
Int = Annotated[int, BeforeValidator(_plain)]
Float = Annotated[float, BeforeValidator(_plain)]
Natural = Annotated[Int, Field(ge=0, lt=2**63)]
Count = Annotated[Int, Field(ge=1, lt=2**63)]
Length = Annotated[Int, Field(ge=1, le=MOST)]  # of an array: of rollouts of a prompt, of visits
Tries = Annotated[Int, Field(ge=1, lt=2**16)]  # k of pass@k: of k factors, counted in 16 bits
Seed = Annotated[Int, Field(ge=0, lt=2**128)]  # as numpy makes them
Share = Annotated[Float, Field(ge=0, le=1)]
PositiveShare = Annotated[Float, Field(gt=0, le=1)]
NonNegative = Annotated[Float, Field(ge=0)]
Positive = Annotated[Float, Field(ge=1 / LARGEST, le=LARGEST)]
Bound = Annotated[float, Field(gt=0, allow_inf_nan=True), BeforeValidator(_plain)]  # inf: none
StepSize = Annotated[Float, Field(ge=0, le=LARGEST_STEP)]


class Refusal(ValueError):
    """An input is refused, in one sentence: the mistake is the caller's, and no bug."""


class UnknownOption(Refusal):
    """An option that does not exist, with those that do."""


Class = TypeVar("Class", bound=type)
Built = TypeVar("Built")


@dataclass_transform(eq_default=False, field_specifiers=(field, Field))
def options(kind: Class) -> Class:
    """Class decorator: a dataclass whose fields pydantic checks, strictly, when one is made."""
    kind = pydantic.dataclasses.dataclass(eq=False, config=STRICT)(kind)  # type: ignore[assignment]
    make = kind.__init__  # type: ignore[misc]

    @wraps(make)
    def __init__(self: object, *values: object, **named: object) -> None:
        try:
            make(self, *values, **named)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            if first["type"] == "unexpected_keyword_argument":
                known = [one.name for one in fields(kind)]
                raise UnknownOption(
                    f"{kind.__name__} has the options {known}, and not {first['loc'][0]!r}, got "
                    f"{short(first['input'])}"
                ) from None
            raise Refusal(f"{kind.__name__}: {_sentence(error)}") from None

    kind.__init__ = __init__  # type: ignore[misc]
    return kind


def check(name: str, value: object, kind: object = float, **bounds: float) -> Any:
    """Return `value` if it has the type `kind` and lies within the bounds (ge, gt, le, lt).

    Refusal names the argument and its value.
    """
    try:
        return _adapter(kind, tuple(bounds.items())).validate_python(_plain(value))
    except ValidationError as error:
        raise Refusal(f"{name} {_sentence(error)}") from None


@lru_cache(256)  # it takes a hundred times as long to make one as to use it
def _adapter(kind: object, bounds: tuple[tuple[str, float], ...]) -> TypeAdapter:
    """A pydantic adapter that checks values of a type within bounds."""
    bounded = Annotated[kind, Field(**dict(bounds))] if bounds else kind  # type: ignore
    return TypeAdapter(bounded, config=STRICT)  # type: ignore[arg-type]


def _sentence(error: ValidationError) -> str:
    """The first finding of pydantic: argument, what it should be, value."""
    first = error.errors(include_url=False)[0]
    if first["type"] == "value_error":  # raised by `__post_init__`, a sentence already
        return str(first["ctx"]["error"])
    where = ".".join(map(str, first["loc"]))
    message = first["msg"].removeprefix("Input ")
    return f"{where} {message[0].lower()}{message[1:]}, got {short(first['input'])}".lstrip()


def short(value: object) -> str:
    """A value on one line, of at most 80 characters."""
    return " ".join(repr(value).split())[:80]


def build(name: str, kind: type[Built], given: Mapping[str, Any], **fixed: Any) -> Built:
    """`kind(**given, **fixed)`; Refusal where both have an argument, or `kind` has no such one.

    `name` is that of the given arguments in the message.
    """
    given = check(name, given, Mapping[str, object])
    twice = sorted(given.keys() & fixed.keys())
    if twice:
        raise Refusal(f"{name} must leave out {twice}, set elsewhere, got {short(given)}")
    if given and kind.__init__ is object.__init__:
        raise UnknownOption(f"{name} must be none, as {kind.__name__} has none, got {short(given)}")
    try:  # of a class of its own, too: `signature(kind)` may be that of its parent
        signature(kind.__init__).bind(None, **given, **fixed)  # type: ignore[misc]
    except TypeError as error:
        raise UnknownOption(f"{name}: {kind.__name__} {error}, in {short(given)}") from None
    try:
        return kind(**given, **fixed)
    except UnknownOption as error:
        raise UnknownOption(f"{name}: {error}") from None


def check_array(
    name: str,
    values: object,
    shape: tuple[int, ...] | None = None,
    low: ArrayLike = -math.inf,
    high: ArrayLike = math.inf,
    *,
    whole: bool = False,
    missing: bool = False,
) -> np.ndarray:
    """Return `values` as an array of floats, of integers where `whole`, finite and in [low, high].

    The bounds are numbers or arrays of the same shape. Where `missing`, NaN may stand for a value,
    and so may None, which becomes NaN.
    """
    try:
        array = np.asarray(values)
        if missing and array.dtype == object and array.ndim:
            array = np.asarray([math.nan if value is None else value for value in array.tolist()])
    except (TypeError, ValueError, RuntimeError) as error:  # a ragged list, a tensor on a GPU
        raise Refusal(f"{name} must be an array, got {short(values)} ({error})") from None
    numbers = "integers" if whole else "numbers"
    is_typed = not array.size or array.dtype.kind in ("iu" if whole else "iufb")
    if not is_typed or shape not in (None, array.shape):
        form = "" if shape is None else f" of shape {shape}"
        kind = f"{array.dtype}, of shape {array.shape}"
        raise Refusal(f"{name} must be {numbers}{form}, got {short(array)} ({kind})")
    given = array  # 2^63 is negative where it is taken for a signed integer
    array = array.astype(np.int64 if whole else float, copy=False)
    is_good = np.isfinite(array) & (array >= low) & (array <= high)
    if missing:
        is_good |= np.isnan(array)
    if not is_good.all():
        place = int(is_good.ravel().argmin())
        value = given.ravel().tolist()[place]
        lowest = np.broadcast_to(low, array.shape).ravel()[place]
        highest = np.broadcast_to(high, array.shape).ravel()[place]
        interval = f"[{lowest:g}, {highest:g}]"
        raise Refusal(
            f"{name} must be finite {numbers} in {interval}, got {value} at position {place}"
        )
    return array
