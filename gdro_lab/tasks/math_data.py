"""Problems and answer keys out of named sets, files, folders and data sets of the hub.

`gdro_lab.tasks.math_sets` has the named sets, docs/your-own-data.md the options.
"""

import dataclasses
import hashlib
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from string import ascii_uppercase as LETTERS
from typing import Any

import numpy as np

from gdro_lab.tasks.answers import (
    FINAL_ANSWER,
    KeyReader,
    Reader,
    Style,
    ask,
    plain_number,
    read_answer,
    request_for,
    with_answer,
)
from gdro_lab.tasks.math_sets import MATH_SPECS, Schema
from gdro_lab.tasks.sources import Place, RawRow, check_path, find_place, read_raw_rows

LETTER_OF_CHOICE = "the letter of the correct choice"


@dataclass(frozen=True)
class Source:
    """Problems to read: where they are, and how their rows are read."""

    name: str
    """What `dataset` and the uids of its rows begin with."""
    place: Place
    schemas: tuple[Schema, ...]
    """The first whose columns are there is taken."""
    is_named: bool = False
    """Whether it is a named set, whose families are prefixed by its name."""
    gated: bool = False
    """Whether reading it needs a login at the hub."""


@dataclass(frozen=True)
class Problem:
    """A problem with its answer key."""

    text: str
    """With the choices, where there are some, and without a request."""
    answer: str
    uid: str
    """The source's name and a hash of the problem and its answer: the same in every copy."""
    dataset: str
    family: str
    solution: str | None = None
    """A worked solution, perhaps without its answer."""
    is_choice: bool = False

    def row(self, style: Style, request: str | None, reader: Reader) -> dict[str, Any]:
        """The row of a data set, with a prompt that asks for the answer."""
        if request is None:
            asked = LETTER_OF_CHOICE if self.is_choice else FINAL_ANSWER
            request = request_for(reader, asked)
        solution = self.solution and with_answer(self.solution, self.answer, reader)
        return {
            "prompt": ask(self.text, request, style),
            "answer": self.answer,
            "uid": self.uid,
            "dataset": self.dataset,
            "family": self.family,
            "solution": solution,
        }


def named_source(
    name: str,
    paths: Iterable[str | Path] = (),
    *,
    config: str | None = None,
    split: str | None = None,
) -> Source:
    """A named set, from the hub or from local copies.

    Several copies are the parts of one set, such as mawps_addsub.jsonl and mawps_singleop.jsonl;
    each is a family.
    """
    if name not in MATH_SPECS:
        raise ValueError(f"name must be one of {sorted(MATH_SPECS)}, got {name!r}")
    spec = MATH_SPECS[name]
    local = tuple(map(Path, paths))
    for path in local:
        if not path.exists():
            raise ValueError(f"paths must name files or folders, got {str(path)!r} for {name!r}")
        check_path(path)
    place = Place(local, spec.hub_id, config or spec.config, split or spec.split)
    return Source(name, place, spec.schemas, is_named=True, gated=spec.gated and not local)


def own_source(
    source: str,
    schema: Schema,
    *,
    name: str | None = None,
    config: str | None = None,
    split: str | None = None,
) -> Source:
    """A file, a folder or a data set of the hub that is not a named set."""
    return Source(name or Path(source).stem, find_place(source, config, split), (schema,))


def load_math(
    name: str,
    path: str | Path | None = None,
    *,
    style: Style = "chat",
    completion: Reader = "boxed",
) -> tuple[list[dict[str, Any]], list[str]]:
    """Read a named set into rows of prompt, answer, uid, dataset, family and solution.

    Args:
        name: one of `MATH_SPECS`.
        path: a local copy in place of the hub: a .jsonl, .json, .csv or .parquet file, a folder
            that `Dataset.save_to_disk` wrote, or a downloaded hub folder.
        style: of the prompt.
        completion: in which form the prompt asks for the answer.

    Returns:
        the rows, and of each row that was left out its place and fault.
    """
    if style not in ("chat", "text"):
        raise ValueError(f"style must be 'chat' or 'text', got {style!r}")
    problems, dropped = read_problems(named_source(name, [] if path is None else [path]))
    return [problem.row(style, None, completion) for problem in problems], dropped


