"""Two configurations where both have spent the same, in pairs by replicate.

Of a pair, the run that has spent less at its end sets the cost. The other's score at that cost is
read off the line between its two nearest checkpoints; the first is the base, which has spent
nothing. Seconds are those of the processor.
"""

import numpy as np
import pandas as pd

from gdro.checks import Refusal
from gdro_lab.experiments.blocks import BASE

COSTS = ("rollouts", "trained_tokens", "seconds")


def pairs_at_equal_cost(
    rows: pd.DataFrame, configuration: str, baseline: str, cost: str, score: str
) -> pd.DataFrame:
    """A score of both by replicate, as `score` and `baseline`, and what each has `spent`.

    Args:
        rows: those over all families of one world and learning rate, with the base's.
        configuration, baseline: names in the rows.
        cost: one of `COSTS`.
        score: a column of the rows.
    """
    if cost not in COSTS:
        raise Refusal(f"cost must be one of {COSTS}, got {cost!r}")
    pairs = {}
    for replicate, of_replicate in rows.groupby("replicate"):
        courses = dict(list(of_replicate.groupby("configuration")))
        if not {configuration, baseline, BASE} <= courses.keys():
            continue
        start = courses[BASE].assign(**{cost: 0.0})
        both = [pd.concat([start, courses[name]]) for name in (configuration, baseline)]
        spent = min(course[cost].max() for course in both)
        scores = [
            np.interp(spent, *course.sort_values(cost)[[cost, score]].T.values) for course in both
        ]
        pairs[replicate] = [*scores, spent]
    found = pd.DataFrame.from_dict(pairs, "index", columns=["score", "baseline", "spent"])
    return found.rename_axis("replicate")
