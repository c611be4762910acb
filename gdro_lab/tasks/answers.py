r"""How an answer is asked for, written and read: in `\boxed{…}`, after `####`, the last number.

The same readers serve answer keys and completions. Nothing here judges an answer; see
`gdro_lab.tasks.math_reward`.
"""

import re
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from gdro_lab.tasks.numerals import STYLE, TAIL, is_side, plain_number, read_last_number

Style = Literal["chat", "text"]
"""Whether a prompt is a message of a chat, or the plain text."""

Reader = Literal["boxed", "hash", "answer_line", "last_number", "whole", "tags"]
"""Where a text has its answer: in its last `\\boxed{…}`, behind its last `####` or `Answer:` up to
the end of the line, as its last number, as the whole text, or in its last `<answer>…</answer>`."""

KeyReader = Literal["boxed", "hash", "answer_line", "last_number", "whole", "tags", "number"]
"""Where a column has the answer key. "number" is a column that must hold a number, perhaps with a
unit, such as `9 (apples)`."""

REQUESTS: dict[Reader, str] = {
    "boxed": "{problem}\n\nPlease reason step by step, and put {answer} within \\boxed{}.",
    "hash": "{problem}\n\nPlease reason step by step, and write {answer} after ####.",
    "answer_line": "{problem}\n\nPlease reason step by step, and end with a line of the form "
    "Answer: X, where X is {answer}.",
    "last_number": "{problem}\n\nPlease reason step by step, and end with {answer}.",
    "whole": "{problem}\n\nPlease reply with {answer} alone.",
    "tags": "{problem}\n\nPlease reason step by step, and put {answer} within <answer></answer>.",
}
"""How each reader's answer is asked for; `{answer}` becomes "your final answer", or a letter."""

FINAL_ANSWER = "your final answer"

FORMS: dict[Reader, str] = {
    "boxed": "\\boxed{ANSWER}",
    "hash": "#### ANSWER",
    "answer_line": "Answer: ANSWER",
    "last_number": "ANSWER",
    "whole": "ANSWER",
    "tags": "<answer>ANSWER</answer>",
}
"""How an answer is written so that a reader finds it."""

SIGNS = {
    "hash": re.compile("####"),
    "answer_line": re.compile(r"\banswer\b\W{0,3}[:：]", re.IGNORECASE),
}
MARKERS: dict[Reader, str] = {
    "boxed": "boxed",
    "hash": "####",
    "answer_line": "answer:",
    "tags": "<answer>",
}
"""What a prompt says, in any case, that asks for the form that a reader finds."""

# an escaped brace is the sign of a set and groups nothing
BRACES = re.compile(r"(?P<box>\\(?:boxed|fbox)\s*\{)|\\.|[{}]", re.DOTALL)
BOX = re.compile(r"\\(?:boxed|fbox)(?![A-Za-z])")
# what may stand between two boxes of one answer
BETWEEN_BOXES = re.compile(
    r"(?:[\s,;$]|\\[()\[\],; ]|\\q?quad\b|and|or|\\(?:text|mbox)\s*\{[\s,]*(?:and|or)?\s*\})*"
)
# where a formula ends, or a line
EDGE = re.compile(r"(?<!\\)[$&\n]|\\[()\[\]\\]|\\(?:begin|end)\s*\{[^{}]*\}(?:\{[clr|]*\})?")
FACTORIAL = re.compile(r"\s*!+\s*(?:\$|\\[)\]]|[-+*/=^\\])")  # and not the end of a sentence
ARGUMENT = re.compile(r"(?:[\^_}\]]|\\[A-Za-z]+)\s*$")
OPENED = re.compile("<answer>", re.IGNORECASE)
CLOSED = re.compile("</answer>", re.IGNORECASE)
UNIT_IN_BRACKETS = re.compile(r"\s*\([^()]*[^\W\d_][^()]*\)$")


def read_key(text: str, form: KeyReader) -> str | None:
    r"""The answer key in the text of a column; None where there is none in this form.

    A number comes back in one spelling: `1,200` as `1200`, `\frac{1}{2}` as `1/2`.
    """
    if form == "last_number":
        return read_last_number(text)
    key = read_answer(text, form)
    if key is None or form in ("boxed", "whole"):
        return key
    return plain_number(key) or key


