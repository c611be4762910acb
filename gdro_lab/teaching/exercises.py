"""Exercises of the notebooks: `check` compares a reader's function with the stored solution.

The solutions are the functions in notebooks/solutions, and the tests hold those to the package. To
add an exercise, write its solution there and a function in `CASES` that draws its arguments.
"""

import ast
from collections.abc import Callable
from copy import deepcopy
from functools import cache
from inspect import signature
from pathlib import Path
from typing import Any, Literal

import numpy as np

from gdro import checks

SOLUTIONS = Path(__file__).parents[2] / "notebooks" / "solutions"
UNORDERED = {"draw_by_clocks"}  # the answer is a set of prompts


def check(name: str, answer: Callable[..., Any], cases: int = 100) -> str:
    """Compare a function with the solution of an exercise on drawn cases; say where they differ.

    The numbers count, not their container: a tuple, a list, an array and a scalar are the same.
    What the function raises is raised, with its arguments as a note.
    """
    checks.check("name", name, Literal[tuple(CASES)])
    right, rng = solution(name), np.random.default_rng(0)
    for number in range(1, cases + 1):
        case = dict(zip(signature(right).parameters, CASES[name](rng), strict=True))
        called = ", ".join(f"{key} = {_shown(value)}" for key, value in case.items())
        try:
            given = answer(*deepcopy(list(case.values())))
            yours, wanted = _numbers(given), _numbers(right(**case))
        except Exception as error:
            error.add_note(f"{name} was called with {called}")
            raise
        if given is None:
            return f"{name}: not written yet, it returns None."
        if name in UNORDERED:
            yours, wanted = np.sort(yours), np.sort(wanted)
        if yours.shape != wanted.shape or not np.allclose(yours, wanted, rtol=1e-6, atol=1e-9):
            differ = f"It should return {_shown(wanted)}, and it returns {_shown(yours)}."
            return f"{name}: not yet. Case {number} of {cases}: {called}.\n{differ}"
    return f"{name}: correct in {cases} cases."


