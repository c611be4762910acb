"""The prompts of a training: their uids, a hash of each, and their order.

D prompts of the data set, P of a batch.
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from hashlib import sha256
from itertools import chain
from typing import Any, NamedTuple

import datasets
import numpy as np

from gdro.uids import as_uids


class UidData(NamedTuple):
    """A data set with a column of uids; a stream has neither a list of them nor hashes."""

    dataset: datasets.Dataset | datasets.IterableDataset | None
    """None where environments make the prompts."""
    uids_D: np.ndarray | None = None
    hashes_D: np.ndarray | None = None
    """Hashes of the prompts, by which a resumed run recognizes them."""


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
        ValueError: for a column that repeats a uid, and for what is not a data set.
    """
    if isinstance(dataset, datasets.IterableDataset):
        return UidData(dataset.map(lambda row: {column: hash_of(row)} | row))
    if not isinstance(dataset, datasets.Dataset):
        raise ValueError(
            "train_dataset must be a datasets.Dataset or IterableDataset, got a "
            f"{type(dataset).__name__}"
        )
    has_uids = column in dataset.column_names
    needed = {column, "prompt"}
    columns = [name for name in dataset.column_names if name in needed]
    if len(columns) < len(needed):  # a transform may make the prompts of other columns
        columns = dataset.column_names
    # as they are stored: no format applied, no image decoded
    stored = dataset.select_columns(columns).with_format("arrow").iter(1000)
    counts = Counter[Any]()
    uids = []
    hashes = []
    for row in chain.from_iterable(batch.to_pylist() for batch in stored):
        uid = row[column] if has_uids else hash_of(row)
        counts[uid] += 1
        if has_uids and counts[uid] > 1:
            raise ValueError(
                f"column {column!r} repeats {uid!r}; each prompt needs a uid of its own"
            )
        uids.append(uid if counts[uid] == 1 else f"{uid}#{counts[uid]}")
        prompt = row.get("prompt", row)
        hashes.append(int(hash_of(prompt)[:8], 16))
    if not has_uids:
        dataset = dataset.add_column(column, uids)
    if dataset.format["type"] == "custom":
        transform = dataset.format["format_kwargs"]["transform"]
        dataset = dataset.with_transform(partial(with_column, transform, column))
    return UidData(dataset, as_uids(uids), np.array(hashes, np.int64))


def with_column(
    transform: Callable[[Mapping[str, list]], dict[str, list]],
    column: str,
    batch: Mapping[str, list],
) -> dict[str, list]:
    """What a transform of rows returns, with a column that it may have left out."""
    return {column: batch[column]} | transform(batch)


def check_prompts(data: UidData, saved: Mapping[str, list]) -> None:
    """Refuse data in which a uid of a checkpoint has another prompt. New prompts may join.

    Args:
        data: a data set whose rows are counted.
        saved: its "uids" and "hashes" at the checkpoint.

    Raises:
        ValueError: names the first prompt that has changed; or where none is known.
    """
    before = dict(zip(saved["uids"], saved["hashes"], strict=True))
    uids = data.uids_D.tolist()  # type: ignore[union-attr]
    hashes = data.hashes_D.tolist()  # type: ignore[union-attr]
    for uid, digest in zip(uids, hashes, strict=True):
        if before.get(uid, digest) != digest:
            raise ValueError(
                f"train_dataset has another prompt under the uid {uid!r} than when the checkpoint "
                "was saved; give it a uid of its own"
            )
    if before.keys().isdisjoint(uids):
        raise ValueError(
            "train_dataset has none of the uids of the checkpoint; where they are hashes of all "
            "columns, any other column gives others: add the column of uids that was trained with"
        )


def prompts_of_batch(number: int, size: int, total: int, seed: int, shuffled: bool) -> np.ndarray:
    """Positions in the data set of the prompts of batch `number` (from 0), (size,).

    Each epoch has an order of its own; what is left over at its end is dropped. Nothing but the
    arguments matters, so a resumed run takes the same prompts.
    """
    epoch, batch = divmod(number, total // size)
    rng = np.random.default_rng((seed, epoch))
    order_D = rng.permutation(total) if shuffled else np.arange(total)
    return order_D[batch * size : (batch + 1) * size]
