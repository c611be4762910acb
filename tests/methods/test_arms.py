"""The joint choice of arms against enumeration, for one problem and for many at once."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gdro.arms import best_joint_arms, sample_joint_arms

seeds = st.integers(0, 2**32 - 1)


def random_problem(seed):
    """Values with ties, counts (some 0), arms, and a budget that they can spend."""
    rng = np.random.default_rng(seed)
    arms = np.arange(2, 2 + rng.integers(1, 5))
    counts = rng.integers(0, 4, 4)
    counts[0] += 1
    values = rng.normal(size=(4, len(arms))).round(int(rng.integers(0, 3)))
    return values, counts, arms, rng.integers(counts.sum() * arms[0], counts.sum() * arms[-1] + 1)


def choices(values, counts, arms, budget):
    """Every choice of arms that spends the most the budget allows: (arm indices, their values)."""
    every = np.array(list(product(range(len(arms)), repeat=len(counts))))
    spent = arms[every] @ counts
    every = every[spent == spent[spent <= budget].max()]
    return every, values[np.arange(len(counts)), every].sum(axis=1)


@given(seeds)
def test_best_arms_are_those_of_enumeration_ties_to_the_most_even(seed):
    values, counts, arms, budget = random_problem(seed)
    rollouts, left_over = best_joint_arms(values, counts, arms, budget)
    present = counts > 0
    every, sums = choices(values[present], counts[present], arms, budget)
    # evenness is measured against the mean to a quarter rollout
    mean = np.rint(4 * (budget / counts.sum() - arms[0])) / 4
    even = ((every - mean) ** 2) @ counts[present]
    best = np.isclose(sums, sums.max(), atol=1e-6)
    mine = rollouts[present] - arms[0]
    assert (rollouts[~present] == 0).all()
    assert rollouts @ counts + left_over == budget
    assert ((every == mine).all(axis=1) & best).any()
    assert ((mine - mean) ** 2) @ counts[present] == even[best].min()


@given(seeds)
def test_sampled_probabilities_are_those_of_enumeration(seed):
    values, counts, arms, budget = random_problem(seed)
    rng, present = np.random.default_rng(seed), counts > 0
    rollouts, p = sample_joint_arms(values, counts, arms, budget, rng)
    every, sums = choices(values[present], counts[present], arms, budget)
    weights = np.exp(sums) / np.exp(sums).sum()
    wanted = [np.bincount(column, weights, len(arms)) for column in every.T]
    np.testing.assert_allclose(p[present], wanted, atol=1e-10)
    assert (every == rollouts[present] - arms[0]).all(axis=1).any()
    assert (rollouts[~present] == 0).all()


def test_draws_follow_the_probabilities():
    log_p, counts = np.log([[0.5, 0.3, 0.2], [0.1, 0.6, 0.3]]), np.array([2, 1])
    arms, draws = np.arange(2, 5), 4000
    rng, found = np.random.default_rng(0), np.zeros((2, 3))
    for _ in range(draws):
        rollouts, probabilities = sample_joint_arms(log_p, counts, arms, 9, rng)
        assert rollouts @ counts == 9
        found[[0, 1], rollouts - 2] += 1 / draws
    np.testing.assert_allclose(found, probabilities, atol=0.03)


@pytest.mark.parametrize("steepness", [100.0, 5000.0])
@pytest.mark.parametrize("counts", [[3, 4, 5], [12, 0, 0], [1, 1, 10]])
def test_probabilities_that_underflow_are_still_sampled_exactly(steepness, counts):
    """Every bin is sure of its largest arm, which the budget rules out for most; e^-5000 is 0."""
    log_p = np.broadcast_to(-steepness * (7 - np.arange(2, 8)), (3, 6))
    rng, counts = np.random.default_rng(4), np.array(counts)
    rollouts, p = sample_joint_arms(log_p, counts, np.arange(2, 8), 48, rng)
    assert rollouts @ counts == 48
    np.testing.assert_allclose(p[counts > 0].sum(axis=-1), 1.0)


def test_what_no_choice_spends_is_left_over():
    """Five prompts in one bin and one rollout too many; no budget is below the smallest arm."""
    counts, arms, rng = np.array([5, 0]), np.arange(2, 6), np.random.default_rng(0)
    log_p = np.log(np.full((2, 4), 0.25))
    rollouts, left_over = best_joint_arms(log_p, counts, arms, 16)
    assert (rollouts @ counts, left_over) == (15, 1)
    rollouts, _ = sample_joint_arms(log_p, counts, arms, 16, rng)
    assert rollouts @ counts == 15
    with pytest.raises(ValueError, match="budget"):
        best_joint_arms(log_p, counts, arms, 9)
