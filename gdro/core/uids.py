"""From uids to rows: a `UidTable` gives each uid a row that never changes. P prompts, D seen so far."""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import cast

import numpy as np
from numpy.typing import ArrayLike

from gdro.core.saved import Saved


@dataclass(frozen=True, eq=False)
class Uids:
    """Uids ready for look-up: 64-bit keys (P,) and their kind, "integer" or "string"."""

    keys: np.ndarray
    kind: str

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, positions: np.ndarray) -> "Uids":
        """The uids at these positions."""
        return Uids(self.keys[positions], self.kind)

    def order(self) -> np.ndarray:
        """Positions in the order of the keys, equal ones as given, (P,)."""
        return self.keys.argsort(kind="stable")


def as_uids(uids: ArrayLike | Sequence[str] | Uids) -> Uids:
    """Uids as keys. Every function that takes uids takes the result too, so a large pool is hashed once.

    Integers are their own keys. Strings are hashed (BLAKE2b, 64 bits): the probability that two of ten
    million collide is below 1 in 300,000.
    """
    if isinstance(uids, Uids):
        return uids
    values, given = np.asarray(uids), cast(Sequence, uids)
    if values.ndim != 1:
        raise ValueError(f"uids must be a flat sequence, got shape {values.shape}; give one uid a prompt")
    if values.size == 0:
        return Uids(np.zeros(0, np.int64), "")
    # numpy turns a list of integers with a True in it into integers, so look at the list itself
    typed = isinstance(uids, np.ndarray) and uids.dtype != object
    types = {values.dtype.type} if typed else set(map(type, given))
    if all(issubclass(kind, str) for kind in types):
        digests = b"".join(blake2b(uid.encode(), digest_size=8).digest() for uid in given)
        return Uids(np.frombuffer(digests, "<i8").astype(np.int64), "string")
    fits = values.dtype.kind == "i" or (values.dtype.kind == "u" and values.max() < 2**63)
    if fits and not any(issubclass(kind, bool | np.bool_) for kind in types):
        return Uids(values.astype(np.int64), "integer")
    raise ValueError(
        f"uids must be all integers (64 bit) or all strings, got {list(given)[:4]!r}…; "
        "give every prompt one stable uid"
    )


class UidTable(Saved):
    """From uid to row: the known keys in increasing order, each with its row. 12 bytes a prompt."""

    state = ("kind", "keys_D", "rows_D")
    by_prompt = ("keys_D", "rows_D")

    def __init__(self) -> None:
        self.kind = ""
        self.keys_D, self.rows_D = np.zeros(0, np.int64), np.zeros(0, np.int32)

    def __len__(self) -> int:
        return len(self.keys_D)

    def is_sound(self) -> bool:
        """Whether keys, rows and their kind can belong together."""
        is_kind = self.kind in (("integer", "string") if len(self) else ("",))
        increasing = bool((self.keys_D[1:] > self.keys_D[:-1]).all())
        return is_kind and increasing and np.array_equal(np.sort(self.rows_D), np.arange(len(self)))

    def find(self, uids: Uids) -> np.ndarray:
        """Rows (P,), −1 where a uid is unknown; ValueError for uids of another kind than those known."""
        if uids.kind and self.kind and uids.kind != self.kind:
            raise ValueError(
                f"uids are {uids.kind}s, but the prompts seen so far have {self.kind}s; "
                "keep to one kind of uid in a run"
            )
        if not len(self):
            return np.full(len(uids), -1)
        # searchsorted gives the place where a key would be inserted, behind the last key for a larger one
        place_P = np.minimum(self.keys_D.searchsorted(uids.keys), len(self) - 1)
        return np.where(self.keys_D[place_P] == uids.keys, self.rows_D[place_P].astype(np.int64), -1)

    def add(self, uids: Uids) -> np.ndarray:
        """Rows (P,) of the uids, giving the next free rows to new ones in the order of their keys."""
        rows_P = self.find(uids)
        if (new_P := rows_P < 0).any():
            keys = np.unique(uids.keys[new_P])
            place, size = self.keys_D.searchsorted(keys), len(self)
            self.kind, self.keys_D = uids.kind, np.insert(self.keys_D, place, keys)
            self.rows_D = np.insert(self.rows_D, place, np.arange(size, size + len(keys)))
            rows_P = self.find(uids)
        return rows_P
