"""Solutions of notebook 10's exercises."""

import numpy as np


def kinds_of_groups(hits, trials):
    """Shares of solved, failed and mixed groups."""
    solved = np.mean(hits == trials)
    failed = np.mean(hits == 0)
    return solved, failed, 1 - solved - failed


def em_round(weights, shares, likelihood):
    """Each count is shared out over the grid in proportion to weight times likelihood."""
    return weights * ((shares / (likelihood @ weights)) @ likelihood)


def cost_of_dynamic_sampling(rates, weights, n):
    """n over the share of mixed groups."""
    return n / np.sum(weights * (1 - rates**n - (1 - rates) ** n))


def draw_round(rng):
    likelihood = rng.random((4, 6))
    likelihood /= likelihood.sum(axis=0)
    return rng.dirichlet(np.ones(6)), rng.dirichlet(np.ones(4)), likelihood


def draw_hits(rng):
    trials = rng.integers(2, 9, 30)
    return rng.binomial(trials, rng.choice([0, 0.5, 1], 30)), trials


CASES = {
    "kinds_of_groups": draw_hits,
    "em_round": draw_round,
    "cost_of_dynamic_sampling": lambda rng: (
        rng.random(5),
        rng.dirichlet(np.ones(5)),
        int(rng.integers(2, 17)),
    ),
}
