"""Uids of prompts: integers or strings, read once and kept in increasing order. Axis: P prompts."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from gdro.checks import short


class SortedUids(NamedTuple):
    """Uids in increasing order, so that no result depends on the order in which they came."""

    uids_P: np.ndarray
    rows_P: np.ndarray
    order_P: np.ndarray
    """uids_P = the uids as given[order_P]."""


def as_uids(uids: ArrayLike | Sequence[str], name: str = "uids") -> np.ndarray:
    """Uids, all integers or all strings, as an array of integers or of Python's strings, (P,).

    Args:
        uids: a list, an array or a tensor of one axis, or another sequence.
        name: of the argument in the message of an error.

    Raises:
        ValueError: for what is neither, and what has no order or no length, such as a set.
    """
    if type(uids) is np.ndarray and uids.dtype.kind == "i" and uids.ndim == 1:  # not masked
        return uids
    if hasattr(uids, "tolist"):  # of numpy, torch or pandas
        values = uids.tolist()
    elif isinstance(uids, Sequence) and not isinstance(uids, str | bytes):
        values = list(uids)
    else:
        values = None
    if not isinstance(values, list):
        raise ValueError(f"{name} must be a list or an array, got {short(uids)}")
    kinds = set(map(type, values))
    if all(issubclass(kind, str) for kind in kinds):
        return np.array(values, object)
    if all(issubclass(kind, int | np.integer) and kind is not bool for kind in kinds):
        return np.array(values, np.int64)
    raise ValueError(f"{name} must be all integers or all strings, got {short(values)}")


def check_uids(uids: ArrayLike | Sequence[str]) -> np.ndarray:
    """`as_uids` of at least one prompt, (P,)."""
    array = as_uids(uids)
    if not len(array):
        raise ValueError("uids must have at least one, got none")
    return array


def check_different(uids_D: np.ndarray, name: str = "uids") -> None:
    """Raise ValueError where a uid comes more than once."""
    for uid, times in Counter(uids_D.tolist()).most_common(1):
        if times > 1:
            raise ValueError(f"{name} must differ, got {uid!r} more than once")


def merge_visits(
    rows: np.ndarray, successes: np.ndarray, trials: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Merge adjacent visits of the same row: their counts are added."""
    if not (rows[1:] == rows[:-1]).any():
        return rows, successes, trials
    rows, place_P = np.unique(rows, return_inverse=True)
    successes = np.bincount(place_P, successes).astype(np.int64)
    trials = np.bincount(place_P, trials).astype(np.int64)
    return rows, successes, trials


def hash_of(value: object) -> str:
    """A hash of plain values, images and arrays that is the same in every session.

    It is also the same when rows join that have one more key, or fractions where there were whole
    numbers: `datasets` then gives all rows that key, with None, and turns 1 into 1.0.
    """

    def encode(other: object) -> str:
        return other.tobytes().hex() if hasattr(other, "tobytes") else repr(other)

    text = json.dumps(_plain(value), sort_keys=True, default=encode)
    return sha256(text.encode()).hexdigest()[:16]


def _plain(value: object) -> object:
    """A value without keys that are None, and with whole numbers as integers."""
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items() if part is not None}
    if isinstance(value, list):
        return [_plain(part) for part in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def numbered(hashes: Iterable[str]) -> list[str]:
    """Hashes where those that come again are numbered: a, b, a#2."""
    counts = Counter[str]()
    uids = []
    for digest in hashes:
        counts[digest] += 1
        uids.append(digest if counts[digest] == 1 else f"{digest}#{counts[digest]}")
    return uids


def prompt_hash(prompt: object) -> int:
    """A hash of a prompt, by which a resumed run recognizes it."""
    return int(hash_of(prompt)[:8], 16)


def check_prompts(uids_D: np.ndarray, hashes_D: np.ndarray, saved: Mapping[str, ArrayLike]) -> None:
    """Refuse data in which a uid of a checkpoint has another prompt. New prompts may join.

    `saved` has the "uids" and "hashes" at the checkpoint. ValueError where a prompt has changed, or
    none is known.
    """
    before = dict(zip(saved["uids"], saved["hashes"], strict=True))  # type: ignore[arg-type]
    uids = uids_D.tolist()
    for uid, digest in zip(uids, hashes_D.tolist(), strict=True):
        if before.get(uid, digest) != digest:
            raise ValueError(
                f"the training data have another prompt under the uid {uid!r} than when the "
                "checkpoint was saved; give it a uid of its own"
            )
    if before.keys().isdisjoint(uids):
        raise ValueError(
            "the training data have none of the uids of the checkpoint, such as "
            f"{next(iter(before))!r}, but others, such as {uids[0]!r}; where they are hashes of "
            "all columns, any other column gives others: add the column of uids that was trained "
            "with"
        )
