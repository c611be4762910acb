"""Problems and answer keys out of named sets, files, folders and data sets of the hub.

`gdro_lab.tasks.math_sets` has the named sets, docs/your-own-data.md the options.
"""

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from string import ascii_uppercase as LETTERS
from typing import Any, cast

import numpy as np

from gdro.checks import short
from gdro_lab.tasks.answers import (
    FINAL_ANSWER,
    KeyReader,
    Reader,
    Style,
    ask,
    read_key,
    request_for,
    with_answer,
)
from gdro_lab.tasks.base import check_families
from gdro_lab.tasks.fields import (
    MISSING,
    Message,
    WrongType,
    chat_of,
    choices_of,
    find,
    names_in,
    place_of,
    refuse_nested,
    text_of,
)
from gdro_lab.tasks.math_sets import MATH_SPECS, Schema
from gdro_lab.tasks.sources import (
    Place,
    check_path,
    read_rows,
)

# what a table has where there is no answer
GAP = re.compile(
    r"[-–—?.…_]+|NA|<NA>|#[A-Z0-9/]+[!?]|(?i:#?n\.?/?a\.?(?<!na)|none|null|nil|nan|tbd)"
)
# what a template makes of a chat, and what stands for an image
RENDERED = re.compile(r"<[|｜][^<>\s]{1,40}[|｜]>|</?(?:start|end)_of_turn>|\[/?INST\]|<</?SYS>>")
IMAGE = re.compile(
    r"<(?:\|?)(?:image|img|video|audio)[^<>]*>|!\[[^\]]*\]\([^()\s]+\)|\\includegraphics"
)
SAID = re.compile(r"\banswer(?:\s+is\b\s*[:=]?|\s*[:=])\s*\$?(\S+?)[$.,;!]*(?=\s|$)", re.IGNORECASE)
SHOWN: tuple[KeyReader, ...] = ("boxed", "hash", "tags", "answer_line")
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
    """With the choices, where there are some, and without a request; of a chat, what its messages
    say but for the system's."""
    answer: str
    uid: str
    """The source's name and a hash of the problem and its answer: the same in every copy."""
    dataset: str
    family: str
    label: str
    """The source's name and the place of the row, for reports."""
    solution: str | None = None
    """A worked solution, perhaps without its answer."""
    is_choice: bool = False
    is_first: bool = False
    """Whether the right choice is the first that the data have."""
    chat: Sequence[Message] = ()
    """The messages, where the data have a chat in place of a text."""

    def row(self, style: Style, request: str | None, reader: Reader) -> dict[str, Any]:
        """The row of a data set, with a prompt that asks for the answer."""
        return {
            "prompt": self._prompt(style, request, reader),
            "answer": self.answer,
            "uid": self.uid,
            "dataset": self.dataset,
            "family": self.family,
            "solution": self.solution and with_answer(self.solution, self.answer, reader),
        }

    def _prompt(
        self, style: Style, request: str | None, reader: Reader
    ) -> str | list[dict[str, str]]:
        """The problem in the request; a chat as it is, or with its last message in the request."""
        if not self.chat:
            asked = LETTER_OF_CHOICE if self.is_choice else FINAL_ANSWER
            return ask(self.text, request or request_for(reader, asked), style)
        messages = [{"role": role, "content": content} for role, content in self.chat]
        last = messages[-1]
        if request is not None:
            last["content"] = request.replace("{problem}", last["content"])
        if style == "chat":
            return messages
        if len(messages) > 1:
            raise ValueError(
                f"{self.label}: a chat of {len(messages)} messages needs a model with a chat "
                "template, and this one has none"
            )
        return last["content"]


def named_source(
    name: str,
    path: str | Path | None = None,
    *,
    config: str | None = None,
    split: str | None = None,
) -> Source:
    """A named set, from the hub or from a local copy."""
    spec = MATH_SPECS[name]
    local = None if path is None else Path(path)
    if local is not None:
        check_path(local, config, split)
    place = Place(local, spec.hub_id, config or spec.config, split or spec.split)
    return Source(name, place, spec.schemas, is_named=True, gated=spec.gated and local is None)


