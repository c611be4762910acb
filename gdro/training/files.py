"""Files written whole or not at all: text, and nested states as JSON; where the repository is."""

import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np


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


@contextmanager
def written(what: str) -> Iterator[None]:
    """Say what could not be written and what to do, also where torch or safetensors raise own errors."""
    try:
        yield
    except ValueError:
        raise
    except Exception as error:
        why = f"{what} could not be written ({error})"
        raise RuntimeError(f"{why}; free space on the disk, and run the same again: it resumes") from error


def save_state(path: str | Path, state: Mapping[str, Any]) -> None:
    """Write a nested `state_dict` of plain values and arrays as JSON. Nothing is pickled."""
    replace_text(path, json.dumps(plain_values(state, "state", tagged=True)))


def load_state(path: str | Path) -> dict[str, Any]:
    """Return the nested dictionary that `save_state` wrote; ValueError if there is none."""

    def decoded(value: dict[str, Any]) -> Any:
        is_array = value.keys() == {"array", "dtype", "shape"}
        return np.array(value["array"], value["dtype"]).reshape(value["shape"]) if is_array else value

    return json.loads(read_whole(path, "saved state"), object_hook=decoded)


def plain_values(value: Any, where: str, tagged: bool = False) -> Any:
    """`value` in JSON's own types; `where` is for messages. tagged: arrays keep their type and shape."""
    if tagged and isinstance(value, np.ndarray):
        return {"array": value.ravel().tolist(), "dtype": value.dtype.str, "shape": value.shape}
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, Mapping):
        if wrong := [key for key in value if not isinstance(key, str)]:
            raise ValueError(f"{where} has the key {wrong[0]!r}, a {type(wrong[0]).__name__}; use a str")
        return {key: plain_values(item, f"{where}, {key!r}", tagged) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_values(item, f"{where}, [{place}]", tagged) for place, item in enumerate(value)]
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{where} is {value}, which JSON cannot hold; write None instead")
    if value is None or isinstance(value, bool | str | int | float):
        return value
    raise ValueError(f"{where} is a {type(value).__name__}, which JSON cannot hold; convert it first")


def read_whole(path: str | Path, kind: str) -> str:
    if not Path(path).is_file():
        raise ValueError(f"no {kind} at {path}: the run is not complete; run it again")
    return Path(path).read_text(encoding="utf-8")


def repository() -> Path:
    """The repository that holds the working directory."""
    for folder in (Path.cwd(), *Path.cwd().parents):
        if (folder / "profiles").is_dir() and (folder / "pyproject.toml").is_file():
            return folder
    raise ValueError(f"no profiles/ above {Path.cwd()}; run from inside the repository")
