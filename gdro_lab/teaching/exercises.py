"""Exercises of the notebooks: `check` compares a reader's function with the stored solution.

Solutions are the functions in notebooks/solutions, which tests compare with the package. To add
an exercise, write its solution there, and in that file's `CASES` what draws its arguments.
"""

import runpy
from collections.abc import Callable
from copy import deepcopy
from functools import cache
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np

SOLUTIONS = Path(__file__).parents[2] / "notebooks" / "solutions"
UNORDERED = {"draw_by_clocks"}  # the answer is a set of prompts


def check(name: str, answer: Callable[..., Any], cases: int = 100) -> str:
    """Compare a function with the solution of an exercise on drawn cases; say where they differ.

    The numbers count, not their container: a tuple, a list, an array and a scalar are the same.
    What the function raises is raised, with its arguments as a note.
    """
    right, draw = exercise(name)
    rng = np.random.default_rng(0)
    for number in range(1, cases + 1):
        case = dict(zip(signature(right).parameters, draw(rng), strict=True))
        called = ", ".join(f"{key} = {_shown(value)}" for key, value in case.items())
        try:
            result = answer(*deepcopy(list(case.values())))
            yours = _numbers(result)
            expected = _numbers(right(**case))
        except Exception as error:
            error.add_note(f"{name} was called with {called}")
            raise
        if result is None:
            return f"{name}: not written yet, it returns None."
        if name in UNORDERED:
            yours = np.sort(yours)
            expected = np.sort(expected)
        if yours.shape != expected.shape or not np.allclose(yours, expected, rtol=1e-6, atol=1e-9):
            differ = f"It should return {_shown(expected)}, and it returns {_shown(yours)}."
            return f"{name}: not yet. Case {number} of {cases}: {called}.\n{differ}"
    return f"{name}: correct in {cases} cases."


@cache
def exercise(name: str) -> tuple[Callable[..., Any], Callable[[np.random.Generator], tuple]]:
    """The stored solution, and what draws its arguments."""
    for path in sorted(SOLUTIONS.glob("*.py")):
        if f"\ndef {name}(" in path.read_text(encoding="utf-8"):
            solution = runpy.run_path(str(path))
            return solution[name], solution["CASES"][name]
    raise ValueError(f"name must be that of a function in {SOLUTIONS}, got {name!r}")


def _numbers(value: Any) -> np.ndarray:
    """All numbers of a nest of tuples, lists, arrays and scalars, in order, (numbers,)."""
    if isinstance(value, tuple | list):
        return np.concatenate([np.zeros(0), *map(_numbers, value)])
    return np.ravel(np.asarray(value, float))


def _shown(value: Any) -> str:
    return str(np.round(value, 4).tolist())


def draw_counts(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Correct rollouts of five prompts, of 4 to 12; now and then all or none."""
    trials = rng.integers(4, 13, 5)
    return rng.binomial(trials, rng.choice([0, 0.2, 0.5, 0.9, 1], 5)), trials


def draw_groups(rng: np.random.Generator, smallest: int) -> tuple[np.ndarray, np.ndarray]:
    """Rewards of three rollout groups; often one has equal rewards."""
    return 1.0 * rng.integers(0, 2, 2 * smallest + 5), np.repeat([0, 1, 2], [smallest, 5, smallest])
