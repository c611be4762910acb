"""Says of an exercise's function whether it is correct and, if not, what is wrong with it."""

from collections.abc import Callable
from copy import deepcopy
from inspect import signature
from typing import Any

import numpy as np

from gdro.core.checks import check_choice
from gdro.teaching.exercises import ARGUMENTS, EDGES, EXERCISES


def check(name: str, answer: Callable[..., Any], cases: int = 20) -> str:
    """Compare an exercise's function with the package's on hidden cases, the last of them edge cases.

    Returns:
        "NAME: correct in 20 cases.", or the first case that fails: its arguments, the shapes or the largest
        difference, and a hint at the cause. What the function raises is raised, with the case as a note.
    """
    check_choice("name", name, EXERCISES)
    reference, rng = EXERCISES[name], np.random.default_rng(0)
    edges = EDGES.get(name, {})
    for number in range(cases):
        drawn = {key: ARGUMENTS[key] for key in signature(reference).parameters}
        case = {key: draw(rng) if callable(draw) else draw for key, draw in drawn.items()}
        edge = dict(enumerate(edges, start=cases - len(edges))).get(number)
        if edge:
            case |= edges[edge](case)
        shown = ", ".join(f"{key} = {np.round(value, 4).tolist()}" for key, value in case.items())
        try:
            given, wanted = answer(*deepcopy(list(case.values()))), reference(**case)
            if given is None:
                return f"{name}: {_why_none(answer)}"
            wrong = _difference(given, wanted)
        except Exception as error:
            error.add_note(f"{name} was called with {shown}")
            raise
        if wrong:
            if edge:
                wrong += f" Your function was correct in {number} ordinary cases; in this one {edge}."
            return f"{name}: not yet. Case {number + 1} of {cases}: {shown}.\n{wrong}"
    return f"{name}: correct in {cases} cases."


def _why_none(answer: Callable[..., Any]) -> str:
    """A body without statements has as few bytes as this one."""
    code, stub = getattr(answer, "__code__", None), (lambda: None).__code__
    if code is not None and len(code.co_code) <= len(stub.co_code):
        return "not written yet."
    return "not yet. It returns None: did you forget `return`?"


def _difference(given: Any, wanted: Any) -> str:
    """What differs, in words; empty where nothing does. Tuples are compared part by part."""
    yours, right = (
        [np.asarray(part, float) for part in (x if isinstance(x, tuple) else [x])] for x in (given, wanted)
    )
    if len(yours) != len(right):
        return f"It should return {len(right)} value(s), and it returns {len(yours)}."
    for place, (y, r) in enumerate(zip(yours, right, strict=True)):
        which = f"value {place + 1} of the {len(right)} " if len(right) > 1 else ""
        if y.shape != r.shape:
            hint = "It is transposed: add .T." if y.shape == r.shape[::-1] and np.allclose(y.T, r) else ""
            return f"Its {which}shape should be {r.shape}, and it is {y.shape}. {hint}".strip()
        if not np.allclose(y, r):
            gap = np.abs(np.where(np.isfinite(y), y - r, np.inf))
            at = "".join(f"[{i}]" for i in np.unravel_index(gap.argmax(), gap.shape))
            values = f"It should return {which}{np.round(r, 4).tolist()}, and it returns "
            values += (
                f"{np.round(y, 4).tolist()}. Largest difference: {gap.max():.2g}{' at ' + at if at else ''}. "
            )
            return values + _diagnosis(y, r)
    return ""


def _diagnosis(yours: np.ndarray, right: np.ndarray) -> str:
    """What a wrong answer of the correct shape has in common with the correct one."""
    if not np.isfinite(yours).all():
        return "Some of your numbers are not finite: an overflow, a logarithm of 0 or a division by 0."
    if yours.ndim > 1 and yours.shape == yours.T.shape and np.allclose(yours.T, right):
        return "It is transposed: add .T."
    if np.allclose(yours, -right):
        return "The sign is turned."
    gaps, used = yours - right, np.abs(right) > 1e-9
    if yours.size > 1 and np.allclose(gaps, gaps.flat[0]):
        return f"Every number is off by the same constant, {gaps.flat[0]:+.4g}."
    if np.allclose(yours, right, rtol=1e-2, atol=1e-3):
        return "It is nearly correct: look for an ε, a rounding, or a loop that stops early."
    if used.sum() > 1 and np.allclose(yours[~used], 0):
        ratios = yours[used] / right[used]
        if np.allclose(ratios, ratios[0]):
            return f"Every number is {ratios[0]:.4g} times what it should be."
    if yours.size > 1 and np.allclose(np.sort(yours, None), np.sort(right, None)):
        return "The numbers are the correct ones, in another order."
    return ""
