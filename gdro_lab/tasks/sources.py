"""Where problems come from: files, folders and data sets of the hub."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from gdro_lab.tasks.files import (
    KINDS,
    RawRow,
    check_path,
    kind_of,
    read_file,
    rows_of_arrow,
    stem_of,
)

HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


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
        if path.is_dir() and config and not (path / "README.md").is_file():
            raise ValueError(f"a folder without README.md has no config, got {config!r}")
        if path.is_file() and (config or split):
            raise ValueError(
                f"a file has neither config nor split, got {config!r} and {split!r} for {source!r}"
            )
        return Place((path,), source, config, split or "train")
    if kind_of(path) in KINDS:
        raise ValueError(f"the file {source!r} is not there (looked in {Path.cwd()})")
    if not HUB_ID.fullmatch(source):
        kinds = "a named set, a file, a folder or a hub id such as openai/gsm8k"
        raise ValueError(f"a source must be {kinds}, got {source!r}")
    return Place((), source, config, split or "train")


def read_raw_rows(place: Place, has_header: bool = True) -> list[RawRow]:
    """All rows of a source, numbered from 0, those that cannot be read with their fault.

    Args:
        place: where the source is.
        has_header: whether the first line of a table names its columns.

    Raises:
        ValueError: if a file, a folder or the hub cannot be read at all.
    """
    if len(place.paths) < 2:
        return _numbered(_read(place.paths[0] if place.paths else None, place, has_header))
    rows: list[RawRow] = []
    for path in place.paths:
        part = _numbered(_read(path, place, has_header), f"{path.name}, ")
        rows += [row._replace(part=stem_of(path)) for row in part]
    return rows


def _numbered(rows: Iterable[RawRow], prefix: str = "") -> list[RawRow]:
    return [row._replace(label=f"{prefix}row {number}") for number, row in enumerate(rows)]


def _read(path: Path | None, place: Place, has_header: bool) -> list[RawRow]:
    """The rows of a file, a folder or, where there is no path, the hub."""
    try:
        if path is None:
            import datasets

            found = datasets.load_dataset(place.hub_id, place.config, split=place.split)
            return rows_of_arrow(found.with_format("arrow")[:])
        if not path.is_dir():
            return read_file(path, has_header)
        if any((path / name).is_file() for name in ("dataset_info.json", "dataset_dict.json")):
            return _read_saved(path, place.split)
        return _read_folder(path, place, has_header)
    except Exception as error:  # each library has errors of its own
        reason = str(error).strip().partition("\n")[0]
        raise ValueError(f"{path or place.hub_id} cannot be read ({reason})") from error


def _read_saved(path: Path, split: str) -> list[RawRow]:
    """A data set that `save_to_disk` wrote."""
    import datasets

    saved = datasets.load_from_disk(str(path))
    if isinstance(saved, datasets.DatasetDict):
        _check_split(split, saved)
        saved = saved[split]
    return rows_of_arrow(saved.with_format("arrow")[:])


def _read_folder(path: Path, place: Place, has_header: bool) -> list[RawRow]:
    """A folder of files, or a downloaded hub folder."""
    import datasets

    # the configs of a downloaded hub folder are in its README; a bare folder has none
    config = place.config if (path / "README.md").is_file() else None
    with TemporaryDirectory() as cache:
        builder = datasets.load_dataset_builder(str(path), config, cache_dir=cache)
    files = {str(name): paths for name, paths in builder.config.data_files.items()}
    if not (path / "README.md").is_file():
        _check_others(path, {Path(file).resolve() for part in files.values() for file in part})
    rows: dict[str, list[RawRow]] = {}
    for name in (part.partition("[")[0].strip() for part in place.split.split("+")):
        _check_split(name, files)
        rows[name] = [row for file in files[name] for row in _read(Path(file), place, has_header)]
    counts = {name: len(part) for name, part in rows.items()}
    parts = datasets.ReadInstruction.from_spec(place.split).to_absolute(counts)
    return [row for part in parts for row in rows[part.splitname][part.from_ : part.to]]


def _check_others(folder: Path, taken: set[Path]) -> None:
    """Refuse a folder with a file of rows that is in none of its splits."""
    for file in sorted(folder.rglob("*")):
        inner = file.relative_to(folder)
        is_hidden = any(part.startswith((".", "__")) for part in inner.parts)
        # a .json file may describe the others
        is_table = kind_of(file) in KINDS and kind_of(file) != ".json"
        if is_table and not is_hidden and file.resolve() not in taken:
            raise ValueError(f"{inner} is in none of its splits: name the files")


def _check_split(split: str, splits: Iterable[str]) -> None:
    if split not in splits:
        raise ValueError(f"it has the splits {sorted(splits)} and not {split!r}")
