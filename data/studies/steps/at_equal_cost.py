"""Each configuration minus GRPO where both have spent the same, in pairs by replicate.

python data/studies/steps/at_equal_cost.py
"""

import pandas as pd

from gdro_lab.experiments.blocks import BASE
from gdro_lab.experiments.costs import COSTS, pairs_at_equal_cost
from gdro_lab.experiments.table import BASELINE, METRICS, read_study
from gdro_lab.intervals import paired_t


def main() -> None:
    rows = read_study("steps/study")  # one learning rate
    table = []
    for configuration in sorted(set(rows.configuration) - {BASE, BASELINE}):
        for cost in COSTS:
            row = {"configuration": configuration, "at equal": cost.replace("_", " ")}
            for score in ("mean_at_8", "pass_at_8", "training_mix_mean"):
                pairs = pairs_at_equal_cost(rows, configuration, BASELINE, cost, score)
                interval = paired_t(pairs.score - pairs.baseline)
                row[METRICS[score]] = f"{interval.mean:+.3f} ±{interval.half:.3f}"
            table.append(row | {"replicates": len(pairs)})
    print(pd.DataFrame(table).to_markdown(index=False, disable_numparse=True))


if __name__ == "__main__":
    main()
