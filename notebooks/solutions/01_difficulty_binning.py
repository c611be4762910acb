"""One way to solve the exercises of notebook 01; `tests/teaching` holds each against `check`."""

import numpy as np
from scipy.special import comb
from scipy.stats import beta


def pass_at_k(successes, trials, k):
    return 1 - comb(trials - successes, k) / comb(trials, k)


def beta_pass_at_k(successes, trials, k):
    i = np.arange(k)[:, None]
    return 1 - ((trials - successes + 0.5 + i) / (trials + 1 + i)).prod(axis=0)


def move_bins(current, estimate, edges, hysteresis):
    fresh, lowest, highest = (
        np.searchsorted(edges, estimate + shift, side="right") for shift in (0, -hysteresis, hysteresis)
    )
    return np.where(current < 0, fresh, np.clip(current, lowest, highest))


def probability_below(successes, trials, level):
    return beta.cdf(level, successes + 0.5, trials - successes + 0.5)
