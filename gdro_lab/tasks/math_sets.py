"""The named math data sets: where each is, which columns are read, and how.

data/README.md is the data card. A set may have several schemas, since copies of it differ: the
first whose columns are all there is taken.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from gdro_lab.tasks.answers import UNIT_IN_BRACKETS, KeyReader, read_answer
from gdro_lab.tasks.fields import ChoiceReader
from gdro_lab.tasks.numerals import plain_number

AnyReader = Literal[KeyReader, ChoiceReader]
"""How a key is read: from its text, or, where there are choices, as the name of one."""
Row = Mapping[str, Any]
# solutions are kept as arithmetic alone, without words: it is short, and a cold start can learn it
ARITHMETIC = re.compile(r"[\d.+\-*/()]+")
INFIX = re.compile(r"[\d.)][+\-*/][\d.(]")  # an operator between two operands, so not "-5"
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
    has_header: bool = True
    """Whether the first line of a table names its columns; without, they are "0", "1" and so on."""
    prepare: Callable[[Row], Row] | None = None
    """Works out the columns group and solution, or the problem, from the others."""
    columns: tuple[str, ...] = ()
    """The columns that `prepare` needs, where these are not problem and answer."""

    @property
    def needed(self) -> tuple[str, ...]:
        """The columns that every row must have."""
        return self.columns or (*self.problem, self.answer, *self.choices)

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


ASDIV_FAMILIES = {"Addition": "add", "Subtraction": "sub", "Multiplication": "mul"}


def _asdiv(row: Row) -> Row:
    """The family by the kind of solution, and the formula where it is plain arithmetic."""
    answer = str(row["answer"])
    # runs and shipped bases are of the set without its ten quotients and ordinals
    if plain_number(UNIT_IN_BRACKETS.sub("", answer)) is None:
        raise ValueError(f"its answer {answer!r} is no number with a unit in brackets")
    kind = str(row["solution_type"])
    family = "div" if kind.endswith("Division") else ASDIV_FAMILIES.get(kind, "other")
    steps = [step.replace(" ", "").replace("x", "*") for step in str(row["formula"]).split(";")]
    matches = [STEP.fullmatch(step) for step in steps]
    last = matches[-1]
    # a formula that ends elsewhere than at the answer would teach a wrong one
    is_right = last and all(matches) and plain_number(last[1]) == _number(row["answer"])
    return {**row, "group": family, "solution": "; ".join(steps) if is_right else None}


def _svamp(row: Row) -> Row:
    """Body and question as sentences, and the equation with its value."""
    body = str(row["Body"] or "").rstrip(" .")
    problem = f"{body}. {str(row['Question'] or '').strip()}"
    return {**row, "problem": problem, "solution": _solved(row["Equation"], row["Answer"])}


def _mawps(row: Row) -> Row:
    """The hub's rows have N_00, N_01, … in place of the numbers."""
    numbers = [plain_number(text) or text for text in str(row["Numbers"] or "").split()]

    def fill(text: Any) -> str:
        return re.sub(r"N_(\d\d)", lambda match: numbers[int(match[1])], str(text))

    try:
        problem = fill(row["Question"])
        equation = fill(row["Equation"])
    except IndexError:
        raise ValueError(f"it has the numbers {numbers}, fewer than it names") from None
    answer = _rounded(row["Answer"])
    return {**row, "problem": problem, "key": answer, "solution": _solved(equation, answer)}


def _mawps_copy(row: Row) -> Row:
    return {**row, "key": _rounded(row["target"])}


def _number(answer: Any) -> str | None:
    return read_answer(str(answer), "number")


def _rounded(answer: Any) -> Any:
    """Four decimals: a quotient that was cut off after ten digits could never be met."""
    number = plain_number(str(answer))
    return answer if number is None else str(round(float(number), 4))


def _solved(equation: Any, answer: Any) -> str | None:
    """`( 290.0 / 2.0 )` with its value, as `290/2=145`; None where it is not arithmetic."""
    text = re.sub(r"(?<=\d)\.0+(?!\d)|\s", "", str(equation or ""))
    # the outer brackets of "(290/2)" go, those of "(1+2)*(3+4)" stay
    inner = text[1:-1]
    is_enclosed = text.startswith("(") and text.endswith(")") and _is_balanced(inner)
    text = inner if is_enclosed else text
    number = _number(answer)
    is_arithmetic = ARITHMETIC.fullmatch(text) and INFIX.search(text)
    return f"{text}={number}" if number and is_arithmetic else None


def _is_balanced(text: str) -> bool:
    """Whether no bracket closes before it opens."""
    depth = 0
    for sign in text:
        depth += (sign == "(") - (sign == ")")
        if depth < 0:
            return False
    return depth == 0


QUESTION = Schema(("question",), "answer")
PROBLEM = Schema(("problem",), "answer")
GSM8K = Schema(
    ("question",), "answer", reader="hash", group="group", solution="solution", prepare=_gsm8k
)
SVAMP = Schema(
    ("problem",),
    "Answer",
    reader="number",
    solution="solution",
    prepare=_svamp,
    columns=("Body", "Question", "Equation", "Answer"),
)
ASDIV = Schema(
    ("body", "question"),
    "answer",
    reader="number",
    group="group",
    solution="solution",
    prepare=_asdiv,
    columns=("body", "question", "answer", "solution_type", "formula"),
)
MAWPS = Schema(
    ("problem",),
    "key",
    reader="number",
    solution="solution",
    prepare=_mawps,
    columns=("Question", "Numbers", "Equation", "Answer"),
)
MAWPS_COPY = Schema(
    ("input",), "key", reader="number", prepare=_mawps_copy, columns=("input", "target")
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
    "svamp": MathSpec("ChilleD/SVAMP", None, "train+test", (SVAMP,)),
    "asdiv": MathSpec("EleutherAI/asdiv", None, "validation", (ASDIV,)),
    "mawps": MathSpec("mwpt5/MAWPS", None, "train", (MAWPS, MAWPS_COPY)),
}
