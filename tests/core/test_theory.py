"""Closed forms, each against a brute force or a number worked out by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from gdro import theory


def test_allocation_by_hand():
    assert theory.variance_proxy([1.0, 4.0], [0.25, 0.75], [2, 6]) == pytest.approx(0.625)
    assert theory.square_root_allocation([1.0, 4.0], [0.5, 0.5], 3) == pytest.approx([2.0, 4.0])


@given(
    st.integers(1, 8).flatmap(lambda size: arrays(float, (2, size), elements=st.floats(0.01, 1)))
)
def test_square_root_allocation_meets_the_budget_and_the_price(table):
    variances, shares = table[0], table[1] / table[1].sum()
    allocation = theory.square_root_allocation(variances, shares, 4.0)
    price = theory.shadow_price(variances, shares, 4.0)
    assert shares @ allocation == pytest.approx(4.0)
    assert theory.demand_at_price(variances, price) == pytest.approx(allocation)


def test_staircase_is_the_brute_force_and_falls_with_the_price():
    variances, arms = np.array([0.25, 0.1, 0.0, 0.02]), np.arange(2, 13)
    prices = np.geomspace(1e-5, 1.0, 300)
    taken = theory.staircase(np.broadcast_to(variances, (300, 4)), prices, arms)
    for price, row in zip(prices, taken, strict=True):
        for v, n in zip(variances, row, strict=True):
            costs = {int(arm): v / arm + price * arm for arm in arms}
            assert n == min(costs, key=costs.get)
            assert abs(n - np.clip(np.sqrt(v / price), 2, 12)) <= 1  # (31), to the next arm
    assert (np.diff(taken, axis=0) <= 0).all()
    assert set(taken[:, 0]) == set(arms.tolist())  # every stair is trodden
    # 12/n + 2n is 10 at n = 2 and n = 3, exactly: the smaller arm
    assert theory.staircase([12.0], 2.0, [1, 2, 3, 4]).tolist() == [2]


@given(arrays(float, st.integers(1, 8), elements=st.floats(-5, 5)), st.floats(0.1, 20))
def test_the_soft_worst_case_lies_between_its_bounds(losses, eta):
    lower, upper = theory.soft_worst_case_bounds(losses, eta)
    value, _ = theory.soft_worst_case(losses, eta)
    assert lower - 1e-9 <= value <= upper + 1e-9
    assert lower == losses.max()
    assert upper - lower == pytest.approx(np.log(len(losses)) / eta, abs=1e-9)
