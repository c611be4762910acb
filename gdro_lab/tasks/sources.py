"""Where problems come from, and their rows: files, folders and data sets of the hub.

An answer key must arrive as it was written: cells of tables and numbers of JSON stay texts, where
readers that guess types make 7 of "007" and a date of "2020-01-01".
"""

import csv
import gzip
import io
import json
import re
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gdro_lab.failures import at_the_door

HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
LINES = (".jsonl", ".ndjson")
TABLES = (".csv", ".tsv")
KINDS = (*LINES, ".json", *TABLES, ".parquet")
PACKED = ".gz"


@dataclass(frozen=True)
class Place:
    """Where a source is: a local file or folder, or a data set of the hub."""

    path: Path | None
    """A local file or folder; without one, the hub is asked."""
    hub_id: str
    config: str | None = None
    split: str = "train"

    def __str__(self) -> str:
        return str(self.path or self.hub_id)


def split_name(path: Path) -> tuple[str, str, bool]:
    """The stem of a file, the ending that says how it is read, and whether it is compressed."""
    packed = path.suffix.lower() == PACKED
    bare = path.with_suffix("") if packed else path
    kind = bare.suffix.lower()
    return (bare.stem, kind, packed) if kind in KINDS else (path.stem, kind, packed)


def stem_of(path: Path) -> str:
    """The name of a file without its endings: `sums` of sums.jsonl.gz."""
    return split_name(path)[0]


def find_place(source: str, config: str | None = None, split: str | None = None) -> Place:
    """Where a source is that is not a named set.

    Raises:
        ValueError: if it is neither a file or folder that is there nor looks like a hub id.
    """
    path = Path(source)
    if path.exists():
        check_path(path, config, split)
        return Place(path, source, config, split or "train")
    if split_name(path)[1] in KINDS:
        raise ValueError(f"the file {source!r} is not there (looked in {Path.cwd()})")
    if not HUB_ID.fullmatch(source):
        kinds = "a named set, a file, a folder or a hub id such as openai/gsm8k"
        raise ValueError(f"a source must be {kinds}, got {source!r}")
    return Place(None, source, config, split or "train")


def check_path(path: Path, config: str | None = None, split: str | None = None) -> None:
    """Refuse (ValueError) a path that is no folder and no file of a known kind, without splits."""
    if not path.is_dir() and not (path.is_file() and split_name(path)[1] in KINDS):
        raise ValueError(
            f"a source must be a folder, or a file that ends in {', '.join(KINDS)}, perhaps with "
            f"{PACKED} behind it, got {str(path)!r}"
        )
    is_one = path.is_file() or (path / "dataset_info.json").is_file()
    if is_one and (config or split):
        raise ValueError(f"{str(path)!r} has neither config nor split, got {config!r}, {split!r}")


def read_rows(place: Place) -> list[Any]:
    """All rows of a source, each a mapping or, of a broken line, a ValueError; Refusal if none."""
    with at_the_door(f"{place} cannot be read"):  # each library has errors of its own
        return _read(place)


def _read(place: Place) -> list[Any]:
    """The rows of a file, a folder or, where there is no path, the hub."""
    path = place.path
    if path is not None and path.is_file():
        return read_file(path)
    import datasets

    if path is None:
        return _to_list(datasets.load_dataset(place.hub_id, place.config, split=place.split))
    names = [name.strip() for name in place.split.split("+")]
    if (path / "dataset_info.json").is_file():
        return _to_list(datasets.load_from_disk(str(path)))
    if (path / "dataset_dict.json").is_file():
        found = json.loads((path / "dataset_dict.json").read_text())["splits"]
        _check_splits(names, found)
        return [
            row for name in names for row in _to_list(datasets.load_from_disk(str(path / name)))
        ]
    # its files, by their names or its README; each is then read as it is written
    with tempfile.TemporaryDirectory() as cache:
        builder = datasets.load_dataset_builder(str(path), place.config, cache_dir=cache)
    files = builder.config.data_files
    _check_splits(names, files)
    return [row for name in names for file in files[name] for row in read_file(Path(file))]


