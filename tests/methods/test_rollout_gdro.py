"""The compute adversary: equations by hand, the exact budget, the price at work."""

from itertools import product

import numpy as np
import pytest
from helpers import visit

from gdro import GDROController, RolloutAdversary, theory


def test_losses_are_the_proxy_relative_to_the_average_bin_and_carry_the_price():
    rollout = RolloutAdversary(2, utility="loss", n_min=1, n_max=3, mean_rollouts=2)
    rollout.price = 0.5
    assert rollout.losses() == pytest.approx(np.array([[0.5, 1.0, 1.5]] * 2))
    rollout = RolloutAdversary(2, n_min=2, n_max=4, mean_rollouts=3)
    rollout.update([1, 1], [3, 3], [0.3, 0.1])
    rollout.price = 0.0
    arms = np.array([2, 3, 4])
    assert rollout.losses() == pytest.approx(np.array([0.3 / 0.2 * 9 / arms, 0.1 / 0.2 * 9 / arms]))


def test_argmax_settles_on_the_minimizer_of_the_variance_proxy():
    variances, counts = np.array([0.25, 0.16, 0.04, 0.01]), np.array([8, 8, 8, 8])
    rollout = RolloutAdversary(4, n_min=1, n_max=12, gamma=0.0)
    for _ in range(25):
        rollouts = rollout.allocate(counts)
        rollout.update(counts, rollouts, variances)
    law = theory.square_root_allocation(variances, counts / 32, 4.0)
    assert (np.abs(rollouts - law) <= 1).all()
    feasible = (n for n in product(range(1, 13), repeat=4) if sum(n) == 16)
    best = min(feasible, key=lambda n: float(theory.variance_proxy(variances, counts / 32, n)))
    assert rollouts.tolist() == list(best)


def play(rollout, counts, variances, steps):
    prices, demands = [], []
    for _ in range(steps):
        rollouts = rollout.allocate(counts)
        demands.append(rollout.update(counts, rollouts, variances))
        prices.append(rollout.price)
    return np.array(prices), np.array(demands)


def test_the_price_moves_until_demand_is_the_budget_and_settles_near_the_shadow_price():
    """Sharp strategies buy what (31) says, so the price ends at μ* of theory."""
    counts, variances = np.array([10, 40, 30, 20]), np.array([0.25, 0.1, 0.2, 0.01])
    prices, demands = play(RolloutAdversary(4), counts, variances, 400)
    assert prices[0] > 0
    assert np.ptp(prices[:60]) > 0.2
    # at price 0, before any bin is known, more is better: above the mean arm
    assert demands[0] > 7.0
    assert demands[-1] == pytest.approx(4.0, abs=0.01)
    assert np.ptp(prices[-50:]) < 0.01

    counts, variances = np.array([16, 16]), np.array([0.2, 0.05])
    rollout = RolloutAdversary(2, eta=40.0, gamma=0.0, price_lr=0.005, n_min=1, n_max=16)
    prices, _ = play(rollout, counts, variances, 1500)
    price = theory.shadow_price(variances * 4.0**2 / variances.mean(), counts / 32, 4.0)
    assert prices[-1] == pytest.approx(price, rel=0.1)


@pytest.mark.parametrize(
    "settings", [{"gamma": 0.0, "eta": 5.0, "ema": 1.0}, {"gamma": 0.0}, {"gamma": 0.01}]
)
@pytest.mark.parametrize("bonus", [0.0, 0.01, 10.0])
def test_the_printed_bandit_stays_finite_without_exploration(settings, bonus):
    """An arm that is never played has its optimism divided by a vanishing probability."""
    rollout = RolloutAdversary(4, bonus=bonus, utility="loss", selection="argmax", **settings)
    rng, counts = np.random.default_rng(0), np.array([4, 4, 4, 4])
    for _ in range(100):
        rollouts = rollout.allocate(counts)
        assert counts @ rollouts == 64
        rollout.update(counts, rollouts, rng.normal(size=4))
    assert np.isfinite(rollout.losses()).all()
    assert np.isfinite(rollout.probabilities()).all()
    assert np.isfinite(rollout.price)


@pytest.mark.parametrize("utility", ["variance", "loss"])
def test_a_bin_does_not_learn_from_the_rewards_that_made_it(utility):
    """Prompts that failed at their first visit share a bin, where no reward varies."""
    controller = GDROController("rollout", rollout={"utility": utility})
    for visits in (0, 1):
        visit(controller, [1, 2, 3, 4], [0, 0, 0, 0])
        assert controller.method.rollout_adversary.visits_BN.max() == visits
