"""What a run leaves: tables and a manifest, each written whole or not at all.

A table is a list of rows, one JSON object per line. A value is a str, bool, int, finite float or
None, or a list of these; numpy scalars and arrays are taken too. Floats come back bit for bit.
A manifest is one JSON object: what the run says of itself, and what it ran on. It says "this run
is whole", so it is the last thing that a run writes.

JSON has no NaN and no infinity, so both are a `ValueError` that names the row and the key: write
None for "no value", or leave the key out.
"""

import json
import math
import os
import platform
import secrets
from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save

import gdro

PACKAGES = (
    "numpy", "scipy", "torch", "transformers", "trl", "datasets", "peft", "vllm", "unsloth",
)  # fmt: skip


def replace_text(path: str | Path, text: str) -> None:
    """Put `text` at `path` at once: a reader finds the old file or the new one, never a part."""
    _replace_bytes(path, text.encode("utf-8"))


def _replace_bytes(path: str | Path, content: bytes) -> None:
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # Beside the target, since os.replace is atomic only within one file system; opened by hand,
    # since tempfile would make a result that nobody else on a shared machine may read.
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with partial.open("xb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def write_table(path: str | Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write `rows` as JSON lines. ValueError names the row (from 0) and key of a bad value."""
    lines = [json.dumps(_plain(row, f"row {number}")) for number, row in enumerate(rows)]
    replace_text(path, "".join(line + "\n" for line in lines))


def read_table(path: str | Path) -> list[dict[str, Any]]:
    """The rows that `write_table` wrote. ValueError if the file is absent or a line is broken."""
    lines = _read_text(path, "table").split("\n")
    if lines[-1]:
        raise ValueError(f"table {path} stops in mid-line; it is cut short: write it again")
    return [_parse(line, f"table {path}, line {n}") for n, line in enumerate(lines[:-1], start=1)]


def write_manifest(path: str | Path, payload: Mapping[str, Any]) -> None:
    """Write `payload` with the versions and the platform it ran on, as a run's last act."""
    surroundings = environment()
    taken = sorted(set(payload) & set(surroundings))
    if taken:
        raise ValueError(f"manifest payload holds {taken}, which write_manifest adds: rename them")
    whole = surroundings | _plain(payload, "manifest")
    replace_text(path, json.dumps(whole, indent=2) + "\n")


def read_manifest(path: str | Path) -> dict[str, Any]:
    """The manifest at `path`. ValueError if it is absent or broken: then the run is not whole."""
    return _parse(_read_text(path, "manifest"), f"manifest {path}")


def environment() -> dict[str, Any]:
    """Versions and machine kind; no host names, no paths: a manifest may be published."""
    return {
        "gdro": gdro.__version__,
        "python": platform.python_version(),
        "packages": {name: found for name in PACKAGES if (found := _version(name)) is not None},
        "platform": {
            "system": platform.system(),
            "machine": platform.machine(),
            "cpus": os.cpu_count(),
        },
    }


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _plain(value: Any, where: str) -> Any:
    """`value` in JSON's own types; `where` says whose value it is, for the message."""
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist(), where)
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{where} is {value}, which JSON cannot hold: write None instead")
        return float(value)
    if isinstance(value, Mapping):
        return {_key(key, where): _plain(item, f"{where}, {key!r}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, f"{where}, [{place}]") for place, item in enumerate(value)]
    raise ValueError(
        f"{where} is a {type(value).__name__}; wanted str, bool, int, float, None, or a list, "
        "dict or numpy array of these: convert it first"
    )


def _key(key: Any, where: str) -> str:
    if not isinstance(key, str):
        raise ValueError(f"{where} has the key {key!r}, a {type(key).__name__}: use a str")
    return key


def _read_text(path: str | Path, kind: str) -> str:
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"no {kind} at {path}: the run has not ended well; run it again")
    return path.read_text(encoding="utf-8")


def _parse(text: str, where: str) -> dict[str, Any]:
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except ValueError as error:
        raise ValueError(f"{where} is broken ({error}): run what wrote it again") from error
    if not isinstance(value, dict):
        raise ValueError(f"{where} holds a {type(value).__name__}, not an object: write it again")
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def save_state(path: str | Path, state: Mapping[str, Any]) -> None:
    """A nested `state_dict` (arrays and plain values) as one safetensors file, whole or not at all.

    Arrays become tensors named by their place, "bins.record.successes"; the plain values travel as
    JSON in the file's metadata. Nothing is pickled.
    """
    arrays, plain = _split_state(state)
    _replace_bytes(path, save(arrays, metadata={"plain": json.dumps(_plain(plain, "state"))}))


def load_state(path: str | Path) -> dict[str, Any]:
    """The nested dictionary that `save_state` wrote. ValueError if there is none at `path`."""
    if not Path(path).is_file():
        raise ValueError(f"no saved state at {path}; resume from a checkpoint that holds one")
    with safe_open(path, framework="np") as file:
        state: dict[str, Any] = json.loads(file.metadata()["plain"])
        for name in file.keys():  # noqa: SIM118 (safe_open is no mapping)
            *parents, leaf = name.split(".")
            place = state
            for parent in parents:
                place = place.setdefault(parent, {})
            place[leaf] = file.get_tensor(name)
    return state


def _split_state(state, prefix=""):
    """Arrays by dotted name, and what is left of the nested dictionary."""
    arrays, plain = {}, {}
    for name, value in state.items():
        if isinstance(value, np.ndarray):
            arrays[prefix + name] = np.ascontiguousarray(value)
        elif isinstance(value, Mapping):
            deeper, plain[name] = _split_state(value, f"{prefix}{name}.")
            arrays |= deeper
        else:
            plain[name] = value
    return arrays, plain
