"""The memorization gap of a training is less that of its base, by family."""

import numpy as np
import pandas as pd

from gdro_lab.experiments.scores import (
    first_of_each_family,
    format_gap,
    memorization_gaps,
    train_scores,
)

ROWS = [{"family": name, "uid": uid} for uid, name in enumerate("abaaba")]


def families(method, train, held_out, draw=0):
    rows = [
        {"world": "w", "configuration": method, "learning_rate": 1e-4, "replicate": draw}
        | {"family": name, "mean_at_8": held_out[name], "train_mean": train.get(name)}
        for name in held_out
    ]
    return pd.DataFrame(rows)


def with_gaps(*tables):
    rows = pd.concat(tables, ignore_index=True)
    return rows.assign(memorization_gap=memorization_gaps(rows))


def test_the_gap_is_less_that_of_the_base():
    scores = train_scores(ROWS, np.array([4, 4, 4, 2, 2, 2]), 4, {"a": 0.5, "b": 0.5})
    assert scores["train_mean"] == 0.75
    learned = scores["train_families"]
    assert learned == {"a": 0.75, "b": 0.75}
    base = families("base", {"a": 0.25, "b": 0.5}, {"b": 0.0, "a": 0.25})
    trained = families("grpo", learned, {"b": 0.5, "a": 0.25})
    table = with_gaps(trained, base, base.assign(replicate=1))
    gaps = table.set_index(["configuration", "replicate", "family"]).memorization_gap.sort_index()
    assert gaps["grpo", 0].to_dict() == {"a": 0.5, "b": -0.25}
    assert not gaps["base"].any()


def test_what_was_not_measured_is_not_printed():
    alone = with_gaps(families("grpo", {"a": 0.5}, {"a": 0.25, "b": 0.5}))
    assert alone.memorization_gap.isna().all()
    assert format_gap(alone, pd.Series({("w", "grpo"): 1e-4})) == ""


def test_gaps_are_printed_at_the_rates_of_the_table():
    tables = [families("base", {"a": 0.5}, {"a": 0.5}, draw) for draw in range(3)]
    tables += [families("grpo", {"a": 0.9}, {"a": 0.8 - draw / 10}, draw) for draw in range(3)]
    tables += [tables[-1].assign(learning_rate=2e-4, train_mean=0.0)]
    printed = format_gap(with_gaps(*tables), pd.Series({("w", "grpo"): 1e-4}))
    # gaps of .1, .2 and .3: Student's t with two degrees of freedom
    assert "| w       | grpo            | +0.200 (-0.048 … +0.448) |" in printed
    assert printed.count("grpo") == 1


def test_each_family_is_sampled_alike():
    assert [row["uid"] for row in first_of_each_family(ROWS, 2)] == [0, 1, 2, 4]
