"""The rows of a file, as they are: JSON, JSON lines, tables and Parquet, perhaps compressed.

`json`, `csv` and pyarrow read them, because an answer key must arrive as it was written. The
readers of `datasets` and pandas guess types: a column of texts such as "2020-01-01" becomes dates,
"007" in a table becomes 7, and 7 beside 7.5 becomes 7.0.
"""

import bz2
import codecs
import csv
import gzip
import io
import json
import lzma
import re
from collections.abc import Iterable, Mapping
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from gdro.files import without_repeats

if TYPE_CHECKING:
    import pyarrow

LINES = (".jsonl", ".ndjson")
TABLES = (".csv", ".tsv")
KINDS = (*LINES, ".json", *TABLES, ".parquet")
PACKED = (".gz", ".bz2", ".xz")
UNPACK = {b"\x1f\x8b": gzip.decompress, b"BZh": bz2.decompress, b"\xfd7zXZ": lzma.decompress}
DELIMITERS = ",;\t|"
QUOTED = re.compile(r'".*"', re.DOTALL)
UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


class WrittenNumber(str):
    """A number in JSON, as it was written: 1e-7 stays 1e-7, and 2.50 stays 2.50."""


class RawRow(NamedTuple):
    """A row of a source: its columns, or what is wrong with it."""

    columns: Any
    """A mapping; of a table without a header, the list of its cells."""
    fault: str | None = None
    label: str = ""
    """What names it in a report."""
    part: str = ""
    """The name of its file without the ending, where a source has several."""


def check_path(path: Path) -> None:
    """Refuse (ValueError) a path that is no folder and no file of a known kind."""
    if path.is_dir():
        return
    if kind_of(path) not in KINDS:
        raise ValueError(
            f"a file must end in {', '.join(KINDS)}, perhaps with {', '.join(PACKED)} behind it, "
            f"got {str(path)!r}"
        )
    if not path.is_file():  # reading a pipe would wait for ever
        raise ValueError(f"a source must be a regular file or a folder, got {str(path)!r}")


def kind_of(path: Path) -> str:
    """The ending that says how a file is read, without that of its compression."""
    return _unpacked(path).suffix.lower()


def stem_of(path: Path) -> str:
    """The name of a file without its endings: `sums` of sums.jsonl.gz."""
    unpacked = _unpacked(path)
    return unpacked.stem if unpacked.suffix.lower() in KINDS else path.stem


def _unpacked(path: Path) -> Path:
    return path.with_suffix("") if path.suffix.lower() in PACKED else path


def raw_rows(rows: Iterable[Any]) -> list[RawRow]:
    """Values as rows; what has no columns is a fault."""
    return [
        RawRow(row)
        if isinstance(row, Mapping | list)
        else RawRow({}, f"it must be an object with columns, got {str(row)[:40]!r}")
        for row in rows
    ]


