"""What the notebooks 01 to 03 simulate, against independent computation; bad parameters."""

import numpy as np
import pytest
from scipy.stats import beta as beta_law

from gdro import theory
from gdro.bins import DifficultyBins, move_bins
from gdro.controller import GDROController
from gdro.groups import StaticGroups
from gdro.teaching import binning_study as study
from gdro.teaching import regret_study
from gdro.teaching.exercises import EXERCISES, check


def test_bounded_pass_at_k_is_the_quantile_of_pass_at_k():
    rng = np.random.default_rng(0)
    draws = 1 - (1 - beta_law.rvs(3.5, 7.5, size=200_000, random_state=rng)) ** 4
    assert study.bounded_pass_at_k(3, 7, 4, 0.2) == pytest.approx(np.quantile(draws, 0.2), abs=0.005)


@pytest.mark.parametrize("n", [1, 2, 4, 12])
def test_any_of_n_estimates_pass_at_n_and_the_others_pass_at_k(n):
    rng = np.random.default_rng(n)
    p, k, visits = 0.15, 8, 400
    trials = np.full((visits, 200), n)
    right = rng.binomial(trials, p)
    mean = {name: study.run_estimator(name, right, trials, k, visits)[-1].mean() for name in study.STUDIED}
    assert mean["any_of_n"] == pytest.approx(1 - (1 - p) ** n, abs=0.01)
    for name in ("beta", "unbiased", "any_of_k"):
        assert mean[name] == pytest.approx(1 - (1 - p) ** k, abs=0.03 if n == 1 else 0.015)
    assert mean["beta_bound"] < mean["beta"]


def test_mean_track_and_lag():
    estimates = np.array([[np.nan, np.nan], [1.0, np.nan], [1.0, 3.0]])
    np.testing.assert_array_equal(study.mean_track(estimates), [np.nan, 1.0, 2.0])
    truth = np.tile(np.sin(np.linspace(0, 3, 200))[:, None], 3)
    late = np.roll(truth, 11, axis=0)
    assert study.lag(late, truth, 40) == 11


def test_churn_and_confusion_by_hand():
    bins = np.array([[0, 1], [1, 1], [0, 1], [0, 0]])
    assert study.churn(bins) == pytest.approx(100 * 3 / 6)
    table = study.confusion(np.array([0, 0, 1]), np.array([0, 1, 1]), 3)
    np.testing.assert_allclose(table[:2], [[0.5, 0.5, 0], [0, 1, 0]])
    assert np.isnan(table[2]).all()


def test_move_bins_takes_leading_axes():
    rng = np.random.default_rng(0)
    current, estimate = rng.integers(-1, 4, (3, 5)), rng.random((3, 5))
    together = move_bins(current, estimate, np.array([0.25, 0.5, 0.75]), 0.05)
    for row in range(3):
        np.testing.assert_array_equal(
            together[row], move_bins(current[row], estimate[row], np.array([0.25, 0.5, 0.75]), 0.05)
        )


def test_seen_share_counts_epochs():
    seen = study.seen_share(100, 20, 12, 2)
    np.testing.assert_allclose(seen[:5], 0)
    np.testing.assert_allclose(seen[5:10], [0.2, 0.4, 0.6, 0.8, 1.0])


