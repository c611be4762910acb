"""Difficulty bins and every estimator, against references written in plain Python."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import beta

from gdro import DifficultyBins, StaticGroups
from gdro.bins import UNSEEN, move_bins


def visited(estimator, visits, k=8, history=50):
    """Estimate for one prompt after visits given as (successes, trials)."""
    bins = DifficultyBins(k=k, history=history, estimator=estimator)
    for successes, trials in visits:
        bins.update([7], [successes], [trials])
    return bins.pass_at_k([7])[0]


@pytest.mark.parametrize("visits", [[(0, 4)], [(1, 4), (3, 4)], [(2, 2), (0, 12), (5, 9)]])
def test_beta_is_the_posterior_mean_by_quadrature(visits):
    history, k, correct, wrong = 5, 8, 0.0, 0.0
    for s, n in visits:
        correct, wrong = 0.8 * correct + s, 0.8 * wrong + n - s
    density = beta(0.5 + correct, 0.5 + wrong)
    expected = quad(lambda p: (1 - (1 - p) ** k) * density.pdf(p), 0, 1)[0]
    assert visited("beta", visits, k, history) == pytest.approx(expected, abs=1e-6)


def test_any_of_k_reads_blocks_of_k_and_keeps_the_last_of_them():
    # ten rollouts with k = 4 are two blocks and two in the queue: all wrong, then all correct
    assert np.isnan(visited("any_of_k", [(0, 3)], k=4))
    assert visited("any_of_k", [(0, 3), (0, 1)], k=4) == 0.0
    assert visited("any_of_k", [(0, 10), (2, 2)], k=4) == pytest.approx(1 / 3)
    assert visited("any_of_k", [(0, 40)], k=4) == 0.0
    # a success counts in its own block alone, also where one visit fills several
    assert visited("any_of_k", [(1, 4)] * 3, k=1) == 0.25
    # 2 blocks of 0, 3 of 1: of the last three all are correct, of the last four three
    visits = [(0, 4)] * 2 + [(1, 4)] * 3
    assert [visited("any_of_k", visits, k=4, history=h) for h in (1, 3, 4)] == [1.0, 1.0, 0.75]


def move_by_hand(edges, current, value, margin):
    """One boundary at a time: past it only if the estimate is beyond it by the margin."""
    if current == UNSEEN:
        return sum(value >= edge for edge in edges)
    while current < len(edges) and value - edges[current] >= margin - 1e-12:
        current += 1
    while (
        current > 0 and edges[current - 1] - value > margin - 1e-12 and value < edges[current - 1]
    ):
        current -= 1
    return current


@given(
    st.lists(st.integers(1, 99), min_size=1, max_size=12, unique=True).map(sorted),
    st.integers(0, 20),
    st.lists(st.integers(0, 100), min_size=1, max_size=12),
)
def test_moves_are_those_worked_out_boundary_by_boundary(edges, margin, path):
    edges, current = np.array(edges) / 100, UNSEEN
    for value in path:
        moved = int(move_bins(np.array([current]), np.array([value / 100]), edges, margin / 100)[0])
        assert moved == move_by_hand(edges, current, value / 100, margin / 100)
        current = moved


def test_groups_are_those_named_never_change_and_resume():
    groups, restored = (StaticGroups([30, 10, 20], ["b", "a", "b"]) for _ in range(2))
    assert (groups.groups, groups.num_bins) == (["a", "b"], 2)
    for _ in range(3):
        groups.update([10, 20], [0, 4], [4, 4])
        assert groups.assign([30, 20, 10, 99]).tolist() == [1, 1, 0, UNSEEN]
    assert groups.pass_at_k([20])[0] > groups.pass_at_k([10])[0]
    restored.load_state_dict(groups.state_dict())
    np.testing.assert_equal(groups.state_dict(), restored.state_dict())
    for uids, labels in (([30, 10], ["b", "a"]), ([30, 10, 20], ["b", "a", "a"])):
        with pytest.raises(ValueError, match="20"):
            StaticGroups(uids, labels).load_state_dict(groups.state_dict())
    grown = StaticGroups([5, 30, 10, 20], ["a", "b", "a", "b"])
    grown.load_state_dict(groups.state_dict())
    assert grown.assign([30, 20, 10, 5]).tolist() == [1, 1, 0, 0]
    assert grown.pass_at_k([20]) == groups.pass_at_k([20])
    with pytest.raises(ValueError, match="settings"):
        StaticGroups([30, 10, 20], ["b", "c", "b"]).load_state_dict(groups.state_dict())
