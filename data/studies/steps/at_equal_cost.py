"""Each configuration minus GRPO where both have spent the same, in pairs by replicate.

python data/studies/steps/at_equal_cost.py
"""

import pandas as pd

from gdro_lab.claims import COSTS_OF_A_RUN, pairs_at_equal_cost
from gdro_lab.experiments.table import METRICS, read_study
from gdro_lab.intervals import paired_t

STUDY = {"id": "", "study": "steps/study", "world": "steps", "replicates": ""}


def main() -> None:
    table = []
    for name in sorted(set(read_study("steps/study").configuration) - {"base", "grpo"}):
        for cost in COSTS_OF_A_RUN:
            row = {"configuration": name, "at equal": cost.replace("_", " ")}
            for score in ("mean_at_8", "pass_at_8", "training_mix_mean"):
                sides = {"configuration": f"{name}@5e-5", "baseline": "grpo@5e-5", "score": score}
                pairs = pairs_at_equal_cost(pd.Series(STUDY | sides), score, cost)
                interval = paired_t(pairs.score - pairs.baseline)
                row[METRICS[score]] = f"{interval.mean:+.3f} ±{interval.half:.3f}"
            table.append(row | {"replicates": len(pairs)})
    print(pd.DataFrame(table).to_markdown(index=False, disable_numparse=True))


if __name__ == "__main__":
    main()
