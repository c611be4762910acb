"""The uids of a data set: its own column, or a hash of each row; and a fingerprint of the data.

D prompts of the data set.
"""

import json
from collections import Counter
from hashlib import sha256
from itertools import chain
from typing import Any

import datasets
import numpy as np

from gdro.bins import as_uids
from gdro.checks import need


def hash_of(value: Any) -> str:
    """A hash of plain values, images and arrays that is the same in every session."""

    def encode(other: Any) -> str:
        return other.tobytes().hex() if hasattr(other, "tobytes") else repr(other)

    return sha256(json.dumps(value, sort_keys=True, default=encode).encode()).hexdigest()[:16]


def with_uids(dataset: Any, column: str) -> tuple[Any, np.ndarray | None, str | None]:
    """A data set with a column of uids, its uids (D,), and a fingerprint; None for a stream.

    Where the column is missing, the uid of a row is a hash of all its columns: the same in every
    session and order. Equal rows are numbered (`…#2`), so that each has a history of its own; in a
    stream, where nobody can count them, they are one prompt. The fingerprint changes where a uid
    gets another prompt, and not with the order of the rows. ValueError for repeated uids.
    """
    if not isinstance(dataset, datasets.Dataset):
        return dataset.map(lambda row: {column: hash_of(row)} | row), None, None
    given, counts, uids, total = column in dataset.column_names, Counter[Any](), [], 0
    read = [name for name in dataset.column_names if not given or name in (column, "prompt")]
    # as they are stored: no format applied, no image decoded
    stored = dataset.select_columns(read).with_format("arrow").iter(1000)
    for row in chain.from_iterable(batch.to_pylist() for batch in stored):
        uid = row[column] if given else hash_of(row)
        counts[uid] += 1
        is_new = not given or counts[uid] == 1
        need(is_new, f"column {column!r} repeats {uid!r}; each prompt needs a uid of its own")
        uids.append(uid if counts[uid] == 1 else f"{uid}#{counts[uid]}")
        total += int(hash_of([uids[-1], row.get("prompt")]), 16)  # a sum has no order
    if not given:
        dataset = dataset.add_column(column, uids)
    return dataset, as_uids(uids), f"{total % 2**64:016x}"