def read_file(path: Path, has_header: bool = True) -> list[RawRow]:
    """All rows of a file, those that cannot be read with their fault.

    Args:
        path: ends in one of `KINDS`, perhaps with one of `PACKED` behind it.
        has_header: whether the first line of a table names its columns.

    Raises:
        ValueError: if it is not such a file.
        Exception: what the library that reads it raises.
    """
    check_path(path)
    kind = kind_of(path)
    content = path.read_bytes()
    for start, unpack in UNPACK.items():
        if content.startswith(start):
            content = unpack(content)
    if kind == ".parquet":
        from pyarrow import BufferReader, parquet

        return rows_of_arrow(parquet.ParquetFile(BufferReader(content)).read())
    try:
        text = content.decode("utf-16" if content.startswith(UTF_16) else "utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"save it in UTF-8: {error}") from error
    if kind in TABLES:
        return _read_table(text, kind, has_header)
    return _read_json(text, kind)


def rows_of_arrow(table: "pyarrow.Table") -> list[RawRow]:
    """Rows of a table of Arrow; ValueError where it has a column twice."""
    rows = table.to_struct_array()
    values = rows.to_pylist()
    # float32, float16 (float64 is called double), and the type by which `datasets` mixes types
    if "float" in str(rows.type) or "arrow.json" in str(rows.type):
        values = [_as_written(value, rows.type) for value in values]
    return raw_rows(values)


def _as_written(value: Any, kind: "pyarrow.DataType") -> Any:
    """A value of a column, where 0.1 in float32 is 0.1 and not 0.10000000149011612."""
    from pyarrow import JsonType, types

    if value is None:
        return None
    if isinstance(kind, JsonType):
        return _parse(value)
    if types.is_struct(kind):
        return {field.name: _as_written(value[field.name], field.type) for field in kind}
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return [_as_written(item, kind.value_type) for item in value]
    if types.is_floating(kind) and not value.is_integer():  # the shortest digits of 2^27 are others
        return float(str(kind.to_pandas_dtype()(value)))
    return value


def _read_table(text: str, kind: str, has_header: bool) -> list[RawRow]:
    """Rows of a table; every cell is a text, so that 007 stays 007."""
    delimiter = "\t" if kind == ".tsv" else _delimiter(text, has_header)
    try:
        lines = _cells(text, delimiter, csv.QUOTE_MINIMAL)
    except csv.Error:
        if delimiter != "\t":
            raise
        lines = _cells(text, delimiter, csv.QUOTE_NONE)  # where tabs separate, a quote may be text
        if any(QUOTED.fullmatch(cell) for cells in lines for cell in cells):
            raise
    if not has_header:
        return [RawRow(cells) for cells in lines]
    header, *rows = lines or [[]]
    repeated = sorted({name for name in header if header.count(name) > 1})
    if repeated:
        raise ValueError(f"its header has the column {repeated[0]!r} twice")
    return [_row_of_cells(header, cells) for cells in rows]


def _row_of_cells(header: list[str], cells: list[str]) -> RawRow:
    more = len(cells) - len(header)
    if more > 0:
        return RawRow({}, f"it has {more} cells more than the header")
    return RawRow(dict(zip_longest(header, cells)))


def _delimiter(text: str, has_header: bool) -> str:
    """The sign that cuts the first line into most cells.

    Without a header a line holds texts, with commas of their own: then first of all the one sign
    that cuts all lines into equally many.
    """
    if not has_header:
        widths = {
            sign: {
                len(cells) for cells in csv.reader(io.StringIO(text, newline=""), delimiter=sign)
            }
            for sign in DELIMITERS
        }
        even = [
            sign for sign in DELIMITERS if len(widths[sign] - {0}) == 1 and 1 not in widths[sign]
        ]
        if len(even) == 1:
            return even[0]
    first = next((line for line in io.StringIO(text, newline=None) if line.strip()), "")
    return max(DELIMITERS, key=lambda sign: len(next(csv.reader([first], delimiter=sign), [])))


def _cells(text: str, delimiter: str, quoting: Any) -> list[list[str]]:
    # strict: a quote that is never closed would swallow all rows behind it
    lines = csv.reader(
        io.StringIO(text, newline=""),
        delimiter=delimiter,
        quoting=quoting,
        skipinitialspace=True,
        strict=True,
    )
    return [cells for cells in lines if cells]


def _read_json(text: str, kind: str) -> list[RawRow]:
    """Rows of a JSON text, or of JSON lines under any name; an empty line is not a row."""
    lines = [line for line in io.StringIO(text, newline=None) if line.strip()]
    try:
        value = _parse(text)
    except ValueError:
        rows = [_row_of_line(line) for line in lines]
        if kind not in LINES and (not rows or rows[0].fault):
            raise
        return rows
    if isinstance(value, dict) and kind not in LINES:
        value = _rows_in(value)
    return raw_rows(value if isinstance(value, list) else [value])


def _row_of_line(line: str) -> RawRow:
    try:
        return raw_rows([_parse(line)])[0]
    except ValueError as error:
        return RawRow({}, str(error))


def _parse(text: str) -> Any:
    """A JSON value whose numbers stay the texts that were written."""
    try:
        return json.loads(
            text,
            parse_int=WrittenNumber,
            parse_float=WrittenNumber,
            object_pairs_hook=without_repeats,
        )
    except json.JSONDecodeError as error:
        raise ValueError(f"it is not JSON ({error})") from error
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _rows_in(value: dict[str, Any]) -> list[Any]:
    """The rows in a JSON object: a list under some name, columns, rows by name, or one row."""
    parts = value.values()
    lists = {name: part for name, part in value.items() if isinstance(part, list)}
    tables = {name: part for name, part in lists.items() if part and isinstance(part[0], dict)}
    if len(lists) == len(value) > len(tables) and len({len(part) for part in parts}) == 1:
        return [dict(zip(value, row, strict=True)) for row in zip(*parts, strict=True)]
    if len(tables) > 1:
        raise ValueError(f"it has several lists of rows, {list(tables)[:20]}: give each a file")
    if tables:
        return next(iter(tables.values()))
    if value and all(isinstance(part, dict) for part in parts):
        return list(parts)
    return [value]
