"""One way to solve the exercises of notebook 07; `tests/teaching` holds each against `check`."""

import numpy as np

from gdro import Method, register
from gdro.draws import mostly_in_proportion
from gdro_lab.teaching.exercises import draw_counts, draw_groups


def value_for_two(alpha, beta):
    total = alpha + beta
    return alpha / total - alpha * (alpha + 1) / (total * (total + 1))


def draw_by_clocks(worth, size, epsilon, clocks):
    rates = (1 - epsilon) * worth / worth.sum() + epsilon / len(worth)
    return np.argsort(clocks / rates)[:size]


def pivotal_advantages(rewards, group_ids):
    hits = np.bincount(group_ids, rewards)
    sizes = np.bincount(group_ids)
    of_a_correct_one = 2 * (sizes - hits) / np.maximum(sizes - 1, 1)
    return np.where(rewards > 0, of_a_correct_one[group_ids], 0.0)


def next_k(hits, trials, successes, failures, gained, expected):
    rates = (successes + 0.5) / (successes + failures + 1)
    hard = rates < 0.5  # a new prompt has 0.5
    foreseen = (trials * rates)[hard].sum()
    gained = 0.9 * gained + hits[hard].sum() - foreseen
    expected = 0.9 * expected + foreseen
    progress = (gained + 5 / 3) / (expected + 5)
    return round(min(max(3 + 6 * progress, 3), 12)), gained, expected


def mixed_group(alpha, beta, size):
    # E[p^n] and E[(1 − p)^n] of a Beta distribution are products of n ratios
    all_correct = 1.0
    all_wrong = 1.0
    for j in range(size):
        all_correct = all_correct * (alpha + j) / (alpha + beta + j)
        all_wrong = all_wrong * (beta + j) / (alpha + beta + j)
    return 1 - all_correct - all_wrong


@register("half_solved")
class HalfSolved(Method):
    """Exercise 6: draws by p (1 − p)."""

    def draw(self, pool, size, rng):
        return mostly_in_proportion(pool.rate_P * (1 - pool.rate_P), 0.1, size, rng)


# The arguments that `check` draws, such that a wrong function differs in some case.
CASES = {
    "value_for_two": lambda rng: tuple(rng.gamma(2, 2, (2, 5)) + 0.1),
    "draw_by_clocks": lambda rng: (
        rng.random(6),
        3,
        rng.choice([0.1, 0.5, 1]),
        rng.standard_exponential(6),
    ),
    "pivotal_advantages": lambda rng: draw_groups(rng, int(rng.integers(1, 4))),
    "next_k": lambda rng: (
        *draw_counts(rng),
        *(rng.integers(0, 9, (2, 5)) * rng.integers(0, 2, 5)),
        rng.normal(0, 12),
        rng.uniform(0, 8),
    ),
    "mixed_group": lambda rng: (*(rng.gamma(2, 2, (2, 5)) + 0.1), int(rng.integers(2, 5))),
}
