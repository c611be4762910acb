"""Exact moments against closed forms, and against resampling."""

import numpy as np
import pytest
from pools import bernoulli_pool, random_pool

from gdro_lab.microscope.moments import (
    Groups,
    classes_of,
    mean_coefficients,
    own_products,
    second_moments,
    variances,
)

RESAMPLES = 20_000


def table_of(kind, n, most):
    """Advantages of a success and a failure, by the successes of a group of n, (most + 1, 2)."""
    table_C2 = np.zeros((most + 1, 2))
    for c in range(n + 1):
        mean = c / n
        if kind == "rloo":
            table_C2[c] = np.array([1 - mean, -mean]) * n / (n - 1)
        elif kind == "grpo":
            sd = np.sqrt(mean * (1 - mean))
            table_C2[c] = (np.array([1 - mean, -mean]) / sd) if sd > 0 else 0.0
        else:  # without a baseline: groups of equal rewards teach, too
            table_C2[c] = [1.0 + 0.1 * c, -0.5]
    return table_C2


def groups_of(kind, rollouts_P):
    tables = [table_of(kind, n, max(rollouts_P)) for n in rollouts_P]
    return Groups(np.array(rollouts_P), np.stack(tables))


def gradients_of_groups(pool, p, n, table_C2, chosen_XR):
    """Σ A g of groups given by their rollouts' places, (X, S)."""
    right_XR = pool.rewards_PK[p][chosen_XR] > 0
    advantages_X2 = table_C2[right_XR.sum(axis=1)]
    factors_XR = np.where(right_XR, advantages_X2[:, :1], advantages_X2[:, 1:])
    gradients_KS = pool.sketch_NS[pool.texts_PK[p]].astype(float)
    return np.einsum("xr,xrs->xs", factors_XR, gradients_KS[chosen_XR])


@pytest.mark.parametrize("kind", ["rloo", "grpo", "none"])
def test_resampling(kind):
    """Means, squares and products of disjoint groups are those of 20,000 draws from the pool."""
    pool = random_pool(3)
    rollouts = pool.rewards_PK.shape[1]
    one = groups_of(kind, [2, 4, 3, 10, 5, 7])
    other = groups_of("rloo", [4, 2, 8, 8, 6, 3])
    classes = classes_of(pool)
    means_P2 = mean_coefficients(classes, one)
    seconds_P = second_moments(classes, one)
    products_P = own_products(classes, one, other)
    rng = np.random.default_rng(0)
    for p in range(len(seconds_P)):
        n = one.rollouts_P[p]
        both = n + other.rollouts_P[p]
        chosen_XR = rng.permuted(np.tile(np.arange(rollouts), (RESAMPLES, 1)), axis=1)[:, :both]
        first_XS = gradients_of_groups(pool, p, n, one.tables_PC2[p], chosen_XR[:, :n])
        then_XS = gradients_of_groups(pool, p, n, other.tables_PC2[p], chosen_XR[:, n:])
        gradients_KS = pool.sketch_NS[pool.texts_PK[p]].astype(float)
        right_K = pool.rewards_PK[p] > 0
        # of no success, whose coefficient is then 0
        means_2S = [gradients_KS[at].sum(axis=0) / max(at.sum(), 1) for at in (right_K, ~right_K)]
        expected = [seconds_P[p], products_P[p], *(means_P2[p] @ np.stack(means_2S))]
        drawn = [np.square(first_XS).sum(axis=1), (first_XS * then_XS).sum(axis=1), *first_XS.T]
        for value, values_X in zip(expected, drawn, strict=True):
            error = values_X.std() / np.sqrt(RESAMPLES)
            assert abs(values_X.mean() - value) <= 4 * error + 1e-9


@pytest.mark.parametrize("n", [2, 4, 12])
def test_bernoulli_rloo(n):
    """Unbiased for the policy, not just for the pool.

    RLOO's group sum is n times the unbiased variance of the rewards, whose mean is p(1 − p) = σ²
    and whose variance is (μ4 − σ⁴ (n − 3)/(n − 1))/n.
    """
    rng = np.random.default_rng(n)
    rates_P = np.array([0.05, 0.3, 0.6])
    groups = groups_of("rloo", [n] * 3)
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
