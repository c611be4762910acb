"""The math data sets: one small spec each, one reader for all. data/README.md is the data card.

:func:`load_math` brings each data set to the same columns, from the hub or from a local copy:

- ``prompt``: the problem with the request to box the answer, as a chat or as plain text;
- ``answer``: what the answer is verified against, or the letter of the correct choice;
- ``uid``: a text that names the same problem in every run, ``name/…``;
- ``level``, ``subject``: where the data set has them, for groups that do not move.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gdro.checks import check_choice
from gdro.tasks.rewards import LETTERS, MathReward, boxed, last_boxed

if TYPE_CHECKING:
    from datasets import Dataset

REQUEST = "Please reason step by step, and put {} within \\boxed{{}}."
MATH_REQUEST = REQUEST.format("your final answer")
CHOICE_REQUEST = REQUEST.format("the letter of the correct choice")
ANSWER_SECONDS = 30.0  # to try one answer of a data set in


@dataclass(frozen=True)
class MathSpec:
    """Where a data set is and how its columns read; a dot reaches into a column of records."""

    hub_id: str
    split: str  # to evaluate on
    problem: str
    answer: str
    uid: str | None = None  # column with a name of the problem; without it, problem and answer are hashed
    config: str | None = None
    train_split: str | None = None  # None where there is none to train on
    form: str = "plain"  # of the answer column; else "boxed", after "####", or a "list" to give in full
    level: str | None = None
    subject: str | None = None
    wrong_answers: tuple[str, ...] = ()  # columns of the wrong choices; makes it multiple choice


MATH_SPECS: dict[str, MathSpec] = {
    "dapo": MathSpec(
        "open-r1/DAPO-Math-17k-Processed", "train", "prompt", "solution", "extra_info.index",
        config="en", train_split="train",
    ),
    "math500": MathSpec(
        "HuggingFaceH4/MATH-500", "test", "problem", "answer", "unique_id", level="level", subject="subject"
    ),
    "aime2024": MathSpec("HuggingFaceH4/aime_2024", "train", "problem", "answer", "id"),
    "aime2025": MathSpec("MathArena/aime_2025", "train", "problem", "answer", "problem_idx"),
    "amc": MathSpec("math-ai/amc23", "test", "question", "answer", "id"),
    "minerva": MathSpec("math-ai/minervamath", "test", "question", "answer"),
    "olympiad": MathSpec(
        "Hothan/OlympiadBench", "train", "question", "final_answer", "id",
        config="OE_TO_maths_en_COMP", form="list", subject="subfield",
    ),
    "gpqa": MathSpec(
        "Idavidrein/gpqa", "train", "Question", "Correct Answer", "Record ID",
        config="gpqa_diamond", subject="High-level domain",
        wrong_answers=("Incorrect Answer 1", "Incorrect Answer 2", "Incorrect Answer 3"),
    ),
    "gsm8k": MathSpec(
        "openai/gsm8k", "test", "question", "answer", config="main", train_split="train", form="####"
    ),
    "math": MathSpec(
        "DigitalLearningGmbH/MATH-lighteval", "test", "problem", "solution",
        train_split="train", form="boxed", level="level", subject="type",
    ),
}  # fmt: skip


def load_math(
    name: str,
    path: str | Path | None = None,
    *,
    split: str | None = None,
    style: str = "chat",
    limit: int | None = None,
    check_answers: bool = True,
    dropped: list[str] | None = None,
) -> Dataset:
    """Read a math data set into the columns of the module's docstring.

    A row is bad if a column is missing, empty or of a wrong type, its uid repeats, its choices are
    not all there and different, or math-verify cannot use its answer. Bad rows are a ValueError.

    Args:
        path: a local copy in the hub's schema, in place of the hub: a ``.jsonl`` file, a folder
            that ``Dataset.save_to_disk`` wrote, or a downloaded hub folder.
        split: in place of the spec's; a file has none.
        limit: the first so many rows of the source.
        check_answers: try every answer beforehand, in verification workers.
        dropped: takes what is wrong with each bad row, which is left out then.
    """
    from datasets import Dataset

    spec = spec_of(name)
    check_choice("style", style, ("chat", "text"))
    request = CHOICE_REQUEST if spec.wrong_answers else MATH_REQUEST
    rows: dict[str, dict[str, Any]] = {}  # by uid
    bad, numbers = [], {}
    for number, raw in enumerate(itertools.islice(_open_source(spec, path, split or spec.split), limit)):
        uid = "no uid"
        try:
            uid = f"{name}/{_own_name(spec, raw)}"
            problem, columns = _read_row(spec, raw, uid)
            if uid in rows:
                raise ValueError("its uid repeats")
        except ValueError as error:
            bad.append(f"row {number} ({uid}): {error}")
            continue
        text = f"{problem}\n\n{request}"
        prompt = text if style == "text" else [{"role": "user", "content": text}]
        rows[uid], numbers[uid] = {"prompt": prompt, "uid": uid, **columns}, number
    if check_answers and not spec.wrong_answers:
        with MathReward(time_limit=ANSWER_SECONDS) as reward:
            outcomes = reward.verify([(boxed(row["answer"]), None) for row in rows.values()])
        for uid in [uid for uid, outcome in zip(rows, outcomes, strict=True) if outcome != "gold"]:
            answer = rows.pop(uid)["answer"]
            bad.append(f"row {numbers[uid]} ({uid}): math-verify cannot use its answer {answer!r}")
    if not rows or (bad and dropped is None):
        raise ValueError(
            f"{name!r} has {len(rows)} usable and {len(bad)} bad rows in {path or spec.hub_id}: "
            f"{'; '.join(bad[:3])}. Fix them (the schema is that of {spec.hub_id}), or give dropped=[] "
            "to leave them out and see which they were"
        )
    if dropped is not None:
        dropped.extend(bad)
    return Dataset.from_list(list(rows.values()))


def spec_of(name: str) -> MathSpec:
    """The spec of a data set; a ValueError names those there are."""
    check_choice("name", name, sorted(MATH_SPECS))
    return MATH_SPECS[name]


def _open_source(spec: MathSpec, path: str | Path | None, split: str) -> Iterable[Mapping]:
    """The rows as the source has them."""
    import datasets

    if path is None:
        return datasets.load_dataset(spec.hub_id, spec.config, split=split)
    path = Path(path)
    if path.suffix == ".jsonl" and path.is_file():
        # not by the JSON reader of datasets, for which one bad row makes a bad file
        lines = enumerate(path.read_text(encoding="utf-8").split("\n"), start=1)
        return [_read_line(line, f"line {number} of {path}") for number, line in lines if line.strip()]
    if not path.is_dir():
        raise ValueError(f"path must be a .jsonl file or a folder, got {path}")
    if (path / "dataset_info.json").is_file():
        return datasets.load_from_disk(str(path))
    # the configs of a downloaded hub folder are in its README; a bare folder has none
    config = spec.config if (path / "README.md").is_file() else None
    return datasets.load_dataset(str(path), config, split=split)


def _read_line(line: str, where: str) -> Mapping:
    try:
        return dict(json.loads(line))
    except (ValueError, TypeError) as error:
        raise ValueError(f"{where} is no JSON record ({error}); fix it") from error


def _read_row(spec: MathSpec, raw: Mapping, uid: str) -> tuple[str, dict[str, str]]:
    """Problem, with its choices, and answer and groups of a row; a ValueError says what is wrong with it."""
    problem, value = _get(raw, spec.problem), _get(raw, spec.answer)
    if not isinstance(problem, str) or not problem.strip():
        raise ValueError(f"{spec.problem!r} is {problem!r}, not a problem")
    wanted = list if spec.form == "list" else (str, int, float)
    if not isinstance(value, wanted) or isinstance(value, bool):
        raise ValueError(f"{spec.answer!r} is {value!r}, not an answer")
    problem, answer = problem.strip(), _text(value)
    if spec.form == "boxed":
        answer = last_boxed(answer) or ""
    elif spec.form == "####":
        answer = answer.partition("####")[2].replace(",", "").strip()
    if answer.lower() in ("", "none", "nan"):
        raise ValueError(f"{spec.answer!r} holds no answer: {value!r}")
    columns = {"level": spec.level, "subject": spec.subject}
    # MATH writes "Level 3" where MATH-500 writes 3
    groups = {key: _text(_get(raw, of)).removeprefix("Level ") for key, of in columns.items() if of}
    if "" in groups.values():
        raise ValueError(f"its level or subject is empty: {groups}")
    if spec.wrong_answers:
        choices = [answer, *(_text(_get(raw, column)) for column in spec.wrong_answers)]
        if "" in choices or len(set(choices)) < len(choices):
            raise ValueError(f"its choices are not all there and different: {choices}")
        # an order of their own, the same in every run
        digest = hashlib.blake2b(uid.encode(), digest_size=8).digest()
        rng = np.random.default_rng([0, int.from_bytes(digest, "big")])
        order = rng.permutation(len(choices)).tolist()
        lines = [f"{letter}) {choices[place]}" for letter, place in zip(LETTERS, order, strict=False)]
        problem, answer = "\n".join([problem, "", *lines]), LETTERS[order.index(0)]
    return problem, {"answer": answer, **groups}


def _own_name(spec: MathSpec, raw: Mapping) -> str:
    """What names a problem: its own column or, where the source has none, a hash."""
    if spec.uid and spec.uid.split(".")[0] in raw:
        if name := _text(_get(raw, spec.uid)):
            return name
        raise ValueError(f"{spec.uid!r} is empty")
    content = json.dumps([_get(raw, spec.problem), _get(raw, spec.answer)])
    return hashlib.blake2b(content.encode(), digest_size=12).hexdigest()


def _text(value: Any) -> str:
    parts = value if isinstance(value, list) else [value]
    return ", ".join("" if part is None else str(part).strip() for part in parts)


def _get(raw: Mapping, column: str) -> Any:
    """The value of a column, dots reaching into records."""
    value: Any = raw
    for part in column.split("."):
        if not isinstance(value, Mapping) or part not in value:
            raise ValueError(f"it has no column {column!r}, only {sorted(raw)}")
        value = value[part]
    return value
