"""Deconvolved pass rates against known ones, and what is concluded."""

import numpy as np
import pytest

from gdro.inspect.difficulty import (
    PassRates,
    mixed_probability,
    pass_probability,
    share_interval,
)
from gdro.inspect.report import OTHER_N, better_n

PROMPTS = 400


def sample(rates_P, n):
    return np.random.default_rng(0).binomial(n, rates_P)


def beta_rates(a, b, count=PROMPTS):
    return np.random.default_rng(7).beta(a, b, count)


def test_the_probabilities_are_those_of_every_outcome():
    outcomes = np.array(np.meshgrid(*[[0, 1]] * 3)).reshape(3, -1)
    hits = outcomes.sum(axis=0)
    chance = 0.3**hits * 0.7 ** (3 - hits)
    assert mixed_probability(0.3, 3) == pytest.approx(chance[(hits > 0) & (hits < 3)].sum())
    assert pass_probability(0.3, 3) == pytest.approx(chance[hits > 0].sum())


@pytest.mark.parametrize("shape", [(0.3, 0.5), (2, 3), (1, 8), (8, 1)])
@pytest.mark.parametrize("n", [4, 8])
def test_what_more_rollouts_bring_lies_in_its_interval(shape, n):
    rates_P = beta_rates(*shape, 2000)
    fitted = PassRates(np.full(2000, n), sample(rates_P, n), np.arange(2000))
    n_N = np.array(OTHER_N)
    found_N, ends_N2 = fitted.by_number(mixed_probability, n_N)
    truth_N = mixed_probability(rates_P, n_N[:, None]).mean(axis=1)
    assert (ends_N2[:, 0] <= truth_N + 0.01).all()
    assert (truth_N - 0.01 <= ends_N2[:, 1]).all()
    is_sampled_N = n_N <= n
    np.testing.assert_allclose(found_N[is_sampled_N], truth_N[is_sampled_N], atol=0.03)
    # beyond, it says that it cannot know
    width_N = np.diff(ends_N2)[:, 0]
    assert (width_N[~is_sampled_N] > 2 * width_N[0]).all()


def test_many_rollouts_show_the_distribution_itself():
    rates_P = np.random.default_rng(0).choice([0.0, 0.1, 0.6, 1.0], 2000, p=[0.3, 0.3, 0.2, 0.2])
    fitted = PassRates(np.full(2000, 64), sample(rates_P, 64), np.arange(2000))
    near_CM = np.abs(fitted.grid_M - np.array([0, 0.1, 0.6, 1])[:, None]) < 0.06
    np.testing.assert_allclose(near_CM @ fitted.weights_M, [0.3, 0.3, 0.2, 0.2], atol=0.04)


def test_groups_of_unequal_sizes_give_the_same_distribution():
    rates_P = beta_rates(1, 2, 4000)
    trials_G = np.random.default_rng(1).integers(2, 13, 4000)
    fitted = PassRates(trials_G, sample(rates_P, trials_G), np.arange(4000))
    assert fitted.grid_M @ fitted.weights_M == pytest.approx(1 / 3, abs=0.02)
    mixed = mixed_probability(fitted.grid_M, 4) @ fitted.weights_M
    assert mixed == pytest.approx(mixed_probability(rates_P, 4).mean(), abs=0.03)


@pytest.mark.parametrize(
    ("shape", "n", "better"),
    [((5, 5), 16, 4), ((5, 5), 8, 4), ((5, 5), 4, None), ((1, 60), 16, None), ((1, 60), 2, None)],
)
def test_a_number_is_named_only_where_it_brings_clearly_more_mixed_groups(shape, n, better):
    fitted = PassRates(np.full(PROMPTS, n), sample(beta_rates(*shape), n), np.arange(PROMPTS))
    assert better_n(fitted, np.full(PROMPTS, n)) == better
    assert better_n(fitted, np.array([n, n + 1])) is None


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_the_interval_of_a_share_covers_it_and_has_a_width(share):
    rng = np.random.default_rng(3)
    prompts_G = np.repeat(np.arange(40), 5)
    covered = 0
    for _ in range(200):
        is_P = rng.random(40) < share  # groups of a prompt are alike: 40 observations, not 200
        low, high = share_interval(np.repeat(is_P, 5), prompts_G)
        assert high - low > 0.05
        covered += low <= share <= high
    assert covered >= 180
