"""Exact moments against closed forms; against resampled batches: test_judge.py."""

import numpy as np
import pytest
from pools import bernoulli_pool

from gdro_lab.microscope.moments import Groups, classes_of, own_products, variances


def rloo_groups(rollouts_P):
    """Groups of so many rollouts, with RLOO's advantages of a success and a failure."""
    tables_PC2 = np.zeros((len(rollouts_P), max(rollouts_P) + 1, 2))
    for table_C2, n in zip(tables_PC2, rollouts_P, strict=True):
        hits = np.arange(n + 1)
        table_C2[: n + 1] = np.stack([1 - hits / n, -hits / n], axis=1) * n / (n - 1)
    return Groups(np.array(rollouts_P), tables_PC2)


@pytest.mark.parametrize("n", [2, 4, 12])
def test_bernoulli_rloo(n):
    """Unbiased for the policy, not just for the pool.

    RLOO's group sum is n times the unbiased variance of the rewards, whose mean is p(1 − p) = σ²
    and whose variance is (μ4 − σ⁴ (n − 3)/(n − 1))/n.
    """
    rng = np.random.default_rng(n)
    rates_P = np.array([0.05, 0.3, 0.6])
    groups = rloo_groups([n] * 3)
    found = []
    for _ in range(800):
        classes = classes_of(bernoulli_pool(rates_P, 24, rng))
        found.append([own_products(classes, groups, groups), variances(classes, groups)])
    error = np.std(found, axis=0) / np.sqrt(len(found))
    square_P = rates_P * (1 - rates_P)
    fourth_P = square_P * (1 - 3 * square_P)
    variance_P = n * (fourth_P - square_P**2 * (n - 3) / (n - 1))
    expected = np.stack([(n * square_P) ** 2, variance_P])
    assert (np.abs(np.mean(found, axis=0) - expected) <= 4 * error).all()
    assert (error <= 0.2 * expected).all()  # or nothing was compared
