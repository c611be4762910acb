"""The joint choice of arms against enumeration, for one problem and for many at once."""

from collections import Counter
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gdro.arms import arm_log_probabilities, best_joint_arms, exp3p_losses, price_step, sample_joint_arms

seeds = st.integers(0, 2**32 - 1)


def random_problems(seed, problems=5, bins=4):
    """Values with ties, counts (some 0), arms and budgets between the least and the most they can spend."""
    rng = np.random.default_rng(seed)
    arms = np.arange(2, 2 + rng.integers(1, 5))
    counts = rng.integers(0, 4, (problems, bins))
    counts[:, 0] += 1
    values = rng.normal(size=(problems, bins, len(arms))).round(int(rng.integers(0, 3)))
    budget = rng.integers(counts.sum(axis=1) * arms[0], counts.sum(axis=1) * arms[-1] + 1)
    return values, counts, arms, budget


def choices(values, counts, arms, budget):
    """Every choice of arms that spends the most the budget allows: (arm indices, their values)."""
    every = np.array(list(product(range(len(arms)), repeat=len(counts))))
    spent = arms[every] @ counts
    every = every[spent == spent[spent <= budget].max()]
    return every, values[np.arange(len(counts)), every].sum(axis=1)


@given(seeds)
@settings(max_examples=60, deadline=None)
def test_best_arms_are_those_of_enumeration_ties_to_the_most_even(seed):
    values, counts, arms, budget = random_problems(seed)
    rollouts, left_over = best_joint_arms(values, counts, arms, budget)
    for s, (own_values, own_counts) in enumerate(zip(values, counts, strict=True)):
        present = own_counts > 0
        every, sums = choices(own_values[present], own_counts[present], arms, budget[s])
        # evenness is measured against the mean to a quarter rollout
        mean = np.rint(4 * (budget[s] / own_counts.sum() - arms[0])) / 4
        even = ((every - mean) ** 2) @ own_counts[present]
        best = np.isclose(sums, sums.max(), atol=1e-6)
        mine = rollouts[s, present] - arms[0]
        assert (rollouts[s, ~present] == 0).all()
        assert rollouts[s] @ own_counts + left_over[s] == budget[s]
        assert ((every == mine).all(axis=1) & best).any()
        assert ((mine - mean) ** 2) @ own_counts[present] == even[best].min()


@given(seeds)
@settings(max_examples=30, deadline=None)
def test_one_problem_is_solved_as_among_many(seed):
    values, counts, arms, budget = random_problems(seed)
    numbers = np.random.default_rng(seed).random(counts.shape)
    best, best_left = best_joint_arms(values[None], counts[None], arms, budget[None])
    drawn, drawn_left, probabilities = sample_joint_arms(values, counts, arms, budget, numbers)
    for s in range(len(counts)):
        rollouts, left_over = best_joint_arms(values[s], counts[s], arms, int(budget[s]))
        np.testing.assert_array_equal(best[0, s], rollouts)
        assert type(left_over) is int
        assert left_over == best_left[0, s]
        rollouts, left_over, p = sample_joint_arms(values[s], counts[s], arms, int(budget[s]), numbers[s])
        np.testing.assert_array_equal(drawn[s], rollouts)
        np.testing.assert_allclose(probabilities[s], p, atol=1e-12)
        assert left_over == drawn_left[s]


@given(seeds)
@settings(max_examples=30, deadline=None)
def test_sampled_probabilities_are_those_of_enumeration(seed):
    values, counts, arms, budget = random_problems(seed, problems=2)
    rng = np.random.default_rng(seed)
    rollouts, left_over, probabilities = sample_joint_arms(values, counts, arms, budget, rng)
    for s, present in enumerate(counts > 0):
        every, sums = choices(values[s][present], counts[s][present], arms, budget[s])
        weights = np.exp(sums) / np.exp(sums).sum()
        wanted = [np.bincount(column, weights, len(arms)) for column in every.T]
        np.testing.assert_allclose(probabilities[s][present], wanted, atol=1e-10)
        assert rollouts[s] @ counts[s] + left_over[s] == budget[s]