def read_problems(source: Source) -> tuple[list[Problem], list[str]]:
    """The problems of a source, and of each row that was left out its place and fault.

    A row is left out if a column is empty, if its answer cannot be read, if it repeats another, if
    a choice is missing, or if two of them are the right one.

    Args:
        source: what to read.

    Raises:
        ValueError: if the source cannot be read or lacks a column, if a column holds something
            else than texts and numbers, or if nearly all rows would be left out.
    """
    rows = read_rows(source.place)
    schema = _find_schema(source, rows)
    problems: dict[str, Problem] = {}
    faults = []
    repeats = []
    for number, row in enumerate(rows):
        label = f"{source.name}, row {number}"
        if isinstance(row, ValueError):
            faults.append(f"{label}: {row}")
            continue
        try:
            problem = _read_problem(source, schema, row, label)
            refuse_nested(problem.answer, schema.answer)
        except WrongType as error:
            raise ValueError(f"{label}: {error}") from error
        except ValueError as error:
            faults.append(f"{label}: {error}")
            continue
        if problem.uid in problems:
            repeats.append(f"{label}: it repeats another")
        else:
            problems[problem.uid] = problem
    check_left_out(source, len(problems) + len(repeats), faults)
    if schema.reader == "index" and not any(problem.is_first for problem in problems.values()):
        raise ValueError(
            f"{source.name!r} has no row whose answer is 0: write answer: index_from_1 where "
            "indices are counted from 1"
        )
    return list(problems.values()), faults + repeats


def check_left_out(source: Source, kept: int, faults: Sequence[str]) -> None:
    """Refuse (ValueError) a source of which nearly all rows have a fault: a setting is wrong."""
    if kept > 0 and len(faults) <= 9 * kept:
        return
    first = "; ".join(faults[:3]) or "it has no rows"
    usable = f"only {kept} usable of {kept + len(faults)} rows" if kept else "no usable row"
    raise ValueError(f"{source.name!r} has {usable} in {source.place}: {first}")


def _find_schema(source: Source, rows: list[Any]) -> Schema:
    """The first schema whose columns occur; ValueError names those that are missing."""
    columns = [row for row in rows if not isinstance(row, ValueError)]
    for schema in source.schemas:
        if all(any(find(row, name) is not MISSING for row in columns) for name in schema.named):
            return schema
    if not columns:
        return source.schemas[0]
    needed = " or ".join(str(list(schema.named)) for schema in source.schemas)
    found = list(dict.fromkeys(name for row in columns[:100] for name in names_in(row)))
    has = str(found) if len(found) <= 20 else f"{found[:20]} and {len(found) - 20} more"
    raise ValueError(
        f"{source.name!r} needs the columns {needed}, and {source.place} has {has}: "
        "name yours in task.columns"
    )


def _read_problem(source: Source, schema: Schema, raw: Any, label: str) -> Problem:
    """A problem of a row; a ValueError says what is wrong with it."""
    missing = [name for name in schema.needed if find(raw, name) is MISSING]
    if missing:
        raise ValueError(f"it has the columns {names_in(raw)[:20]} and not {missing}")
    if schema.prepare:
        for name in schema.needed:
            text_of(find(raw, name), name)
        raw = schema.prepare(raw)
    text, chat = _read_question(raw, schema)
    if schema.choices:
        text, answer, digest, right = _read_choice(raw, schema, text)
    else:
        answer = _read_key(find(raw, schema.answer), schema)
        digest = _hash(chat or text, answer)
        right = None
        if _shows(text, answer):
            raise ValueError(f"its problem shows its answer {short(answer)}")
    group = _optional_text(raw, schema.group)
    return Problem(
        text=text,
        answer=answer,
        uid=f"{source.name}/{digest.hexdigest()}",
        dataset=source.name,
        family=_family(source, group),
        label=label,
        solution=_optional_text(raw, schema.solution) or None,
        is_choice=bool(schema.choices),
        is_first=right == 0,
        chat=chat,
    )