def read_problems(source: Source) -> tuple[list[Problem], list[str]]:
    """The problems of a source, and of each row that was left out its place and fault.

    A row is left out if a column is empty, if its answer cannot be read, if it repeats another, or
    if its choices are not all there and different.

    Raises:
        ValueError: if the source cannot be read, lacks a column, or has no usable row.
    """
    rows = read_raw_rows(source.place)
    schema = _find_schema(source, [row for row in rows if not row.fault])
    problems: dict[str, Problem] = {}
    dropped = []
    for row in rows:
        try:
            if row.fault:
                raise ValueError(row.fault)
            problem = _read_problem(source, schema, row)
            if problem.uid in problems:
                raise ValueError("it repeats another")
        except ValueError as error:
            dropped.append(f"{source.name}, {row.label}: {error}")
            continue
        problems[problem.uid] = problem
    if not problems:
        faults = "; ".join(dropped[:3]) or "it has no rows"
        raise ValueError(f"{source.name!r} has no usable row in {source.place}: {faults}")
    return list(problems.values()), dropped


def _find_schema(source: Source, rows: list[RawRow]) -> Schema:
    """The first schema whose columns occur; ValueError names those that are missing."""
    names = {name for row in rows for name in row.columns if isinstance(name, str)}
    for schema in source.schemas:
        if names.issuperset(schema.named):
            return schema
    if not rows:
        return source.schemas[0]
    needed = " or ".join(str(list(schema.named)) for schema in source.schemas)
    raise ValueError(
        f"{source.name!r} needs the columns {needed}, and {source.place} has {sorted(names)}: "
        "name yours in task.columns"
    )


def _read_problem(source: Source, schema: Schema, row: RawRow) -> Problem:
    """A problem of a row; a ValueError says what is wrong with it."""
    raw = row.columns
    missing = [name for name in schema.needed if name not in raw]
    if missing:
        raise ValueError(f"it has the columns {sorted(map(str, raw))} and not {missing}")
    raw = schema.prepare(raw) if schema.prepare else raw
    text = " ".join(filter(None, (_text(raw[name]) for name in schema.problem)))
    key_text = _text(raw[schema.answer])
    if not text or key_text.lower() in ("", "none", "nan"):
        raise ValueError(f"its problem is {text!r} and its answer {key_text!r}")
    answer = _read_key(key_text, schema.reader)
    digest = hashlib.blake2b(json.dumps([text, answer]).encode(), digest_size=12)
    if schema.wrong_answers:
        wrong = [_text(raw[name]) for name in schema.wrong_answers]
        text, answer = _with_choices(text, [answer, *wrong], digest.digest())
    group = _text(raw.get(schema.group)) if schema.group else ""
    solution = _text(raw.get(schema.solution)) if schema.solution else ""
    return Problem(
        text=text,
        answer=answer,
        uid=f"{source.name}/{digest.hexdigest()}",
        dataset=source.name,
        family=_family(source, group, row.part),
        solution=solution or None,
        is_choice=bool(schema.wrong_answers),
    )


def _read_key(text: str, reader: KeyReader) -> str:
    """The answer key in a column's text; a ValueError says why there is none."""
    if reader == "whole":
        return text
    key = read_answer(text, reader)
    shown = repr(text if len(text) <= 60 else f"…{text[-60:]}")
    if key is None:
        kinds = {"boxed": "\\boxed{…}", "hash": "answer after ####"}
        raise ValueError(f"its answer {shown} has no {kinds.get(reader, 'number')}")
    if reader == "boxed":
        return key
    return plain_number(key) or key


def _with_choices(problem: str, choices: list[str], seed: bytes) -> tuple[str, str]:
    """The problem with its choices in an order of its own, the same in every run, and the letter.

    Args:
        problem: its text.
        choices: the correct one first.
        seed: a hash of the problem.
    """
    if "" in choices or len(set(choices)) < len(choices):
        raise ValueError(f"its choices must be texts that differ, got {choices}")
    order = np.random.default_rng(list(seed)).permutation(len(choices)).tolist()
    lines = [f"{LETTERS[i]}) {choices[place]}" for i, place in enumerate(order)]
    return "\n".join([problem, "", *lines]), LETTERS[order.index(0)]


def _family(source: Source, group: str, part: str) -> str:
    """The group, of a named set after the set's name; without one, the part or the source."""
    group = group or part.removeprefix(source.name).lstrip("-_")
    if not group:
        return source.name
    return f"{source.name}-{group}" if source.is_named else group


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_text, value))
    if isinstance(value, float) and math.isfinite(value):
        return f"{Decimal(repr(value)):f}"  # without an exponent
    return "" if value is None else str(value).strip()


def with_reader(source: Source, reader: KeyReader) -> Source:
    """The source with its answer keys read in another way."""
    schemas = tuple(dataclasses.replace(schema, reader=reader) for schema in source.schemas)
    return dataclasses.replace(source, schemas=schemas)
