"""The memory of a training is its gap less that of its base, by family."""

import numpy as np
import pandas as pd
import pytest

from gdro_lab.tasks.memory import (
    Accuracy,
    accuracy_by_family,
    first_of_each_family,
    memory_by_family,
)

ROWS = [{"family": name, "uid": uid} for uid, name in enumerate("abaaba")]


def test_memory_is_the_gap_less_that_of_the_base():
    held_out = [{"family": "b"}, {"family": "a"}]  # in another order
    model = Accuracy(
        accuracy_by_family(ROWS, np.array([4, 4, 4, 2, 2, 2]), 4),  # a: 3/4, b: 3/4
        accuracy_by_family(held_out, np.array([2, 1]), 4),  # a: 1/4, b: 1/2
    )
    base = Accuracy(
        accuracy_by_family(ROWS, np.array([1, 2, 1, 1, 2, 1]), 4),  # a: 1/4, b: 1/2
        accuracy_by_family(held_out, np.array([0, 1]), 4),  # a: 1/4, b: 0
    )
    memory = memory_by_family(model, base)
    assert memory.to_dict() == {"a": 0.5, "b": -0.25}
    assert not memory_by_family(base, base).any()
    with pytest.raises(ValueError, match="families"):
        memory_by_family(model, base._replace(held_out=pd.Series({"a": 0.0})))


def test_each_family_is_sampled_alike():
    assert [row["uid"] for row in first_of_each_family(ROWS, 2)] == [0, 1, 2, 4]
