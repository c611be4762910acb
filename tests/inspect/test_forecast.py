"""Deconvolved pass rates against known ones, and forecasts against what is played."""

import numpy as np
import pytest
from helpers import visit

import gdro.inspect
from gdro import Method, theory
from gdro.inspect import Groups
from gdro.inspect.difficulty import PassRates, mixed_probability, pass_probability
from gdro.inspect.forecast import Course, Sampler, groups_to_play, noise_proxy
from gdro.inspect.forecast import forecast as forecast_on
from gdro.inspect.page import advise
from gdro.inspect.report import OTHER_N
from gdro.registry import METHODS

PROMPTS = 400
STEPS = 40


def sample(rates_P, n):
    return np.random.default_rng(0).binomial(n, rates_P)


def log_of(rates_P, n=4, steps=STEPS, size=32):
    """The groups of a run on prompts whose pass rates do not change."""
    rng = np.random.default_rng(0)
    prompts_G = np.concatenate(
        [rng.choice(len(rates_P), size, replace=False) for _ in range(steps)]
    )
    hits_G = rng.binomial(n, rates_P[prompts_G])
    return Groups(
        prompts_G=prompts_G,
        steps_G=np.repeat(np.arange(steps), size),
        trials_G=np.full(len(prompts_G), n),
        hits_G=hits_G,
        is_flat_G=(hits_G == 0) | (hits_G == n),
        lengths_G=None,
    )


def forecast(groups, has_steps, methods):
    rates = PassRates(groups.trials_G, groups.hits_G, groups.prompts_G)
    return forecast_on(groups, rates, has_steps, methods, seed=0)


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
    found_N, ends_N2 = fitted.mean_of(mixed_probability(fitted.grid_M, n_N[:, None]), n_N)
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


def test_rollouts_of_the_log_are_played_first_and_once():
    sampler = Sampler(
        np.array([4, 4, 0]), np.array([4, 1, 0]), np.array([0.0, 1, 1]), np.random.default_rng(0)
    )
    first = sampler(np.array([0, 0, 1, 1, 1, 1, 2, 2]))
    assert np.bincount([0, 0, 1, 1, 1, 1, 2, 2], first).tolist() == [2, 1, 2]
    more = sampler(np.array([0, 0, 0, 0, 1]))
    assert np.bincount([0, 0, 0, 0, 1], more).tolist() == [2, 1]


def test_between_visits_the_nearest_one_holds():
    # prompt 0 at steps 2 and 8, prompt 1 at step 5, of ten
    keys = np.array([2, 8, 15])
    empty = np.zeros(0, np.int64)
    course = Course(
        batches=[empty] * 10,
        prompts_D=np.arange(2),
        mean_rollouts=4,
        keys_G=keys,
        trials_G=empty,
        hits_G=empty,
        rates_G=empty,
    )
    both = np.array([0, 1])
    assert [course.places(both, step).tolist() for step in (0, 4, 7, 9)] == [
        [0, 2],
        [0, 2],
        [1, 2],
        [1, 2],
    ]


def test_the_noise_of_even_weights_by_prompt_is_the_variance_proxy():
    rates, trials = np.array([0.1, 0.5, 0.9]), np.array([2, 4, 6])
    proxy = theory.variance_proxy(rates * (1 - rates), np.full(3, 1 / 3), trials)
    assert noise_proxy(rates, trials, 4 / trials) == pytest.approx(proxy / 3)


