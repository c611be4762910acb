"""Checks for the notebooks' exercises: your answer in, a verdict with a hint out.

    from gdro.teaching.exercises import check
    check("01a", 0.34)

The right answers are computed here, by other means than the notebooks suggest where there are any.
"""

from itertools import product
from math import comb, exp, log

import numpy as np

EXERCISES = {
    "01a": (lambda: 1 - 0.9**4, "all four must be wrong, with chance 0.9 each"),
    "01b": (
        lambda: float(np.mean(1 - (1 - _beta_draws(3.5, 5.5)) ** 2)),
        "multiply (β+i)/(α+β+i) for i = 0, 1 with α = 3.5, β = 5.5, and take it from 1",
    ),
    "01c": (lambda: 1 - comb(5, 2) / comb(8, 2), "of the 28 pairs, count those without a right one"),
    "02a": (lambda: log(10) / 0.65, "the bounds (25) are log(B)/η apart"),
    "02b": (lambda: 0.0, "the advantages of a rollout group sum to zero"),
    "02c": (lambda: exp(0.65), "the shares of two bins are as exp(η S)"),
    "03a": (lambda: _searched_allocation(), "√v is 0.5, 0.3 and 0.1; scale by n̄ / Σ q √v"),
    "03b": (lambda: (0.2 * 0.5 + 0.5 * 0.3 + 0.3 * 0.1) ** 2 / 16, "the price is (Σ q √v / n̄)²"),
    "03c": (lambda: 1 - ((4 * (1 - 0.5)) / (4 - 2 * 0.5)) ** 0.5, "the others get (n̄ − 2f)/(1 − f) rollouts"),
    "04a": (lambda: 16 * 4 * 100, "prompts × rollouts × steps, whatever the method"),
    "04b": (lambda: exp(0.65), "failure rates lie in [0, 1], so scores differ by 1 at most"),
}


def check(exercise, answer) -> str:
    """ "Right" or a hint. exercise: a key of `EXERCISES`. answer: a number or a list of numbers; None asks.

    Raises ValueError for an unknown exercise and for an answer that is no number.
    """
    if exercise not in EXERCISES:
        raise ValueError(f"exercise must be one of {sorted(EXERCISES)}, got {exercise!r}")
    solve, hint = EXERCISES[exercise]
    if answer is None:
        return f"{exercise}: no answer yet. Hint: {hint}."
    try:
        given = np.asarray(answer, float)
    except (TypeError, ValueError) as error:
        raise ValueError(f"answer must be a number or a list of numbers, got {answer!r}") from error
    wanted = np.asarray(solve(), float)
    if given.shape == wanted.shape and np.allclose(given, wanted, rtol=0.02, atol=0.005):
        return f"{exercise}: right."
    return f"{exercise}: not yet. Hint: {hint}."


def _beta_draws(alpha, beta):
    return np.random.default_rng(0).beta(alpha, beta, 400_000)


def _searched_allocation():
    """Minimizer of Σ q v/n with Σ q n = 4 for three bins, by search over a grid refined thrice."""
    shares, variances = np.array([0.2, 0.5, 0.3]), np.array([0.25, 0.09, 0.01])
    best, width = np.array([4.0, 4.0]), 3.9
    for _ in range(6):
        offsets = np.linspace(-width, width, 41)
        candidates = np.array([best + pair for pair in product(offsets, offsets)])
        last = (4 - candidates @ shares[:2]) / shares[2]
        rollouts = np.column_stack([candidates, last])
        cost = np.where(
            (rollouts > 0).all(axis=1), (shares * variances / np.maximum(rollouts, 1e-9)).sum(axis=1), np.inf
        )
        best, width = candidates[cost.argmin()], width / 10
    return [*best, (4 - best @ shares[:2]) / shares[2]]
