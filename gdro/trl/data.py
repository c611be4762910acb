"""The data set of a training: the uids of its prompts, and a hash of each.

D prompts of the data set.
"""

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import datasets
import numpy as np
from torch.utils.data import Dataset

from gdro.trl.values import Row
from gdro.uids import as_uids, check_different, hash_of, numbered, prompt_hash


class UidData(NamedTuple):
    """A data set and the uids of its rows; a stream has neither a list of them nor hashes."""

    dataset: datasets.Dataset | datasets.IterableDataset | None
    """The user's own, whose format may change at any time, or a stream that adds uids. None where
    environments make the prompts."""
    uids_D: np.ndarray | None = None
    hashes_D: np.ndarray | None = None
    """Hashes of the prompts, by which a resumed run recognizes them."""
    has_own_uids: bool = False
    """Whether the user's data have the column of uids."""


class UidRows(Dataset):
    """Rows of a data set as they are when they are read, each with the uid of its position.

    What a transform makes of the column of uids does not matter.
    """

    def __init__(self, dataset: datasets.Dataset, column: str, uids_D: np.ndarray) -> None:
        self.dataset = dataset
        self.column = column
        self.uids_D = uids_D

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitems__(self, positions: Sequence[int]) -> list[Row]:
        rows = self.dataset.__getitems__(list(positions))
        uids = self.uids_D[positions].tolist()
        return [row | {self.column: uid} for row, uid in zip(rows, uids, strict=True)]


def read_uids(dataset: datasets.Dataset | datasets.IterableDataset, column: str) -> UidData:
    """The uids of a data set, as it is stored.

    Where the column is missing, the uid of a row is a hash of all its columns: the same in every
    session and order. Equal rows are numbered (`…#2`), so that each has a history of its own; in a
    stream, where nobody can count them, they are one prompt. ValueError for a column that repeats
    a uid, and for what is not a data set.
    """
    if isinstance(dataset, datasets.IterableDataset):
        known = dataset.column_names or ()
        stream = dataset.map(lambda row: {column: hash_of(row)} | row)
        return UidData(stream, has_own_uids=column in known)
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
    uids = []
    hashes = []
    for row in chain.from_iterable(batch.to_pylist() for batch in stored):
        uids.append(row[column] if has_uids else hash_of(row))
        hashes.append(prompt_hash(row.get("prompt", row)))
    if has_uids:
        name = f"column {column!r} of train_dataset (uid_column)"
        uids_D = as_uids(uids, name)
        check_different(uids_D, name)
    else:
        uids_D = as_uids(numbered(uids))
    return UidData(dataset, uids_D, np.array(hashes, np.int64), has_uids)
