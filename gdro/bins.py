"""Who is hard: each prompt's pass@k record, estimate and bin (section 3.1 of the paper).

Axes: P prompts, B bins. Bin 0 is the hardest (lowest pass@k), bin B−1 the easiest, −1 not seen yet.
Everything about a prompt hangs on its uid, never on its place in a batch.
"""

from collections.abc import Sequence
from hashlib import blake2b
from typing import NamedTuple

import numpy as np

from gdro.estimators import ESTIMATORS
from gdro.metrics import checked_counts

UNSEEN = -1
ROUNDING = 1e-12  # 1 − 0.9 is a little less than 0.1
TENTHS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


class DifficultyBins:
    """Online difficulty classifier: pass@k estimate (10), bins (11), symmetric hysteresis.

    edges: increasing, inside (0, 1); B = len(edges) + 1 bins [a_{b−1}, a_b), 1 in the last.
    k: of pass@k, unrelated to the number of rollouts. history: visits H that an estimate rests on.
    hysteresis: margin δ by which an estimate must have crossed every boundary it moves past, upward
    and downward alike. estimator: a name in `gdro.estimators.ESTIMATORS`.
    Raises ValueError for arguments outside these domains.
    """

    def __init__(
        self,
        edges: Sequence[float] = TENTHS,
        k: int = 8,
        history: int = 50,
        hysteresis: float = 0.03,
        estimator: str = "beta",
    ):
        self.edges = np.asarray(edges, float)
        _check_edges(self.edges)
        _check_positive_integer("k", k)
        _check_positive_integer("history", history)
        if not 0 <= hysteresis < 1:
            raise ValueError(f"hysteresis must lie in [0, 1), got {hysteresis}; 0 switches it off")
        if estimator not in ESTIMATORS:
            raise ValueError(f"estimator must be one of {sorted(ESTIMATORS)}, got {estimator!r}")
        self.k, self.history, self.hysteresis = int(k), int(history), float(hysteresis)
        self.estimator = estimator
        self._record = ESTIMATORS[estimator](self.k, self.history)
        self._table = _UidTable()
        self._bins = np.zeros(0, np.int8 if self.num_bins <= 127 else np.int32)

    @property
    def num_bins(self) -> int:
        return len(self.edges) + 1

    def __len__(self) -> int:
        """Number of prompts seen so far."""
        return len(self._table)

    def update(self, uids, successes, trials) -> None:
        """Book one visit a prompt and move bins.

        uids: (P,) integers or strings. successes, trials: (P,) counts, trials ≥ 1. A uid given
        twice is one visit with the counts added.
        Raises ValueError for counts that cannot be, and for a mix of integer and string uids.
        """
        uids = as_uids(uids)
        keys = self._table.keys(uids)
        successes, trials = checked_counts(successes, trials)
        if successes.shape != keys.shape:
            raise ValueError(f"{len(keys)} uids came with counts of shape {successes.shape}")
        if (trials < 1).any():
            raise ValueError("trials must be at least 1, got 0; leave out prompts without rollouts")
        order = keys.argsort(kind="stable")  # what chance decides must not hang on the batch's order
        keys, successes, trials = keys[order], successes[order], trials[order]
        if (keys[1:] == keys[:-1]).any():
            keys, inverse = np.unique(keys, return_inverse=True)
            successes = np.bincount(inverse, successes, len(keys)).astype(np.int64)
            trials = np.bincount(inverse, trials, len(keys)).astype(np.int64)
        rows = self._rows_with_room(keys)
        self._table.kind = self._table.kind or uids.kind
        self._record.add(rows, successes, trials)
        self._bins[rows] = self._move(self._bins[rows], self._record.pass_at_k(rows))

    def pass_at_k(self, uids) -> np.ndarray:
        """Estimated pass@k, (P,); NaN for a prompt with nothing to go on yet."""
        rows = self._table.find(self._table.keys(uids))
        estimate = np.full(len(rows), np.nan)
        estimate[rows >= 0] = self._record.pass_at_k(rows[rows >= 0])
        return estimate

    def assign(self, uids) -> np.ndarray:
        """Bin of each prompt, (P,) integers; −1 for a prompt with no estimate yet."""
        rows = self._table.find(self._table.keys(uids))
        if not len(self._bins):
            return rows  # all unknown: −1
        bin_ids = self._bins[rows].astype(np.int64)
        bin_ids[rows < 0] = UNSEEN
        return bin_ids

    def _rows_with_room(self, keys):
        rows = self._table.find_or_add(keys)
        capacity = len(self._bins)
        if len(self._table) > capacity:
            new_capacity = max(len(self._table), capacity + capacity // 2, 64)
            self._record.grow(new_capacity)
            grown = np.full(new_capacity, UNSEEN, self._bins.dtype)
            grown[:capacity] = self._bins
            self._bins = grown
        return rows

    def _move(self, current, estimate):
        return move_bins(current, estimate, self.edges, self.hysteresis)

    def nbytes(self) -> int:
        """Bytes held for the prompts seen (capacity included)."""
        arrays = [self._bins, *self._table.arrays(), *self._record.arrays.values()]
        return sum(array.nbytes for array in arrays)

    def state_dict(self) -> dict:
        """Everything needed to go on: settings as plain values, records as arrays."""
        size = len(self._table)
        return {
            "settings": self._settings(),
            "uid_kind": self._table.kind,
            "keys": self._table.sorted_keys.copy(),
            "rows": self._table.sorted_rows.copy(),
            "bins": self._bins[:size].copy(),
            "clock": self._record.clock,
            "record": {name: a[:size].copy() for name, a in self._record.arrays.items()},
        }

    def load_state_dict(self, state: dict) -> None:
        """Inverse of `state_dict`; ValueError if the state is of other settings."""
        check_settings("DifficultyBins", self._settings(), state["settings"])
        self._table = _UidTable(state["uid_kind"], np.array(state["keys"]), np.array(state["rows"]))
        self._bins = np.array(state["bins"])
        self._record.clock = int(state["clock"])
        self._record.arrays = {name: np.array(a) for name, a in state["record"].items()}

    def _settings(self):
        return {
            "edges": self.edges.tolist(),
            "k": self.k,
            "history": self.history,
            "hysteresis": self.hysteresis,
            "estimator": self.estimator,
        }


def move_bins(current, estimate, edges, hysteresis):
    """Bins after new estimates, (11) with the margin δ, upward and downward alike.

    current: bins, −1 for none yet, any shape. estimate: that shape, NaN leaves the bin as it is.
    A bin is left only as far as the estimate lies beyond its boundary by the margin.
    """
    known = ~np.isnan(estimate)
    value = np.where(known, estimate, 0.0) + ROUNDING  # on an edge, also when rounded: in the bin above
    fresh = np.searchsorted(edges, value, side="right")
    # past a boundary only by the margin: up as far as value − δ reaches, down as value + δ
    lowest = np.searchsorted(edges, value - hysteresis, side="right")
    highest = np.searchsorted(edges, value + max(hysteresis - 2 * ROUNDING, 0.0), side="right")
    moved = np.where(current == UNSEEN, fresh, np.minimum(np.maximum(current, lowest), highest))
    return np.where(known, moved, current)


class _UidTable:
    """From uid to row, in 16 bytes a prompt: sorted 64-bit keys beside their rows.

    Rows are handed out in order of arrival and never change.
    """

    def __init__(self, kind="", sorted_keys=None, sorted_rows=None):
        self.kind = kind
        self.sorted_keys = np.zeros(0, np.int64) if sorted_keys is None else sorted_keys
        self.sorted_rows = np.zeros(0, np.int64) if sorted_rows is None else sorted_rows

    def __len__(self):
        return len(self.sorted_keys)

    def arrays(self):
        return self.sorted_keys, self.sorted_rows

    def keys(self, uids):
        """(P,) int64 keys; ValueError unless the uids are all integers or all strings."""
        keys, kind = as_uids(uids)
        if kind and self.kind and kind != self.kind:
            raise ValueError(
                f"uids are {kind}s, but the prompts seen so far have {self.kind}s; "
                "keep to one kind of uid in a run"
            )
        return keys

    def find(self, keys):
        """(P,) rows, −1 where the key is not known."""
        if not len(self.sorted_keys):
            return np.full(len(keys), -1)
        place = self.sorted_keys.searchsorted(keys)
        place[place == len(self.sorted_keys)] = 0
        return np.where(self.sorted_keys[place] == keys, self.sorted_rows[place], -1)

    def find_or_add(self, unique_keys):
        """(P,) rows of sorted distinct keys, adding those not known yet."""
        rows = self.find(unique_keys)
        new = rows < 0
        if new.any():
            rows[new] = len(self) + np.arange(new.sum())
            place = np.searchsorted(self.sorted_keys, unique_keys[new])
            self.sorted_keys = np.insert(self.sorted_keys, place, unique_keys[new])
            self.sorted_rows = np.insert(self.sorted_rows, place, rows[new])
        return rows


class Uids(NamedTuple):
    """Uids made ready for look-up: 64-bit keys (P,) and their kind, "integer" or "string"."""

    keys: np.ndarray
    kind: str


def as_uids(uids) -> Uids:
    """Uids of a batch, ready for look-up; whatever takes uids takes these too.

    Integers are their own keys. Strings are hashed (BLAKE2b, 64 bits): two of ten million collide
    with a chance below 1 in 300,000.
    Raises ValueError for anything but a flat sequence of integers or of strings.
    """
    if isinstance(uids, Uids):
        return uids
    values = np.asarray(uids)
    if values.ndim != 1:
        raise ValueError(f"uids must be a flat sequence, got shape {values.shape}")
    if values.size == 0:
        return Uids(np.zeros(0, np.int64), "")
    # numpy turns a list of integers with a True in it into integers, so the list itself is asked
    plain_array = isinstance(uids, np.ndarray) and uids.dtype != object
    types = {values.dtype.type} if plain_array else set(map(type, uids))
    if all(issubclass(kind, str) for kind in types):
        digests = b"".join(blake2b(uid.encode(), digest_size=8).digest() for uid in uids)
        return Uids(np.frombuffer(digests, "<i8").astype(np.int64), "string")
    fits = values.dtype.kind == "i" or (values.dtype.kind == "u" and values.max() < 2**63)
    if fits and not any(issubclass(kind, bool | np.bool_) for kind in types):
        return Uids(values.astype(np.int64), "integer")
    raise ValueError(
        f"uids must be all integers (64 bit) or all strings, got {list(uids)[:4]!r}…; "
        "give every prompt one stable uid"
    )


def check_settings(what, mine, theirs):
    """ValueError naming the settings in which a saved state differs from the object it is for."""
    differing = {name: (theirs.get(name), value) for name, value in mine.items() if theirs.get(name) != value}
    if differing or mine.keys() != theirs.keys():
        raise ValueError(
            f"the saved {what} has other settings (saved, wanted): {differing}; "
            "resume with the settings of the run that saved it"
        )


def _check_edges(edges):
    inside = edges.ndim == 1 and edges.size > 0 and (edges > 0).all() and (edges < 1).all()
    if not inside or (np.diff(edges) <= 0).any():
        raise ValueError(
            f"edges must be increasing numbers inside (0, 1), at least one, got {edges.tolist()}; "
            "len(edges) + 1 bins come of them: six bins have five edges"
        )


def _check_positive_integer(name, value):
    is_integer = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not is_integer or value < 1:
        raise ValueError(f"{name} must be an integer of at least 1, got {value!r}")
