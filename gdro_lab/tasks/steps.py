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
from typing import Annotated, Any, NamedTuple

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from gdro_lab.models import Tokenizer
from gdro_lab.tasks.base import (
    BoundedCount,
    Strict,
    TaskRow,
    character_tokenizer,
    check_families,
    split_by_share,
)

NAMES = "ABCD"
VERBS = {"g": "-", "l": "-", "f": "+", "b": "+"}  # gives, loses, finds, buys
OPERATORS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.floordiv}
CHARACTERS = ["0123456789+-*/%=;?x ", *NAMES, *VERBS]
SLIPS = (-10, -1, 1, 10)
SOLUTION = re.compile(r"(?:\d+[-+*/]\d+=\d+;)*\d+[-+*/]\d+=(\d+)")
PROMPT_LENGTH = 12  # of "60+60+60+60?", the longest
COMPLETION_LENGTH = 32  # one more than "90*9=810;9*9=81;810+81=891" and four terms of 60 have
TRIES = 100_000  # draws of a family that is not known to have another question
STREAM = 68  # of random numbers that draw the splits; lessons have another


class Earlier(NamedTuple):
    """Stands in a line for the value of an earlier one."""

    line: int


Line = tuple[int | Earlier, str, int | Earlier]


class WorkedQuestion(NamedTuple):
    """A question with its solution."""

    question: str
    numbers: Sequence[int]
    """That tell it from other questions of its family."""
    lines: Sequence[Line]
    """Steps of the solution, `left sign right` each; the value of the last is the answer."""

    def solution(self, accuracy: float = 1.0, rng: np.random.Generator | None = None) -> str:
        """The lines with their values, as a teacher says them who slips.

        Args:
            accuracy: the probability that a line is right. A slip is by one or by ten, up or down,
                and later lines continue from what was said.
            rng: of the slips; without it, there are none.
        """
        values: list[int] = []
        texts = []

        def heard(operand: int | Earlier) -> int:
            return values[operand.line] if isinstance(operand, Earlier) else operand

        for left, sign, right in self.lines:
            said = max(OPERATORS[sign](heard(left), heard(right)), 0)  # after a slip it may be less
            if rng is not None and accuracy < 1 and rng.random() >= accuracy:
                said = max(said + rng.choice(SLIPS).item(), 0)
            texts.append(f"{heard(left)}{sign}{heard(right)}={said}")
            values.append(said)
        return ";".join(texts)


