"""Which prompt a row of verl is: of the data, and of what came back. D prompts, R rows."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

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


def places_of(
    keys: Sequence[str], place_of: Mapping[str, int]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Which rollout each row belongs to, and which rows are judged.

    A rollout may have several rows, one for each output of its agent loop, of which verl judges
    the last.

    Args:
        keys: of the rows, {key of the prompt}_{session}_{output}; padding has a prompt of its own.
        place_of: place in the plan of each prompt, by its key.

    Returns:
        Row of the last output of each rollout, (K,); its place in the plan, (K,); and the number of
        the rollout, from 0, that each row belongs to, (R,), −1 for padding.
    """
    last: dict[str, tuple[int, int]] = {}  # by rollout: output and row
    rollouts = []
    for row, key in enumerate(keys):
        rollout, output = key.rsplit("_", 1)
        is_padding = rollout.rsplit("_", 1)[0] not in place_of
        rollouts.append(None if is_padding else rollout)
        if not is_padding:
            last[rollout] = max(last.get(rollout, (-1, row)), (int(output), row))
    number = {rollout: k for k, rollout in enumerate(last)}
    row_K = np.array([row for _, row in last.values()])
    place_K = np.array([place_of[rollout.rsplit("_", 1)[0]] for rollout in last])
    rollout_R = np.array([-1 if rollout is None else number[rollout] for rollout in rollouts])
    return row_K, place_K, rollout_R
