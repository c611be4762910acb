"""The math data sets: one small spec each, one reader for all.

:func:`load_math` brings each data set to the same columns, from the hub or from a local copy:

- ``prompt``: the problem with the request to box the answer, as a chat or as plain text;
- ``answer``: what the answer is verified against, or the letter of the right choice;
- ``uid``: a text that names the same problem in every run, ``name/…``;
- ``level``, ``subject``: where the data set has them, for groups that do not move.

:func:`reward_for` gives the reward that goes with a data set. data/README.md is the data card.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gdro.tasks.rewards import LETTERS, ChoiceReward, MathReward, boxed, last_boxed
from gdro.tasks.verify import VerifierPool

if TYPE_CHECKING:
    from datasets import Dataset

STYLES = ("chat", "text")
MATH_REQUEST = "Please reason step by step, and put your final answer within \\boxed{}."
CHOICE_REQUEST = "Please reason step by step, and put the letter of the right choice within \\boxed{}."
ANSWER_SECONDS = 30.0  # to try one answer of a data set in
HASH_BYTES = 12
_MISSING = object()


def as_is(value: Any) -> str:
    """The answer of a column that holds it: a text or a number."""
    return "" if value is None else str(value).strip()


def from_solution(value: Any) -> str:
    """The answer in the last box of a worked solution; empty without one."""
    return last_boxed(as_is(value)) or ""


def after_hashes(value: Any) -> str:
    """The answer after the ``####`` that ends a GSM8K solution, without digit commas."""
    return as_is(value).rpartition("####")[2].replace(",", "").strip() if "####" in value else ""


def from_list(value: Any) -> str:
    """The answers of a list, as one: OlympiadBench lists those that must all be given."""
    return ", ".join(as_is(part) for part in value or [])


