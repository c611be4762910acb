"""Whether two expressions in LaTeX are the same, by math-verify's grammar and sympy.

Their values are compared, relative to their size. On a model's text this can run forever or take
all memory: `gdro_lab.tasks.math_reward` runs it in processes that it ends.
"""

import re
from collections.abc import Iterator
from typing import Any

import math_verify
from latex2sympy2_extended import NormalizationConfig, latex2sympy, normalize_latex
from latex2sympy2_extended.latex2sympy2 import ConversionConfig
from sympy import Derivative, Expr, Float, I, MatrixBase, N, Ne, Rational, Symbol
from sympy.core.function import AppliedUndef
from sympy.core.relational import Eq, Relational

from gdro_lab.tasks.numerals import FUNCTION, STYLE

# units are read before, and boxes too
NORMALIZATION = NormalizationConfig(units=False, malformed_operators=True, nits=True, boxed="none")
CONVERSION = ConversionConfig(lowercase_symbols=False)
ROOT = re.compile(r"\\?(?<![A-Za-z])sqrt\s*\(([^()]*)\)")
NAMED = re.compile(rf"(?<![\\A-Za-z])(?:np\.|math\.)?({FUNCTION})(?![A-Za-z])")
# what the grammar would leave out, or add up: subscripts of numbers, dots, numbers side by side
UNREADABLE = re.compile(
    r"\d\s*_|\\[lc]?dots|\\[pb]?mod|\\phantom|(?<![_\d])\d+\s+\d(?!\d*\s*/)"
    # ratios of three numbers, and times of day
    r"|:.*:|(?<!\d)0\s*:|:\s*\d\d\s*(?:\\text\s*\{)?\s*[AaPp]\.?\s*[Mm]"
)
IMAGINARY = re.compile(r"(?<![A-Za-z\\])i(?![A-Za-z])|\\(?:imath|Re|Im|arg)(?![A-Za-z])")
DIGITS = 40  # of the values that are compared
CLOSE = 1e-30  # relative difference up to which they are equal
# unknowns take these values: whole, broken, negative, since √(x²) is x above zero only, and several
# below 1, for √(1 - x²)
POINTS = [
    N(Rational(*value), 2 * DIGITS) for value in [(5, 7), (17, 11), (-13, 9), (2, 9), (-3, 8)]
]
POINTS += [3, -2, 8, 26]  # (-1)^{n(n-1)/2} differs at 3 and 8


def same_expressions(key: str, answer: str, tolerance: float = 0.0) -> bool:
    """Whether two expressions are the same; False where one of them cannot be read.

    Args:
        key: the answer key, in LaTeX.
        answer: the answer, in LaTeX.
        tolerance: how far a constant may be from the key's, relative to it.
    """
    is_real = not IMAGINARY.search(f"{key} {answer}")
    wanted, given = _parsed(key, is_real), _parsed(answer, is_real)
    if wanted is None or given is None:
        return False
    if isinstance(wanted, Expr) or isinstance(given, Expr):
        are_both = isinstance(wanted, Expr) and isinstance(given, Expr)
        return are_both and _same_values(wanted, given, tolerance)
    if isinstance(wanted, MatrixBase) and isinstance(given, MatrixBase):
        return wanted.shape == given.shape and all(
            _same_values(*entries, tolerance)
            for entries in zip(wanted.flat(), given.flat(), strict=True)
        )
    if isinstance(wanted, Relational) and isinstance(given, Relational):
        return _same_relations(wanted, given)
    return bool(math_verify.verify(wanted, given, timeout_seconds=None))


def _parsed(text: str, is_real: bool) -> Any:
    """What sympy has for a text in LaTeX, with exact numbers; None if it cannot be read."""
    text = STYLE.sub(" ", text).replace("'", r"^{\prime}")
    text = text.replace("**", "^").replace("*", r"\cdot ")
    text = NAMED.sub(r"\\\1 ", ROOT.sub(r"\\sqrt{\1}", text))
    if UNREADABLE.search(text):
        return None
    try:
        parsed = latex2sympy(
            normalize_latex(text, NORMALIZATION),
            is_real=is_real,
            convert_degrees=True,
            normalization_config=None,
            conversion_config=CONVERSION,
        )
    except (MemoryError, RecursionError):
        raise
    except Exception:  # the grammar raises Exception itself for what it cannot read
        return None
    return _exact(parsed)


def _exact(parsed: Any) -> Any:
    """With quotients for decimals, and unknowns for derivatives and functions that are unknown."""
    exact = {number: Rational(str(number)) for number in parsed.atoms(Float)}
    unknown = {part: Symbol(str(part)) for part in parsed.atoms(Derivative, AppliedUndef)}
    return parsed.xreplace(unknown).xreplace(exact)


def _same_values(wanted: Any, given: Any, tolerance: float) -> bool:
    """Whether two expressions have the same values, wherever both are real."""
    if not wanted.free_symbols | given.free_symbols:
        return _same_constants(wanted, given, tolerance)
    compared = 0
    for one, other in _values(wanted, given):  # the first that differ are enough
        if not _close(one, other, CLOSE):
            return False
        compared += 1
    return compared > 1


def _same_constants(wanted: Any, given: Any, tolerance: float) -> bool:
    one, other = (N(side, DIGITS) for side in (wanted, given))
    if not (one.is_finite and other.is_finite):
        return bool(one.is_extended_real and one == other)  # and no quotient by zero
    if not _close(one, other, max(tolerance, CLOSE)):
        return False
    # two quotients of large integers can agree in all of these digits and differ
    difference = (wanted - given).doit()
    return bool(tolerance) or difference == 0 or not difference.is_Rational


def _same_relations(wanted: Any, given: Any) -> bool:
    """Whether one is the other times a constant, which is above zero for < and >."""
    if type(wanted) is not type(given):
        given = given.reversed
    if type(wanted) is not type(given):
        return False
    sides = [(relation.lhs - relation.rhs) for relation in (wanted, given)]
    factors = []
    for one, other in _values(*sides):
        if (one == 0) != (other == 0):
            return False
        if one == 0:
            continue
        factors.append(one / other)
        if not _close(factors[0], factors[-1], CLOSE):
            return False
    if len(factors) < 2 or (wanted.lhs.is_Symbol and not _close(abs(factors[0]), 1, CLOSE)):
        return False  # 2x = 10 is still to be solved
    return isinstance(wanted, Eq | Ne) or bool(factors[0] > 0)


def _values(wanted: Any, given: Any) -> Iterator[tuple[Any, Any]]:
    """The values of two expressions, where both are real, or one of them is complex by itself."""
    names = sorted(wanted.free_symbols | given.free_symbols, key=str)
    is_complex = wanted.has(I) or given.has(I)
    for shift in range(len(POINTS)):
        point = {
            name: POINTS[(shift + place) % len(POINTS)] + 7 * (place // len(POINTS))
            for place, name in enumerate(names)
        }
        one, other = (N(side.xreplace(point), DIGITS) for side in (wanted, given))
        if all(value.is_finite and (value.is_real or is_complex) for value in (one, other)):
            yield one, other


def _close(wanted: Any, given: Any, tolerance: float) -> bool:
    return bool(abs(wanted - given) <= tolerance * abs(wanted))