def _check_splits(names: Sequence[str], found: Iterable[str]) -> None:
    unknown = [name for name in names if name not in found]
    if unknown:
        raise ValueError(f"a split must be one of {list(found)}, got {unknown[0]!r}")


def read_file(path: Path) -> list[Any]:
    """All rows of a file; in place of a broken one, a ValueError that names its line."""
    _, kind, packed = split_name(path)
    if kind == ".parquet":
        import datasets
        from pyarrow import parquet

        return _to_list(datasets.Dataset(parquet.read_table(path)))
    check_path(path)
    opened: Any = gzip.open if packed else open
    with opened(path, "rt", encoding="utf-8-sig", newline=None) as stream:
        if kind in TABLES:
            return _cells(stream.read())
        if kind in LINES:
            return _lines(stream)
        text = stream.read()
    try:
        value = _parse(text)
    except json.JSONDecodeError as error:
        if error.msg != "Extra data":
            raise
        return _lines(io.StringIO(text))  # under another name
    parts = value.values() if _is(value) else []
    lists = [part for part in parts if isinstance(part, list) and all(map(_is, part))]
    rows = value if isinstance(value, list) else lists[0] if len(lists) == 1 else [value]
    if not all(map(_is, rows)):
        raise ValueError("each row must be an object with columns")
    return rows


def _lines(stream: Iterable[str]) -> list[Any]:
    """The rows of JSON lines."""
    rows: list[Any] = []
    for number, line in enumerate(stream, 1):
        if not line.strip():
            continue
        try:
            row = _parse(line)
            fault = None if _is(row) else "an object with columns"
        except (ValueError, RecursionError) as error:
            fault = f"JSON ({getattr(error, 'msg', error)})"
        rows.append(ValueError(f"line {number} is not {fault}") if fault else row)
    return rows


def _cells(text: str) -> list[Any]:
    """The rows of a table, whose delimiter is the sign that its header has most often."""
    header = text.lstrip().partition("\n")[0]
    sign = max(",;\t|", key=header.count)
    reader = csv.reader(io.StringIO(text), delimiter=sign, skipinitialspace=True, strict=True)
    rows = [(reader.line_num, row) for row in reader if row]
    if not rows:
        return []
    names = rows.pop(0)[1]
    if len(set(names)) < len(names):
        raise ValueError(f"each column must have a name of its own, got {names}")
    return [
        dict(zip(names, row, strict=True))
        if len(row) == len(names)
        else ValueError(f"line {number} has {len(row)} cells in place of {len(names)}")
        for number, row in rows
    ]


def _to_list(dataset: Any) -> list[Any]:
    """The rows of a data set, with floats of 16 and 32 bits as they were written."""
    kinds = {field.name: str(field.type) for field in dataset.data.schema}
    short = {
        name: np.float16 if "halffloat" in kind else np.float32
        for name, kind in kinds.items()
        if "float" in kind
    }
    rows = dataset.to_list()
    for row in rows:
        row |= {name: _as_written(row[name], kind) for name, kind in short.items()}
    return rows


def _as_written(value: Any, kind: Any) -> Any:
    """0.1, where a float of 32 bits has become 0.10000000149011612."""
    if isinstance(value, list):
        return [_as_written(item, kind) for item in value]
    if _is(value):
        return {name: _as_written(item, kind) for name, item in value.items()}
    is_short = isinstance(value, float) and not value.is_integer() and value == kind(value)
    return float(str(kind(value))) if is_short else value


def _is(value: Any) -> bool:
    return isinstance(value, Mapping)


def without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; ValueError for a name that is there twice: json would keep its last value."""
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError(f"an object has a name twice, among {list(fields)[:20]}")
    return fields


def _parse(text: str) -> Any:
    """A JSON value whose numbers stay the texts that were written: 1e-7, 2.50."""
    return json.loads(text, parse_int=str, parse_float=str, object_pairs_hook=without_repeats)
