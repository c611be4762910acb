"""Checkpoints are whole or not resumed from: a ledger in each has the size and the hash of every file."""

import hashlib
import json
from pathlib import Path

from gdro.training.files import replace_text

LEDGER = "gdro_ledger.json"  # written last of a checkpoint


def write_ledger(folder: Path) -> None:
    """Complete a checkpoint."""
    replace_text(folder / LEDGER, json.dumps({"name": folder.name, "files": _files_in(folder)}))


def last_whole(output_dir: str | Path, given: str | Path | bool = True) -> Path | None:
    """The checkpoint to resume from: the given one, or the newest in `output_dir` with all files as written.

    Says so where an older one is taken; None where no checkpoint was completed. ValueError with file, reason
    and remedy if the given one is broken, or all that were completed are.
    """
    folders = [Path(given)] if not isinstance(given, bool) else Path(output_dir).glob("checkpoint-*")
    faults: list[str] = []
    for folder in sorted(folders, key=step_of, reverse=True):
        if isinstance(given, bool) and not (folder / LEDGER).is_file():
            continue  # killed while it was written
        if (fault := _fault_of(folder)) is None:
            if faults:
                print(f"{'; '.join(faults)}. Resuming from {folder.name}, which is whole", flush=True)
            return folder
        faults.append(fault)
    if faults:
        raise ValueError(f"{'; '.join(faults)}. Put the files back, or delete {output_dir} to start anew")
    return None


def step_of(folder: str | Path) -> int:
    """The step that a checkpoint was saved after, by its name."""
    return int(Path(folder).name.split("-")[1])


def _files_in(folder: Path) -> dict[str, list]:
    """Size and SHA-256 of each file, by its path in the folder."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name != LEDGER:
            with path.open("rb") as stream:
                digest = hashlib.file_digest(stream, "sha256").hexdigest()
            found[str(path.relative_to(folder))] = [path.stat().st_size, digest]
    return found


def _fault_of(folder: Path) -> str | None:
    """What is not as the ledger of a checkpoint says, if anything."""
    try:
        ledger = json.loads((folder / LEDGER).read_text())
        name, written = ledger["name"], dict(ledger["files"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"{folder / LEDGER} is broken ({error!r})"
    if name != folder.name:
        return f"{folder} holds the files of {name}"
    found = _files_in(folder)
    for file in written | found:
        if written.get(file) != found.get(file):
            was, now = (
                f"{files[file][0]} bytes" if file in files else "nothing" for files in (written, found)
            )
            return f"{folder / file} is not as it was written ({was}, now {now})"
    return None
