"""What a training has memorized: accuracy on training prompts minus that on held-out ones.

A base has such a gap too, where its training prompts are easier than the held-out ones or were
taught, so it is subtracted. Gaps are of families: weighted by their shares, a rare family that is
memorized would not show.

Axes: P prompts.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from gdro_lab.experiments.blocks import BASE
from gdro_lab.experiments.intervals import paired_t
from gdro_lab.experiments.scores import places_in_family


def first_of_each_family(rows: Sequence[Mapping[str, Any]], most: int) -> list[Mapping[str, Any]]:
    """The first rows of each family, at most so many; of shuffled rows, a random sample."""
    places_P = places_in_family([row["family"] for row in rows])
    return [row for row, place in zip(rows, places_P, strict=True) if place < most]


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


def train_scores(
    rows: Sequence[Mapping[str, Any]],
    successes_P: np.ndarray,
    samples: int,
    shares: Mapping[str, float],
) -> dict[str, Any]:
    """The columns train_mean, weighted as in training, and train_families of a row of scores.

    Args:
        rows, successes_P, samples: as for `accuracy_by_family`.
        shares: each family's share of the training prompts.
    """
    families = accuracy_by_family(rows, successes_P, samples)
    mean = (families * pd.Series(shares)).sum()
    return {"train_mean": float(mean), "train_families": families.to_dict()}


def add_memory(families: pd.DataFrame) -> pd.DataFrame:
    """The table of families with a column more: (train − held out), minus the same for the base.

    Args:
        families: a row per world, method, learning rate, draw and family, with held-out accuracy
            as mean_at_8 and accuracy on training prompts as train.

    Returns:
        The table with the column memory: NaN where a draw has no base, or a family no training
        prompts. Runs from before training prompts were scored by family have no column train, and
        their table is returned as it is.
    """
    if "train" not in families:
        return families
    gaps = families.assign(gap=families.train - families.mean_at_8)
    same_prompts = ["world", "draw", "family"]
    of_base = gaps[gaps.method == BASE].set_index(same_prompts).gap.rename("gap_of_base")
    return families.assign(memory=gaps.gap - gaps.join(of_base, on=same_prompts).gap_of_base)


def format_memory(families: pd.DataFrame, rates: pd.Series) -> str:
    """Memory as Markdown, a row a method and a column a family; "" where there is none.

    Args:
        families: the result of `add_memory`.
        rates: the learning rate of each method that is printed, by world and method.
    """
    if "memory" not in families or families.memory.isna().all():
        return ""
    cells: dict[tuple[str, str], dict[str, str]] = {}
    keys = ["world", "method", "learning_rate", "family"]
    for (world, method, rate, family), rows in families.groupby(keys):
        if method == BASE or rates.get((world, method)) != rate:
            continue
        interval = paired_t(rows.memory.dropna())
        text = f"{rows.memory.mean():+.3f}"
        if not np.isnan(interval.low):
            text += f" ({interval.low:+.3f} … {interval.high:+.3f})"
        cells.setdefault((world, method), {})[f"{family}"] = text
    table = pd.DataFrame.from_dict(cells, orient="index").rename_axis(["world", "method"])
    return (
        "\nMemory by family: accuracy on training prompts minus that on held-out ones, minus the "
        "same for the base; mean over draws, 95% interval (Student's t, not corrected).\n\n"
        f"{table.reset_index().to_markdown(index=False, disable_numparse=True)}\n"
    )
