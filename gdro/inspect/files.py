"""Files of a log: which ones, and their rows in parts, as tables of pandas."""

import json
import re
import warnings
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gdro.checks import Refusal
from gdro.inspect.projects import LOGS, flatten

if TYPE_CHECKING:
    import pandas as pd

PART = 8192  # rows read at once, so that long completions fit
# cells that count as missing in a CSV file's columns of numbers
MISSING = ["", "NA", "N/A", "n/a", "<NA>", "#N/A", "#NA", "NULL", "null", "None"]
MISSING += ["NaN", "nan", "-NaN", "-nan"]
POINTER = b"version https://git-lfs.github.com/spec/"


def find_files(paths: Sequence[Path]) -> list[Path]:
    """The files of a log, in the order of their steps; Refusal for several formats or runs.

    `paths` are files, or one folder: of rollouts, or of a run of a trainer in `LOGS`.
    """
    if len(paths) == 1 and paths[0].is_dir():
        return _files_in(paths[0])
    for path in paths:
        if not path.is_file():
            raise Refusal(f"the log must be one folder, or files, got {path}")
    return _of_one_format(list(paths), "files")


def _files_in(folder: Path) -> list[Path]:
    for pattern in LOGS:
        logged = list(folder.glob(pattern))
        if logged:  # a folder of a run has tables of its own beside them
            return _in_order(logged)
    files = [path for path in folder.iterdir() if path.suffix.lower() in READERS and path.is_file()]
    files = [path for path in files if not path.name.startswith(".")]
    is_run = (folder / "record.jsonl").is_file()
    if files and not is_run:
        return _of_one_format(files, str(folder))
    logged = list(folder.rglob(LOGS[0]))
    runs = sorted({str(path.parent.parent.relative_to(folder)) for path in logged})
    if len(runs) > 1:
        raise Refusal(f"{folder} must hold one run, got {len(runs)}, such as {runs[:3]}: name one")
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
    if kinds[0] not in READERS:
        raise Refusal(f"{files[0]} must be .parquet, .jsonl or .csv, got {kinds[0]!r}")
    return _in_order(files)


def _in_order(files: list[Path]) -> list[Path]:
    """By the numbers in their names: 10.jsonl comes after 9.jsonl, and 9 (1).jsonl beside it."""

    def place(path: Path) -> list[str | int]:
        parts = re.split(r"(\d+)", str(path))
        return [int(part) if part.isdecimal() else part for part in parts]

    return sorted(files, key=place)


def parts_of(
    file: Path, texts: Collection[str] = (), project: str | None = None
) -> Iterator["pd.DataFrame"]:
    """Read a file, at most `PART` rows at a time, with an index from 0; Refusal if it is cut.

    `texts` are columns whose cells are texts in a CSV file, too, where 07 and 7 differ; of a
    `project`, nested rows are made flat.
    """
    start = 0
    try:
        _check_fetched(file)
        for part in READERS[file.suffix.lower()](file, texts, project):
            part.index = range(start, start + len(part))  # type: ignore[assignment]
            start += len(part)
            yield part
    except ImportError as error:
        raise Refusal(f"{file} needs pandas and pyarrow: pip install 'gdro[inspect]'") from error
    except Refusal:
        raise
    except (ValueError, OSError, Warning) as error:  # of pandas, pyarrow and json
        reason = str(error).strip().partition("\n")[0][:120]
        raise Refusal(f"{file} is cut, or not what its ending says ({reason})") from None


def _check_fetched(file: Path) -> None:
    with file.open("rb") as opened:
        if opened.read(len(POINTER)) == POINTER:
            raise Refusal(f"{file} is a pointer of Git LFS: fetch the file, as with git lfs pull")


def _parquet(file: Path, *_: object) -> Iterator["pd.DataFrame"]:
    from pyarrow import parquet

    with parquet.ParquetFile(file) as opened:
        for batch in opened.iter_batches(PART):
            yield batch.to_pandas(ignore_metadata=True)  # an index of pandas is a column too


def _csv(file: Path, texts: Collection[str], *_: object) -> Iterator["pd.DataFrame"]:
    import pandas as pd

    header = pd.read_csv(file, header=None, nrows=1, dtype=str, keep_default_na=False)
    names = [name for name in header.iloc[0] if name]
    if len(set(names)) < len(names):  # pandas would give the second another name
        raise Refusal(f"{file} must have each column once, got {names}")
    with warnings.catch_warnings():
        warnings.simplefilter("error", pd.errors.ParserWarning)  # rows longer than the header
        with pd.read_csv(
            file,
            chunksize=PART,
            index_col=False,
            dtype=dict.fromkeys(texts, str),
            keep_default_na=False,
            na_values={name: [""] if name in texts else MISSING for name in names},
        ) as parts:
            yield from parts


def _jsonl(file: Path, _: Collection[str], project: str | None) -> Iterator["pd.DataFrame"]:
    """The objects of a file of JSON lines; blank lines are passed over.

    Values stay as they are: a column of floats would make one of 2**53 and 2**53 + 1.
    """
    import pandas as pd

    rows: list[dict] = []
    is_empty = True
    with file.open(encoding="utf-8-sig") as lines:
        for place, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError as error:
                raise ValueError(f"line {place}: {error}") from None
            if not isinstance(row, dict):
                raise ValueError(f"line {place} is no object: {line[:40]!r}")
            try:
                rows += [row] if project is None else flatten(row, project)
            except (KeyError, TypeError, AttributeError) as error:
                raise ValueError(f"line {place} is not {project}'s: {error!r}") from None
            if len(rows) >= PART:
                yield pd.DataFrame(rows, dtype=object)
                rows = []
                is_empty = False
    if rows or is_empty:
        yield pd.DataFrame(rows, dtype=object)


READERS: dict[str, Any] = {".parquet": _parquet, ".jsonl": _jsonl, ".csv": _csv}