def by_place(left: int, sign: str, right: int) -> list[Line]:
    """Two numbers by tens and ones, `left * right` by those of the left alone."""
    tens = (left // 10 * 10, sign, right if sign == "*" else right // 10 * 10)
    ones = (left % 10, sign, right if sign == "*" else right % 10)
    return [tens, ones, (Earlier(0), "+", Earlier(1))]


def sum_of(terms: Sequence[int]) -> WorkedQuestion:
    """Terms added from left to right."""
    first, *others = terms
    lines: list[Line] = [(first, "+", others[0])]
    lines += [(Earlier(place), "+", term) for place, term in enumerate(others[1:])]
    return WorkedQuestion("+".join(map(str, terms)) + "?", terms, lines)


def sum_2(rng: np.random.Generator) -> WorkedQuestion:
    a, b = rng.integers(11, 100, 2).tolist()
    return WorkedQuestion(f"{a}+{b}?", (a, b), by_place(a, "+", b))


def sum_3(rng: np.random.Generator) -> WorkedQuestion:
    return sum_of(rng.integers(2, 30, 3).tolist())


def sum_4(rng: np.random.Generator) -> WorkedQuestion:
    return sum_of(rng.integers(11, 61, 4).tolist())


def difference(rng: np.random.Generator) -> WorkedQuestion:
    b, d = rng.integers(11, [60, 41]).tolist()
    a = b + d
    return WorkedQuestion(f"{a}-{b}?", (a, b), [(a, "-", b // 10 * 10), (Earlier(0), "-", b % 10)])


def product(rng: np.random.Generator) -> WorkedQuestion:
    a, b = rng.integers([12, 3], [100, 10]).tolist()
    return WorkedQuestion(f"{a}*{b}?", (a, b), by_place(a, "*", b))


def story(rng: np.random.Generator) -> WorkedQuestion:
    a, b, name = rng.integers([3, 3, 0], [10, 10, len(NAMES)]).tolist()
    verb = rng.choice(list(VERBS))
    c = rng.integers(2, a * b - 2).item()
    lines = [(a, "*", b), (Earlier(0), VERBS[verb], c)]
    return WorkedQuestion(f"{NAMES[name]}{a}x{b}{verb}{c}?", (a, b, c), lines)


def equation(rng: np.random.Generator) -> WorkedQuestion:
    m, x, c = rng.integers([2, 3, 1], [10, 26, 31]).tolist()
    total = m * x + c
    lines = [(total, "-", c), (Earlier(0), "/", m)]
    return WorkedQuestion(f"{m}x+{c}={total}?", (m, c, total), lines)


def remainder(rng: np.random.Generator) -> WorkedQuestion:
    m, quotient = rng.integers([11, 2], [20, 8]).tolist()
    a = m * quotient + rng.integers(1, m).item()
    return WorkedQuestion(f"{a}%{m}?", (a, m), [(m, "*", quotient), (a, "-", Earlier(0))])


KINDS: dict[str, Callable[[np.random.Generator], WorkedQuestion]] = {
    "sum-2": sum_2,
    "sum-3": sum_3,
    "sum-4": sum_4,
    "difference": difference,
    "product": product,
    "story": story,
    "equation": equation,
    "remainder": remainder,
}
"""A drawn question of each family."""


@dataclass(config=Strict.model_config)
class StepsFamily:
    """A kind of question in a world."""

    name: str
    """One of `KINDS`."""
    share: Annotated[float, Field(gt=0, le=1)]
    """Of the training prompts."""
    lessons: Annotated[float, Field(gt=0, le=1)]
    """Of what the base is taught."""
    accuracy: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Probability that the teacher of the base's last part says a line correctly."""


@dataclass(config=Strict.model_config)
class StepsSpec:
    """What the task is, before anything is drawn."""

    families: tuple[StepsFamily, ...]
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


def solution_reward(
    completions: Sequence[str], answer: Sequence[str], **kwargs: Any
) -> list[float]:
    """1.0 where a completion has the form of a solution and its last number is the answer's."""
    return [
        float(last_number(c) == last_number(a)) for c, a in zip(completions, answer, strict=True)
    ]


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
    reward = staticmethod(solution_reward)
    max_completion_tokens = COMPLETION_LENGTH

    @property
    def shares(self) -> dict[str, float]:
        """Each family's share of the training prompts; they sum to 1."""
        return {family.name: family.share for family in self.spec.families}

    def teach(self, rng: np.random.Generator, n: int) -> tuple[list[str], list[str]]:
        """Draw `n` questions with the teacher's solutions, families in their shares of lessons."""
        names = [family.name for family in self.spec.families]
        weights = [family.lessons for family in self.spec.families]
        accuracy = {family.name: family.accuracy for family in self.spec.families}
        prompts = []
        completions = []
        for name in rng.choice(names, size=n, p=weights):
            problem = KINDS[name](rng)
            while is_kept_out(name, problem):
                problem = KINDS[name](rng)
            prompts.append(problem.question.rjust(PROMPT_LENGTH))
            completions.append(problem.solution(accuracy[name], rng))
        return prompts, completions

    def without_slips(self) -> StepsTask:
        """The same with a teacher who is always right."""
        families = [dataclasses.replace(family, accuracy=1.0) for family in self.spec.families]
        spec = dataclasses.replace(self.spec, families=tuple(families))
        return dataclasses.replace(self, spec=spec)

    def correct_texts(self, row: Mapping[str, Any]) -> tuple[str, ...]:
        """The worked solution of a row; another text with its last number is rewarded too."""
        return (row["answer"],)

    def tokenizer(self) -> Tokenizer:
        """One token for each character."""
        return character_tokenizer("".join(CHARACTERS))

    def fingerprint(self) -> str:
        """SHA-256, in hex, of what the lessons depend on, and of some of them."""
        content = [self.teach(np.random.default_rng(0), 1000)]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def identity(name: str, problem: WorkedQuestion) -> str:
    """What questions that differ in the order of their numbers have in common."""
    return f"{name} {sorted(problem.numbers)}"


def is_kept_out(name: str, problem: WorkedQuestion) -> bool:
    """Whether lessons leave this question to the splits."""
    return zlib.crc32(identity(name, problem).encode()) % 3 == 0


def _draw_rows(name: str, count: int, rng: np.random.Generator) -> list[TaskRow]:
    """So many questions of different identities, none of which comes in lessons."""
    rows: dict[str, TaskRow] = {}
    for _ in range(TRIES):
        problem = KINDS[name](rng)
        if not is_kept_out(name, problem):
            continue
        columns = {"uid": problem.question, "family": name, "answer": problem.solution()}
        row = {"prompt": problem.question.rjust(PROMPT_LENGTH)} | columns
        rows.setdefault(identity(name, problem), row)
        if len(rows) == count:
            return list(rows.values())
    raise ValueError(
        f"n_train and n_eval_per_family ask for {count} questions of {name!r}, "
        f"which has {len(rows)} beside its lessons"
    )