def test_grpo_is_forecast_as_it_was_and_pivotal_draws_what_can_be_learned():
    rates_P = beta_rates(0.3, 0.3)
    groups = log_of(rates_P)
    methods = ["pivotal", "rollout", "reinforce_ada"]
    found = forecast(groups, True, methods)
    assert [*found] == ["grpo", *methods]
    assert found["grpo"]["mixed"] == pytest.approx(groups.is_mixed_G.mean())
    assert found["grpo"]["noise"] == 1
    assert found["pivotal"]["mixed"] > found["grpo"]["mixed"] + 0.05
    # solved prompts get fewer rollouts
    assert found["rollout"]["rollouts_by_pass_rate"][3] < found["grpo"]["rollouts_by_pass_rate"][3]
    assert found["grpo"]["first_visits"] == len(np.unique(groups.prompts_G)) / len(groups)
    assert 0 < found["reinforce_ada"]["mixed"] < 1  # which samples in rounds
    assert found == forecast(groups, True, methods)


def test_pivotal_is_forecast_as_it_plays_on_the_true_pass_rates():
    rates_P = beta_rates(0.4, 0.6)
    guessed = forecast(log_of(rates_P), True, ["pivotal"])["pivotal"]["mixed"]
    controller = gdro.GDROController("pivotal", 4)
    rng = np.random.default_rng(3)
    pool, mixed = np.arange(PROMPTS), []
    for _ in range(STEPS):
        drawn = pool[controller.draw(pool, 32)]
        hits = rng.binomial(4, rates_P[drawn])
        mixed.append(np.mean((hits > 0) & (hits < 4)))
        visit(controller, drawn, hits)
    assert guessed == pytest.approx(np.mean(mixed), abs=0.05)


def test_a_new_method_is_forecast_without_a_line(monkeypatch):
    class FirstPrompts(Method):
        def draw(self, pool, size, rng):
            return np.arange(size)

    monkeypatch.setitem(METHODS, "first_prompts", FirstPrompts)
    groups = log_of(np.repeat([1.0, 0.5], PROMPTS // 2))
    found = forecast(groups, True, ["first_prompts"])
    solved = {name: entry["rollouts_by_pass_rate"][3] for name, entry in found.items()}
    assert solved["first_prompts"] > solved["grpo"] + 0.3
    assert found["first_prompts"]["noise"] is None


def test_a_group_larger_than_methods_can_plan_is_refused():
    with pytest.raises(ValueError, match=r"log .* 40,000"):
        forecast(log_of(np.array([0.5]), n=40_000, steps=1, size=1), True, [])


def test_a_log_without_steps_is_played_in_batches():
    groups = log_of(beta_rates(1, 1, 64), n=8, steps=1, size=64)
    found = forecast(groups, False, [])["grpo"]
    assert found["first_visits"] == pytest.approx(1 / 4)


def summary_with(mixed, methods, kind="TRL"):
    return {
        "kind": kind,
        "groups": {"mixed": mixed},
        "as_it_was": {"mixed": mixed},
        "rollouts_per_group": 4.0,
        "mixed_by_n": {"2": mixed - 0.2, "4": mixed, "8": mixed + 0.2, "16": mixed + 0.3},
        "methods": {name: {"mixed": share} for name, share in methods.items()},
    }


def test_what_the_page_recommends_is_clearly_better():
    advice = advise(summary_with(0.3, {"grpo": 0.31, "pivotal": 0.45}, "verl"))
    assert (advice.method, advice.rollouts) == ("pivotal", 8)
    assert any("rollout.n=8" in line for line in advice.lines)
    assert any("pivotal" in line for line in advice.lines)
    advice = advise(summary_with(0.3, {"grpo": 0.31, "pivotal": 0.33}))
    assert (advice.method, advice.rollouts) == (None, 8)
    assert not advise(summary_with(0.85, {"grpo": 0.8, "pivotal": 0.95})).lines


def test_of_a_large_log_the_last_steps_and_some_prompts_are_played():
    groups = log_of(beta_rates(1, 1, 5000), steps=600, size=64)
    played = groups_to_play(groups, np.random.default_rng(0))
    assert played.steps_G.min() == 200
    assert 18_000 < len(played) < 22_000
    # of a prompt all groups or none
    kept = np.isin(groups.prompts_G, played.prompts_G) & (groups.steps_G >= 200)
    assert kept.sum() == len(played)
