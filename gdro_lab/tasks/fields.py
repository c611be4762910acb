"""What a row holds under a name: a text, a chat, choices. Anything else is refused.

A name may be a path into nested columns, such as `reward_model.ground_truth`, `messages.0.content`
or `messages.:-1`, all messages but the last.
"""

import math
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from string import ascii_uppercase as LETTERS
from typing import Any, Literal, NamedTuple

from gdro.checks import short

ChoiceReader = Literal["letter", "index", "index_from_1", "whole"]
"""How a key names a choice: by its letter or label, by its place counted from 0 or from 1, or by
its text."""

MISSING = object()
PLACE = re.compile(r"-?\d{1,9}|(?P<some>(?:-?\d{1,9})?:(?:-?\d{1,9})?)")  # in a list: 0, -1, :-1
# what a table holds where nested values were written into it: [{'role': 'user', …}], ['one', 'two']
NESTED = re.compile(r"""(?:\[\s*)?\{\s*["']\w+["']\s*:.*[\]}]|\[\s*["'].*["']\s*\]""", re.DOTALL)
ROLES = ("system", "developer", "user", "assistant", "tool")
# a text that begins with its label: `B)6000`, `(F) six`, `1. red`
LABELLED = re.compile(
    r"[(\[]?(?:([A-Za-z])(?:[).:\]]\s*|\s+[-–]\s+)|(\d{1,2})(?:[)\]]\s*|\.\s+|:\s+(?!\d+$)))(.+)",
    re.DOTALL,
)
MOST_CHOICES = 10  # the letters that the reward knows
Message = tuple[str, str]  # role and content


class WrongType(ValueError):
    """A value that cannot be what its column is said to hold: the settings are wrong, not a row."""


class Choices(NamedTuple):
    """The choices of a problem, as the data have them."""

    labels: list[str]
    texts: list[str]


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


def choices_of(values: Sequence[Any], names: Sequence[str]) -> Choices:
    """The choices in one column, or in several with one choice each.

    A column may be a list of texts or of {label, text}, a mapping of labels to texts, or one with
    the lists `label` and `text`. Where each text begins with a label, these are the labels.

    Raises:
        WrongType: it is none of these.
        ValueError: the choices are not all there.
    """
    labels = list(LETTERS)
    if len(names) > 1:
        texts = [text_of(value, name) for value, name in zip(values, names, strict=True)]
    else:
        found = _labelled(values[0], names[0])
        texts = [text_of(text, names[0]) for _, text in found]
        labels = [text_of(label, names[0]) or LETTERS[i] for i, (label, _) in enumerate(found)]
        matches = [LABELLED.fullmatch(text) for text in texts]
        own = [match[1] or match[2] for match in matches if match]
        # letters that are far apart are initials: J. Smith, A. Brown
        letters = [ord(text[0]) for text in texts if re.match(r"[A-Z]\. ", text)]
        is_run = max(letters, default=0) - min(letters, default=0) <= 2 * len(texts)
        if is_run and len(set(own)) == len(texts) and not any(label for label, _ in found):
            labels = own
            texts = [match[3] for match in matches if match]
    if not 2 <= len(texts) <= MOST_CHOICES or "" in texts:
        raise ValueError(f"its choices must be 2 to {MOST_CHOICES} texts, got {short(texts)}")
    return Choices(labels, texts)


def _labelled(value: Any, name: str) -> list[tuple[Any, Any]]:
    """Label and text of each choice; a label is None where there are none."""
    if isinstance(value, Mapping) and isinstance(value.get("text"), list):
        labels = value.get("label") or [None] * len(value["text"])
        if len(labels) != len(value["text"]):
            raise ValueError(f"its {name!r} has {len(labels)} labels of {len(value['text'])} texts")
        return list(zip(labels, value["text"], strict=True))
    if isinstance(value, Mapping):  # where Arrow fills in a choice that a row lacks, it is None
        return [(label, text) for label, text in value.items() if text is not None]
    if not isinstance(value, list):
        raise WrongType(f"its {name!r} must be a list of choices, got {short(value)}")
    if all(isinstance(choice, Mapping) and {"label", "text"} <= set(choice) for choice in value):
        return [(choice["label"], choice["text"]) for choice in value]
    return [(None, choice) for choice in value]


def place_of(key: str, choices: Choices, reader: str) -> int:
    """Which of the choices a key names, counted from 0; `reader` is a `ChoiceReader`.

    Raises:
        WrongType: the key is an index that no choice has.
        ValueError: it is a letter or a text that no choice has.
    """
    if reader.startswith("index"):
        first = int(reader == "index_from_1")
        count = len(choices.texts)
        number = re.fullmatch(r"(\d{1,9})(?:\.0)?", key)
        if number is None or not first <= int(number[1]) < count + first:
            raise WrongType(
                f"its answer {short(key)} is no index of {count} choices counted from {first}"
            )
        return int(number[1]) - first
    known = choices.texts if reader == "whole" else choices.labels[: len(choices.texts)]
    bare = key if reader == "whole" else key.strip("()[]. :")
    for same in (str, str.casefold):  # labels may differ in case alone
        if [same(text) for text in known].count(same(bare)) == 1:
            return [same(text) for text in known].index(same(bare))
    raise ValueError(f"its answer {short(key)} is none of {short(known)}")
