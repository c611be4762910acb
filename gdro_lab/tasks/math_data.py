"""The math data sets: where each is, and one reader for all. data/README.md is the data card."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from string import ascii_uppercase as LETTERS
from typing import Any, Literal

import numpy as np

from gdro.checks import check, need

REQUEST = "Please reason step by step, and put {} within \\boxed{{}}."
MATH_REQUEST = REQUEST.format("your final answer")
CHOICE_REQUEST = REQUEST.format("the letter of the correct choice")


@dataclass(frozen=True)
class MathSpec:
    """Where a data set is and which of its columns are read."""

    hub_id: str
    config: str | None
    split: str
    problem: str
    answer: str
    wrong_answers: tuple[str, ...] = ()  # columns of the wrong choices; makes it multiple choice


MATH_SPECS: dict[str, MathSpec] = {
    "dapo": MathSpec("open-r1/DAPO-Math-17k-Processed", "en", "train", "prompt", "solution"),
    "math500": MathSpec("HuggingFaceH4/MATH-500", None, "test", "problem", "answer"),
    "aime2024": MathSpec("HuggingFaceH4/aime_2024", None, "train", "problem", "answer"),
    "aime2025": MathSpec("MathArena/aime_2025", None, "train", "problem", "answer"),
    "amc": MathSpec("math-ai/amc23", None, "test", "question", "answer"),
    "minerva": MathSpec("math-ai/minervamath", None, "test", "question", "answer"),
    "olympiad": MathSpec(
        "Hothan/OlympiadBench", "OE_TO_maths_en_COMP", "train", "question", "final_answer"
    ),
    "gpqa": MathSpec(
        *("Idavidrein/gpqa", "gpqa_diamond", "train", "Question", "Correct Answer"),
        wrong_answers=("Incorrect Answer 1", "Incorrect Answer 2", "Incorrect Answer 3"),
    ),
}


def load_math(
    name: str, path: str | Path | None = None, *, style: str = "chat"
) -> tuple[list[dict[str, Any]], list[str]]:
    """Read a math data set into rows of prompt, answer, uid and dataset.

    The prompt is the problem with the request to box the answer; the answer, what the reward
    compares with or the letter of the correct choice; the uid, a hash of problem and answer after
    the data set's name. A row is left out if a column is missing or empty, if it repeats another,
    or if its choices are not all there and different.

    Args:
        path: a local copy in the hub's schema, in place of the hub: a .jsonl or .parquet file, a
            folder that ``Dataset.save_to_disk`` wrote, or a downloaded hub folder.
        style: of the prompt, "chat" or "text".

    Returns:
        the rows, and of each row that was left out its place and fault.
    """
    check("name", name, Literal[tuple(MATH_SPECS)])
    check("style", style, Literal["chat", "text"])
    spec, rows, dropped = MATH_SPECS[name], dict[str, dict[str, Any]](), []
    for place, raw in enumerate(_open_source(spec, path)):
        try:
            row = _read_row(name, raw)
            need(row["uid"] not in rows, "it repeats another")
        except ValueError as error:
            dropped.append(f"{name}, row {place}: {error}")
            continue
        if style == "chat":
            row["prompt"] = [{"role": "user", "content": row["prompt"]}]
        rows[row["uid"]] = row
    where = f"{name!r} has no usable row in {path or spec.hub_id}"
    need(rows, f"{where}: {'; '.join(dropped[:3])}")
    return list(rows.values()), dropped


def _open_source(spec: MathSpec, path: str | Path | None) -> Iterable[Mapping]:
    """The rows as the source has them."""
    import datasets

    if path is None:
        return datasets.load_dataset(spec.hub_id, spec.config, split=spec.split)
    path, kinds = Path(path), {".jsonl": "json", ".parquet": "parquet"}
    if (path / "dataset_info.json").is_file():
        return datasets.load_from_disk(str(path))
    if path.is_dir():
        # the configs of a downloaded hub folder are in its README; a bare folder has none
        config = spec.config if (path / "README.md").is_file() else None
        return datasets.load_dataset(str(path), config, split=spec.split)
    known = path.is_file() and path.suffix in kinds
    need(known, f"path must be a .jsonl or .parquet file or a folder, got {path}")
    return datasets.load_dataset(kinds[path.suffix], data_files=str(path), split="train")


def _read_row(name: str, raw: Mapping) -> dict[str, Any]:
    """A row in our columns; a ValueError says what is wrong with it."""
    spec = MATH_SPECS[name]
    columns = (spec.problem, spec.answer, *spec.wrong_answers)
    need(raw.keys() >= {*columns}, f"it has the columns {sorted(raw)} and not all of {columns}")
    problem, answer, *wrong = (_text(raw[column]) for column in columns)
    given = problem and answer.lower() not in ("", "none", "nan")
    need(given, f"its problem is {problem!r} and its answer {answer!r}")
    digest = hashlib.blake2b(json.dumps([problem, answer]).encode(), digest_size=12)
    if choices := [answer, *wrong] if wrong else []:
        differ = len({*choices} - {""}) == len(choices)
        need(differ, f"its choices must be texts that differ, got {choices}")
        # an order of their own, the same in every run
        order = np.random.default_rng(list(digest.digest())).permutation(len(choices)).tolist()
        lines = [f"{LETTERS[i]}) {choices[place]}" for i, place in enumerate(order)]
        problem, answer = "\n".join([problem, "", *lines]), LETTERS[order.index(0)]
    prompt = f"{problem}\n\n{CHOICE_REQUEST if choices else MATH_REQUEST}"
    uid = f"{name}/{digest.hexdigest()}"
    return {"prompt": prompt, "answer": answer, "uid": uid, "dataset": name}


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_text, value))
    return "" if value is None else str(value).strip()
