"""The memory of a training is its gap minus that of its base, by family."""

import numpy as np
import pandas as pd
import pytest

from gdro_lab.experiments.memory import (
    accuracy_by_family,
    add_memory,
    first_of_each_family,
    format_memory,
)

ROWS = [{"family": name, "uid": uid} for uid, name in enumerate("abaaba")]


def families(method, train, held_out, draw=0):
    rows = [
        {"world": "w", "method": method, "learning_rate": 1e-4, "draw": draw}
        | {"family": name, "mean_at_8": held_out[name], "train": train.get(name)}
        for name in held_out
    ]
    return pd.DataFrame(rows)


def test_memory_is_the_gap_less_that_of_the_base():
    learned = accuracy_by_family(ROWS, np.array([4, 4, 4, 2, 2, 2]), 4)
    assert learned.to_dict() == {"a": 0.75, "b": 0.75}
    base = families("base", {"a": 0.25, "b": 0.5}, {"b": 0.0, "a": 0.25})
    table = pd.concat([families("grpo", learned, {"b": 0.5, "a": 0.25}), base, base.assign(draw=1)])
    table = add_memory(table.reset_index(drop=True))
    memory = table.set_index(["method", "draw", "family"]).memory.sort_index()
    assert memory["grpo", 0].to_dict() == {"a": 0.5, "b": -0.25}
    assert not memory["base"].any()


def test_what_was_not_measured_is_not_printed():
    alone = add_memory(families("grpo", {"a": 0.5}, {"a": 0.25, "b": 0.5}))
    assert alone.memory.isna().all()
    rates = pd.Series({("w", "grpo"): 1e-4})
    assert format_memory(alone, rates) == ""
    before = alone.drop(columns=["train", "memory"])
    assert add_memory(before) is before
    assert format_memory(before, rates) == ""


def test_memory_is_printed_at_the_rates_of_the_table():
    tables = [families("base", {"a": 0.5}, {"a": 0.5}, draw) for draw in range(3)]
    tables += [families("grpo", {"a": 0.9}, {"a": 0.8 - draw / 10}, draw) for draw in range(3)]
    tables += [tables[-1].assign(learning_rate=2e-4, train=0.0)]
    printed = format_memory(
        add_memory(pd.concat(tables, ignore_index=True)), pd.Series({("w", "grpo"): 1e-4})
    )
    # gaps of .1, .2 and .3: Student's t with two degrees of freedom
    assert "| w       | grpo     | +0.200 (-0.048 … +0.448) |" in printed
    assert printed.count("grpo") == 1


def test_each_family_is_sampled_alike():
    assert [row["uid"] for row in first_of_each_family(ROWS, 2)] == [0, 1, 2, 4]
    assert accuracy_by_family(ROWS[:1], np.array([3]), 4)["a"] == pytest.approx(0.75)
