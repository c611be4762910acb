r"""How an answer is asked for, written and read: in `\boxed{…}`, after `####`, the last number.

The same readers serve answer keys and completions. Nothing here judges an answer; see
`gdro_lab.tasks.math_reward`.
"""

import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Literal

Style = Literal["chat", "text"]
"""Whether a prompt is a message of a chat, or the plain text."""

Reader = Literal["boxed", "hash", "last_number", "whole", "tags"]
"""Where a text has its answer: in its last `\\boxed{…}`, behind its last `####` up to the end
of the line, as its last number, as the whole text, or in its last `<answer>…</answer>`."""

KeyReader = Literal["boxed", "hash", "last_number", "whole", "number"]
"""Where a column has the answer key. "number" is a column that must hold a number, perhaps with a
unit in brackets, such as `9 (apples)`."""

REQUESTS: dict[Reader, str] = {
    "boxed": "{problem}\n\nPlease reason step by step, and put {answer} within \\boxed{}.",
    "hash": "{problem}\n\nPlease reason step by step, and write {answer} after ####.",
    "last_number": "{problem}\n\nPlease reason step by step, and end with {answer}.",
    "whole": "{problem}\n\nPlease reply with {answer} alone.",
    "tags": "{problem}\n\nPlease reason step by step, and put {answer} within <answer></answer>.",
}
"""How each reader's answer is asked for; `{answer}` becomes "your final answer", or a letter."""

FINAL_ANSWER = "your final answer"

FORMS: dict[Reader, str] = {
    "boxed": "\\boxed{ANSWER}",
    "hash": "#### ANSWER",
    "last_number": "ANSWER",
    "whole": "ANSWER",
    "tags": "<answer>ANSWER</answer>",
}
"""How an answer is written so that a reader finds it."""

LONGEST = 200  # characters of a box that are read as a number
# an escaped brace is the sign of a set and groups nothing
BRACES = re.compile(r"(?P<box>\\(?:boxed|fbox)\s*\{)|\\.|[{}]", re.DOTALL)
NESTED = re.compile(r"^(?:\\(?:boxed|fbox)\s*\{)+([^{}]*)\}+$")
TAGS = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
DIGITS = r"(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)"
# the sign of "= -3", not the minus of "5-3"
IN_TEXT = re.compile(rf"((?<![\w)\]}}])[-−]\$?)?((?:{DIGITS}(?:\.[0-9]+)?|\.[0-9]+)(?:/{DIGITS})?)")
ALONE = re.compile(rf"([-−]?)\s*\$?\s*({DIGITS}(?:\.[0-9]*)?|\.[0-9]+)")
UNIT_IN_BRACKETS = re.compile(r"\s*\([^()]*\)$")


def read_answer(text: str, reader: Reader | KeyReader) -> str | None:
    """The answer that a text gives; None where the reader finds none."""
    text = text.strip()
    if reader == "boxed":
        return last_boxed(text)
    if reader == "hash":
        _, sign, behind = text.rpartition("####")
        first_line = behind.strip().partition("\n")[0].strip()
        return first_line if sign and first_line else None
    if reader == "last_number":
        return _last_number(text)
    if reader == "number":
        return plain_number(UNIT_IN_BRACKETS.sub("", text))
    if reader == "tags":
        tagged = TAGS.findall(text)
        return tagged[-1].strip() if tagged else None
    return text or None


def plain_number(text: str) -> str | None:
    """A text that is a number without thousands separators and idle zeros; None for another.

    `1,450` becomes `1450` and `145.0` becomes `145`.
    """
    match = ALONE.fullmatch(text.strip())
    if match is None:
        return None
    value = Decimal(match[2].replace(",", ""))
    digits = f"{value:f}"
    if "." in digits:
        digits = digits.rstrip("0").rstrip(".")
    return f"-{digits}" if match[1] and value else digits


def _last_number(text: str) -> str | None:
    """The last number of a text: an integer, a decimal or a quotient."""
    numbers = list(IN_TEXT.finditer(text))
    if not numbers:
        return None
    sign = "-" if numbers[-1][1] else ""
    return sign + numbers[-1][2].replace(",", "")


def last_boxed(text: str) -> str | None:
    """Content of the last whole `\\boxed{…}` that is not empty; None without one."""
    # one pass, as a text that repeats itself can open thousands of boxes and close none
    open_braces: list[int | None] = []  # where a box's content starts; None for any other brace
    found = slice(0)
    for match in BRACES.finditer(text):
        if match["box"] or match[0] == "{":
            open_braces.append(match.end() if match["box"] else None)
        elif match[0] == "}" and open_braces and (start := open_braces.pop()) is not None:
            inside = slice(start, match.start())
            if inside.stop - start > LONGEST or text[inside].strip():
                found = inside  # a box around others closes last, and counts
    return NESTED.sub(r"\1", text[found].strip()) or None


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
