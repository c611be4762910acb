"""Questions that need steps: arithmetic with worked solutions, answered line by line.

A prompt reads `47+35?`, padded on the left, and its worked solution `40+30=70;7+5=12;70+12=82`. A
completion must have this form, and its last number must be right. In stories a word is one letter:
`A5x8g12?` says that Ana has 5 boxes with 8 pens each and gives 12 away. Families share skills (the
last line of a product is a sum), and differ in their shares of training prompts and of lessons.

The identity of a question is its family and its numbers in any order. A third of all identities
never come in lessons, and the two splits of every replicate are drawn from these.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import operator
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from gdro_lab.tasks.base import (
    BoundedCount,
    Strict,
    TaskRow,
    character_tokenizer,
    check_families,
    split_by_share,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

NAMES = "ABCD"
VERBS = {"g": "-", "l": "-", "f": "+", "b": "+"}  # gives, loses, finds, buys
OPERATORS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.floordiv}
CHARACTERS = ["0123456789+-*/%=;?x ", *NAMES, *VERBS]
SOLUTION = re.compile(r"(?:\d+[-+*/]\d+=\d+;)*\d+[-+*/]\d+=(\d+)")
PROMPT_LENGTH = 12  # of "60+60+60+60?", the longest
COMPLETION_LENGTH = 32  # one more than "90*9=810;9*9=81;810+81=891" and four terms of 60 have
TRIES = 100_000  # draws of a family that is not known to have another question
STREAM = 68  # of random numbers that draw the splits; lessons have another

Line = tuple[int, str, int]


class Problem(NamedTuple):
    """A question with its solution."""

    question: str
    numbers: Sequence[int]
    """That tell it from other questions of its family."""
    lines: Sequence[Line]
    """Steps of the solution, `left sign right` each; the value of the last is the answer."""

    @property
    def solution(self) -> str:
        """The lines with their values."""
        return ";".join(f"{a}{sign}{b}={value((a, sign, b))}" for a, sign, b in self.lines)


def value(line: Line) -> int:
    """What a line comes to."""
    left, sign, right = line
    return OPERATORS[sign](left, right)


def by_place(left: int, sign: str, right: int) -> list[Line]:
    """Two numbers by tens and ones, `left * right` by those of the left alone."""
    tens = (left // 10 * 10, sign, right if sign == "*" else right // 10 * 10)
    ones = (left % 10, sign, right if sign == "*" else right % 10)
    return [tens, ones, (value(tens), "+", value(ones))]


def in_turn(numbers: Sequence[int]) -> list[Line]:
    """Terms added from left to right."""
    totals = np.cumsum(numbers).tolist()
    return [(total, "+", term) for total, term in zip(totals, numbers[1:], strict=False)]


def sum_2(rng: np.random.Generator) -> Problem:
    a, b = rng.integers(11, 100, 2).tolist()
    return Problem(f"{a}+{b}?", (a, b), by_place(a, "+", b))


def sum_3(rng: np.random.Generator) -> Problem:
    terms = rng.integers(2, 30, 3).tolist()
    return Problem("+".join(map(str, terms)) + "?", terms, in_turn(terms))


def sum_4(rng: np.random.Generator) -> Problem:
    terms = rng.integers(11, 61, 4).tolist()
    return Problem("+".join(map(str, terms)) + "?", terms, in_turn(terms))


def difference(rng: np.random.Generator) -> Problem:
    b, d = rng.integers(11, [60, 41]).tolist()
    a = b + d
    first = (a, "-", b // 10 * 10)
    return Problem(f"{a}-{b}?", (a, b), [first, (value(first), "-", b % 10)])


def product(rng: np.random.Generator) -> Problem:
    a, b = rng.integers([12, 3], [100, 10]).tolist()
    return Problem(f"{a}*{b}?", (a, b), by_place(a, "*", b))


def two_products(rng: np.random.Generator) -> Problem:
    a, b, c, d = rng.integers(2, 10, 4).tolist()
    first = (a, "*", b)
    second = (c, "*", d)
    lines = [first, second, (value(first), "+", value(second))]
    return Problem(f"{a}*{b}+{c}*{d}?", (a, b, c, d), lines)


def story(rng: np.random.Generator) -> Problem:
    a, b, name = rng.integers([3, 3, 0], [10, 10, len(NAMES)]).tolist()
    verb = rng.choice(list(VERBS))
    c = rng.integers(2, a * b - 2).item()
    first = (a, "*", b)
    lines = [first, (value(first), VERBS[verb], c)]
    return Problem(f"{NAMES[name]}{a}x{b}{verb}{c}?", (a, b, c), lines)


def equation(rng: np.random.Generator) -> Problem:
    m, x, c = rng.integers([2, 3, 1], [10, 26, 31]).tolist()
    total = m * x + c
    first = (total, "-", c)
    return Problem(f"{m}x+{c}={total}?", (m, c, total), [first, (value(first), "/", m)])


def remainder(rng: np.random.Generator) -> Problem:
    m, quotient = rng.integers([11, 2], [20, 8]).tolist()
    a = m * quotient + rng.integers(1, m).item()
    first = (m, "*", quotient)
    return Problem(f"{a}%{m}?", (a, m), [first, (a, "-", value(first))])


KINDS: dict[str, Callable[[np.random.Generator], Problem]] = {
    "sum-2": sum_2,
    "sum-3": sum_3,
    "sum-4": sum_4,
    "difference": difference,
    "product": product,
    "products": two_products,
    "story": story,
    "equation": equation,
    "remainder": remainder,
}
"""A drawn question of each family."""


@dataclass(config=Strict.model_config)
class Family:
    """A kind of question in a world."""

    name: str
    """One of `KINDS`."""
    share: Annotated[float, Field(gt=0, le=1)]
    """Of the training prompts."""
    lessons: Annotated[float, Field(gt=0, le=1)]
    """Of what the base is taught."""


@dataclass(config=Strict.model_config)
class StepsSpec:
    """What the task is, before anything is drawn."""

    families: tuple[Family, ...]
    """Their names differ; their shares, and those of lessons, sum to 1."""
    n_train: BoundedCount = 1200
    """Training prompts, over all families."""
    n_eval_per_family: BoundedCount = 32
    """Held-out prompts of each family."""

    def __post_init__(self) -> None:
        names = [family.name for family in self.families]
        check_families(names)
        if not set(names) <= set(KINDS):
            raise ValueError(f"families must be among {list(KINDS)}, got {names}")
        for field in ("share", "lessons"):
            total = sum(getattr(family, field) for family in self.families)
            if not abs(total - 1) <= 1e-9:
                raise ValueError(f"{field} of the families must sum to 1, got {total:g}")

    def draw(self, seed: int) -> StepsTask:
        """Draw the two splits, from questions that no lesson has."""
        rng = np.random.default_rng((seed, STREAM))
        train = []
        evaluation = []
        counts = split_by_share([family.share for family in self.families], self.n_train)
        for family, count in zip(self.families, counts, strict=True):
            rows = _draw_rows(family.name, self.n_eval_per_family + count, rng)
            evaluation += rows[: self.n_eval_per_family]
            train += rows[self.n_eval_per_family :]
        train = [train[place] for place in rng.permutation(len(train))]
        return StepsTask(self, tuple(train), tuple(evaluation))


def reward(completions: Sequence[str], answer: Sequence[str], **kwargs: Any) -> list[float]:
    """1.0 where a completion has the form of a solution and its last number is the answer's."""
    return [float(last_number(c) == last_number(a)) for c, a in zip(completions, answer, strict=True)]


