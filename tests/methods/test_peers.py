"""The methods of others, in gdro/peers and examples/peers.py: a case by hand for each."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from helpers import batch_of, first_drawn, method_of, prompts_of, visit
from scipy.stats import beta

from gdro import GDROController, StaticGroups

PILOT = {"pilot": 4, "mean_rollouts": 5}
MEDIUM = PILOT | {"low": 0.3, "high": 0.6}


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


# two weights w and 1: the first of two prompts is drawn with probability w / (w + 1)
@pytest.mark.parametrize(
    ("name", "options", "rates", "weight"),
    [
        ("dots", {"temperature": 0.2}, [0.5, 0.1], np.exp(0.4 / 0.2)),
        ("dots", {"temperature": 0.5, "target": 0.3}, [0.5, 0.9], np.exp(0.4 / 0.5)),
        ("cures", {"temperature": 0.1}, [0.5, 0.1], np.exp((0.5 - 0.3) / 0.1)),
        ("spo", {"epsilon": 0.1}, [0.5, 0.1], 0.6 / 0.4),
        # shares of p(1 − p)², 1/8 and 3/64
        ("oracle", {"k": 3, "epsilon": 0.2}, [0.5, 0.75], (6.4 + 1.1) / (2.4 + 1.1)),
    ],
)
def test_prompts_are_drawn_in_proportion(name, options, rates, weight):
    method = method_of(name, **options)
    if name == "oracle":
        method.rates = lambda uids: np.array(rates)[uids]
    first = np.mean(first_drawn(method, prompts_of(rates)) == 0)
    assert first == pytest.approx(weight / (weight + 1), abs=0.025)


def test_greso_skips_the_more_the_longer_nothing_was_learned():
    method, pool = method_of("greso", floor=0.2), prompts_of([0.5, 0.5, 0.5, 0.5])
    for group in ([1, 1], [0, 0], [0, 0]):
        method.update(batch_of(group, [0, 1], [0, 0], [1, 1]))
    method.update(batch_of([1, 0], [0, 0], [0, 0]))
    assert method.streak_D[:4].tolist() == [0, 1, 4, 3]
    assert method.keep_probability(pool) == pytest.approx([1, 0.5, 0.2, 0.2])
    method.update(batch_of([1, 0], [0, 0]))
    twice = replace(batch_of([0, 0], [1, 0]), rows_P=np.array([1, 1]))
    method.update(twice)  # one visit
    assert method.streak_D[:4].tolist() == [0, 0, 4, 3]
    method.update(batch_of([1, 0], [0, 0]))
    # the first of prompts 0 and 1: 1 if kept in the same pass as 0 and ahead by the order, ½ · ½
    first = first_drawn(method, prompts_of([0.5, 0.5]))
    assert np.mean(first) == pytest.approx(0.25, abs=0.025)


def test_sec_moves_by_mean_advantage_and_draws_bins_by_softmax():
    method = method_of("sec", step=0.5, temperature=0.25)
    # |A| in bin 0: 1 for the four rollouts of one prompt, 0 for another's; in bin 2: 0; no bin: 1
    method.update(batch_of([0, 1, 0, 1], [0] * 4, [1] * 4, [1, 0], bins=[0, 0, 2, -1]))
    assert method.values_N == pytest.approx([0.5, 0.25, 0.0, 0.0], abs=1e-3)
    drawn = first_drawn(method, prompts_of([0.5] * 4, bins=[0, 2, 2, 2]))
    share = np.e / (np.e + 1)  # exp(.25/.25) against 1
    assert np.mean(drawn == 0) == pytest.approx(share, abs=0.025)
    assert np.bincount(drawn)[1:].min() > 250  # a bin's prompts evenly, about 360 each


def test_families_are_drawn_evenly_whatever_their_sizes():
    families = ["a"] * 90 + ["b"] * 9 + ["c"] * 3
    uids = [f"prompt {i}" for i in range(102)]
    controller = GDROController("family_even", bins=StaticGroups(uids, families))
    for size, counts in ((9, [3, 3, 3]), (21, [9, 9, 3]), (102, [90, 9, 3])):
        drawn = controller.draw(uids, size)
        assert [[families[d] for d in drawn].count(family) for family in "abc"] == counts
        assert len(set(drawn)) == size


def test_shares_of_families_are_exact_over_batches():
    """3.5, 2.625 and .875 of seven prompts; "c" has one prompt, which comes again."""
    families = ["a"] * 40 + ["b"] * 10 + ["c"]
    uids = np.arange(len(families))
    shares = {"c": 0.125, "a": 0.5, "b": 0.375}

    def make():
        return GDROController("family_even", bins=StaticGroups(uids, families), shares=shares)

    controller, counts = make(), np.zeros(3)
    for step in range(1, 17):
        drawn = controller.draw(uids, 7)
        counts += [[families[d] for d in drawn].count(family) for family in "abc"]
        assert (np.abs(counts - 7 * step * np.array([0.5, 0.375, 0.125])) < 1).all()
        visit(controller, uids[drawn], [1] * 7)
        if step == 5:
            state = controller.state_dict()
            shares = dict(reversed(shares.items()))
            controller = make()
            controller.load_state_dict(state)
    assert counts.tolist() == [56, 42, 14]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"shares": {"a": 0.5, "b": 0.4}}, "shares.*sum to 1"),
        ({"shares": {"a": 0.5, "d": 0.5}}, r"shares.*\['a', 'b'\].*'d'"),
        ({"bins": None, "shares": {"a": 0.5, "b": 0.5}}, "shares.*StaticGroups"),
    ],
)
def test_shares_that_do_not_fit_the_families_are_refused(changes, named):
    bins = StaticGroups([1, 2], ["a", "b"])
    with pytest.raises(ValueError, match=named):
        GDROController("family_even", **{"bins": bins} | changes).draw([1, 2], 1)


@pytest.mark.parametrize(
    ("name", "low", "value"),  # of n rollouts at pass rate p, the larger the better
    [
        ("knapsack", 2, lambda n, p: (1 - p**n - (1 - p) ** n) * p * (1 - p) ** 2),
        ("vip", 3, lambda n, p: -4 * p * (1 - p) * (n - 1) / n**2),
        # at the start F̃ = 1 and α = 9.5
        ("coba", 2, lambda n, p: (1 - np.exp(-n * p * (1 - p))) * beta(9.5, 1.5).pdf(p)),
    ],
)
@pytest.mark.parametrize("rates", [[0.5, 0.25, 0.9], [0.6, 0.05, 0.3]])
def test_rollouts_are_the_best_of_all_divisions(name, low, value, rates):
    method, budget = method_of(name, n_min=2), 15
    method.share_D = np.array(rates)
    got = method.allocate(prompts_of(rates), budget, np.random.default_rng(0))
    assert (got.sum(), got.min() >= low) == (budget, True)
    divisions = [n for n in product(range(low, 13), repeat=3) if sum(n) == budget]
    worth = [sum(map(value, n, rates)) for n in (*divisions, got.tolist())]
    assert worth[-1] == pytest.approx(max(worth))


@pytest.mark.parametrize("name", ["knapsack", "exgrpo", "dbb", "greso"])
def test_a_prompt_that_comes_twice_counts_by_both_in_any_order(name):
    """Of uids (5, 5, 6), the first 5 has no success and the other four."""
    states = []
    for hits in ([0, 4, 1], [4, 0, 1]):
        controller = GDROController(name, 4, seed=0)
        visit(controller, [5, 5, 6], hits)
        states.append(controller.method.state_dict())
    np.testing.assert_equal(*states)


def test_coba_prefers_harder_prompts_as_failures_fall():
    method = method_of("coba", window=2)
    assert method.alpha == 9.5
    method.update(batch_of([1, 0, 0, 0], [1, 1]))  # F̄ = .375, F̃ = 1/(1 + e^1.25) = .2227
    assert method.alpha == pytest.approx(1.5 + 8 * 0.222700139)
    method.update(batch_of([0, 0]))  # F̄ = .6875 = F̃
    assert method.alpha == pytest.approx(7.0)
    method.update(batch_of([0, 0]))  # the first is forgotten
    assert method.alpha == 9.5


@pytest.mark.parametrize(
    ("name", "options", "groups", "left", "further"),
    [
        # a = ¼: ⌈4 (4/3 − 1)⌉ = 2; a = 0 all room, 8; none from ½ on: 1.6 and 6.4 of 8
        ("dars", PILOT, ([1, 0, 0, 0], [0] * 4, [1, 1, 0, 0], [1] * 4), 8, [2, 6, 0, 0]),
        # what is asked for, then the rest evenly
        ("dars", PILOT, ([1, 0, 0, 0], [1] * 4, [1, 1, 0, 0]), 5, [3, 1, 1]),
        ("dars", {}, ([1, 0], [1, 1]), 4, [2, 2]),
        ("pilot_commit", PILOT, ([1, 0, 0, 0], [0] * 4, [1, 1, 1, 0], [1] * 4), 8, [4, 0, 4, 0]),
        ("pilot_commit", PILOT, ([0] * 4, [1, 1, 0, 0]), 20, [0, 8]),  # no more than n_max in all
        ("pilot_commit", MEDIUM, ([1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0]), 4, [0, 4, 0]),
        ("reinforce_ada", {}, ([1, 0, 1, 0], [0, 0], [1, 1, 0], [0, 0, 0, 0, 1]), 9, [0, 2, 2, 2]),
        ("reinforce_ada", {"keep": 2}, ([1, 0], [0, 0], [1, 1], [0, 0, 1]), 9, [0, 2, 2, 0]),
        ("reinforce_ada", {"keep": 3}, ([1, 0, 0], [1, 1, 0]), 9, [0, 2]),  # one correct, two wrong
        ("reinforce_ada", {}, ([1] * 11, [0] * 12), 9, [1, 0]),
        ("reinforce_ada", {"keep": 2}, ([1, 0], [0, 1]), 4, None),
    ],
)
def test_what_a_round_adds(name, options, groups, left, further):
    method = method_of(name, **options)
    answer = method.extend(batch_of(*groups), left, np.random.default_rng(0))
    assert answer is further is None or answer.tolist() == further


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("dr_grpo", {}, [3 / 4, -1 / 4, -1 / 4, -1 / 4, 1 / 2, -1 / 2, 0, 0]),
        ("dars", {}, [3 / 4, -1 / 4, -1 / 4, -1 / 4, 1 / 2, -1 / 2, 0, 0]),
        ("reinforce_ada", {}, [3 / 4, -1 / 4, -1 / 4, -1 / 4, 1 / 2, -1 / 2, 0, 0]),
        ("reinforce_ada", {"keep": 2}, [3 / 4, -1 / 4, 0, 0, 1 / 2, -1 / 2, 0, 0]),
        # lower medians 0, MAD 0
        ("mc_grpo", {}, [1000, 0, 0, 0, 1000, 0, 0, 0]),
        # ρ = ½: ½/½ and (½ − 2/3)/½; in the group of two ρ = 1
        ("passk_training", {}, [1, -1 / 3, -1 / 3, -1 / 3, 0, 0, 0, 0]),
        ("rloo", {}, [1, -1 / 3, -1 / 3, -1 / 3, 1, -1, 0, 0]),
        ("maxrl", {}, [3, -1, -1, -1, 1, -1, 0, 0]),
        ("nsr", {}, [0.1, -1, -1, -1, 0.1, -1, -1, -1]),
        ("nsr", {"positive": 0.0}, [0, -1, -1, -1, 0, -1, -1, -1]),
        ("pkpo", {}, [2, 0, 0, 0, 2, 0, 0, 0]),
        # of k = 3 the other two are wrong: 3 (1 − ρ(3, 0, 2)); groups of two are held to k = 2
        ("pkpo", {"k": 3}, [3, 0, 0, 0, 2, 0, 0, 0]),
        ("pkpo", {"k": 1}, [1, -1 / 3, -1 / 3, -1 / 3, 1, -1, 0, 0]),
    ],
)
def test_advantages_by_hand(name, options, expected):
    advantages = method_of(name, **options).advantages(batch_of([1, 0, 0, 0], [1, 0], [0, 0]))
    assert advantages == pytest.approx(expected)


def test_dbb_remembers_and_forgets():
    method, batch = method_of("dbb", discount=0.5), batch_of([1, 0, 0, 0])
    method.update(batch)  # α = 1.5, β = 3.5: p̂ = .3
    sigma = np.sqrt(0.21)
    assert method.advantages(batch) == pytest.approx(np.array([0.7, -0.3, -0.3, -0.3]) / sigma)
    batch = batch_of([0, 0], [1, 1])
    method.update(batch)  # α = .75, β = 3.75: p̂ = 1/6; a new prompt: α = 2.5, β = .5
    expected = [-1 / 6 / np.sqrt(5 / 36)] * 2 + [1 / 6 / np.sqrt(5 / 36)] * 2
    assert method.advantages(batch) == pytest.approx(expected)


def test_bbg_weighs_by_what_pass_at_k_can_gain():
    # u = 16 · 5/20, 16 · 4·5/(19·20), 16 · 3·4·5/(18·19·20), then .017 and .001, below .01 · 5
    batch = batch_of([0] * 4, [1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1] * 4)
    assert method_of("bbg").weights(batch) == pytest.approx([19 / 4, 1, 3 / 18, 0, 0])
    assert method_of("bbg", k=1).weights(batch) == pytest.approx([1] * 5)
    weights = method_of("f_grpo", gamma=2.0).weights(batch_of([1, 0, 0, 0], [1, 1], [0, 0]))
    assert weights == pytest.approx([9 / 16, 0, 1])


def test_spo_compares_single_rollouts_with_the_tracked_rate():
    batch = batch_of([1], [0], [1], rates=[0.5, 0.5, 0.8])
    surprise = np.array([0.5, -0.5, 0.2])
    expected = (surprise - 0.2 / 3) / np.std(surprise, ddof=1)
    assert method_of("spo").advantages(batch) == pytest.approx(expected, rel=1e-3)


def test_dapo_waits_for_groups_with_both_outcomes():
    def steps(method, *groups):
        method.update(batch_of(*groups))
        return method.ready(batch_of(*groups))

    method, dull, both = method_of("dapo"), [1, 1, 1], [1, 0]
    assert not steps(method, both, dull, dull)
    assert method.report() == {"discarded": 6}
    assert not steps(method, dull, dull, both)
    assert steps(method, both, dull, both)  # 1 + 1 + 2 of 3
    assert method.report() == {"discarded": 3}
    assert not steps(method, both, both, dull)  # counted from 0 again
    patient = method_of("dapo", groups=1, max_batches=3)
    assert [steps(patient, dull) for _ in range(4)] == [False, False, True, False]
    assert steps(patient, both)


def test_dapo_without_sampling_again_says_what_the_loss_is_a_mean_of():
    """Of 8 rollouts, 4 are of a group that teaches."""
    told = {}
    for denominator in ("all", "kept"):
        controller = GDROController("dapo", max_batches=1, denominator=denominator)
        assert not controller.method.waits
        plan = controller.plan([1, 2])
        observed = controller.observe(plan, [0] * 4 + [1] * 4, [1, 0, 0, 0] + [1] * 4)
        assert observed.ready
        told[denominator] = observed.advantages
    grpo = GDROController("grpo")
    same = grpo.observe(grpo.plan([1, 2]), [0] * 4 + [1] * 4, [1, 0, 0, 0] + [1] * 4)
    assert told["all"].tolist() == same.advantages.tolist()
    assert told["kept"].tolist() == (2 * told["all"]).tolist()
    with pytest.raises(ValueError, match="denominator"):
        GDROController("dapo", denominator="kept")


def test_knapsack_gives_what_is_left_to_the_unsolved():
    # the prompt in between needs log(.1)/log(.5) = 3.3 rollouts beside its two, so 3 are set aside
    method = method_of("knapsack", n_min=2)
    method.share_D = np.array([0.0, 1.0, 0.5])
    rollouts = method.allocate(prompts_of([0.0, 1.0, 0.5]), 15, np.random.default_rng(0))
    assert rollouts.tolist() == [8, 2, 5]


def test_a_first_visit_counts_for_the_arm_without_a_bin_in_sec():
    # as the controller gives it: the bin just reached, and had_no_bin
    first = replace(batch_of([0, 1], bins=[1]), had_no_bin_P=np.array([True]))
    method = method_of("sec", step=1.0)
    method.update(first)
    assert method.values_N[0] > 0.9
    assert not method.values_N[1:].any()


def test_exgrpo_draws_by_the_density_of_a_normal_distribution():
    method = method_of("exgrpo", rho=1.0)
    method.started = True
    method.share_D = np.array([0.5, 0.01])
    pool = prompts_of([0.5, 0.5])
    drawn = [method.draw(pool, 1, np.random.default_rng(seed))[0] for seed in range(6000)]
    expected = 1 / (1 + np.exp(-(0.49**2) / 2))
    assert np.mean(np.equal(drawn, 0)) == pytest.approx(expected, abs=0.015)
