"""Two configurations where both have spent the same, in pairs by replicate.

Of a pair, the run that has spent less at its end sets the cost. The other's score at that cost is
read off the line between its two nearest checkpoints; the first is the base, which has spent
nothing. What seconds are, data/README.md says of each study.
"""

import numpy as np
import pandas as pd

from gdro.checks import Refusal


def scores_at_equal_cost(
    base: pd.DataFrame, course: pd.DataFrame, other: pd.DataFrame
) -> pd.DataFrame:
    """The `score` of a configuration, that of another as `baseline`, and what both have `spent`.

    Each argument has a row for each checkpoint of each replicate: `replicate`, `score`, and `spent`
    in rollouts, tokens or seconds. Refusal where a run does not say what it has spent.
    """
    pairs = {}
    for replicate in sorted({*base.replicate} & {*course.replicate} & {*other.replicate}):
        start = base[base.replicate == replicate].assign(spent=0.0)
        runs = [of[of.replicate == replicate].sort_values("spent") for of in (course, other)]
        if any(run.spent.isna().any() for run in runs):
            raise Refusal(f"runs must say what they have spent, got none in replicate {replicate}")
        spent = min(run.spent.max() for run in runs)
        courses = [pd.concat([start, run]) for run in runs]
        pairs[replicate] = [*(np.interp(spent, run.spent, run.score) for run in courses), spent]
    columns = ["score", "baseline", "spent"]
    return pd.DataFrame.from_dict(pairs, "index", columns=columns).rename_axis("replicate")
