"""One way to solve the exercises of notebook 06; `tests/teaching` holds each against `check`."""

import numpy as np


def effective_number(probabilities):
    p = probabilities[probabilities > 0]
    return np.exp(-(p * np.log(p)).sum())


def lead_lag(weights, shares):
    places = np.arange(len(shares))
    return places @ (weights / weights.sum()) - places @ shares


def weighted_standard_error(deviations, shares, rollouts):
    return (shares * deviations / np.sqrt(rollouts)).sum()


def least_error_rollouts(deviations, shares, mean_rollouts):
    """Exercise 4: n ∝ σ^(2/3) minimizes (33); (30), n ∝ σ, minimizes (28)."""
    return mean_rollouts * deviations ** (2 / 3) / (shares @ deviations ** (2 / 3))


def _shares(rng):
    return rng.dirichlet(np.ones(4))


# The arguments that `check` draws, such that a wrong function differs in some case.
CASES = {
    "effective_number": lambda rng: (
        np.append(rng.dirichlet(np.ones(3)), 0) if rng.random() < 0.3 else _shares(rng),
    ),
    "lead_lag": lambda rng: (rng.lognormal(size=4), _shares(rng)),
    "weighted_standard_error": lambda rng: (rng.random(4), _shares(rng), rng.integers(2, 13, 4)),
}
