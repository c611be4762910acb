"""Scores from counts by prompt: one row a run and checkpoint, the same for both backends.

mean_at_8 and worst_family are the mean and the lowest of the families' mean accuracies, pass_at_8
the mean over families of unbiased pass@8, and training_mix_* weigh the families as the training
prompts do. mean_at_8 is the mean over all samples that were taken, 32 a prompt at the end of a run
of the loop; that of eight samples has the same expectation.

The memorization gap is accuracy on training prompts minus that on held-out ones. The base has such
a gap too, where training prompts are easier or were taught, so that of the base is subtracted. It
is a family's: in a mean weighted by shares, a rare family that is memorized would not show.

Axes: P prompts.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from gdro.metrics import pass_at_k
from gdro_lab.experiments.blocks import BASE
from gdro_lab.intervals import paired_t

K = 8
"""The k of pass@k in these rows."""
COLUMNS = [
    *("study", "world", "configuration", "learning_rate", "replicate", "step", "family"),
    *("mean_at_8", "pass_at_8", "worst_family", "training_mix_mean", "training_mix_pass_at_8"),
    *("train_mean", "memorization_gap", "share", "distinct", "any_of_32", "train_distinct"),
    *("rollouts", "tokens", "trained_tokens", "replayed", "seconds", "controller_seconds"),
    "mixed",
]
"""Columns of runs.csv: what was run, its scores at a checkpoint, and what it had spent by then.

data/README.md tells what each holds."""


def places_in_family(families_P: Sequence[str]) -> pd.Series:
    """How many prompts of its family come before each prompt, (P,)."""
    families = pd.Series(families_P, dtype=object)
    return families.groupby(families).cumcount()


def score_families(
    families_P: Sequence[str],
    successes_P: np.ndarray,
    trials_P: np.ndarray,
    shares: Mapping[str, float],
) -> dict[str, Any]:
    """Scores of a checkpoint.

    Args:
        families_P: the family of each held-out prompt.
        successes_P: correct samples.
        trials_P: samples, at least 8.
        shares: each family's share of the training prompts; they sum to 1.
    """
    prompts = pd.DataFrame(
        {
            "mean_at_8": successes_P / trials_P,
            "pass_at_8": pass_at_k(successes_P, trials_P, K),
        }
    )
    families = prompts.groupby(list(families_P)).mean()
    share = pd.Series(shares, dtype=float)
    whole = max(len(share), 1)  # NaN unless each training family is held out
    return {
        "mean_at_8": families.mean_at_8.mean(),
        "pass_at_8": families.pass_at_8.mean(),
        "worst_family": families.mean_at_8.min(),
        "training_mix_mean": (families.mean_at_8 * share).sum(min_count=whole),
        "training_mix_pass_at_8": (families.pass_at_8 * share).sum(min_count=whole),
        "families": families.assign(share=share).to_dict("index"),
    }


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
