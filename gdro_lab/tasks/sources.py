"""Where problems come from, and their rows: files, folders and data sets of the hub.

An answer key must arrive as it was written: cells of tables and numbers of JSON stay texts, where
readers that guess types make 7 of "007" and a date of "2020-01-01".
"""

import bz2
import gzip
import json
import lzma
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from gdro.files import without_repeats

HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
LINES = (".jsonl", ".ndjson")
TABLES = (".csv", ".tsv")
KINDS = (*LINES, ".json", *TABLES, ".parquet")
PACKED: dict[str, Any] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}


class WrittenNumber(str):
    """A number in JSON, as it was written: 1e-7 stays 1e-7, and 2.50 stays 2.50."""


class RawRow(NamedTuple):
    """A row of a source."""

    columns: Any
    """A mapping; of a table without a header, the list of its cells."""
    label: str
    """What names it in a report."""
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


def split_name(path: Path) -> tuple[str, str, str]:
    """The stem of a file, the ending that says how it is read, and that of its compression."""
    packed = path.suffix.lower() if path.suffix.lower() in PACKED else ""
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
        check_path(path)
        if path.is_file() and (config or split):
            raise ValueError(
                f"a file has neither config nor split, got {config!r} and {split!r} for {source!r}"
            )
        return Place((path,), source, config, split or "train")
    if split_name(path)[1] in KINDS:
        raise ValueError(f"the file {source!r} is not there (looked in {Path.cwd()})")
    if not HUB_ID.fullmatch(source):
        kinds = "a named set, a file, a folder or a hub id such as openai/gsm8k"
        raise ValueError(f"a source must be {kinds}, got {source!r}")
    return Place((), source, config, split or "train")


def check_path(path: Path) -> None:
    """Refuse (ValueError) a path that is no folder and no file of a known kind."""
    if not path.is_dir() and not (path.is_file() and split_name(path)[1] in KINDS):
        raise ValueError(
            f"a source must be a folder, or a file that ends in {', '.join(KINDS)}, perhaps with "
            f"{', '.join(PACKED)} behind it, got {str(path)!r}"
        )


def read_raw_rows(place: Place, has_header: bool = True) -> list[RawRow]:
    """All rows of a source, numbered from 0; ValueError if it cannot be read."""
    rows: list[RawRow] = []
    several = len(place.paths) > 1
    for path in place.paths or (None,):
        try:
            values = _read(path, place, has_header)
        except Exception as error:  # each library has errors of its own
            reason = str(error).strip().partition("\n")[0]
            raise ValueError(f"{path or place.hub_id} cannot be read ({reason})") from error
        prefix = f"{path.name}, " if path and several else ""
        part = stem_of(path) if path and several else ""
        rows += [RawRow(row, f"{prefix}row {n}", part) for n, row in enumerate(values)]
    return rows


def _read(path: Path | None, place: Place, has_header: bool) -> list[Any]:
    """The rows of a file, a folder or, where there is no path, the hub."""
    if path is not None and path.is_file():
        return read_file(path, has_header)
    import datasets

    if path is not None and (path / "dataset_info.json").is_file():
        return datasets.load_from_disk(str(path)).to_list()
    if path is not None and (path / "dataset_dict.json").is_file():
        return datasets.load_from_disk(str(path))[place.split].to_list()
    where = place.hub_id if path is None else str(path)
    return datasets.load_dataset(where, place.config, split=place.split).to_list()


def read_file(path: Path, has_header: bool = True) -> list[Any]:
    """All rows of a file; ValueError if it is not what its ending says."""
    _, kind, packed = split_name(path)
    if kind == ".parquet":
        from pyarrow import parquet

        return parquet.read_table(path).to_pylist()
    with PACKED.get(packed, open)(path, "rt", encoding="utf-8-sig", newline="") as stream:
        if kind in TABLES:
            import pandas as pd

            header = 0 if has_header else None
            sep = "\t" if kind == ".tsv" else None
            table = pd.read_csv(
                stream, sep=sep, header=header, dtype=str, keep_default_na=False, engine="python"
            )
            return table.to_dict("records") if has_header else table.to_numpy().tolist()
        text = stream.read()
    if kind in LINES:
        rows = [_parse(line) for line in text.splitlines() if line.strip()]
    else:
        value = _parse(text)
        lists = [part for part in value.values() if isinstance(part, list)] if _is(value) else []
        rows = value if isinstance(value, list) else lists[0] if len(lists) == 1 else [value]
    if not all(map(_is, rows)):
        raise ValueError("each row must be an object with columns")
    return rows


def _is(value: Any) -> bool:
    return isinstance(value, Mapping)


def _parse(text: str) -> Any:
    """A JSON value whose numbers stay the texts that were written."""
    return json.loads(
        text,
        parse_int=WrittenNumber,
        parse_float=WrittenNumber,
        object_pairs_hook=without_repeats,
    )
