"""Scores from counts by prompt: one row a run and checkpoint, the same for both backends.

mean_at_8 and worst_family are the mean and the lowest of the families' mean accuracies, pass_at_8
the mean over families of unbiased pass@8, and training_mix_* weigh the families as the training
prompts do. mean_at_8 is the mean over all samples that were taken, 32 a prompt at the end of a run
of the loop; that of eight samples has the same expectation. Axes: P held-out prompts.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from gdro.metrics import pass_at_k

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
