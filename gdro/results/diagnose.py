"""Can choosing prompts help? An estimate from the record of a GRPO run, without held-out data.

    gdro diagnose runs/tiny/grpo/seed0/record.jsonl

Three questions, of a record that `GDROTrainer` or `gdro.loop.train` leaves:

- Which pass rates do the prompts have? A draw can only move rollouts from prompts without signal to others.
- Do hard prompts improve? If they succeed no more often than before, drawing more of them gains nothing.
- Does what is learned carry over? A prompt's first visit is a test on a prompt that was never trained on.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

Record = Sequence[Mapping[str, Any]]


def progress(record: Record) -> float:
    """r of `gdro.methods.pivotal` over a record: Σ hits / Σ expected − 1 of hard prompts; NaN without any."""
    expected = sum(row["hard_expected"] for row in record)
    return sum(row["hard_correct"] for row in record) / expected - 1 if expected else np.nan


def pass_rates(record: Record) -> pd.DataFrame:
    """By bin, the share of the batches' prompts in it and their mean success."""
    share_TB = np.array([row["share"] for row in record])
    success_TB = np.array([row["success"] for row in record], float)  # None becomes NaN
    share_B = share_TB.mean(axis=0)
    hits_B = np.nansum(share_TB * success_TB, axis=0)
    success_B = np.divide(hits_B, share_TB.sum(axis=0), out=np.full(len(hits_B), np.nan), where=share_B > 0)
    return pd.DataFrame({"share": share_B, "success": success_B})


def signal_shares(rates: pd.DataFrame, rollouts: int, k: int) -> tuple[float, float]:
    """Share of groups with both outcomes: in the record's own draw, and in pivotal's if rates were known."""
    known = rates.dropna()
    both = 1 - known.success**rollouts - (1 - known.success) ** rollouts
    value = known.share * known.success * (1 - known.success) ** (k - 1)
    return float(known.share @ both / known.share.sum()), float(value @ both / max(value.sum(), 1e-300))


def diagnosis(record: Record, rollouts: int, k: int = 5) -> str:
    """The answers as text.

    Args:
        record: rows of a run that drew its prompts evenly, GRPO's.
        rollouts: n, of a group.
        k: of the pivotal draw that is imagined.
    """
    quarter = max(len(record) // 4, 1)
    late = pass_rates(record[-quarter:])
    own, drawn = signal_shares(late, rollouts, k)
    lines = [
        "Where the prompts lie, in the last quarter of the batches:",
        late.dropna().to_markdown(floatfmt=".2f"),
        f"Groups of {rollouts} with both outcomes: {own:.0%}; by pivotal's draw at known rates {drawn:.0%}.",
        f"Hard prompts succeed {1 + progress(record):.2f} times as often as their past says.",
    ]
    for name, rows in (("first", record[:quarter]), ("last", record[-quarter:])):
        tried, correct = (sum(row[f"first_{what}"] for row in rows) for what in ("rollouts", "correct"))
        share = f"{correct / tried:.2f} of {tried} rollouts" if tried else "none"
        lines.append(f"Success on first visits in the {name} quarter: {share}.")
    return "\n\n".join(lines) + "\n"
