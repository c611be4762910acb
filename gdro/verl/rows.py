"""Which prompt a row of verl is: of the data, and of what came back. D prompts, R rows."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from gdro.checks import Refusal
from gdro.uids import as_uids, hash_of, numbered


def uids_of(rows: Iterable[Mapping[str, Any]]) -> np.ndarray:
    """A uid of each row of the data, (D,).

    `extra_info.index` where each row has its own; else, as where several files are each numbered
    from 0, a hash of the row, and equal rows are numbered.
    """
    rows = list(rows)
    index_D: list[Any] = [(row.get("extra_info") or {}).get("index") for row in rows]
    if None not in index_D and len(set(index_D)) == len(index_D):
        return as_uids(index_D, "extra_info.index of data.train_files")
    return as_uids(numbered(map(hash_of, rows)))


def pass_rates_of(
    rows: Sequence[Mapping[str, Any]], uids_D: np.ndarray, column: str
) -> dict[Any, float | None]:
    """Pass rates by uid, of a column or of an entry of `extra_info`; Refusal where none has it."""
    others = [row.get("extra_info") or {} for row in rows]
    rates = [row.get(column, other.get(column)) for row, other in zip(rows, others, strict=True)]
    if all(rate is None for rate in rates):
        raise Refusal(f"gdro.pass_rate_column must be one of {sorted(rows[0])}, got {column!r}")
    return dict(zip(uids_D.tolist(), rates, strict=True))


def places_of(
    keys: Sequence[str], place_of: Mapping[str, int]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Find the rollout that each row belongs to, and the rows that are judged.

    A rollout may have several rows, one for each output of its agent loop, of which verl judges
    the last. Keys of rows are {key of the prompt}_{session}_{output}; padding has a prompt of its
    own, and `place_of` has the place in the plan of each prompt.

    Returns:
        Row of the last output of each rollout, (K,); its place in the plan, (K,); and the number of
        the rollout, from 0, that each row belongs to, (R,), −1 for padding.
    """
    parts_R = [key.rsplit("_", 2) for key in keys]
    row_of: dict[tuple[str, str], int] = {}
    for row in sorted(range(len(keys)), key=lambda row: int(parts_R[row][2])):
        prompt, session, _ = parts_R[row]
        if prompt in place_of:
            row_of[prompt, session] = row  # a later output replaces an earlier one
    number = {rollout: k for k, rollout in enumerate(row_of)}
    place_K = np.array([place_of[prompt] for prompt, _ in row_of])
    rollout_R = np.array([number.get((prompt, session), -1) for prompt, session, _ in parts_R])
    return np.array(list(row_of.values())), place_K, rollout_R
