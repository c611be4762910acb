"""One way to solve the exercises of notebook 01."""

import numpy as np
from scipy.special import comb
from scipy.stats import beta

from gdro_lab.teaching.exercises import draw_counts


def pass_at_k(successes, trials, k):
    return 1 - comb(trials - successes, k) / comb(trials, k)


def beta_pass_at_k(successes, trials, k):
    i = np.arange(k)[:, None]
    return 1 - ((trials - successes + 0.5 + i) / (trials + 1 + i)).prod(axis=0)


def move_bins(current, estimate, edges, hysteresis):
    fresh, lowest, highest = (
        np.searchsorted(edges, estimate + shift, side="right")
        for shift in (0, -hysteresis, hysteresis)
    )
    return np.where(current < 0, fresh, np.clip(current, lowest, highest))


def probability_below(successes, trials, level):
    return beta.cdf(level, successes + 0.5, trials - successes + 0.5)


def any_of_n_run(pass_rate=0.1, visits=400, history=50, seed=0):
    """Exercise 5: the estimate and n at each visit. It swings for ever, though p stays.

    With 12 rollouts the outcomes average 1 − 0.9¹² = 0.72, with 2 they average 0.19. So the mean
    of the window rises past the middle, n falls to 2, the mean falls below it, and so on.
    """
    rng = np.random.default_rng(seed)
    outcomes = []
    estimates = []
    rollouts = []
    for _ in range(visits):
        estimate = np.mean(outcomes[-history:]) if outcomes else 0.5
        n = 2 if estimate > 0.5 else 12
        outcomes.append(rng.random(n).min() < pass_rate)
        estimates.append(estimate)
        rollouts.append(n)
    return np.array(estimates), np.array(rollouts)


# The arguments that `check` draws, such that a wrong function differs in some case.
CASES = {
    "pass_at_k": lambda rng: (*draw_counts(rng), int(rng.integers(1, 5))),
    "beta_pass_at_k": lambda rng: (*draw_counts(rng), int(rng.integers(1, 5))),
    "move_bins": lambda rng: (
        rng.integers(-1, 5, 6),
        np.append(rng.random(4), rng.choice(np.arange(1, 5) / 5, 2)),
        np.arange(1, 5) / 5,
        rng.choice([0.0, 0.03, 0.1]),
    ),
    "probability_below": lambda rng: (*draw_counts(rng), rng.uniform(0.05, 0.5)),
}
