"""Folders that are whole or not used: a ledger in each has the size and the hash of every file.

A checkpoint whose ledger is missing was killed while it was written; one whose files differ from it was
damaged. Neither is resumed from. The same holds for a base in the cache and for a trained model.
"""

import hashlib
import json
import re
from pathlib import Path
from typing import Any

from gdro.training.files import replace_text

LEDGER = "gdro_ledger.json"  # written last of a folder


def write_ledger(folder: Path, run: str = "") -> None:
    """Complete a folder. `run` says whose it is: a checkpoint of another run is not resumed from."""
    ledger = {"name": folder.name, "run": run, "files": files_in(folder)}
    replace_text(folder / LEDGER, json.dumps(ledger))


def last_whole(output_dir: str | Path, given: str | Path | bool = True, run: str = "") -> Path | None:
    """The checkpoint to resume from: the given one, or the newest in `output_dir` with all files as written.

    Prints which checkpoints it passes over, and why. None where no checkpoint was completed.

    Raises:
        ValueError: with file, reason and remedy, if the given one is broken, or all completed ones are.
    """
    found = Path(output_dir).glob("checkpoint-*") if isinstance(given, bool) else [Path(given)]
    # other names, such as checkpoint-best or checkpoint-4.bak, are people's own
    folders = [folder for folder in found if re.fullmatch(r"checkpoint-\d+", folder.name)]
    if not folders and not isinstance(given, bool):
        raise ValueError(
            f"resume_from_checkpoint must name a folder checkpoint-<step>, got {given}; rename it"
        )
    unfinished, faults = list[str](), list[str]()
    for folder in sorted(folders, key=step_of, reverse=True):
        if isinstance(given, bool) and not (folder / LEDGER).is_file():
            unfinished.append(folder.name)
        elif (fault := fault_of(folder, run)) is None:
            if skipped := [*faults, *(f"{name} was not completed" for name in unfinished)]:
                print(f"{'; '.join(skipped)}. Resuming from {folder.name}, which is whole", flush=True)
            return folder
        else:
            faults.append(fault)
    if faults:
        raise ValueError(f"{'; '.join(faults)}. Put the files back, or delete {output_dir} to start anew")
    if unfinished:
        print(f"{', '.join(unfinished)} in {output_dir}: not completed. Starting from step 0", flush=True)
    return None


def step_of(folder: str | Path) -> int:
    """The step that a checkpoint was saved after, by its name."""
    return int(Path(folder).name.split("-")[1])


def files_in(folder: Path) -> dict[str, list]:
    """Size and SHA-256 of each file, by its path in the folder; hidden files are not ours."""
    return {
        str(path.relative_to(folder)): [path.stat().st_size, file_hash(path)]
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != LEDGER and not path.name.startswith(".")
    }


def file_hash(path: Path) -> str:
    """SHA-256 of a file, in hex; empty if there is none."""
    if not path.is_file():
        return ""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def difference(folder: Path, written: dict[str, Any]) -> str | None:
    """Which file of a folder differs from what `files_in` found before, and how; None if none does."""
    found = files_in(folder)
    for file in written | found:
        if written.get(file) != found.get(file):
            was, now = (
                f"{files[file][0]} bytes" if file in files else "nothing" for files in (written, found)
            )
            return f"{folder / file} is not as it was written ({was}, now {now})"
    return None


def fault_of(folder: Path, run: str = "") -> str | None:
    """What is not as the ledger of a folder says, if anything."""
    try:
        ledger = json.loads((folder / LEDGER).read_text())
        name, written, owner = ledger["name"], dict(ledger["files"]), ledger.get("run", "")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"{folder / LEDGER} is broken ({error!r})"
    if name != folder.name:
        return f"{folder} holds the files of {name}"
    if run and owner != run:
        return f"{folder} is a checkpoint of another run"
    return difference(folder, written)