def test_hedge_regret_by_hand_and_within_its_bound():
    losses = np.array([[[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]])
    q = [0.5, 1 / (1 + np.exp(-1)), 1 / (1 + np.exp(-2))]  # on arm 1, at eta 1
    wanted = (1 - q[0]) + (1 - q[1]) + q[2] - 1
    assert regret_study.hedge_regret(losses, eta=1.0)[0] == pytest.approx(wanted)
    rng = np.random.default_rng(1)
    for kind in regret_study.KINDS:
        drawn = regret_study.draw_losses(kind, 20, 300, 4, rng)
        assert regret_study.hedge_regret(drawn).max() <= theory.hedge_regret_bound(4, 300)
        assert np.quantile(regret_study.exp3p_regret(drawn, rng), 0.95) <= theory.exp3p_regret_bound(4, 300)


def test_exp3p_learns_in_the_long_run():
    rng = np.random.default_rng(0)
    drawn = regret_study.draw_losses("one arm is better", 30, 6000, 2, rng)
    assert (
        regret_study.exp3p_regret(drawn, rng).mean() < 0.6 * 6000 * 0.05
    )  # playing evenly costs 0.05 a step


# ---- static groups ----------------------------------------------------------------------------


def test_static_groups_serve_the_controller_as_bins_do():
    uids = ["a", "b", "c", "d"]
    groups = StaticGroups(uids, ["hard", "easy", "easy", "hard"], groups=["hard", "easy"])
    controller = GDROController("both", bins=groups)
    assert controller.num_bins == 2
    rollouts = controller.plan(uids)
    assert rollouts.sum() == 16
    ids = np.repeat(np.arange(4), rollouts)
    rewards = (np.isin(ids, [1, 2])).astype(float)
    row = controller.observe(uids, ids, rewards)
    assert row["unseen"] == 0
    assert row["share"] == [0.5, 0.5]
    weights = controller.weights(["a", "b"])
    assert weights[0] > weights[1]
    np.testing.assert_array_equal(groups.assign(["d", "b", "?"]), [0, 1, -1])


def test_static_groups_save_and_load():
    def make(labels=(0, 1, 1)):
        return StaticGroups([10, 20, 30], labels, groups=[0, 1])

    first, second = make(), make()
    first.update([10, 20], [1, 0], [4, 4])
    second.load_state_dict(first.state_dict())
    np.testing.assert_array_equal(first.pass_at_k([10, 20, 30]), second.pass_at_k([10, 20, 30]))
    np.testing.assert_array_equal(second.assign([10, 20, 30]), [0, 1, 1])
    with pytest.raises(ValueError, match="settings"):
        make((1, 1, 1)).load_state_dict(first.state_dict())


@pytest.mark.parametrize(
    ("uids", "labels", "groups", "word"),
    [
        ([], [], None, "at least one"),
        ([1, 1], "ab", None, "twice"),
        ([1, 2], "ab", ["a"], "not among"),
        ([1], "ab", None, "one per uid"),
    ],
)
def test_bad_static_groups_are_refused(uids, labels, groups, word):
    with pytest.raises(ValueError, match=word):
        StaticGroups(uids, labels, groups)


# ---- exercises and bad parameters -------------------------------------------------------------


@pytest.mark.parametrize("exercise", EXERCISES)
def test_exercises_know_right_from_wrong(exercise):
    solve, hint = EXERCISES[exercise]
    answer = solve()
    assert check(exercise, answer) == f"{exercise}: right."
    assert hint in check(exercise, 1.5 * np.asarray(answer) + 1)
    assert "no answer yet" in check(exercise, None)


def test_bad_exercises_are_refused():
    with pytest.raises(ValueError, match="01a"):
        check("99z", 1)
    with pytest.raises(ValueError, match="number"):
        check("01a", "about a third")


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: study.true_pass_at_k(0.1, 0), ["k", "0"]),
        (lambda: study.bounded_pass_at_k(1, 1, 8, 0.0), ["level", "0.0"]),
        (lambda: study.pass_rates(0, 5, 1.0, np.random.default_rng(0)), ["num_prompts", "0"]),
        (lambda: study.pass_rates(5, 5, 1.0, np.random.default_rng(0), low=0.9, high=0.1), ["low", "0.9"]),
        (lambda: study.run_estimator("magic", [[1]], [[2]]), ["name", "magic"]),
        (lambda: regret_study.draw_losses("odd", 1, 5, 2, None), ["kind", "odd"]),
        (lambda: regret_study.draw_losses("one arm is better", 1, 0, 2, None), ["horizon", "0"]),
        (lambda: DifficultyBins([]), ["edges", "[]"]),
    ],
)
def test_bad_parameters_are_refused_with_field_and_value(call, words):
    with pytest.raises(ValueError) as caught:
        call()
    for word in words:
        assert word in str(caught.value)
