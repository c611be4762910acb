"""Solutions of notebook 09's exercises."""

import numpy as np


def replay_weight(rates, kept, rollouts):
    """w = a max(p̂, 0.1) (1 − p̂) / |B|, a = 2 n."""
    return 2 * rollouts * np.maximum(rates, 0.1) * (1 - rates) / kept


def kept_something(rates, rollouts, visits):
    """One minus the probability that all rollouts fail."""
    return 1 - (1 - rates) ** (rollouts * visits)


CASES = {
    "replay_weight": lambda rng: (rng.random(5), rng.integers(1, 5, 5), int(rng.integers(2, 9))),
    "kept_something": lambda rng: (
        rng.random(5) / 4,
        int(rng.integers(2, 9)),
        int(rng.integers(1, 20)),
    ),
}
