"""Each configuration minus GRPO where both have spent the same, in pairs by replicate.

    python data/studies/steps/at_equal_cost.py

Of a pair, the one that has spent less at its end sets the cost. The other's score at that cost is
read off the line between its two nearest checkpoints; the first is the base, which has spent
nothing. Seconds are those of the processor.
"""

import numpy as np
import pandas as pd

from gdro_lab.experiments.blocks import BASE
from gdro_lab.experiments.table import BASELINE, METRICS, read_study
from gdro_lab.intervals import paired_t

COSTS = {"rollouts": "rollouts", "trained_tokens": "trained tokens", "seconds": "seconds"}
SCORES = ("mean_at_8", "pass_at_8", "training_mix_mean")


def scores_at(course: pd.DataFrame, cost: str, spent: float) -> np.ndarray:
    """The scores of a run where it has spent so much, from its checkpoints and the base."""
    course = course.sort_values(cost)
    return np.array([np.interp(spent, course[cost], course[score]) for score in SCORES])


def differences(rows: pd.DataFrame, configuration: str, cost: str) -> tuple[np.ndarray, float]:
    """Each score minus GRPO's at equal cost, by replicate, and that cost as a part of GRPO's."""
    found = []
    parts = []
    for _, of_replicate in rows.groupby("replicate"):
        courses = dict(list(of_replicate.groupby("configuration")))
        if not {configuration, BASELINE, BASE} <= courses.keys():
            continue
        start = courses[BASE].assign(**dict.fromkeys(COSTS, 0.0))
        course = pd.concat([start, courses[configuration]])
        baseline = pd.concat([start, courses[BASELINE]])
        spent = min(course[cost].max(), baseline[cost].max())
        found.append(scores_at(course, cost, spent) - scores_at(baseline, cost, spent))
        parts.append(spent / baseline[cost].max())
    return np.array(found), float(np.mean(parts))


def main() -> None:
    rows = read_study("steps/study")  # one learning rate
    table = []
    for configuration in sorted(set(rows.configuration) - {BASE, BASELINE}):
        for cost, title in COSTS.items():
            pairs, part = differences(rows, configuration, cost)
            row = {"configuration": configuration, "at equal": title, "of GRPO's": f"{part:.2f}"}
            for score, of_score in zip(SCORES, pairs.T, strict=True):
                interval = paired_t(of_score)
                row[METRICS[score]] = f"{interval.mean:+.3f} ±{interval.half:.3f}"
            table.append(row | {"replicates": len(pairs)})
    print(pd.DataFrame(table).to_markdown(index=False, disable_numparse=True))


if __name__ == "__main__":
    main()
