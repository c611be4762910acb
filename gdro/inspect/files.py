"""Files of a log: which ones, and their rows in parts, column by column."""

import json
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gdro.checks import Refusal

PART = 65_536  # rows read at once
SUFFIXES = (".parquet", ".jsonl", ".csv")


@dataclass(frozen=True)
class Parts:
    """A file that is read in parts."""

    columns: list[str]
    """Names of its columns."""
    numeric: list[str]
    """Those that hold numbers."""
    rows: Callable[[list[str]], Iterator[dict[str, list]]]
    """Gives, for some columns, the values of at most `PART` rows at a time."""


def find_files(paths: Sequence[Path]) -> list[Path]:
    """The files of a log, in the order of their steps.

    Args:
        paths: files, or one folder: of completions, TRL's output folder, or that of a run.

    Raises:
        Refusal: where there is none, or where they are of several formats or runs.
    """
    if len(paths) == 1 and paths[0].is_dir():
        return _files_in(paths[0])
    if not paths:
        raise Refusal("the log must be a folder or files, got none")
    for path in paths:
        if not path.is_file():
            raise Refusal(f"the log must be one folder, or files, got {path}")
    return _of_one_format(list(paths), "files")


def _files_in(folder: Path) -> list[Path]:
    logged = sorted(folder.glob("completions/completions_*.parquet"))
    if logged:  # a folder of a run has tables of its own beside them
        return _in_order(logged)
    is_run = (folder / "record.jsonl").is_file()
    files = [
        path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES and path.is_file()
    ]
    files = [path for path in files if not path.name.startswith(".")]
    if files and not is_run:
        return _of_one_format(files, str(folder))
    logged = sorted(folder.rglob("completions/completions_*.parquet"))
    runs = sorted({path.parent.parent for path in logged})
    if len(runs) > 1:
        names = [str(path.relative_to(folder)) for path in runs[:3]]
        raise Refusal(f"{folder} must hold one run, got {len(runs)}, such as {names}: name one")
    if not logged:
        raise Refusal(
            f"{folder} must hold rollouts as Parquet, JSONL or CSV, got none: "
            "log_completions=True in TRL, or trainer.rollout_data_dir in verl, writes them"
        )
    return _in_order(logged)


def _of_one_format(files: list[Path], where: str) -> list[Path]:
    kinds = sorted({path.suffix.lower() for path in files})
    if len(kinds) > 1:
        raise Refusal(f"{where} must be of one format, got {kinds}: name the files")
    if kinds[0] not in SUFFIXES:
        raise Refusal(f"{files[0]} must be .parquet, .jsonl or .csv, got {kinds[0]!r}")
    return _in_order(files)


def _in_order(files: list[Path]) -> list[Path]:
    """By the number in their names: 10.jsonl comes after 9.jsonl."""

    def place(path: Path) -> tuple[int, str]:
        digits = path.stem.rpartition("_")[2]
        return (int(digits) if digits.isdigit() else -1, str(path))

    return sorted(files, key=place)


def read_parts(file: Path) -> Parts:
    """How a file is read; Refusal, with its name, for one that is cut or no such file."""
    readers = {".parquet": _parquet, ".jsonl": _jsonl, ".csv": _csv}
    return readers[file.suffix.lower()](file)


def _parquet(file: Path) -> Parts:
    try:
        from pyarrow import ArrowException, parquet, types
    except ImportError:
        raise Refusal(f"{file} is Parquet, which needs pyarrow: pip install pyarrow") from None
    try:
        schema = parquet.read_schema(file)
    except (ArrowException, OSError) as error:
        raise Refusal(f"{file} is cut, or no Parquet ({_first_line(error)})") from None

    def rows(columns: list[str]) -> Iterator[dict[str, list]]:
        try:
            with parquet.ParquetFile(file) as opened:
                for batch in opened.iter_batches(PART, columns=columns):
                    yield {name: _values(batch.column(name)) for name in columns}
        except (ArrowException, OSError) as error:
            raise Refusal(f"{file} is cut, or no Parquet ({_first_line(error)})") from None

    def is_number(kind: Any) -> bool:
        return types.is_floating(kind) or types.is_integer(kind) or types.is_boolean(kind)

    numeric = [field.name for field in schema if is_number(field.type)]
    return Parts(schema.names, numeric, rows)


def _values(column: Any) -> list:
    """Values of an arrow column; equal texts are one object."""
    from pyarrow import types

    if not (types.is_string(column.type) or types.is_large_string(column.type)):
        return column.to_pylist()
    encoded = column.dictionary_encode()
    texts = encoded.dictionary.to_pylist()
    places = encoded.indices.to_pylist()
    return [None if place is None else texts[place] for place in places]


def _csv(file: Path) -> Parts:
    try:
        import pandas as pd
    except ImportError:
        raise Refusal(f"{file} is CSV, which needs pandas: pip install pandas") from None
    try:
        head = pd.read_csv(file, nrows=1000)
    except (ValueError, OSError) as error:
        raise Refusal(f"{file} is cut, or no CSV ({_first_line(error)})") from None
    columns = [str(name) for name in head.columns]
    numeric = [str(name) for name in head.select_dtypes(["number", "bool"]).columns]

    def rows(chosen: list[str]) -> Iterator[dict[str, list]]:
        try:
            with pd.read_csv(file, usecols=chosen, chunksize=PART) as parts:
                for part in parts:
                    yield {name: part[name].tolist() for name in chosen}
        except (pd.errors.ParserError, UnicodeDecodeError, OSError) as error:
            raise Refusal(f"{file} is cut, or no CSV ({_first_line(error)})") from None

    return Parts(columns, numeric, rows)


def _jsonl(file: Path) -> Parts:
    objects = _objects(file)
    first = next(objects, None)
    objects.close()
    if first is None:
        return Parts([], [], lambda columns: iter(()))
    numeric = [name for name, value in first.items() if isinstance(value, int | float)]

    def rows(columns: list[str]) -> Iterator[dict[str, list]]:
        part: dict[str, list] = {name: [] for name in columns}
        for place, row in enumerate(_objects(file), 1):
            for name in columns:
                if name not in row:
                    raise Refusal(f"{file} must have {name!r} in each row, got none in row {place}")
                part[name].append(row[name])
            if len(part[columns[0]]) == PART:
                yield part
                part = {name: [] for name in columns}
        yield part

    return Parts(list(first), numeric, rows)


def _objects(file: Path) -> Generator[dict[str, Any], None, None]:
    """The objects of a file of JSON lines; blank lines are passed over."""
    with file.open(encoding="utf-8-sig", errors="strict") as lines:
        place = 0
        while True:
            place += 1
            try:
                line = next(lines, None)
                if line is None:
                    return
                row = json.loads(line) if line.strip() else None
            except ValueError as error:  # of the encoding too
                raise Refusal(
                    f"{file} is cut, or no JSON, in line {place} ({_first_line(error)})"
                ) from None
            if row is None:
                continue
            if not isinstance(row, dict):
                raise Refusal(f"{file} must have an object in each line, got {line[:40]!r}")
            yield row


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0][:120]
