"""Where problems come from: files, folders and data sets of the hub, and their rows as they are."""

import csv
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

SUFFIXES = (".jsonl", ".json", ".csv", ".parquet")
HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


class RawRow(NamedTuple):
    """A row of a source: what names it in a report, and its columns or what is wrong with it."""

    label: str
    columns: Mapping[str, Any]
    fault: str | None = None
    part: str = ""
    """The name of its file without the ending, where a source has several."""


@dataclass(frozen=True)
class Place:
    """Where a source is: local files and folders, or a data set of the hub."""

    paths: tuple[Path, ...]
    """Local files or folders; without any, the hub is asked."""
    hub_id: str
    config: str | None = None
    split: str = "train"

    def __str__(self) -> str:
        return ", ".join(map(str, self.paths)) or self.hub_id


def find_place(source: str, config: str | None = None, split: str | None = None) -> Place:
    """Where a source is that is not a named set.

    Raises:
        ValueError: if it is neither a file or folder that is there nor looks like a hub id.
    """
    path = Path(source)
    if path.exists():
        check_path(path)
        return Place((path,), source, config, split or "train")
    if path.suffix.lower() in SUFFIXES:
        raise ValueError(f"the file {source!r} is not there (looked in {Path.cwd()})")
    if not HUB_ID.fullmatch(source):
        kinds = "a named set, a file, a folder or a hub id such as openai/gsm8k"
        raise ValueError(f"a source must be {kinds}, got {source!r}")
    return Place((), source, config, split or "train")


def check_path(path: Path) -> None:
    """Refuse (ValueError) a path that no reader knows."""
    if path.is_file() and path.suffix.lower() not in SUFFIXES:
        raise ValueError(f"a file must end in {', '.join(SUFFIXES)}, got {str(path)!r}")


def read_raw_rows(place: Place) -> list[RawRow]:
    """All rows of a source, those that cannot be read with their fault.

    Raises:
        ValueError: if a file, a folder or the hub cannot be read at all.
    """
    if not place.paths:
        return _numbered(_load(place.hub_id, place.config, place.split), "row ")
    if len(place.paths) == 1:
        return _read_path(place.paths[0], place, "row ")
    rows: list[RawRow] = []
    for path in place.paths:
        part = _read_path(path, place, f"{path.name}, row ")
        rows += [row._replace(part=path.stem) for row in part]
    return rows


def _read_path(path: Path, place: Place, label: str) -> list[RawRow]:
    if path.is_dir():
        return _numbered(_read_folder(path, place.config, place.split), label)
    check_path(path)
    suffix = path.suffix.lower()
    if suffix == ".parquet":
        return _numbered(_load("parquet", None, "train", data_files=str(path)), label)
    try:
        if suffix == ".jsonl":
            return list(_read_lines(path, label))
        if suffix == ".csv":
            return _numbered(_read_csv(path), label)
        return _numbered(_read_json(path), label)
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not in UTF-8 ({error})") from error
    except csv.Error as error:
        raise ValueError(f"{path} is not a CSV table ({error})") from error


def _numbered(rows: Sequence[Any], label: str) -> list[RawRow]:
    return [_raw_row(f"{label}{number}", row) for number, row in enumerate(rows)]


def _raw_row(label: str, row: Any) -> RawRow:
    if isinstance(row, Mapping):
        more = row.get(None)  # where csv puts cells behind the last column
        fault = f"it has {len(more)} cells more than the header" if more else None
        return RawRow(label, row, fault)
    return RawRow(label, {}, f"it must be an object with columns, got {str(row)[:40]!r}")


def _read_lines(path: Path, label: str) -> Iterator[RawRow]:
    """Rows of JSON lines; an empty line is not a row."""
    # not by splitlines, which also cuts at signs that a JSON text may hold
    with path.open(encoding="utf-8-sig") as file:
        lines = [line for line in file if line.strip()]
    for number, line in enumerate(lines):
        row_label = f"{label}{number}"
        try:
            yield _raw_row(row_label, json.loads(line))
        except json.JSONDecodeError as error:
            yield RawRow(row_label, {}, f"it is not JSON ({error})")


def _read_csv(path: Path) -> list[dict[str, Any]]:
    """Rows of a table with a header; every value is a text, so 007 stays 007."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        return list(csv.DictReader(file))


def _read_json(path: Path) -> list[Any]:
    try:
        rows = json.loads(path.read_text(encoding="utf-8-sig"))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is not JSON ({error})") from error
    if not isinstance(rows, list):
        raise ValueError(f"{path} must hold a list of objects, got {type(rows).__name__}")
    return rows


def _read_folder(path: Path, config: str | None, split: str) -> Sequence[Any]:
    """A folder that `save_to_disk` wrote, or a downloaded hub folder."""
    import datasets

    if (path / "dataset_info.json").is_file():
        return datasets.load_from_disk(str(path))
    if (path / "dataset_dict.json").is_file():
        splits = datasets.load_from_disk(str(path))
        if split not in splits:
            raise ValueError(f"{path} has the splits {sorted(splits)} and not {split!r}")
        return splits[split]
    # the configs of a downloaded hub folder are in its README; a bare folder has none
    named = config if (path / "README.md").is_file() else None
    return _load(str(path), named, split)


def _load(kind: str, config: str | None, split: str, **options: Any) -> Sequence[Any]:
    """Rows by the datasets library, its errors as one sentence."""
    import datasets
    from datasets.exceptions import DatasetsError

    try:
        return datasets.load_dataset(kind, config, split=split, **options)
    except (DatasetsError, OSError, ValueError) as error:
        which = options.get("data_files", kind)
        reason = str(error).strip().partition("\n")[0]
        raise ValueError(f"{which!r} cannot be read ({reason})") from error
