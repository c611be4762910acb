"""Small functions on arrays: read-only arrays and properties, growth, merged visits. P prompts."""

from collections.abc import Callable
from functools import cached_property, wraps
from typing import Any

import numpy as np


def read_only(array: np.ndarray) -> np.ndarray:
    """The array itself, which from now on refuses to be written to."""
    array.flags.writeable = False
    return array


def derived(compute: Callable[[Any], np.ndarray]) -> cached_property[np.ndarray]:
    """A property computed when first asked for, and read-only."""
    return cached_property(wraps(compute)(lambda owner: read_only(compute(owner))))


def resized(array: np.ndarray, size: int, fill: int = 0) -> np.ndarray:
    """A copy with `size` rows."""
    new = np.full((size, *array.shape[1:]), fill, array.dtype)
    new[: len(array)] = array[:size]
    return new


def merged_visits(
    rows: np.ndarray, successes: np.ndarray, trials: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Visits of distinct rows: a row that comes twice, side by side, is one visit with the counts added."""
    if not (rows[1:] == rows[:-1]).any():
        return rows, successes, trials
    rows, place_P = np.unique(rows, return_inverse=True)
    successes, trials = (np.bincount(place_P, n).astype(np.int64) for n in (successes, trials))
    return rows, successes, trials