def read_answer(text: str, reader: Reader | KeyReader) -> str | None:
    """The answer that a text gives; None where the reader finds none.

    As the last number, 50% is read as 50, since that is what a question for per cent asks for.
    """
    text = text.strip()
    if reader == "boxed":
        return last_boxed(text)
    if sign := SIGNS.get(reader):
        *before, behind = sign.split(text)
        behind = re.sub(r"^(?:\$\$|\\\[) *\n", "", behind.strip(" *\n"))  # of a formula
        first_line = behind.partition("\n")[0].strip(" *`")
        return opened(first_line) or None if before else None
    if reader == "last_number":
        number = read_last_number(text)
        return number and number.removesuffix("%")
    if reader == "number":
        from gdro_lab.tasks.quantities import only_number  # its units need math-verify

        return only_number(UNIT_IN_BRACKETS.sub("", text))
    if reader == "tags":
        *before, last = OPENED.split(text)
        inside, *closed = CLOSED.split(last)
        return opened(inside.strip()) or None if before and closed else None
    return opened(text) or None


def last_boxed(text: str) -> str | None:
    r"""Content of the last `\boxed{…}`; None where that is empty, or not closed.

    Boxes with nothing but commas or "and" between them are one answer, a list. A box within an
    expression, such as `-\boxed{5}`, is none.
    """
    boxes = _outer_boxes(text)
    if boxes is None or not boxes or not boxes[-1].content:
        return None
    answer = [boxes[-1]]
    for box in reversed(boxes[:-1]):
        if not BETWEEN_BOXES.fullmatch(text, box.end, answer[0].start):
            break
        answer.insert(0, box)
    before = EDGE.split(text[max(0, answer[0].start - TAIL // 2) : answer[0].start])[-1]
    behind = text[answer[-1].end : answer[-1].end + TAIL // 2]
    if (
        answer[-1].is_argument
        or FACTORIAL.match(behind)
        or not is_side(before, EDGE.split(behind)[0])
    ):
        return None
    contents = [unboxed(box.content) for box in answer if box.content]
    return ", ".join(contents if len(set(contents)) > 1 else contents[:1])


class Box(NamedTuple):
    r"""A `\boxed{…}` in a text."""

    start: int
    end: int
    content: str
    is_argument: bool
    r"""Whether it stands in an argument of a command such as \frac, or in an exponent."""


def _outer_boxes(text: str) -> list[Box] | None:
    """The boxes that are in no other; None if one is not closed."""
    # one pass, as a text that repeats itself can open thousands of boxes and close none
    boxes = []
    braces: list[bool | None] = []  # whether each opens an argument; None for that of an outer box
    opened = None
    for match in BRACES.finditer(text):
        if match["box"] and opened is None:
            opened = match
            braces.append(None)
        elif match["box"] or match[0] == "{":
            before = text[max(0, match.start() - TAIL) : match.start()]
            braces.append(ARGUMENT.search(STYLE.sub("", before)) is not None)
        elif match[0] == "}" and braces and braces.pop() is None and opened:
            content = text[opened.end() : match.start()].strip()
            boxes.append(Box(opened.start(), match.end(), content, any(braces)))
            opened = None
    return None if opened else boxes


def unboxed(text: str) -> str:
    """The text without boxes around all of it."""
    for _ in range(3):
        boxes = _outer_boxes(text)
        if not boxes or boxes[0][:2] != (0, len(text)):
            break
        text = boxes[0].content
    return text


def opened(text: str) -> str | None:
    """The text, or the content of its last box if it has one; None if that box is empty."""
    return last_boxed(text) if BOX.search(text) else text


def completion_text(completion: Any) -> str:
    """The text to judge: a text, or of a chat the last message of the assistant that has one."""
    if isinstance(completion, str):
        return completion
    said = [_content(message) for message in completion if message["role"] == "assistant"]
    return next((text for text in reversed(said) if text.strip()), "")


def _content(message: Mapping[str, Any]) -> str:
    """The text of a message, also where it comes in parts."""
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "".join(part.get("text") or "" for part in content)


def style_of(tokenizer: Any) -> Style:
    """The style in which a model is asked: chats where its tokenizer has a template for them."""
    return "text" if tokenizer.chat_template is None else "chat"


def request_for(reader: Reader, asked: str = FINAL_ANSWER) -> str:
    """The request for an answer in the form that a reader finds, with `{problem}` in it."""
    return REQUESTS[reader].replace("{answer}", asked)


def ask(problem: str, request: str, style: Style) -> str | list[dict[str, str]]:
    """The prompt: the request with the problem in place of `{problem}`, a text or a chat."""
    text = request.replace("{problem}", problem)
    return text if style == "text" else [{"role": "user", "content": text}]


def with_answer(solution: str, answer: str, reader: Reader) -> str:
    """A worked solution that ends with its answer, in the form that the reader finds.

    Where the whole text is read, that is the answer alone.
    """
    if reader == "whole":
        return answer
    if read_answer(solution, reader) == answer:
        return solution
    return f"{solution}\n{FORMS[reader].replace('ANSWER', answer)}"
