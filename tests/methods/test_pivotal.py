"""The pivotal method: values, draws, weights and pooled advantages against cases worked out by hand."""

from itertools import product

import numpy as np
import pytest
from test_peers import batch_of, run_of

from gdro import GDROController
from gdro.methods.pivotal import pivotal_value
from gdro.methods.setup import make_method


@pytest.mark.parametrize(
    ("alpha", "beta", "k", "value"),
    [
        (0.5, 0.5, 1, 1 / 2),  # E p
        (0.5, 0.5, 2, 1 / 8),  # E p − E p² = 1/2 − 3/8
        (1.0, 1.0, 3, 1 / 12),  # ∫ p (1 − p)² dp
        (1.0, 1.0, 5, 1 / 30),
        (2.0, 1.0, 2, 1 / 6),  # ∫ 2p · p (1 − p) dp
        (4.5, 20.5, 3, 4.5 * 20.5 * 21.5 / (25 * 26 * 27)),
    ],
)
def test_value_in_closed_form(alpha, beta, k, value):
    assert pivotal_value(np.array([alpha]), np.array([beta]), k) == pytest.approx([value])


@pytest.mark.parametrize("k", [1, 2, 5, 9])
def test_value_of_a_known_rate_peaks_at_one_in_k(k):
    rates = np.linspace(0, 1, 1001)[1:-1]
    values = pivotal_value(1e9 * rates, 1e9 * (1 - rates), k)
    assert values == pytest.approx(rates * (1 - rates) ** (k - 1), rel=1e-4)
    assert rates[values.argmax()] == pytest.approx(min(1 / k, 0.999), abs=1e-3)


def test_draw_has_the_law_of_the_values_without_replacement():
    # successes of trials 0/0, 3/6 and 9/9; at k = 2 the value is αβ/(τ(τ + 1))
    known = batch_of([0], [0], [0], successes=[0.0, 3.0, 9.0], failures=[0.0, 3.0, 0.0])
    values = np.array([0.25 / 2, 3.5 * 3.5 / (7 * 8), 9.5 * 0.5 / (10 * 11)])
    first = 0.8 * values / values.sum() + 0.2 / 3
    among_two = first + [
        sum(first[j] * first[i] / (1 - first[j]) for j in range(3) if j != i) for i in range(3)
    ]
    method, rng = make_method("pivotal", "default", {"k": 2, "epsilon": 0.2}), np.random.default_rng(0)
    singles = np.bincount([method.draw(known, 1, rng)[0] for _ in range(6000)], minlength=3) / 6000
    pairs = np.array([method.draw(known, 2, rng) for _ in range(6000)])
    assert singles == pytest.approx(first, abs=0.025)
    assert (pairs[:, 0] != pairs[:, 1]).all()
    assert np.bincount(pairs.ravel(), minlength=3) / 6000 == pytest.approx(among_two, abs=0.025)


def test_epsilon_one_draws_evenly():
    pool = batch_of([0], [0], successes=np.array([0.0, 500.0]))  # one unknown, one always solved
    method, rng = make_method("pivotal", "default", {"epsilon": 1.0}), np.random.default_rng(0)
    assert np.mean([method.draw(pool, 1, rng)[0] for _ in range(4000)]) == pytest.approx(0.5, abs=0.03)


@pytest.mark.parametrize(
    ("gamma", "weights"),
    [
        # without a past q = K/n = 0, ½, 1, so 1 − q = 1, ½, 0 with mean ½
        (1.0, [2.0, 1.0, 0.0]),
        (2.0, [2.4, 0.6, 0.0]),  # 1, ¼, 0 over 5/12
        (0.0, [1.0, 1.0, 1.0]),
    ],
)
def test_weights_by_failure_over_their_mean(gamma, weights):
    method = make_method("pivotal", "default", {"gamma": gamma})
    assert method.weights(batch_of([0, 0], [0, 1], [1, 1])) == pytest.approx(weights)


def test_weights_where_all_is_solved():
    batch = batch_of([1, 1], [1, 1])
    assert make_method("pivotal", "default", {"pool": 0.0}).weights(batch) == pytest.approx([1, 1])


def test_pooled_advantages_by_hand():
    # past: 1 of 3, so p̂ = 1.5/4 = .375, m = min(4, 3) = 3, m p̂ = 1.125
    batch = batch_of([1, 0, 0, 0], [1, 1, 1, 1], [0, 0, 0, 0], successes=1.0, failures=2.0)
    q = np.array([2.125, 5.125]) / 7
    scale = np.sqrt(q * (1 - q) + 0.01)
    wanted = [(1 - 1.125 / 6) / scale[0], *[-(2.125 / 6) / scale[0]] * 3, *[(1 - 4.125 / 6) / scale[1]] * 4]
    method = make_method("pivotal", "default", {})
    assert method.advantages(batch) == pytest.approx([*wanted, 0, 0, 0, 0])


