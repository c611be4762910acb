"""What a row holds under a name: a text or a chat. Anything else is refused.

A name may be a path into nested columns, such as `reward_model.ground_truth`, `messages.0.content`
or `messages.:-1`, all messages but the last.
"""

import math
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from gdro.checks import short

MISSING = object()
PLACE = re.compile(r"-?\d{1,9}|(?P<some>(?:-?\d{1,9})?:(?:-?\d{1,9})?)")  # in a list: 0, -1, :-1
# what a table holds where nested values were written into it: [{'role': 'user', …}], ['one', 'two']
NESTED = re.compile(r"""(?:\[\s*)?\{\s*["']\w+["']\s*:.*[\]}]|\[\s*["'].*["']\s*\]""", re.DOTALL)
ROLES = ("system", "developer", "user", "assistant", "tool")
Message = tuple[str, str]  # role and content


class WrongType(ValueError):
    """A value that cannot be what its column is said to hold: the settings are wrong, not a row."""


def find(row: Any, name: str) -> Any:
    """What a row has under a name or path; MISSING where there is nothing.

    A column whose own name has dots is found, too.
    """
    if isinstance(row, Mapping) and name in row:
        return row[name]
    if isinstance(row, list) and (match := PLACE.fullmatch(name)):
        if match["some"]:
            return row[slice(*(int(end) if end else None for end in name.split(":")))]
        place = int(name)
        return row[place] if -len(row) <= place < len(row) else MISSING
    for dot in re.finditer(r"\.", name):
        inner = find(row, name[: dot.start()])
        if inner is not MISSING and (value := find(inner, name[dot.end() :])) is not MISSING:
            return value
    return MISSING


def names_in(row: Mapping[str, Any], depth: int = 4) -> list[str]:
    """The names and paths that `find` knows in a row of nested mappings, to some depth."""
    names = []
    for name, value in row.items():
        inner = names_in(value, depth - 1) if isinstance(value, Mapping) and depth > 1 else []
        names += [f"{name}.{path}" for path in inner] or [str(name)]
    return names


def text_of(value: Any, name: str) -> str:
    """The text of a column's value, a text or a number; "" where there is none.

    Raises:
        WrongType: the value is neither.
        ValueError: no tokenizer could encode it.
    """
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return ""
    if isinstance(value, str):
        return _encodable(value, name).strip()
    if isinstance(value, int | float | Decimal) and not isinstance(value, bool):
        return str(value)
    hint = ""
    if isinstance(value, Mapping) and value:
        hint = f": name a field in it, one of {[f'{name}.{field}' for field in list(value)[:9]]}"
    if isinstance(value, list) and value:
        hint = f": name one of its items, such as {name}.0"
    raise WrongType(
        f"its {name!r} is a {type(value).__name__}, {short(value)}, and neither a text nor a "
        f"number{hint}"
    )


def refuse_nested(text: str, name: str) -> None:
    """Refuse (WrongType) a text that is a dictionary, a list of them, or a list of texts."""
    if NESTED.fullmatch(text):
        raise WrongType(
            f"its {name!r} is a text that holds nested values, {short(text)}: keep them nested, in "
            "JSON lines or Parquet"
        )


def _encodable(text: str, name: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"its {name!r} has half of a character, {short(text)}") from None
    return text


def chat_of(value: Sequence[Any], name: str) -> tuple[Message, ...]:
    """Role and content of each message of a chat that ends with the user's.

    Raises:
        WrongType: the value is no such chat.
        ValueError: a message is empty.
    """
    messages = tuple(_message(message, name) for message in value)
    if not messages or messages[-1][0] != "user":
        raise WrongType(
            f"its {name!r} is a chat that does not end with a message of the user, "
            f"{short(value)}: name what comes before, such as {name}.:-1"
        )
    if not messages[-1][1].strip():
        raise ValueError(f"its {name!r} ends with an empty message")
    return messages


def _message(message: Any, name: str) -> Message:
    fields = {} if not isinstance(message, Mapping) else dict(message)
    role = fields.pop("role", None)
    content = fields.pop("content", None)
    more = [field for field, value in fields.items() if value is not None]
    if role not in ROLES or not isinstance(content, str) or more:
        raise WrongType(
            f"its {name!r} must be a text or a chat, a list of messages with a role of {ROLES} and "
            f"a content, got {short(message)}: or name a field in it, such as {name}.0.value"
        )
    return role, _encodable(content, name)
