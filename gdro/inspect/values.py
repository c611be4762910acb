"""Values of a log's rows, of whatever type they are: as texts, as numbers, by dotted names.

Axis: R rollouts.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np

from gdro.checks import LARGEST, Refusal, short

if TYPE_CHECKING:
    import pandas as pd

Number = int | float | Decimal | np.number | np.bool_  # databases export decimals
Several = list | tuple | np.ndarray
GROUP = "\0group"  # column that `one_row_each` adds


def text_of(value: Any) -> str:
    """A value as one text; that of a chat's message begins with its role and its content.

    Not `str`, which leaves out most of a long array.
    """
    if isinstance(value, str):  # most are: the next test is slow
        return value
    if isinstance(value, Mapping):
        texts = {name: text_of(field) for name, field in value.items() if field is not None}
        said = [f"{texts.pop('role', '')}: {texts.pop('content', '')}"] * ("content" in value)
        return "\n".join(said + [f"{name}: {texts[name]}" for name in sorted(texts) if texts[name]])
    if isinstance(value, Several):
        return "\n".join(map(text_of, value))
    return str(value)


def texts_of(column: "pd.Series") -> list[str]:
    """The texts of a column's values."""
    return [text_of(value) for value in column.tolist()]


def holds_numbers(column: "pd.Series") -> bool:
    """Whether all its values are numbers or missing, and one is a number."""
    values = column.dropna().tolist()
    return bool(values) and all(isinstance(value, Number) for value in values)


def numbers(
    column: "pd.Series",
    file: str,
    *,
    whole: bool = False,
    missing: bool = False,
    low: float = -math.inf,
) -> np.ndarray:
    """A column as floats, (R,), at least `low`; Refusal for the first value that does not fit.

    `whole` for integers, `missing` where NaN and None stand for no value; `file` is for messages.
    """
    numbers_R = np.full(len(column), np.nan)
    most = 2**53 if whole else LARGEST  # above it, floats are no longer exact
    for place, value in enumerate(column.tolist()):
        if missing and (value is None or (isinstance(value, float) and math.isnan(value))):
            continue
        is_number = isinstance(value, Number) and low <= value <= most and value >= -most
        if not is_number or (whole and value != int(value)):
            kind = "a whole number" if whole else "a finite number"
            row = column.index[place] + 1
            raise Refusal(
                f"{file} must have {kind} in column {column.name!r}, got {short(value)} in row "
                f"{row}"
            )
        numbers_R[place] = value
    return numbers_R


def with_nested(
    part: "pd.DataFrame", names: Collection[str], summed: Collection[str | None] = ()
) -> "pd.DataFrame":
    """Rows with a column for each dotted name that they have, such as `task.data.prompt`.

    What stands between dots names a field, or counts from 0 in a list; a field of a list is that of
    each of its values. The lists of columns in `summed` are summed.
    """
    import pandas as pd

    added = {}
    for name in names:
        first, *keys = name.split(".")
        if name not in part and keys and first in part:
            values = [_value_in(value, keys) for value in part[first]]
            lists = [value for value in values if isinstance(value, Several)]
            if name in summed and all(isinstance(n, Number) for value in lists for n in value):
                values = [sum(v) if isinstance(v, Several) else v for v in values]
            added[name] = pd.Series(values, part.index, dtype=object)
    return part.assign(**added)


def _value_in(value: Any, keys: Sequence[str]) -> Any:
    for place, key in enumerate(keys):
        if isinstance(value, Mapping):
            value = value.get(key)
        elif isinstance(value, Several) and key.isdecimal():
            value = value[int(key)] if int(key) < len(value) else None
        elif isinstance(value, Several):
            return [_value_in(one, keys[place:]) for one in value]
        else:
            return None
    return value


def one_row_each(
    part: "pd.DataFrame", reward: str, others: Collection[str], start: int
) -> "pd.DataFrame":
    """Rows with one reward each, where a row has the rewards of a group as a list.

    Lists of the same length in `others` go with the rewards; other values there are of the whole
    group, and left out. Groups are numbered from `start`.
    """
    if not len(part) or not all(isinstance(value, Several) for value in part[reward]):
        return part
    sizes = part[reward].map(len)
    numbered = part.assign(**{GROUP: np.arange(start, start + len(part))})
    together = [reward]
    for name in others:
        is_list = all(isinstance(value, Several) for value in part[name])
        if is_list and (part[name].map(len) == sizes).all():
            together.append(name)
        else:
            numbered[name] = None
    return numbered[sizes > 0].explode(together)


def number_all(values: Sequence[str], number_of: dict[int, int]) -> np.ndarray:
    """A number for each value, by its hash; new ones get the next."""
    keys = map(hash, values)
    return np.array([number_of.setdefault(key, len(number_of)) for key in keys], np.int64)


def joint(keys: Sequence[np.ndarray]) -> np.ndarray:
    """A number from 0 for each different tuple of keys, (R,), in their order."""
    import pandas as pd

    table = pd.DataFrame(dict(enumerate(keys)))
    return table.groupby(list(table)).ngroup().to_numpy()
