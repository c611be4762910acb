"""The record of a run: one row a batch, of plain JSON values."""

import math
from typing import Any

import numpy as np

from gdro.method import Batch


def row_of(
    step: int, batch: Batch, weights_P: np.ndarray, report: dict[str, Any]
) -> dict[str, Any]:
    """The row that a batch adds to the record, with the `report` of its method.

    Lists have one value for each bin, None where no prompt was in it.
    """
    size, bins = batch.run.num_bins + 1, batch.bins_P + 1  # index 0 is for prompts without a bin
    counts_B = np.bincount(bins, minlength=size)[1:].tolist()

    def by_bin(values_P: np.ndarray, sizes_B: list) -> list[float | None]:
        sums_B = np.bincount(bins, values_P, size)[1:].tolist()
        return [s / n if n else None for s, n in zip(sums_B, sizes_B, strict=True)]

    known_P = batch.trials_P > 1  # a single rollout has no variance
    known_B = np.bincount(bins, known_P, size)[1:].tolist()
    variance_B = by_bin(np.where(known_P, batch.variance_P, 0.0), known_B)
    row = {
        "step": step,
        "unseen": int(batch.first_visit_P.sum()),
        "share": [n / len(batch) for n in counts_B],
        "weight": by_bin(weights_P, counts_B),
        "probability": None,
        "rollouts": by_bin(batch.trials_P, counts_B),
        "success": by_bin(batch.hits_P / batch.trials_P, counts_B),
        "deviation": [None if v is None else math.sqrt(v) for v in variance_B],
        "price": None,
        "demand": None,
        "mean_reward": float(batch.rewards_R.mean()),
    }
    return row | report
