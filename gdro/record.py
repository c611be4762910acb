"""The record of a run: one row a batch, of plain JSON values. P prompts, B bins."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gdro.files import plain
from gdro.method import Batch

FILLED_BY_METHODS = {"weight", "probability", "price", "demand"}  # of the row, by their reports
ADDED_BY_TRAINERS = {"global_step", "rollouts_spent", "tokens", "signal", "trained_tokens"}


def record_row(
    step: int, batch: Batch, weights_P: np.ndarray, report: dict[str, Any]
) -> dict[str, Any]:
    """The row that a batch adds to the record.

    Lists have one value for each bin, None where no prompt was in it. "share" and "success" are
    fractions. "deviation" is the root of the mean unbiased variance of the prompts' rewards.
    "weight" is the factor on the advantages; a method's report may replace it: Prompt-GDRO reports
    ω, before `weight_scale`. "unseen" counts the prompts that had no bin when they were planned.

    Args:
        step: batches observed before.
        batch: with the bins of the visit.
        weights_P: factors on the prompts' advantages.
        report: of the method: entries of its own, and those of `FILLED_BY_METHODS`. ValueError
            where it has another of the row's own.
    """
    # as a record has it: lists for arrays, None for what is not finite
    written = json.dumps(dict(report), default=plain)
    report = json.loads(written, parse_constant=lambda _: None)
    size = batch.run.num_bins + 1
    bins_P = batch.bins_P + 1  # index 0 is for prompts without a bin
    counts_B = np.bincount(bins_P, minlength=size)[1:].tolist()

    def by_bin(values_P: np.ndarray, sizes_B: list) -> list[float | None]:
        sums_B = np.bincount(bins_P, values_P, size)[1:].tolist()
        return [s / n if n else None for s, n in zip(sums_B, sizes_B, strict=True)]

    has_variance_P = batch.trials_P > 1  # a single rollout has none
    varied_B = np.bincount(bins_P, has_variance_P, size)[1:].tolist()
    variance_B = by_bin(np.where(has_variance_P, batch.variance_P, 0.0), varied_B)
    row = {
        "step": step,
        "unseen": int(batch.had_no_bin_P.sum()),
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
    taken = sorted(((row.keys() - FILLED_BY_METHODS) | ADDED_BY_TRAINERS) & report.keys())
    if taken:
        raise ValueError(
            f"report must leave the controller's entries alone, got {taken}; name its own otherwise"
        )
    return row | report


def numbers_of(row: Mapping[str, object], names: Sequence[str]) -> dict[str, float]:
    """Every number of a row of the record but its step; lists by the names of the bins."""
    numbers: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, list):
            places = names if len(value) == len(names) else range(len(value))
            numbers |= {f"{name}/{p}": v for p, v in zip(places, value, strict=True)}
        elif name != "step":
            numbers[name] = value
    return {name: number for name, number in numbers.items() if isinstance(number, int | float)}
