"""Folders used only if complete: files replaced atomically, states as JSON, SHA-256 ledgers.

A folder's ledger is written last and names every file of it, with size and hash. A folder without
one was killed while it was written; one with a file that is missing, altered or added since was
damaged. Neither is used. Hidden files are left out: file managers, network drives, git and the hub
put them anywhere, and no loader of models reads them. A change that is made to the ledger as well
is not noticed.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from gdro.checks import Refusal

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
    """The text of a file; Refusal if there is none. `kind` names it in the message."""
    if not Path(path).is_file():
        raise Refusal(f"no {kind} at {path}: the run is not complete; run it again")
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Refusal(f"{path} cannot be read: {error}") from error


def parse_object(path: str | Path, text: str, **named: Any) -> dict[str, Any]:
    """Parse the text of the file at `path`, a JSON object; Refusal for any other text."""
    try:
        value = json.loads(text, **named)
    except (ValueError, RecursionError) as error:
        raise Refusal(f"{path} is broken: delete it and run again ({error})") from error
    if not isinstance(value, dict):
        raise Refusal(f"{path} must hold JSON objects: delete it and run again")
    return value


def save_state(path: str | Path, state: Mapping[str, object]) -> None:
    """Write a nested `state_dict` of plain values and arrays as JSON. Nothing is pickled."""

    def encode(value: object) -> Any:
        if isinstance(value, np.ndarray):
            return {"array": value.ravel().tolist(), "dtype": value.dtype.str, "shape": value.shape}
        return plain(value)

    replace_text(path, json.dumps(state, default=encode))


def load_state(path: str | Path) -> dict[str, Any]:
    """Return the nested dictionary that `save_state` wrote; Refusal if there is none."""

    def decode(value: dict[str, Any]) -> Any:
        if value.keys() != {"array", "dtype", "shape"}:
            return value
        return np.array(value["array"], value["dtype"]).reshape(value["shape"])

    return parse_object(path, read_whole(path, "saved state"), object_hook=decode)


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
    """Size and SHA-256 of each file, by its path in the folder; those of hidden files are left out.

    A pipe, a dangling link or a link to a folder has the size 0 and no hash.
    """
    found: dict[str, list] = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        is_hidden = any(part.startswith(".") for part in name.parts)
        is_folder = path.is_dir() and not path.is_symlink()  # a link to one is not followed
        if not is_hidden and not is_folder and name != Path(LEDGER):
            size = path.stat().st_size if path.is_file() else 0
            found[str(name)] = [size, file_hash(path)]
    return found


def write_ledger(folder: Path, run: str = "") -> None:
    """Write the ledger of a complete folder of `run`: other runs do not resume from it."""
    ledger = {"name": folder.name, "run": run, "files": files_in(folder)}
    replace_text(folder / LEDGER, json.dumps(ledger))


def fault_of(folder: Path, run: str = "") -> str | None:
    """Compare a folder with its ledger; say in a sentence what differs, or None.

    `run` is the run that it must belong to; "" for any.
    """
    if not (folder / LEDGER).is_file():
        return f"{folder} was not completed"
    try:
        ledger = parse_object(folder / LEDGER, read_whole(folder / LEDGER, "ledger"))
    except Refusal as error:
        return str(error)
    written = ledger.get("files")
    if not isinstance(written, dict):
        return f"{folder / LEDGER} is broken: it names no files"
    if ledger.get("name") != folder.name:
        return f"{folder} holds the files of {ledger.get('name')}"
    if run and ledger.get("run") != run:
        return f"{folder} is of another run"
    found = files_in(folder)
    for name in sorted(written.keys() | found.keys()):
        if name not in written:
            return f"{folder / name} was added after the folder was completed"
        if written[name] != found.get(name):
            return f"{folder / name} is missing, or not as it was written"
    return None
