"""The row that a batch adds to the record of a run. Axes: P prompts of the batch, B bins."""

import json
import math
from typing import Any

import numpy as np

from gdro.methods.base import Batch, Method

ASKED = {"weight", "probability", "price", "demand"}  # entries that a method's report may fill


def row_of(method: Method, step: int, batch: Batch, weights_P: np.ndarray) -> dict[str, Any]:
    """One row: plain JSON values; lists have one value for each bin, None where no prompt was in it.

    ValueError if the method reports what JSON cannot hold, or an entry that is the controller's.
    """
    size, bins = batch.run.num_bins + 1, batch.bins_P + 1  # index 0 is for prompts without a bin
    counts_B = np.bincount(bins, minlength=size)[1:].tolist()

    def by_bin(values_P: np.ndarray, sizes_B: list) -> list[float | None]:
        sums_B = np.bincount(bins, values_P, size)[1:].tolist()
        return [s / n if n else None for s, n in zip(sums_B, sizes_B, strict=True)]

    hard_correct, hard_expected = batch.hard_hits()
    known_P = batch.trials_P > 1  # a single rollout has no variance
    known_B = np.bincount(bins, known_P, size)[1:].tolist()
    variance_B = by_bin(np.where(known_P, batch.variance_P, 0.0), known_B)
    row = {
        "step": step,
        "unseen": int((batch.bins_P < 0).sum()),
        "share": [n / len(batch) for n in counts_B],
        "weight": by_bin(weights_P, counts_B),
        "probability": None,
        "rollouts": by_bin(batch.trials_P, counts_B),
        "success": by_bin(batch.hits_P / batch.trials_P, counts_B),
        "deviation": [None if v is None else math.sqrt(v) for v in variance_B],
        "price": None,
        "demand": None,
        "mean_reward": float(batch.rewards_R.mean()),
        "hard_correct": hard_correct,
        "hard_expected": hard_expected,
        "first_rollouts": int(batch.trials_P[batch.first_visit_P].sum()),
        "first_correct": int(batch.hits_P[batch.first_visit_P].sum()),
    }
    report = method.report()
    try:
        json.dumps(report, allow_nan=False)
        if taken := report.keys() & row.keys() - ASKED:
            raise ValueError(f"{sorted(taken)} come from the controller; choose other names")
    except (TypeError, ValueError, AttributeError) as error:
        raise ValueError(
            f"report of method {method.label!r} must be a dictionary of finite JSON values under names of "
            f"its own or {sorted(ASKED)}, got {report!r} ({error}); fix the method"
        ) from error
    return row | report
