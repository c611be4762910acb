"""What a training has learned by heart: accuracy on training prompts less that on held-out ones.

A base has such a gap too, where its training prompts are easier than the held-out ones or were
taught, so it is subtracted. Gaps are of families: weighted by their shares, a rare family that is
known by heart would not show.

Axes: P prompts.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd


class Accuracy(NamedTuple):
    """Of one model, by family."""

    train: pd.Series
    held_out: pd.Series


def first_of_each_family(rows: Sequence[Mapping[str, Any]], most: int) -> list[Mapping[str, Any]]:
    """The first rows of each family, at most so many; of shuffled rows, a random sample."""
    counts: dict[str, int] = {}
    chosen = []
    for row in rows:
        counts[row["family"]] = counts.get(row["family"], 0) + 1
        if counts[row["family"]] <= most:
            chosen.append(row)
    return chosen


def accuracy_by_family(
    rows: Sequence[Mapping[str, Any]], successes_P: np.ndarray, samples: int
) -> pd.Series:
    """The mean accuracy on the prompts of each family.

    Args:
        rows: the prompts.
        successes_P: correct completions of each.
        samples: completions of each.
    """
    families = [row["family"] for row in rows]
    return pd.Series(np.asarray(successes_P) / samples).groupby(families).mean()


def memory_by_family(model: Accuracy, base: Accuracy) -> pd.Series:
    """(train − held out) of the model less that of its base, by family.

    Raises:
        ValueError: if the four accuracies are not of the same families.
    """
    series = (*model, *base)
    names = [sorted(accuracy.index) for accuracy in series]
    if any(name != names[0] for name in names):
        raise ValueError(f"accuracies must be of the same families, got {names}")
    return (model.train - model.held_out) - (base.train - base.held_out)
