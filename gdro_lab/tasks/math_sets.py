"""The named math data sets: where each is, which columns are read, and how.

data/README.md is the data card. A set may have several schemas, since copies of it differ: the
first whose columns are all there is taken.
"""

from dataclasses import dataclass

from gdro_lab.tasks.answers import KeyReader


@dataclass(frozen=True)
class Schema:
    """Which columns of a source are read, and how.

    A column may be a path into nested ones; see `gdro_lab.tasks.fields`.
    """

    problem: tuple[str, ...]
    """Columns of the problem's text; several are joined by a space. A single one may be a chat."""
    answer: str
    """The column of the answer key, or of a list of accepted keys."""
    reader: KeyReader = "whole"
    """How the key is read from its column."""
    group: str | None = None
    """The column that names a problem's family; without one, the source is one family."""
    choices: tuple[str, ...] = ()
    """The columns of one choice each, which make it multiple choice. `answer` is one of them, and
    each problem shows them in an order of its own."""

    @property
    def needed(self) -> tuple[str, ...]:
        """The columns that every row must have."""
        return (*self.problem, *(self.choices or [self.answer]))

    @property
    def named(self) -> tuple[str, ...]:
        """The columns that some row must have: those needed, and the group's."""
        return self.needed if self.group is None else (*self.needed, self.group)


@dataclass(frozen=True)
class MathSpec:
    """Where a named set is on the hub, and its schemas."""

    hub_id: str
    config: str | None
    split: str
    schemas: tuple[Schema, ...]
    gated: bool = False
    """Whether the hub asks for a login."""


QUESTION = Schema(("question",), "answer")
PROBLEM = Schema(("problem",), "answer")
GSM8K = Schema(("question",), "answer", reader="hash")
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
