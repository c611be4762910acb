"""What the models say: questions with an answer of the base and of each trained model.

Shown are the questions that the base solves least often, each with the first sample of every model
that was taken, right or wrong, so that nothing is picked by what it says.
"""

from textwrap import indent
from typing import Any

import pandas as pd

from gdro_lab.experiments.blocks import BASE
from gdro_lab.experiments.figures import select_runs
from gdro_lab.experiments.profile import Profile

MOST = 8
"""Questions that are shown."""


def texts_before_and_after(profile: Profile, runs: list[dict[str, Any]]) -> str:
    """Markdown of the questions whose texts an evaluation kept; "" where it kept none.

    Args:
        profile: its variants are shown in their order, the first seed of each.
        runs: as `gdro_lab.experiments.report.read_runs` gives them.
    """
    kept = {}
    for variant in [BASE, *profile.variants]:
        rows = select_runs(runs, variant)[0]["evaluation"]
        kept[variant] = {row["uid"]: row for row in rows if "texts" in row}
    base = pd.DataFrame(kept[BASE].values())
    if base.empty:
        return ""
    rates = base.successes / base.trials
    hardest = base.uid[rates.sort_values(kind="stable").index].head(MOST)
    parts = ["# What the models say, before and after training"]
    parts.append(
        "The questions of those kept that the base solves least often. Each model's first sample; "
        "in brackets, how many of its samples are correct."
    )
    for uid in hardest:
        question = indent(kept[BASE][uid]["question"].strip(), "> ", lambda line: True)
        parts.append(f"## {kept[BASE][uid]['family']}\n\n{question}")
        for variant, rows in kept.items():
            row = rows[uid]
            title = f"**{profile.label(variant)}** ({row['successes']} of {row['trials']})"
            parts.append(f"{title}\n\n```text\n{row['texts'][0].strip()}\n```")
    return "\n\n".join(parts) + "\n"
