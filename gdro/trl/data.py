"""The prompts of a training: their uids, a fingerprint of the data, and their order.

D prompts of the data set, P of a batch.
"""

import json
from collections import Counter
from hashlib import sha256
from itertools import chain
from typing import Any, NamedTuple

import datasets
import numpy as np

from gdro.bins import as_uids


class UidData(NamedTuple):
    """A data set with a column of uids; a stream has neither a list of them nor a fingerprint."""

    dataset: datasets.Dataset | datasets.IterableDataset
    uids_D: np.ndarray | None
    fingerprint: str | None
    """Changes where a uid gets another prompt, and not with the order of the rows."""


def hash_of(value: object) -> str:
    """A hash of plain values, images and arrays that is the same in every session."""

    def encode(other: object) -> str:
        return other.tobytes().hex() if hasattr(other, "tobytes") else repr(other)

    return sha256(json.dumps(value, sort_keys=True, default=encode).encode()).hexdigest()[:16]


def with_uids(dataset: datasets.Dataset | datasets.IterableDataset, column: str) -> UidData:
    """A data set with a column of uids.

    Where the column is missing, the uid of a row is a hash of all its columns: the same in every
    session and order. Equal rows are numbered (`…#2`), so that each has a history of its own; in a
    stream, where nobody can count them, they are one prompt.

    Raises:
        ValueError: for a column that repeats a uid.
    """
    if not isinstance(dataset, datasets.Dataset):
        return UidData(dataset.map(lambda row: {column: hash_of(row)} | row), None, None)
    has_uids = column in dataset.column_names
    columns = [column, "prompt"] if has_uids else dataset.column_names
    columns = [name for name in dataset.column_names if name in columns]
    # as they are stored: no format applied, no image decoded
    stored = dataset.select_columns(columns).with_format("arrow").iter(1000)
    counts = Counter[Any]()
    uids = []
    total = 0
    for row in chain.from_iterable(batch.to_pylist() for batch in stored):
        uid = row[column] if has_uids else hash_of(row)
        counts[uid] += 1
        if has_uids and counts[uid] > 1:
            raise ValueError(
                f"column {column!r} repeats {uid!r}; each prompt needs a uid of its own"
            )
        uids.append(uid if counts[uid] == 1 else f"{uid}#{counts[uid]}")
        total += int(hash_of([uids[-1], row.get("prompt")]), 16)  # a sum has no order
    if not has_uids:
        dataset = dataset.add_column(column, uids)
    return UidData(dataset, as_uids(uids), f"{total % 2**64:016x}")


def prompts_of_batch(number: int, size: int, total: int, seed: int, shuffled: bool) -> np.ndarray:
    """Positions in the data set of the prompts of batch `number` (from 0), (size,).

    Each epoch has an order of its own; what is left over at its end is dropped. Nothing but the
    arguments matters, so a resumed run takes the same prompts.
    """
    epoch, batch = divmod(number, total // size)
    rng = np.random.default_rng((seed, epoch))
    order_D = rng.permutation(total) if shuffled else np.arange(total)
    return order_D[batch * size : (batch + 1) * size]