@cache
def solution(name: str) -> Callable[..., Any]:
    """The stored solution of an exercise. Only its file's imports and functions are run."""
    for path in sorted(SOLUTIONS.glob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
        if name in {node.name for node in functions}:
            imports = [n for n in tree.body if isinstance(n, ast.Import | ast.ImportFrom)]
            found: dict[str, Any] = {}
            exec(compile(ast.Module([*imports, *functions], []), str(path), "exec"), found)
            return found[name]
    raise ValueError(f"name must be that of a function in {SOLUTIONS}, got {name!r}")


def _numbers(value: Any) -> np.ndarray:
    """All numbers of a nest of tuples, lists, arrays and scalars, in order, (numbers,)."""
    if isinstance(value, tuple | list):
        return np.concatenate([np.zeros(0), *map(_numbers, value)])
    return np.ravel(np.asarray(value, float))


def _shown(value: Any) -> str:
    return str(np.round(value, 4).tolist())


Rng = np.random.Generator


def _counts(rng: Rng) -> tuple[np.ndarray, np.ndarray]:
    """Correct rollouts of five prompts, of 4 to 12; now and then all or none."""
    trials = rng.integers(4, 13, 5)
    return rng.binomial(trials, rng.choice([0, 0.2, 0.5, 0.9, 1], 5)), trials


def _groups(rng: Rng, smallest: int) -> tuple[np.ndarray, np.ndarray]:
    """Rewards of three rollout groups; often one has equal rewards."""
    return 1.0 * rng.integers(0, 2, 2 * smallest + 5), np.repeat([0, 1, 2], [smallest, 5, smallest])


def _bin_counts(rng: Rng) -> np.ndarray:
    """Prompts of four bins in three batches, (3, 4); one bin may never come."""
    return rng.permuted([[3, 2, 1, 1], [0, 2, 4, 1], [2, 1, 2, 0]], axis=1) * (
        rng.permutation([1, 1, 1, rng.integers(2)])
    )


def _tokens(rng: Rng) -> np.ndarray:
    """Which of four tokens three completions have said, (3, 4)."""
    return 1 * (np.arange(4) < rng.integers(1, 5, (3, 1)))


def _shares(rng: Rng) -> np.ndarray:
    return rng.dirichlet(np.ones(4))


def _variances(rng: Rng) -> np.ndarray:
    return rng.random(4) * rng.permutation([1, 1, 1, rng.integers(2)])  # one may be 0


ARMS = np.arange(2, 6)
# the arguments of each exercise, such that a wrong function differs from the right one in some case
CASES: dict[str, Callable[[Rng], tuple]] = {
    # 01
    "pass_at_k": lambda rng: (*_counts(rng), int(rng.integers(1, 5))),
    "beta_pass_at_k": lambda rng: (*_counts(rng), int(rng.integers(1, 5))),
    "move_bins": lambda rng: (
        rng.integers(-1, 5, 6), np.append(rng.random(4), rng.choice(np.arange(1, 5) / 5, 2)),
        np.arange(1, 5) / 5, rng.choice([0.0, 0.03, 0.1]),
    ),
    "probability_below": lambda rng: (*_counts(rng), rng.uniform(0.05, 0.5)),
    # 02
    "soft_worst_case": lambda rng: (rng.normal(size=4), 10 ** rng.uniform(-1, 4)),
    "debiased_scores": lambda rng: (
        rng.random(4) * [1, 0, 1, 1], np.array([3, 0, 1, rng.integers(1, 9)]),
        rng.uniform(0.05, 0.9),
    ),
    "prompt_gdro": lambda rng: (
        rng.integers(0, 3, (3, 4)), rng.choice([1, 50]) * rng.random((3, 4)), 4,
        rng.uniform(0.05, 2), rng.uniform(0.05, 0.9), 4.0,
    ),
    "worst_share": lambda rng: (rng.normal(size=4), _shares(rng), min(1, rng.uniform(0.05, 1.2))),
    # 03
    "square_root_law": lambda rng: (_variances(rng), _shares(rng), rng.uniform(2, 9)),
    "joint_choice": lambda rng: (
        rng.random((3, 4)), rng.permutation([1, 1, 2]), ARMS, int(rng.integers(9, 20)),
    ),
    "arm_strategies": lambda rng: (
        50 * rng.normal(size=(2, 4)), 10 ** rng.uniform(-1, 3), rng.random(),
    ),
    "exp3p_losses": lambda rng: (
        rng.normal(), int(rng.integers(4)), rng.dirichlet(np.ones(4)), rng.random(),
    ),
    "rollout_gdro": lambda rng: (
        _bin_counts(rng), rng.uniform(0.02, 0.25, (3, 4)), ARMS, 4, rng.uniform(0.3, 2),
        rng.uniform(0.05, 0.9),
    ),
    "rollouts_at_cost": lambda rng: (
        rng.random(4), rng.uniform(20, 200, 4), _shares(rng), rng.uniform(100, 1000),
    ),
    # 04
    "group_advantages": lambda rng: _groups(rng, 2),
    "oracle_rollouts": lambda rng: (rng.random(4), ARMS, int(rng.integers(9, 20))),
    "paired_gain": lambda rng: (rng.random((2, 8)), rng.random((2, 8))),
    "holm": lambda rng: (rng.beta(0.5, 2, 6),),
    # 05
    "clipped_loss": lambda rng: (
        rng.lognormal(0, 0.5, (3, 4)), rng.normal(size=3), _tokens(rng), 0.2, 0.28,
    ),
    "kl_of_completions": lambda rng: (-rng.random((3, 4)), -rng.random((3, 4)), _tokens(rng)),
    "merged_weight": lambda rng: (
        rng.normal(size=(4, 3)), rng.normal(size=(2, 3)), rng.normal(size=(4, 2)), 8.0,
    ),
    # 06
    "effective_number": lambda rng: (
        np.append(rng.dirichlet(np.ones(3)), 0) if rng.random() < 0.3 else _shares(rng),
    ),
    "lead_lag": lambda rng: (rng.lognormal(size=4), _shares(rng)),
    "weighted_standard_error": lambda rng: (rng.random(4), _shares(rng), rng.integers(2, 13, 4)),
    # 07
    "value_for_two": lambda rng: tuple(rng.gamma(2, 2, (2, 5)) + 0.1),
    "draw_by_clocks": lambda rng: (
        rng.random(6), 3, rng.choice([0.1, 0.5, 1]), rng.standard_exponential(6),
    ),
    "pivotal_advantages": lambda rng: _groups(rng, int(rng.integers(1, 4))),
    "next_k": lambda rng: (
        *_counts(rng), *(rng.integers(0, 9, (2, 5)) * rng.integers(0, 2, 5)),
        rng.normal(0, 12), rng.uniform(0, 8),
    ),
    "mixed_group": lambda rng: (*(rng.gamma(2, 2, (2, 5)) + 0.1), int(rng.integers(2, 5))),
}  # fmt: skip
