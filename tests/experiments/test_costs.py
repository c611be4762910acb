"""Scores where two runs have spent the same."""

import pandas as pd
import pytest

from gdro_lab.experiments.costs import pairs_at_equal_cost


def rows_of(replicate, **courses):
    """Checkpoints (seconds, score) of each configuration."""
    return [
        {"replicate": replicate, "configuration": name, "seconds": seconds, "mean_at_8": score}
        for name, course in courses.items()
        for seconds, score in course
    ]


def test_the_one_that_spends_less_sets_the_cost():
    rows = rows_of(1, base=[(0, 0.2)], grpo=[(10, 0.4), (20, 0.5)], other=[(5, 0.3), (15, 0.6)])
    rows += rows_of(2, base=[(7, 0.2)], grpo=[(4, 0.3)], other=[(20, 0.6), (10, 0.4)])
    rows += rows_of(3, base=[(0, 0.2)], grpo=[(4, 0.3)])  # one of the pair is missing
    pairs = pairs_at_equal_cost(pd.DataFrame(rows), "other", "grpo", "seconds", "mean_at_8")
    assert pairs.index.tolist() == [1, 2]
    # 1: at 15 seconds; 2: at 4, between the base, which has spent nothing, and ten seconds
    assert pairs.score.tolist() == pytest.approx([0.6, 0.28])
    assert pairs.baseline.tolist() == pytest.approx([0.45, 0.3])
    assert pairs.spent.tolist() == [15, 4]