def _hash(question: Any, answer: Any) -> Any:
    return hashlib.blake2b(json.dumps([question, answer]).encode(), digest_size=12)


def _read_question(raw: Any, schema: Schema) -> tuple[str, Sequence[Message]]:
    """The text of a problem, and the messages where it is a chat."""
    values = [find(raw, name) for name in schema.problem]
    chat: Sequence[Message] = ()
    if len(values) == 1 and isinstance(values[0], list) and not schema.choices:
        chat = chat_of(values[0], schema.problem[0])
        text = "\n".join(content for role, content in chat if role != "system")
    else:
        texts = [text_of(value, name) for value, name in zip(values, schema.problem, strict=True)]
        text = " ".join(filter(None, texts))
        refuse_nested(text, schema.problem[0])
    if not text:
        raise ValueError("its problem is empty")
    everything = "\n".join(content for _, content in chat) or text
    if match := RENDERED.search(everything):
        raise WrongType(
            f"its {schema.problem[0]!r} has {match[0]!r}: a chat must be a list of messages, "
            "which the model's template renders"
        )
    if match := IMAGE.search(everything):
        raise ValueError(f"its problem has {match[0]!r}, and no image is read")
    return text, chat


def _read_key(value: Any, schema: Schema) -> str:
    """The answer key in a value; a ValueError says why there is none."""
    if isinstance(value, list) and len(value) < 2:
        value = value[0] if value else None
    text = text_of(value, schema.answer)
    if not text or GAP.fullmatch(text):
        raise ValueError("its answer is empty" if not text else f"its answer is {text!r}")
    key = read_key(text, cast("KeyReader", schema.reader))  # where there are no choices
    if key is None:
        end = repr(text if len(text) <= 60 else f"…{text[-60:]}")
        raise ValueError(f"its answer {end} has none that is read as {schema.reader!r}")
    return key


def _shows(text: str, answer: str) -> bool:
    """Whether a text says its answer behind the last question; examples before it may have it."""
    end = text.rpartition("?")[2]
    said = [read_key(end, form) for form in SHOWN]
    return answer in [*said, *SAID.findall(end)]


def _read_choice(raw: Any, schema: Schema, problem: str) -> tuple[str, str, Any, int]:
    """The problem with its choices, the letter of the right one, the hash of both, its place."""
    names = schema.choices
    choices = choices_of([find(raw, name) for name in names], names)
    order = list(range(len(choices.texts)))
    if schema.answer in names:
        # the right one is always in the same place, so they are shuffled, alike in every run
        right = names.index(schema.answer)
        digest = _hash(problem, choices.texts[right])
        order = np.random.default_rng(list(digest.digest())).permutation(len(order)).tolist()
    else:
        key = text_of(find(raw, schema.answer), schema.answer)
        if not key:
            raise ValueError("its answer is empty")
        right = place_of(key, choices, schema.reader)
    if choices.texts.count(choices.texts[right]) > 1:
        raise ValueError(f"two of its choices are the right one, {short(choices.texts[right])}")
    lines = [f"{LETTERS[i]}) {choices.texts[place]}" for i, place in enumerate(order)]
    text = "\n".join([problem, "", *lines])
    letter = LETTERS[order.index(right)]
    return text, letter, digest if schema.answer in names else _hash(text, letter), right


def _optional_text(raw: Any, name: str | None) -> str:
    if name is None or (value := find(raw, name)) is MISSING:
        return ""
    return text_of(value, name)


def _family(source: Source, group: str) -> str:
    """The group, of a named set after the set's name; without one, the source."""
    family = group or source.name
    if group and source.is_named:
        family = f"{source.name}-{group}"
    try:
        check_families([family])
    except ValueError as error:
        raise WrongType(str(error)) from error
    return family