def last_number(text: str) -> str:
    """Of a text in the form of a solution; else the text itself, which equals no number."""
    match = SOLUTION.fullmatch(text)
    return match[1] if match else f"not a solution: {text}"


@dataclasses.dataclass(frozen=True, eq=False)
class StepsTask:
    """The two splits.

    A row is a dict of `prompt`, `uid` (the question), `family` and `answer`, the worked solution.
    """

    spec: StepsSpec
    train: tuple[TaskRow, ...]  # shuffled
    eval: tuple[TaskRow, ...]  # family by family
    reward = staticmethod(reward)
    max_completion_tokens = COMPLETION_LENGTH

    @property
    def shares(self) -> dict[str, float]:
        """Each family's share of the training prompts; they sum to 1."""
        return {family.name: family.share for family in self.spec.families}

    def teach(self, rng: np.random.Generator, n: int) -> tuple[list[str], list[str]]:
        """Draw `n` questions with their worked solutions, families in their shares of lessons."""
        names = [family.name for family in self.spec.families]
        weights = [family.lessons for family in self.spec.families]
        prompts = []
        completions = []
        for name in rng.choice(names, size=n, p=weights):
            problem = KINDS[name](rng)
            while is_kept_out(name, problem):
                problem = KINDS[name](rng)
            prompts.append(problem.question.rjust(PROMPT_LENGTH))
            completions.append(problem.solution)
        return prompts, completions

    def correct_texts(self, row: Mapping[str, Any]) -> tuple[str, ...]:
        """The worked solution of a row; another text with its last number is rewarded too."""
        return (row["answer"],)

    def tokenizer(self) -> PreTrainedTokenizerFast:
        """One token for each character."""
        return character_tokenizer("".join(CHARACTERS))

    def fingerprint(self) -> str:
        """SHA-256, in hex, of what the lessons depend on, and of some of them."""
        lessons = {family.name: family.lessons for family in self.spec.families}
        content = [lessons, self.teach(np.random.default_rng(0), 1000)]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def identity(name: str, problem: Problem) -> str:
    """What questions that differ in the order of their numbers have in common."""
    return f"{name} {sorted(problem.numbers)}"


def is_kept_out(name: str, problem: Problem) -> bool:
    """Whether lessons leave this question to the splits."""
    return zlib.crc32(identity(name, problem).encode()) % 3 == 0


def _draw_rows(name: str, count: int, rng: np.random.Generator) -> list[TaskRow]:
    """So many questions of different identities, none of which comes in lessons."""
    rows: dict[str, TaskRow] = {}
    for _ in range(TRIES):
        problem = KINDS[name](rng)
        if not is_kept_out(name, problem):
            continue
        columns = {"uid": problem.question, "family": name, "answer": problem.solution}
        row = {"prompt": problem.question.rjust(PROMPT_LENGTH)} | columns
        rows.setdefault(identity(name, problem), row)
        if len(rows) == count:
            return list(rows.values())
    raise ValueError(
        f"n_train and n_eval_per_family ask for {count} questions of {name!r}, "
        f"which has {len(rows)} beside its lessons"
    )