def test_past_counts_at_most_the_pool():
    # 10 of 20: p̂ = ½, m = 2: b = (K − r + 1)/(n − 1 + 2), of groups of 2
    batch = batch_of([1, 0], successes=10.0, failures=10.0)
    wanted = np.array([1 - 1 / 3, -2 / 3]) / np.sqrt(0.25 + 0.01)
    assert make_method("pivotal", "default", {"pool": 2.0}).advantages(batch) == pytest.approx(wanted)


def test_advantages_without_a_pool_are_those_of_the_group():
    batch = batch_of([1, 0, 0, 0], [1, 1], successes=5.0, failures=1.0)
    method = make_method("pivotal", "default", {"pool": 0.0})
    assert method.advantages(batch) == pytest.approx(batch.group_advantages_R)


def test_a_single_rollout_teaches_only_with_a_past():
    method = make_method("pivotal", "default", {})
    assert method.advantages(batch_of([1])) == pytest.approx([0])
    # 1 of 4: p̂ = 1.5/5 = .3 is the baseline; q = (1 + 1.2)/5
    with_past = method.advantages(batch_of([1], successes=1.0, failures=3.0))
    assert with_past == pytest.approx([0.7 / np.sqrt(0.44 * 0.56 + 0.01)])


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_the_baseline_is_unbiased_whatever_the_past_says(rate):
    # the baseline is what is left of an advantage once its scale is undone; over all groups of 3 its
    # product with the score r − p has the mean p(1 − p), but for groups without a success
    past = {"successes": 4.0, "failures": 1.0}
    method, mean = make_method("pivotal", "default", {}), 0.0
    for group in product([0, 1], repeat=3):
        batch, rewards = batch_of(list(group), **past), np.array(group)
        p_hat, m = 4.5 / 6, 4.0
        q = (sum(group) + m * p_hat) / (3 + m)
        centred = method.advantages(batch) * np.sqrt(q * (1 - q) + 0.01)
        if not any(group):
            assert not centred.any()
            centred = rewards - m * p_hat / (2 + m)  # what is left out
        mean += np.prod(np.where(rewards, rate, 1 - rate)) * (centred * (rewards - rate)).mean()
    assert mean == pytest.approx(rate * (1 - rate))


@pytest.mark.parametrize(("k", "most"), [(2, 0.5), (None, 0.5), (16, 0.0)])
def test_k_says_whose_prompts_get_the_rollouts_of_a_run(k, most):
    rates, rng = np.repeat([1.0, 0.5, 0.0], 40), np.random.default_rng(0)
    controller, drawn_in_all = GDROController("pivotal", seed=0, k=k), []
    for _ in range(100):
        drawn = controller.draw(np.arange(120), 24)
        plan = controller.plan(drawn)
        group_ids = np.repeat(np.arange(24), plan.rollouts)
        rewards = rng.random(len(group_ids)) < rates[drawn][group_ids]
        batch = controller.observe(plan, group_ids, rewards.astype(float))
        assert np.mean(batch.weights) == pytest.approx(1)
        drawn_in_all.append(rates[drawn])
    shares = {rate: np.mean(np.array(drawn_in_all[50:]) == rate) for rate in (1.0, 0.5, 0.0)}
    assert shares.pop(most) > (0.5 if k is None else 0.6)
    assert min(shares.values()) > 0.02  # the even share still visits what is solved


def test_k_follows_the_share_of_groups_with_a_success():
    method, resumed = (make_method("pivotal", "default", {"success": 0.5}) for _ in range(2))
    full, empty = [1, 0], [0, 0]
    method.update(batch_of(full, full, full, empty))  # three quarters hold one
    assert method.strength == pytest.approx(5 * np.exp(0.1 / 4))
    resumed.load_state_dict(method.state_dict())
    resumed.update(batch_of(empty, empty))
    assert resumed.strength == pytest.approx(5 * np.exp(0.1 / 4 - 0.1 / 2))
    method.start(run_of())  # another controller starts anew
    assert method.strength == 5
    for groups, bound in (([full], 16), ([empty], 2)):
        for _ in range(60):
            method.update(batch_of(*groups))
        assert method.report() == {"k": bound}


def test_a_given_k_stays():
    method = make_method("pivotal", "default", {"k": 3})
    method.update(batch_of([1, 1]))
    assert method.report() == {"k": 3}


@pytest.mark.parametrize(
    ("name", "value"), [("k", 0), ("epsilon", 0.0), ("gamma", -1.0), ("pool", -1.0), ("success", 2.0)]
)
def test_options_outside_their_domain_are_refused(name, value):
    with pytest.raises(ValueError, match=rf"\({name}=…\) must be"):
        make_method("pivotal", "default", {name: value})
