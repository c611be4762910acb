"""The methods of others: one case by hand for each, and what all of them must keep."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from gdro import GDROController, StaticGroups
from gdro.methods.base import Batch, Run, make_method

DRAWS = ("mopps", "vade", "dots", "cures", "lilo", "greso", "sec", "spo", "oracle", "family_even")
ROUNDS = ("dars", "pilot_commit", "reinforce_ada")
RATES = np.array([1.0, 0.5, 0.0, 0.05])  # of the toy population, by uid modulo 4
PILOT = {"pilot": 4, "mean_rollouts": 5}
CERTAIN = 1e9  # posterior counts at which a sample is the mean


def run_of(**changes):
    return Run(**{"num_bins": 3, "mean_rollouts": 4, "n_min": 2, "n_max": 12, "seed": 0} | changes)


def method_of(name, **options):
    settings = {key: options.pop(key) for key in ("mean_rollouts", "n_min", "n_max") if key in options}
    method = make_method(name, "default", options)
    method.start(run_of(**settings))
    return method


def prompts_of(rates, bins=None):
    """Prompts whose posterior means are the rates, for certain."""
    return batch_of(*[[0]] * len(rates), rates=rates, bins=bins)


def batch_of(*groups, rates=None, bins=None, successes=0.0, failures=0.0):
    """A batch with one list of 0/1 rewards a prompt, and what was known of the prompts before."""
    rows, trials = np.arange(len(groups)), np.array([len(g) for g in groups])
    if rates is not None:
        successes, failures = np.asarray(rates) * CERTAIN - 0.5, (1 - np.asarray(rates)) * CERTAIN - 0.5
    rewards = np.concatenate([np.asarray(g, float) for g in groups])
    bins = rows * 0 if bins is None else np.asarray(bins)
    return Batch(
        keys_P=rows,
        rows_P=rows,
        bins_P=bins,
        bins_after_P=bins,
        first_visit_P=bins < 0,
        successes_P=np.broadcast_to(successes, rows.shape).copy(),
        failures_P=np.broadcast_to(failures, rows.shape).copy(),
        rollouts_P=trials,
        trials_P=trials,
        hits_P=np.array([sum(g) for g in groups]),
        group_ids_R=np.repeat(rows, trials),
        rewards_R=rewards,
        correct_R=rewards > 0,
        given_losses_R=None,
        run=run_of(),
    )


# Draws


@pytest.mark.parametrize(
    ("name", "options", "drawn"),
    [
        ("mopps", {}, {2, 3}),  # |θ − ½| = .49 .4 .15 .05 .3 .49
        ("mopps", {"target": 0.2}, {1, 2}),  # |θ − .2| = .19 .1 .15 .35 .6 .79
        ("vade", {}, {2, 3}),  # θ(1 − θ)² = .01 .081 .148 .111 .032 .0001
        ("lilo", {}, {2, 3}),  # p(1 − p) = .01 .09 .23 .25 .16 .01
    ],
)
def test_the_best_by_a_score_are_drawn(name, options, drawn):
    pool = prompts_of([0.01, 0.1, 0.35, 0.55, 0.8, 0.99])
    assert set(method_of(name, **options).draw(pool, 2, np.random.default_rng(0))) == drawn


@pytest.mark.parametrize("name", ["mopps", "vade"])
def test_thompson_sampling_explores_what_is_uncertain(name):
    pool = prompts_of([0.7, 0.5, 0.5, 0.5])  # the first for sure, the others without data
    counts = {name: getattr(pool, name) * [1, 0, 0, 0] for name in ("successes_P", "failures_P")}
    pool = replace(pool, **counts)
    method, rng = method_of(name), np.random.default_rng(0)
    assert {int(method.draw(pool, 1, rng)[0]) for _ in range(200)} == {0, 1, 2, 3}


# two weights w and 1: the first of two prompts is drawn with probability w / (w + 1)
@pytest.mark.parametrize(
    ("name", "options", "rates", "weight"),
    [
        ("dots", {"temperature": 0.2}, [0.5, 0.1], np.exp(0.4 / 0.2)),
        ("dots", {"temperature": 0.5, "target": 0.3}, [0.5, 0.9], np.exp(0.4 / 0.5)),
        ("cures", {"temperature": 0.1}, [0.5, 0.1], np.exp((0.5 - 0.3) / 0.1)),
        ("spo", {"epsilon": 0.1}, [0.5, 0.1], 0.6 / 0.4),
        ("oracle", {"k": 3, "epsilon": 0.2}, [0.5, 0.75], (0.8 * 8 / 11 + 0.1) / (0.8 * 3 / 11 + 0.1)),
    ],
)
def test_prompts_are_drawn_in_proportion(name, options, rates, weight):
    method, rng = method_of(name, **options), np.random.default_rng(1)
    if name == "oracle":  # p(1 − p)²: 1/8 and 3/64
        method.rates = lambda keys: np.array(rates)[keys]
    first = np.mean([method.draw(prompts_of(rates), 1, rng)[0] == 0 for _ in range(4000)])
    assert first == pytest.approx(weight / (weight + 1), abs=0.025)


@pytest.mark.parametrize("rates", [None, lambda keys: keys + 2.0, lambda keys: np.array([0.5])])
def test_the_oracle_wants_a_pass_rate_for_each_key(rates):
    with pytest.raises(ValueError, match="rates must"):
        method_of("oracle", rates=rates).draw(prompts_of([0.5, 0.5]), 1, np.random.default_rng(0))


def test_greso_skips_the_more_the_longer_nothing_was_learned():
    method, pool = method_of("greso", floor=0.2), prompts_of([0.5, 0.5, 0.5, 0.5])
    for group in ([1, 1], [0, 0], [0, 0]):
        method.update(batch_of(group, [0, 1], [0, 0], [1, 1]))
    method.update(batch_of([1, 0], [0, 0], [0, 0]))
    assert method.streak_D[:4].tolist() == [0, 1, 4, 3]
    assert method.kept(pool) == pytest.approx([1, 0.5, 0.2, 0.2])
    method.update(batch_of([1, 0], [0, 0]))
    twice = replace(batch_of([0, 0], [1, 0]), rows_P=np.array([1, 1]))
    method.update(twice)  # one visit
    assert method.streak_D[:4].tolist() == [0, 0, 4, 3]
    method.update(batch_of([1, 0], [0, 0]))
    rng = np.random.default_rng(0)
    # the first of prompts 0 and 1: 1 if kept in the same pass as 0 and ahead by the order, ½ · ½
    first = [method.draw(prompts_of([0.5, 0.5]), 1, rng)[0] for _ in range(4000)]
    assert np.mean(first) == pytest.approx(0.25, abs=0.025)


def test_sec_moves_by_mean_advantage_and_draws_bins_by_softmax():
    method = method_of("sec", step=0.5, temperature=0.25)
    # bin 0: |A| = 1 on all four rollouts of one prompt, 0 on the four of another; bin 2: 0; no bin: 1
    method.update(batch_of([0, 1, 0, 1], [0] * 4, [1] * 4, [1, 0], bins=[0, 0, 2, -1]))
    assert method.values_N == pytest.approx([0.5, 0.25, 0.0, 0.0], abs=1e-3)
    pool, rng = prompts_of([0.5] * 4, bins=[0, 2, 2, 2]), np.random.default_rng(0)
    drawn = np.array([method.draw(pool, 1, rng)[0] for _ in range(4000)])
    assert np.mean(drawn == 0) == pytest.approx(np.e / (np.e + 1), abs=0.025)  # exp(.25/.25) against 1
    assert np.bincount(drawn)[1:].min() > 250  # a bin's prompts evenly, about 360 each


@pytest.mark.parametrize("named", [False, True])
def test_families_are_drawn_evenly_whatever_their_sizes(named):
    families = ["a"] * 90 + ["b"] * 9 + ["c"] * 3
    uids = [f"prompt {i}" for i in range(102)]
    given = {"groups": dict(zip(uids, families, strict=True))} if named else {}
    controller = GDROController("family_even", bins=StaticGroups(uids, families), **given)
    for size, counts in ((9, [3, 3, 3]), (21, [9, 9, 3]), (102, [90, 9, 3])):
        drawn = controller.draw(uids, size)
        assert [[families[d] for d in drawn].count(family) for family in "abc"] == counts
        assert len(set(drawn)) == size
    if named:
        with pytest.raises(ValueError, match="every uid"):
            controller.draw([*uids, "another"], 9)


# Rollouts


@pytest.mark.parametrize(
    ("name", "rates", "rollouts"),
    [
        # gain of rollout n + 1: (pⁿ(1 − p) + (1 − p)ⁿ p) p (1 − p)²; from n = 2: p = ½ .031 .016 .008 .004,
        # p = ¼ .026 .017 .012 .0086 .0063, p = .9 .0008: of six rollouts ½ takes 2, ¼ takes 4
        ("knapsack", [0.5, 0.25, 0.9], [4, 6, 2]),
        # savings from n = 3: 5/144 = .0347, .0275, .0211, .0164, .0131 times 4p(1 − p) = 1, .36, .04
        ("vip", [0.5, 0.1, 0.01], [6, 3, 3]),
    ],
)
def test_rollouts_go_where_the_next_one_is_worth_most(name, rates, rollouts):
    method = method_of(name, n_min=2)  # VIP's own least is 3
    assert method.allocate(prompts_of(rates), 12, np.random.default_rng(0)).tolist() == rollouts


@pytest.mark.parametrize(
    ("name", "options", "groups", "left", "further"),
    [
        # a = ¼: 4 (4/3 − 1) = 4/3; a = 0 wants all room, 8; none above ½. In proportion: 1.14 and 6.86 of 8
        ("dars", PILOT, ([1, 0, 0, 0], [0] * 4, [1, 1, 0, 0], [1] * 4), 8, [1, 7, 0, 0]),
        # hardness: a = ¼ wants 4 (2 − 1) = 4 beside 8
        (
            "dars",
            PILOT | {"schedule": "hardness"},
            ([1, 0, 0, 0], [0] * 4, [1, 1, 0, 0], [1] * 4),
            9,
            [3, 6, 0, 0],
        ),
        ("dars", {}, ([1, 0], [1, 1]), 4, None),
        ("pilot_commit", PILOT, ([1, 0, 0, 0], [0] * 4, [1, 1, 1, 0], [1] * 4), 8, [4, 0, 4, 0]),
        ("pilot_commit", PILOT, ([0] * 4, [1, 1, 0, 0]), 20, [0, 8]),  # no more than n_max in all
        ("reinforce_ada", {}, ([1, 0], [0, 0], [1, 1], [0, 0, 0, 0, 1]), 9, [0, 2, 2, 0]),
        ("reinforce_ada", {}, ([1] * 11, [0] * 12), 9, [1, 0]),
        ("reinforce_ada", {}, ([1, 0], [0, 1]), 4, None),
    ],
)
def test_what_a_round_adds(name, options, groups, left, further):
    method = method_of(name, **options)
    answer = method.extend(batch_of(*groups), left, np.random.default_rng(0))
    assert answer is further is None or answer.tolist() == further


def test_a_round_that_cannot_serve_all_spends_what_is_left():
    further = method_of("reinforce_ada").extend(batch_of([0, 0], [0, 0], [1, 1]), 3, np.random.default_rng(0))
    assert sorted(further.tolist()) == [0, 1, 2]


@pytest.mark.parametrize("name", ROUNDS)
def test_the_pilot_must_fit_the_budget(name):
    for settings in ({"pilot": 4}, {"pilot": 2, "n_min": 3}):
        with pytest.raises(ValueError, match="pilot must be"):
            GDROController(name, mean_rollouts=4, **settings)


# Advantages


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("dr_grpo", {}, [3 / 4, -1 / 4, -1 / 4, -1 / 4, 1 / 2, -1 / 2, 0, 0]),
        ("rloo", {}, [1, -1 / 3, -1 / 3, -1 / 3, 1, -1, 0, 0]),
        ("maxrl", {}, [3, -1, -1, -1, 1, -1, 0, 0]),
        ("nsr", {}, [0.1, -1, -1, -1, 0.1, -1, -1, -1]),
        ("nsr", {"positive": 0.0}, [0, -1, -1, -1, 0, -1, -1, -1]),
        # ρ(3, 1, 1) = 1/3, ρ(1, 1, 1) = 1
        ("pkpo", {"baseline": "none"}, [2, 2 / 3, 2 / 3, 2 / 3, 2, 2, 0, 0]),
        ("pkpo", {}, [2, 0, 0, 0, 2, 0, 0, 0]),
        # k = 3: ρ(3, 1, 2) = 2/3; groups of two are held to k = 2
        ("pkpo", {"k": 3, "baseline": "none"}, [3, 2, 2, 2, 2, 2, 0, 0]),
        ("pkpo", {"k": 1}, [1, -1 / 3, -1 / 3, -1 / 3, 1, -1, 0, 0]),
    ],
)
def test_advantages_by_hand(name, options, expected):
    advantages = method_of(name, **options).advantages(batch_of([1, 0, 0, 0], [1, 0], [0, 0]))
    assert advantages == pytest.approx(expected)


@pytest.mark.parametrize(
    ("name", "options", "gradient"),  # d/dp of what is maximized, at p = .3 and n = 4
    [
        ("rloo", {}, 1.0),
        ("dr_grpo", {}, 3 / 4),
        ("maxrl", {}, 1 + 0.7 + 0.7**2),  # of log p = −Σ (1 − p)^k / k, up to order n − 1
        ("pkpo", {"k": 1}, 1.0),
        ("pkpo", {"k": 3}, 3 * 0.7**2),  # of 1 − (1 − p)^k
        ("pkpo", {"k": 3, "baseline": "none"}, 3 * 0.7**2),
    ],
)
def test_the_expected_gradient_over_all_groups(name, options, gradient):
    method, total = method_of(name, **options), 0.0
    for group in product([0, 1], repeat=4):
        correct, advantages = np.array(group) > 0, method.advantages(batch_of(group))
        total += np.where(correct, 0.3, 0.7).prod() * np.mean(
            advantages * np.where(correct, 1 / 0.3, -1 / 0.7)
        )
    assert total == pytest.approx(gradient)


def test_f_grpo_weighs_by_failures():
    weights = method_of("f_grpo", gamma=2.0).weights(batch_of([1, 0, 0, 0], [1, 1], [0, 0]))
    assert weights == pytest.approx([9 / 16, 0, 1])


def test_spo_compares_single_rollouts_with_the_tracked_rate():
    batch = batch_of([1], [0], [1], rates=[0.5, 0.5, 0.8])
    surprise = np.array([0.5, -0.5, 0.2])
    expected = (surprise - 0.2 / 3) / np.std(surprise)
    assert method_of("spo").advantages(batch) == pytest.approx(expected, rel=1e-3)


def test_dapo_waits_for_groups_with_both_outcomes():
    method, dull, both = method_of("dapo"), [1, 1], [1, 0]
    assert not method.ready(batch_of(both, dull, dull))
    assert not method.ready(batch_of(dull, dull, both))
    assert method.ready(batch_of(both, dull, both))  # 1 + 1 + 2 of 3
    assert not method.ready(batch_of(both, both, dull))  # counted from 0 again
    patient = method_of("dapo", groups=1, max_batches=3)
    assert [patient.ready(batch_of(dull)) for _ in range(4)] == [False, False, True, False]
    assert patient.ready(batch_of(both, dull))


# All of them


def controller_of(name, seed=0):
    options = {"rates": lambda keys: RATES[keys % 4]} if name == "oracle" else {}
    return GDROController(name, seed=seed, **options)


def test_a_pool_smaller_than_the_batch_is_drawn_whole_as_often_as_it_takes():
    for name in DRAWS:
        drawn = controller_of(name).draw(np.arange(3), 7)
        assert sorted(np.bincount(drawn).tolist()) == [2, 2, 3]
