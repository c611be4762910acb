"""Scores where two runs have spent the same."""

import pandas as pd
import pytest

from gdro.checks import Refusal
from gdro_lab.experiments.costs import scores_at_equal_cost


def courses_of(**courses):
    """Checkpoints (spent, score) of each replicate, called r1, r2, …"""
    rows = [(int(name[1:]), *point) for name, course in courses.items() for point in course]
    return pd.DataFrame(rows, columns=["replicate", "spent", "score"])


BASE = courses_of(r1=[(0, 0.2)], r2=[(7, 0.2)], r3=[(0, 0.2)])
GRPO = courses_of(r1=[(10, 0.4), (20, 0.5)], r2=[(4, 0.3)], r3=[(4, 0.3)])


def test_the_one_that_spends_less_sets_the_cost():
    other = courses_of(r1=[(5, 0.3), (15, 0.6)], r2=[(20, 0.6), (10, 0.4)])
    pairs = scores_at_equal_cost(BASE, other, GRPO)
    # 1: at 15; 2: at 4, between the base, which has spent nothing, and ten; 3 has no pair
    assert pairs.index.tolist() == [1, 2]
    assert pairs.score.tolist() == pytest.approx([0.6, 0.28])
    assert pairs.baseline.tolist() == pytest.approx([0.45, 0.3])
    assert pairs.spent.tolist() == [15, 4]


def test_runs_that_do_not_say_what_they_spent_are_refused():
    with pytest.raises(Refusal, match="replicate 1"):
        scores_at_equal_cost(BASE, courses_of(r1=[(float("nan"), 0.6)]), GRPO)
