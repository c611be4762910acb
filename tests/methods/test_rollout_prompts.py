"""Rollouts by each prompt's own reward variance: the law, the priors, and what each counts for."""

import numpy as np
import pytest
from helpers import batch_of, method_of, play, prompts_of, run_of

from gdro import GDROController, theory


def learned(rates, bins=None, run=None):
    """The method after 60 batches with these pass rates, by one prompt each."""
    method = method_of("rollout_prompts")
    method.begin(run or run_of())
    groups = [[1] * round(20 * rate) + [0] * (20 - round(20 * rate)) for rate in rates]
    for _ in range(60):
        method.update(batch_of(*groups, bins=bins))
    return method


def test_certain_prompts_get_what_the_theorem_says():
    rates = np.array([0.5, 0.1, 0.9, 0.02])
    method = method_of("rollout_prompts")
    rollouts = method.allocate(prompts_of(rates), 16, np.random.default_rng(0))
    shares = np.full(4, 0.25)
    expected = theory.square_root_allocation(rates * (1 - rates), shares, 4)
    assert rollouts == pytest.approx(expected, rel=1e-6)
    # (31) at the price that is reported
    price = method.report()["price"]
    assert rollouts == pytest.approx(np.sqrt(rates * (1 - rates) / price), rel=1e-6)


def test_a_prompt_without_data_has_the_prior_of_all():
    method = learned([0.1, 0.1, 0.1])
    variance = method.reward_variance(batch_of([0]))
    # Beta(2 · .1, 2 · .9), whose variance of the reward is 2/3 of that at its mean
    assert variance == pytest.approx(0.1 * 0.9 * 2 / 3, rel=0.02)


def test_the_prior_is_that_of_the_group_where_the_data_name_groups():
    bins = np.array([0, 0, 1, 1])
    rates = [0.5, 0.5, 0.05, 0.05]
    named = learned(rates, bins, run_of(num_bins=2, has_groups=True))
    # sums over 20 prompts a group once the fading has settled; the mean of all is one more prompt
    overall = (10 + 1 + 0.5) / 41
    assert named.prior_mean() == pytest.approx([(10 + overall) / 21, (1 + overall) / 21], rel=0.01)
    prompts = batch_of(*[[0]] * 4, bins=bins)  # of which nothing is known but their groups
    rollouts = named.allocate(prompts, 16, np.random.default_rng(0))
    variance = named.prior_mean() * (1 - named.prior_mean())
    assert rollouts[0] / rollouts[2] == pytest.approx(np.sqrt(variance[0] / variance[1]))
    # difficulty bins come from the prompt's own rollouts, so they are no prior
    binned = learned(rates, bins, run_of(num_bins=2))
    assert binned.prior_mean() == pytest.approx([0.275], abs=0.01)


@pytest.mark.parametrize("name", ["rollout_prompts", "pkpo_rollouts"])
def test_the_budget_is_exact_and_every_prompt_counts_once(name):
    controller = GDROController(name, seed=0)
    rates = np.linspace(0, 1, 16)
    for seed in range(20):
        plan, observed = play(controller, seed, np.arange(16), rates)
        assert plan.rollouts.sum() == 64
        assert observed.weights * plan.rollouts == pytest.approx([4] * 16)
    # the middle is worth most
    assert plan.rollouts[6:10].min() > max(plan.rollouts[0], plan.rollouts[15])
