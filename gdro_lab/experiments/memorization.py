"""The memorization gap: accuracy on training prompts minus that on held-out ones.

The base has such a gap too, where the training prompts are easier than the held-out ones or were
taught, so the base's gap is subtracted. A gap is that of a family: in a mean weighted by shares, a
rare family that is memorized would not show.

Axes: P prompts.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from gdro_lab.experiments.blocks import BASE
from gdro_lab.experiments.scores import places_in_family
from gdro_lab.intervals import paired_t


def first_of_each_family(rows: Sequence[Mapping[str, Any]], most: int) -> list[Mapping[str, Any]]:
    """The first rows of each family, at most so many; of shuffled rows, a random sample."""
    places_P = places_in_family([row["family"] for row in rows])
    return [row for row, place in zip(rows, places_P, strict=True) if place < most]


def train_scores(
    rows: Sequence[Mapping[str, Any]],
    successes_P: np.ndarray,
    samples: int,
    shares: Mapping[str, float],
) -> dict[str, Any]:
    """The columns train_mean, weighted as in training, and train_families of a row of scores.

    Args:
        rows: the prompts.
        successes_P: correct completions of each.
        samples: completions of each.
        shares: each family's share of the training prompts.
    """
    accuracy_P = pd.Series(np.asarray(successes_P) / samples)
    families = accuracy_P.groupby([row["family"] for row in rows]).mean()
    mean = (families * pd.Series(shares)).sum()
    return {"train_mean": float(mean), "train_families": families.to_dict()}


def memorization_gaps(rows: pd.DataFrame) -> pd.Series:
    """Of each row of a family: (accuracy on training prompts − held out), minus the base's.

    NaN where a replicate has no base, or a family no training prompts.
    """
    gaps = rows.assign(gap=rows.train_mean - rows.mean_at_8)
    same_prompts = ["world", "replicate", "family"]
    of_base = gaps[gaps.configuration == BASE].set_index(same_prompts).gap.rename("gap_of_base")
    return gaps.gap - gaps.join(of_base, on=same_prompts).gap_of_base


def format_gap(rows: pd.DataFrame, rates: pd.Series) -> str:
    """The gap as Markdown, a row a configuration and a column a family; "" where there is none.

    Args:
        rows: of families, with memorization_gap.
        rates: the learning rate at which each is printed, by world and configuration.
    """
    if rows.memorization_gap.isna().all():
        return ""
    cells: dict[tuple[str, str], dict[str, str]] = {}
    keys = ["world", "configuration", "learning_rate", "family"]
    for (world, configuration, rate, family), of_family in rows.groupby(keys):
        if configuration == BASE or rates.get((world, configuration)) != rate:
            continue
        gaps = of_family.memorization_gap.dropna()
        interval = paired_t(gaps)
        text = f"{gaps.mean():+.3f}"
        if not np.isnan(interval.low):
            text += f" ({interval.low:+.3f} … {interval.high:+.3f})"
        cells.setdefault((world, configuration), {})[f"{family}"] = text
    table = pd.DataFrame.from_dict(cells, orient="index").rename_axis(["world", "configuration"])
    return (
        "\nMemorization gap by family: accuracy on training prompts minus that on held-out ones, "
        "minus the same for the base; mean over replicates, 95% interval (Student's t, not "
        "corrected).\n\n"
        f"{table.reset_index().to_markdown(index=False, disable_numparse=True)}\n"
    )
