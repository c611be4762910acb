"""Folders used only if complete: files replaced atomically, states as JSON, SHA-256 ledgers.

A folder's ledger is written last and has the size and the hash of every file. A folder without
one was killed while it was written; one whose files differ from it was damaged. Neither is used.
"""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

LEDGER = "gdro_ledger.json"


def replace_text(path: str | Path, text: str) -> None:
    """Write `text` to `path` at once: a reader finds the old file or the new one, never a part."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # in the target's folder, since os.replace is atomic only within one file system; with the
    # process id, since two processes may write the same target
    partial = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with partial.open("w", encoding="utf-8", newline="") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def read_whole(path: str | Path, kind: str) -> str:
    """The text of a file; ValueError if there is none. `kind` names it in the message."""
    if not Path(path).is_file():
        raise ValueError(f"no {kind} at {path}: the run is not complete; run it again")
    return Path(path).read_text(encoding="utf-8")


def save_state(path: str | Path, state: Mapping[str, object]) -> None:
    """Write a nested `state_dict` of plain values and arrays as JSON. Nothing is pickled."""

    def encode(value: object) -> Any:
        if isinstance(value, np.ndarray):
            return {"array": value.ravel().tolist(), "dtype": value.dtype.str, "shape": value.shape}
        return plain(value)

    replace_text(path, json.dumps(state, default=encode))


def load_state(path: str | Path) -> dict[str, Any]:
    """Return the nested dictionary that `save_state` wrote; ValueError if there is none."""

    def decode(value: dict[str, Any]) -> Any:
        if value.keys() != {"array", "dtype", "shape"}:
            return value
        return np.array(value["array"], value["dtype"]).reshape(value["shape"])

    return json.loads(read_whole(path, "saved state"), object_hook=decode)


def plain(value: object) -> Any:
    """Arrays and scalars of numpy in JSON's own types: `default` of json.dumps."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    raise TypeError(f"{value!r:.80} is a {type(value).__name__}, which JSON cannot hold")


def file_hash(path: Path) -> str:
    """SHA-256 of a file, in hex; empty if there is none."""
    if not path.is_file():
        return ""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def files_in(folder: Path) -> dict[str, list]:
    """Size and SHA-256 of each file, by its path in the folder; what is hidden is not ours."""
    return {
        str(path.relative_to(folder)): [path.stat().st_size, file_hash(path)]
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != LEDGER and not _is_hidden(path.relative_to(folder))
    }


def _is_hidden(path: Path) -> bool:
    """Whether a file, or a folder that it is in, has a name with a dot first."""
    return any(part.startswith(".") for part in path.parts)


def difference(folder: Path, written: Mapping[str, list]) -> str | None:
    """Which file is not as `files_in` found it, if any. Files that were added do no harm."""
    for file, (size, digest) in written.items():
        path = folder / file
        if not path.is_file() or path.stat().st_size != size or file_hash(path) != digest:
            return f"{path} is missing, or not as it was written ({size} bytes)"
    return None


def write_ledger(folder: Path, run: str = "") -> None:
    """Complete a folder. `run` says whose it is: other runs do not resume from it."""
    ledger = {"name": folder.name, "run": run, "files": files_in(folder)}
    replace_text(folder / LEDGER, json.dumps(ledger))


def fault_of(folder: Path, run: str = "", expected: Sequence[str] = ()) -> str | None:
    """What differs from the ledger of a folder, if anything.

    Args:
        folder: with a ledger, if it was completed.
        run: the run that it must belong to; "" for any.
        expected: files that the ledger must name.
    """
    if not (folder / LEDGER).is_file():
        return f"{folder} was not completed"
    try:
        ledger = json.loads((folder / LEDGER).read_text())
        if ledger["name"] != folder.name:
            return f"{folder} holds the files of {ledger['name']}"
        if run and ledger["run"] != run:
            return f"{folder} is a checkpoint of another run"
        missing = [name for name in expected if name not in ledger["files"]]
        if missing or not ledger["files"]:
            return f"{folder / LEDGER} is broken: it names no {missing or 'files'}"
        return difference(folder, ledger["files"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"{folder / LEDGER} is broken ({error!r})"
