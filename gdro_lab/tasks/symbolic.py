"""Whether two expressions in LaTeX are the same, by math-verify's grammar and sympy.

On a model's text this can run forever or take all memory: `gdro_lab.tasks.math_reward` runs it in
processes that it ends.
"""

import re

import math_verify
from latex2sympy2_extended import NormalizationConfig, latex2sympy, normalize_latex
from latex2sympy2_extended.latex2sympy2 import ConversionConfig
from math_verify.grader import should_treat_as_complex
from sympy import (
    Basic,
    Derivative,
    Expr,
    Float,
    I,
    Integral,
    Limit,
    MatrixBase,
    N,
    Rational,
    Sum,
)
from sympy.core.function import AppliedUndef

from gdro_lab.tasks.numerals import FUNCTION, STYLE

# units are read before, and boxes too
NORMALIZATION = NormalizationConfig(
    basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="none"
)
ROOT = re.compile(r"\\?(?<![A-Za-z])sqrt\s*\(([^()]*)\)")
NAMED = re.compile(rf"(?<![\\A-Za-z])(?:np\.|math\.)?({FUNCTION})(?![A-Za-z])")
DIGITS = 40  # to which values are compared
# unknowns take these values: whole, broken and negative, since √(x²) is x above zero only
POINTS = [(2, 3), (7, 3), (-5, 4), (3, 1), (-2, 1), (5, 1)]
UNEVALUATED = (AppliedUndef, Derivative, Integral, Limit, Sum)


def same_expressions(key: str, answer: str, tolerance: float = 0.0) -> bool:
    """Whether two expressions are the same; False where one of them cannot be read.

    Args:
        key: the answer key, in LaTeX.
        answer: the answer, in LaTeX.
        tolerance: how far a constant may be from the key's, relative to it.
    """
    wanted, given = _parsed(key), _parsed(answer)
    if wanted is None or given is None:
        return False
    if isinstance(wanted, Expr) and isinstance(given, Expr):
        if not (wanted.has(*UNEVALUATED) or given.has(*UNEVALUATED)):
            return _same_values(wanted, given, tolerance)
    elif isinstance(wanted, MatrixBase) and isinstance(given, MatrixBase):
        pairs = zip(wanted.flat(), given.flat(), strict=False)
        return wanted.shape == given.shape and all(
            _same_values(one, other, tolerance) for one, other in pairs
        )
    elif isinstance(wanted, Expr) != isinstance(given, Expr):
        return False
    return bool(math_verify.verify(wanted, given, timeout_seconds=None))


def _parsed(text: str) -> Basic | MatrixBase | None:
    text = STYLE.sub(" ", text).replace("'", r"^{\prime}")
    text = text.replace("**", "^").replace("*", r"\cdot ")
    text = NAMED.sub(r"\\\1 ", ROOT.sub(r"\\sqrt{\1}", text))
    try:
        parsed = latex2sympy(
            normalize_latex(text, NORMALIZATION),
            is_real=not should_treat_as_complex(text),
            convert_degrees=True,
            normalization_config=None,
            conversion_config=ConversionConfig(lowercase_symbols=False),
        )
        return parsed.xreplace({number: Rational(str(number)) for number in parsed.atoms(Float)})
    except (MemoryError, RecursionError):
        raise
    except Exception:  # the grammar raises Exception itself for what it cannot read
        return None


def _same_values(wanted: Expr, given: Expr, tolerance: float) -> bool:
    """Whether two expressions have the same values, wherever both are real."""
    names = sorted(wanted.free_symbols | given.free_symbols, key=str)
    if not names:
        return _same_constants(wanted, given, tolerance)
    is_complex = wanted.has(I) or given.has(I)
    compared = 0
    for shift in range(len(POINTS)):
        point = {
            name: Rational(*POINTS[(shift + place) % len(POINTS)]) + Rational(place, 7)
            for place, name in enumerate(names)
        }
        values = [N(side.xreplace(point), DIGITS) for side in (wanted, given)]
        if not all(value.is_finite and (value.is_real or is_complex) for value in values):
            continue
        if not _close(*values, 10.0 ** (10 - DIGITS)):
            return False
        compared += 1
    return compared > 1


def _same_constants(wanted: Expr, given: Expr, tolerance: float) -> bool:
    values = [N(side, DIGITS) for side in (wanted, given)]
    if not all(value.is_number and value.is_finite is not None for value in values):
        return False
    if not all(value.is_finite for value in values):
        return bool(wanted == given)
    if not _close(*values, max(tolerance, 10.0 ** (10 - DIGITS))):
        return False
    # two quotients of large integers can agree in all of these digits and differ
    difference = (wanted - given).doit()
    return bool(tolerance) or not difference.is_Rational or difference == 0


def _close(wanted: Expr, given: Expr, tolerance: float) -> bool:
    return bool(abs(wanted - given) <= tolerance * abs(wanted))