@dataclass(frozen=True)
class MathSpec:
    """Where a data set is and how its columns read; a dot reaches into a column of records.

    Attributes:
        hub_id, config, split: arguments of ``datasets.load_dataset``; the split to evaluate on.
        train_split: the split to train on, None where there is none.
        problem, answer: columns.
        extract: takes the answer column's value to the answer, "" where there is none.
        uid: column with a name of the problem; None hashes problem and answer column.
        level, subject: columns, or None.
        wrong_answers: columns of the wrong choices; makes it multiple choice.
    """

    hub_id: str
    split: str
    problem: str
    answer: str
    config: str | None = None
    train_split: str | None = None
    extract: Callable[[Any], str] = as_is
    uid: str | None = None
    level: str | None = None
    subject: str | None = None
    wrong_answers: tuple[str, ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns that must be there."""
        named = (self.problem, self.answer, self.uid, self.level, self.subject)
        return tuple(name for name in (*named, *self.wrong_answers) if name is not None)


MATH_SPECS: dict[str, MathSpec] = {
    "dapo": MathSpec(
        "open-r1/DAPO-Math-17k-Processed",
        "train",
        config="en",
        train_split="train",
        problem="prompt",
        answer="solution",
        uid="extra_info.index",
    ),
    "math500": MathSpec(
        "HuggingFaceH4/MATH-500",
        "test",
        problem="problem",
        answer="answer",
        uid="unique_id",
        level="level",
        subject="subject",
    ),
    "aime2024": MathSpec("HuggingFaceH4/aime_2024", "train", problem="problem", answer="answer", uid="id"),
    "aime2025": MathSpec("math-ai/aime25", "test", problem="problem", answer="answer", uid="id"),
    "amc": MathSpec("math-ai/amc23", "test", problem="question", answer="answer", uid="id"),
    "minerva": MathSpec("math-ai/minervamath", "test", problem="question", answer="answer"),
    "olympiad": MathSpec(
        "Hothan/OlympiadBench",
        "train",
        config="OE_TO_maths_en_COMP",
        problem="question",
        answer="final_answer",
        extract=from_list,
        uid="id",
        subject="subfield",
    ),
    "gpqa": MathSpec(
        "Idavidrein/gpqa",
        "train",
        config="gpqa_diamond",
        problem="Question",
        answer="Correct Answer",
        uid="Record ID",
        subject="High-level domain",
        wrong_answers=("Incorrect Answer 1", "Incorrect Answer 2", "Incorrect Answer 3"),
    ),
    "gsm8k": MathSpec(
        "openai/gsm8k",
        "test",
        config="main",
        train_split="train",
        problem="question",
        answer="answer",
        extract=after_hashes,
    ),
    "math": MathSpec(
        "DigitalLearningGmbH/MATH-lighteval",
        "test",
        train_split="train",
        problem="problem",
        answer="solution",
        extract=from_solution,
        level="level",
        subject="type",
    ),
}


class BadRow(NamedTuple):
    """A row that cannot be used: its number in the source, from 0, its uid if it has one, why."""

    row: int
    uid: str | None
    reason: str

    def __str__(self) -> str:
        return f"row {self.row} ({self.uid or 'no uid'}): {self.reason}"


def load_math(
    name: str,
    path: str | Path | None = None,
    *,
    split: str | None = None,
    style: str = "chat",
    limit: int | None = None,
    seed: int = 0,
    request: str | None = None,
    check_answers: bool = True,
    dropped: list[BadRow] | None = None,
) -> Dataset:
    """Read a math data set.

    A row is bad if a column is missing, its problem, answer, uid, level or subject is empty or of
    a wrong type, its uid repeats, its choices are not all there and different, or math-verify
    cannot use its answer. Bad rows are errors,
    unless ``dropped`` is given: then they are left out and appended to it.

    Args:
        name: a key of ``MATH_SPECS``.
        path: a local copy in the hub's schema, in place of the hub: a ``.jsonl`` or ``.parquet``
            file, a folder that ``Dataset.save_to_disk`` wrote, or a downloaded hub folder.
        split: in place of the spec's; of no account for a single file.
        style: "chat" (a list with one user message, for a tokenizer with a chat template) or
            "text".
        limit: the first so many rows of the source, None for all.
        seed: of the order of choices. It depends on the seed and the row's uid alone.
        request: what follows the problem, in place of the one that asks for a box.
        check_answers: try every answer beforehand, in verification workers.
        dropped: takes the bad rows.

    Returns:
        ``datasets.Dataset`` with the columns of the module's docstring.

    Raises:
        ValueError: for an unknown name, style or file type, bad rows, or where no row is left.
        ImportError: if math-verify is needed and not installed.
    """
    import datasets

    spec = spec_of(name)
    if style not in STYLES:
        raise ValueError(f"style is {style!r}; give one of {STYLES}")
    if limit is not None and limit < 1:
        raise ValueError(f"limit is {limit}; give an integer of at least 1, or None for all rows")
    source = _open_source(spec, path, split or spec.split)
    seen: set[str] = set()
    rows = [
        _read_row(name, spec, raw, number, seed, seen)
        for number, raw in enumerate(itertools.islice(source, limit))
    ]
    kept = [row for row in rows if isinstance(row, _Row)]
    bad = [row for row in rows if isinstance(row, BadRow)]
    if check_answers and not spec.wrong_answers:
        kept, unparseable = _check_answers(kept)
        bad = sorted(bad + unparseable, key=lambda row: row.row)
    if bad and (dropped is None or not kept):
        raise ValueError(_told(name, spec, bad))
    if not kept:
        raise ValueError(f"{name!r} has no rows in {path or spec.hub_id}; check the source")
    if dropped is not None:
        dropped.extend(bad)
    return datasets.Dataset.from_list([_finished(row, spec, style, request) for row in kept])


def reward_for(name: str, *, signed: bool = False, **options: Any) -> MathReward | ChoiceReward:
    """The reward of a data set: by math-verify, or by letter where it is multiple choice.

    Args:
        name: a key of ``MATH_SPECS``.
        signed: a wrong completion gets −1 instead of 0.
        **options: further arguments of :class:`~gdro.tasks.rewards.MathReward`; multiple choice
            verifies nothing and does without them.
    """
    if spec_of(name).wrong_answers:
        return ChoiceReward(signed=signed)
    return MathReward(signed=signed, **options)


def spec_of(name: str) -> MathSpec:
    """The spec of a data set; a ValueError names those there are."""
    if name not in MATH_SPECS:
        raise ValueError(f"name is {name!r}; the math data sets are {sorted(MATH_SPECS)}")
    return MATH_SPECS[name]


# Sources


def _open_source(spec: MathSpec, path: str | Path | None, split: str) -> Iterable[Mapping]:
    """The rows as the source has them."""
    import datasets

    if path is None:
        return datasets.load_dataset(spec.hub_id, spec.config, split=split)
    path = Path(path)
    if not path.exists():
        raise ValueError(f"path {path} does not exist; give a file or folder, or None for the hub")
    if path.is_file():
        return _read_file(path)
    if (path / "dataset_dict.json").is_file():
        return _split_of(datasets.load_from_disk(str(path)), path, split)
    if (path / "dataset_info.json").is_file():
        return datasets.load_from_disk(str(path))
    # the configs of a downloaded hub folder stand in its README; a bare folder has none
    config = spec.config if (path / "README.md").is_file() else None
    return datasets.load_dataset(str(path), config, split=split)


def _split_of(splits: Mapping[str, Any], path: Path, split: str) -> Any:
    if split not in splits:
        raise ValueError(f"path {path} has the splits {sorted(splits)}, not {split!r}; give split=")
    return splits[split]


def _read_file(path: Path) -> Sequence[Mapping]:
    if path.suffix == ".parquet":
        import pyarrow.parquet

        return pyarrow.parquet.read_table(path).to_pylist()
    if path.suffix == ".jsonl":
        return _read_jsonl(path)
    raise ValueError(f"path {path} ends in {path.suffix!r}; give a .jsonl or .parquet file")


def _read_jsonl(path: Path) -> Sequence[Mapping]:
    rows = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"line {number} of {path} is not JSON ({error}); mend it") from error
        if not isinstance(row, dict):
            raise ValueError(f"line {number} of {path} holds no record of columns; mend it")
        rows.append(row)
    return rows


# Rows


class _Row(NamedTuple):
    number: int
    uid: str
    problem: str
    answer: str
    level: str | None
    subject: str | None


def _read_row(
    name: str, spec: MathSpec, raw: Mapping, number: int, seed: int, seen: set[str]
) -> _Row | BadRow:
    """One row, its choices laid out; or what is wrong with it. Adds its uid to ``seen``."""
    missing = [column for column in spec.columns if _get(raw, column) is _MISSING]
    if missing:
        return BadRow(number, None, f"it has no column {missing[0]!r}, only {sorted(raw)}")
    own_name = _own_name(spec, raw)
    uid = f"{name}/{own_name}" if own_name else None
    fault = f"{spec.uid!r} is empty" if uid is None else _fault(spec, raw)
    if uid in seen:
        fault = "its uid repeats"
    if uid is None or fault is not None:
        return BadRow(number, uid, str(fault))
    seen.add(uid)
    problem, answer = _get(raw, spec.problem).strip(), spec.extract(_get(raw, spec.answer))
    if spec.wrong_answers:
        problem, answer = _lay_out(problem, _choices(spec, raw), uid, seed)
    level, subject = _group(raw, spec.level), _group(raw, spec.subject)
    return _Row(number, uid, problem, answer, level, subject)


def _fault(spec: MathSpec, raw: Mapping) -> str | None:
    """Why a row with all its columns cannot be used; None if it can."""
    problem, answer = _get(raw, spec.problem), _get(raw, spec.answer)
    if not isinstance(problem, str) or not problem.strip():
        return f"{spec.problem!r} is {problem!r}, not a problem"
    wanted = list if spec.extract is from_list else (str, int, float)
    if not isinstance(answer, wanted) or isinstance(answer, bool):
        return f"{spec.answer!r} is {answer!r}, not an answer"
    if spec.extract(answer).lower() in ("", "none", "nan"):
        return f"{spec.answer!r} holds no answer: {answer!r}"
    for column in (spec.level, spec.subject):
        if _group(raw, column) == "":
            return f"{column!r} is empty"
    choices = _choices(spec, raw)
    if "" in choices or len(set(choices)) < len(choices):
        return f"its choices are not all there and different: {choices}"
    return None


def _choices(spec: MathSpec, raw: Mapping) -> list[str]:
    """The right choice and then the wrong ones; the answer alone where there is no choice."""
    wrong = [as_is(_get(raw, column)) for column in spec.wrong_answers]
    return [spec.extract(_get(raw, spec.answer)), *wrong]


def _get(raw: Mapping, column: str) -> Any:
    """The value of a column, dots reaching into records; ``_MISSING`` where there is none."""
    value: Any = raw
    for part in column.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return _MISSING
        value = value[part]
    return value


def _own_name(spec: MathSpec, raw: Mapping) -> str:
    if spec.uid is not None:
        return as_is(_get(raw, spec.uid))
    content = json.dumps([_get(raw, spec.problem), _get(raw, spec.answer)])
    return hashlib.blake2b(content.encode(), digest_size=HASH_BYTES).hexdigest()


def _group(raw: Mapping, column: str | None) -> str | None:
    """A level or subject as text: MATH writes "Level 3" where MATH-500 writes 3."""
    return None if column is None else as_is(_get(raw, column)).removeprefix("Level ")


def _lay_out(problem: str, choices: list[str], uid: str, seed: int) -> tuple[str, str]:
    """The problem with lettered choices in random order, and the letter of ``choices[0]``."""
    digest = hashlib.blake2b(uid.encode(), digest_size=8).digest()
    rng = np.random.default_rng([seed, int.from_bytes(digest, "big")])
    order = rng.permutation(len(choices)).tolist()
    lines = [f"{letter}) {choices[place]}" for letter, place in zip(LETTERS, order, strict=False)]
    return problem + "\n\n" + "\n".join(lines), LETTERS[order.index(0)]


def _check_answers(rows: list[_Row]) -> tuple[list[_Row], list[BadRow]]:
    """Split rows by whether math-verify can use their answers, in time."""
    with VerifierPool(ANSWER_SECONDS) as pool:
        outcomes = pool.verify([(boxed(row.answer), None) for row in rows])
    good, bad = [], []
    for row, outcome in zip(rows, outcomes, strict=True):
        if outcome == "gold":
            good.append(row)
        else:
            reason = f"math-verify cannot use its answer {row.answer!r} ({outcome})"
            bad.append(BadRow(row.number, row.uid, reason))
    return good, bad


def _told(name: str, spec: MathSpec, bad: list[BadRow]) -> str:
    first = "; ".join(str(row) for row in bad[:3]) + ("; …" if len(bad) > 3 else "")
    return (
        f"{name!r} has {len(bad)} bad rows: {first}. Mend them (the schema is that of "
        f"{spec.hub_id}), or give dropped=[] to leave them out and learn which they were"
    )


def _finished(row: _Row, spec: MathSpec, style: str, request: str | None) -> dict[str, Any]:
    if request is None:
        request = CHOICE_REQUEST if spec.wrong_answers else MATH_REQUEST
    text = f"{row.problem}\n\n{request}"
    columns: dict[str, Any] = {
        "prompt": text if style == "text" else [{"role": "user", "content": text}],
        "answer": row.answer,
        "uid": row.uid,
    }
    groups = {"level": row.level, "subject": row.subject}
    return columns | {key: value for key, value in groups.items() if value is not None}
