"""The named math data sets: where each is, which columns are read, and how.

data/README.md is the data card. A set may have several schemas, since copies of it differ: the
first whose columns are all there is taken.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from gdro_lab.tasks.answers import KeyReader
from gdro_lab.tasks.fields import ChoiceReader

AnyReader = Literal[KeyReader, ChoiceReader]
"""How a key is read: from its text, or, where there are choices, as the name of one."""
Row = Mapping[str, Any]
STEP = re.compile(r"[\d.+\-*/()%]+=\$?(-?[\d.]+)%?")  # "48/2=24"; its group is the value
MARKED_STEP = re.compile(r"<<(.*?)>>")  # as gsm8k marks its steps


@dataclass(frozen=True)
class Schema:
    """Which columns of a source are read, and how.

    A column may be a path into nested ones; see `gdro_lab.tasks.fields`.
    """

    problem: tuple[str, ...]
    """Columns of the problem's text; several are joined by a space. A single one may be a chat."""
    answer: str
    """The column of the answer key, or of a list of accepted keys."""
    reader: AnyReader = "whole"
    """How the key is read from its column."""
    group: str | None = None
    """The column that names a problem's family; without one, the source is one family."""
    solution: str | None = None
    """The column of a worked solution, which may be empty."""
    choices: tuple[str, ...] = ()
    """The column with all choices, or the columns of one choice each, which make it multiple
    choice. Where `answer` is one of them, they are shown in an order of their own."""
    prepare: Callable[[Row], Row] | None = None
    """Works out the columns group and solution from the others."""

    @property
    def needed(self) -> tuple[str, ...]:
        """The columns that every row must have."""
        return (*self.problem, self.answer, *self.choices)

    @property
    def named(self) -> tuple[str, ...]:
        """The columns that some row must have: those needed, and the group's and solution's."""
        if self.prepare:
            return self.needed
        return (*self.needed, *filter(None, [self.group, self.solution]))


@dataclass(frozen=True)
class MathSpec:
    """Where a named set is on the hub, and its schemas."""

    hub_id: str
    config: str | None
    split: str
    schemas: tuple[Schema, ...]
    gated: bool = False
    """Whether the hub asks for a login."""


def _gsm8k(row: Row) -> Row:
    """The family by the number of steps, and the steps that are marked, such as <<48/2=24>>."""
    # where no step is marked, each line is one; the shortest and the longest share a family
    text = str(row["answer"])
    steps = [step.replace(" ", "") for step in MARKED_STEP.findall(text)]
    lines = text.partition("####")[0].strip().splitlines()
    count = len(steps) or len(lines)
    is_plain = all(STEP.fullmatch(step) for step in steps)
    solution = "; ".join(steps) if is_plain else None
    return {**row, "group": str(min(max(count, 2), 4)), "solution": solution}


QUESTION = Schema(("question",), "answer")
PROBLEM = Schema(("problem",), "answer")
GSM8K = Schema(
    ("question",), "answer", reader="hash", group="group", solution="solution", prepare=_gsm8k
)
OLYMPIAD = Schema(("question",), "final_answer")
MINERVA_COPY = Schema(("problem",), "solution", reader="boxed")
GPQA = Schema(
    ("Question",),
    "Correct Answer",
    choices=(
        "Correct Answer",
        "Incorrect Answer 1",
        "Incorrect Answer 2",
        "Incorrect Answer 3",
    ),
)

MATH_SPECS: dict[str, MathSpec] = {
    "dapo": MathSpec(
        "open-r1/DAPO-Math-17k-Processed", "en", "train", (Schema(("prompt",), "solution"),)
    ),
    "math500": MathSpec("HuggingFaceH4/MATH-500", None, "test", (PROBLEM,)),
    "aime2024": MathSpec("HuggingFaceH4/aime_2024", None, "train", (PROBLEM,)),
    "aime2025": MathSpec("MathArena/aime_2025", None, "train", (PROBLEM,)),
    "amc": MathSpec("math-ai/amc23", None, "test", (QUESTION,)),
    "minerva": MathSpec("math-ai/minervamath", None, "test", (QUESTION, MINERVA_COPY)),
    "olympiad": MathSpec("Hothan/OlympiadBench", "OE_TO_maths_en_COMP", "train", (OLYMPIAD,)),
    "gpqa": MathSpec("Idavidrein/gpqa", "gpqa_diamond", "train", (GPQA,), gated=True),
    "gsm8k": MathSpec("openai/gsm8k", "main", "train", (GSM8K,)),
    "gsm8k-test": MathSpec("openai/gsm8k", "main", "test", (GSM8K,)),
}