def test_draws_follow_the_probabilities():
    log_p, counts, arms = np.log([[0.5, 0.3, 0.2], [0.1, 0.6, 0.3]]), np.array([2, 1]), np.arange(2, 5)
    many = (np.broadcast_to(log_p, (20_000, 2, 3)), np.broadcast_to(counts, (20_000, 2)))
    rollouts, left_over, probabilities = sample_joint_arms(*many, arms, 9, np.random.default_rng(0))
    assert (left_over == 0).all()
    assert (rollouts @ counts == 9).all()
    for b in range(2):
        found = np.bincount(rollouts[:, b] - 2, minlength=3) / len(rollouts)
        np.testing.assert_allclose(found, probabilities[0, b], atol=0.012)


@pytest.mark.parametrize("steepness", [100.0, 5000.0])
def test_probabilities_that_underflow_are_still_sampled_exactly(steepness):
    """Every bin is sure of its largest arm, which the budget rules out for most; e^-5000 is 0."""
    counts = np.array([[3, 4, 5], [12, 0, 0], [1, 1, 10]])
    log_p = np.broadcast_to(-steepness * (7 - np.arange(2, 8)), (3, 3, 6))
    rollouts, left_over, p = sample_joint_arms(log_p, counts, np.arange(2, 8), 48, np.random.default_rng(4))
    assert ((rollouts * counts).sum(axis=1) + left_over == 48).all()
    assert (left_over == 0).all()
    np.testing.assert_allclose(p[counts > 0].sum(axis=-1), 1.0)


def test_what_no_choice_spends_is_left_over():
    """Five prompts in one bin and one rollout too many; beside a problem that meets its budget."""
    counts, arms, log_p = np.array([[5, 0], [4, 1]]), np.arange(2, 6), np.log(np.full((2, 2, 4), 0.25))
    for rollouts, left_over, *_ in (
        best_joint_arms(log_p, counts, arms, 16),
        sample_joint_arms(log_p, counts, arms, 16, np.random.default_rng(0)),
    ):
        np.testing.assert_array_equal(left_over, [1, 0])
        np.testing.assert_array_equal((rollouts * counts).sum(axis=1), [15, 16])
    with pytest.raises(ValueError, match="smallest arm 2 for each of 5 prompts, got 9"):
        best_joint_arms(log_p, counts, arms, np.array([9, 16]))


@given(seeds, st.permutations(range(4)))
def test_the_numbering_of_bins_does_not_matter(seed, order):
    values, counts, arms, budget = random_problems(seed)

    def bins_with_arms(order):
        rollouts, _ = best_joint_arms(values[0][order], counts[0][order], arms, int(budget[0]))
        present = counts[0][order] > 0
        rows = zip(
            values[0][order][present].tolist(), counts[0][order][present], rollouts[present], strict=True
        )
        return Counter((tuple(v), int(c), int(n)) for v, c, n in rows)  # equal bins: as a multiset

    assert bins_with_arms(order) == bins_with_arms([0, 1, 2, 3])


def test_losses_and_strategies_take_leading_axes():
    rng = np.random.default_rng(2)
    losses, arms, p = rng.random((3, 2, 5)), rng.integers(0, 5, (3, 2)), rng.dirichlet(np.ones(5), (3, 2))
    played, price = np.where(rng.random((3, 2)) < 0.3, np.nan, rng.random((3, 2))), rng.random(3)
    together = exp3p_losses(played, arms, p, 0.1)
    log_p = arm_log_probabilities(losses, 0.7, 0.1)
    for s in range(3):
        np.testing.assert_array_equal(together[s], exp3p_losses(played[s], arms[s], p[s], 0.1))
        np.testing.assert_array_equal(log_p[s], arm_log_probabilities(losses[s], 0.7, 0.1))
    np.testing.assert_array_equal(price_step(price, 5.0, 4, 0.1), price + 0.1 * 1.0)
    np.testing.assert_allclose(np.exp(log_p).sum(axis=-1), 1.0)
