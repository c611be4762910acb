"""Logs of any trainer as `Rollouts`: which prompt, which reward, and where there are any the step,
the group and the tokens.

    TRL     log_completions=True           completions/completions_*.parquet
    verl    trainer.rollout_data_dir=DIR   DIR/{step}.jsonl
    others  CSV, JSONL or Parquet          columns named by the user

Files are read in parts, and numbers are kept in place of texts, so that millions of rollouts fit.

Axis: R rollouts.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gdro.checks import LARGEST, Refusal, short
from gdro.inspect.columns import Columns, choose_columns
from gdro.inspect.files import find_files, parts_of
from gdro.inspect.table import Rollouts

if TYPE_CHECKING:
    import pandas as pd

Arrays = dict[str, np.ndarray]  # by name, one value for each rollout
Number = int | float | Decimal  # databases export decimals


def read(
    *paths: str | Path,
    prompt: str | None = None,
    reward: str | Sequence[str] | None = None,
    step: str | None = None,
    tokens: str | None = None,
    group: str | None = None,
) -> Rollouts:
    """Read the rollouts of one run.

    Args:
        *paths: a folder, or files of one format.
        prompt, step, tokens, group: names of columns; by default those of `NAMES` that there are,
            "none" for none. Where no column says the group, rollouts of a prompt in a step form
            one; in TRL's files, where the rows of a group stand together, a prompt that comes back
            behind others in the same step forms another.
        reward: name of the column of rewards, or of several, which are summed.

    Raises:
        Refusal: for what cannot be read; a sentence that names the file or the column.
    """
    asked = {"prompt": prompt, "step": step, "tokens": tokens, "group": group}
    wanted = [reward] if isinstance(reward, str) else list(reward or [])
    reader: Reader | None = None
    for file in find_files([Path(path) for path in paths]):
        try:
            if reader is None:
                first = next(parts_of(file), None)
                if first is None:  # Parquet without rows
                    continue
                numeric = [name for name in first if _holds_numbers(first[name])]
                reader = Reader(choose_columns(list(first), numeric, asked, wanted, str(file)))
            reader.read_file(file, parts_of(file, reader.columns.texts))
        except RecursionError:
            raise Refusal(f"{file} must not nest values deeply, got hundreds of levels") from None
    if reader is None or not any(len(arrays["rewards"]) for arrays in reader.files):
        raise Refusal("the log must have at least one rollout with a reward, got none")
    return reader.rollouts()


class Reader:
    """Reads a log part by part.

    Attributes:
        files: the rollouts of each file.
    """

    def __init__(self, columns: Columns) -> None:
        self.columns = columns
        self.files: list[Arrays] = []
        # numbers of texts, by their hashes
        self.prompts: dict[int, int] = {}
        self.bare_prompts: dict[int, int] = {}  # with each white space as one blank
        self.groups: dict[int, int] = {}
        self.sessions: dict[int, int] = {}
        self.has_group_uids = False
        self.last_file = b""  # prompts and completions of the file before, in logs of trainers
        # for the notes
        self.scored: set[str] = set()  # columns of rewards that have any
        self.respelled = 0
        self.unscored = 0
        self.repeated = 0
        self.padding = 0

    def read_file(self, file: Path, parts: Iterator["pd.DataFrame"]) -> None:
        """Add the rollouts of a file; verl's name says the step where its rows do not."""
        columns = self.columns
        read = [self._read_part(part, str(file)) for part in parts]
        if not read:  # Parquet without rows
            return
        arrays = _concatenated(read)
        if columns.step is None and columns.kind == "verl" and file.stem.isdecimal():
            arrays["steps"] = np.full(len(arrays["rewards"]), int(file.stem))
        # TRL may log a batch again in a later step, and a folder of verl may hold a copy of a file
        same = {"TRL": ("prompts", "texts"), "verl": ("prompts", "texts", "steps")}
        names = same.get(columns.kind, ())
        if "texts" in arrays and arrays.keys() >= set(names):
            this_file = b"".join(arrays[name].tobytes() for name in names)
            if this_file and this_file == self.last_file:
                self.repeated += len(arrays["rewards"])
                return
            self.last_file = this_file
        arrays.pop("texts", None)
        is_kept_R = ~np.isnan(arrays["rewards"])
        self.unscored += int((~is_kept_R).sum())
        if "padding" in arrays:
            is_padding_R = arrays.pop("padding")
            self.padding += int(is_padding_R.sum())
            is_kept_R &= ~is_padding_R
        self.files.append({name: values[is_kept_R] for name, values in arrays.items()})

    def _read_part(self, part: "pd.DataFrame", file: str) -> Arrays:
        """The arrays of some rows."""
        self._check_late(part, file)
        if self.columns.known:
            self._drop_texts(part)
        columns = self.columns
        missing = [name for name in columns.all if name not in part]
        if missing:
            raise Refusal(f"{file} must have the columns {missing}, got {sorted(part)}")
        # a text may be missing, and `_rewards` knows where a reward may
        for name in set(columns.all) - {*columns.rewards, columns.text}:
            is_missing = part[name].isna()
            if is_missing.any():
                row = is_missing.idxmax() + 1
                raise Refusal(f"{file} must have {name!r} in each row, got none in row {row}")
        arrays = {
            "prompts": self._prompts(part[columns.prompt]),
            "rewards": self._rewards(part, file),
        }
        if columns.step is not None:
            steps = _numbers(part[columns.step], file, whole=True)
            arrays["steps"] = steps.astype(np.int64)
        if columns.tokens is not None:
            arrays["lengths"] = _numbers(part[columns.tokens], file, low=0)
        if columns.text is not None:
            texts = [_text_of(value) for value in part[columns.text].fillna("")]
            arrays.setdefault("lengths", np.array([len(text) for text in texts], float))
            arrays["texts"] = np.array([hash(text) for text in texts], np.int64)
        if columns.group is not None:
            arrays |= self._groups(part[columns.group], file)
        return arrays

    def _check_late(self, part: "pd.DataFrame", file: str) -> None:
        """Refuse a column that would be read, but that the first rows do not have."""
        known = self.columns.known
        for name in part:
            is_reward = known and name not in known and _holds_numbers(part[name])
            if (is_reward or name in self.columns.late) and part[name].notna().any():
                raise Refusal(
                    f"{file} must have no column that the first rows lack, got {name!r}: name the "
                    "columns to read, such as with --reward or --group"
                )

    def _drop_texts(self, part: "pd.DataFrame") -> None:
        """Leave out columns that were empty so far, and so taken for rewards, but hold texts."""
        columns = self.columns
        empty = [name for name in columns.rewards if name not in self.scored]
        texts = {name for name in empty if name not in part or not _holds_numbers(part[name])}
        if texts and len(texts) < len(columns.rewards):
            rewards = tuple(name for name in columns.rewards if name not in texts)
            self.columns = replace(columns, rewards=rewards)

    def _prompts(self, column: "pd.Series") -> np.ndarray:
        """Number of each prompt, (R,); texts that differ only in white space are one prompt."""
        return np.array([self._number_of(_text_of(value)) for value in column], np.int64)

    def _number_of(self, text: str) -> int:
        number = self.prompts.get(hash(text))
        if number is None:
            bare = hash(" ".join(text.split()))
            self.respelled += bare in self.bare_prompts
            number = self.bare_prompts.setdefault(bare, len(self.bare_prompts))
            self.prompts[hash(text)] = number
        return number

    def _rewards(self, part: "pd.DataFrame", file: str) -> np.ndarray:
        """Sum of the reward columns; NaN where TRL has none of a rollout."""
        is_trl = self.columns.kind == "TRL"
        names = self.columns.rewards
        rewards_FR = np.array([_numbers(part[name], file, missing=is_trl) for name in names])
        is_none_FR = np.isnan(rewards_FR)
        self.scored.update(np.array(names)[~is_none_FR.all(axis=1)])
        # as TRL does: a function that gave None for a row is left out of the sum
        sums_R = np.nansum(rewards_FR, axis=0)
        sums_R[is_none_FR.all(axis=0)] = np.nan
        return sums_R

    def _groups(self, column: "pd.Series", file: str) -> Arrays:
        """Number of each group, (R,), and what else verl's keys say."""
        values = [_text_of(value) for value in column]
        if self.columns.kind != "verl" or self.columns.group != "uid":
            return {"groups": _number_all(values, self.groups)}
        # keys that repeat name groups, not rollouts, also where a later part has each of them once
        self.has_group_uids |= len(set(values)) < len(values)
        if self.has_group_uids:
            values = [f"{value}_{row}_0" for value, row in zip(values, column.index, strict=True)]
        rows = map(str, column.index)
        uids, sessions, outputs = zip(*map(_verl_key, values, rows), strict=True)
        return {
            "groups": _number_all(uids, self.groups),
            "sessions": _number_all([f"{file} {name}" for name in sessions], self.sessions),
            "outputs": np.array(outputs),
            "padding": np.array([uid.startswith("pad") and len(uid) == 35 for uid in uids]),
        }

    def rollouts(self) -> Rollouts:
        """All rollouts, of which there is at least one."""
        arrays = _concatenated(self.files)
        has_steps = "steps" in arrays
        arrays.setdefault("steps", np.zeros(len(arrays["rewards"]), np.int64))
        if "sessions" in arrays:
            arrays = _last_outputs(arrays)
        steps_R = arrays["steps"]
        keys = [steps_R, arrays["prompts"]]
        if "groups" in arrays:
            keys.append(arrays["groups"])
        elif self.columns.kind == "TRL":
            keys.append(_blocks(steps_R, arrays["prompts"]))
        return Rollouts(
            prompts_R=arrays["prompts"],
            steps_R=steps_R,
            groups_R=_joint(keys),
            rewards_R=arrays["rewards"],
            lengths_R=arrays.get("lengths"),
            unit="tokens" if self.columns.tokens is not None else "characters",
            has_steps=has_steps,
            kind=self.columns.kind,
            notes=tuple(self._notes(has_steps)),
        )

    def _notes(self, has_steps: bool) -> Iterator[str]:
        columns = self.columns
        if len(self.scored) > 1:
            names = ", ".join(name for name in columns.rewards if name in self.scored)
            yield (
                f"The reward is the sum of {names}, with equal weights: name the one that judges "
                "the answer with --reward."
            )
        if not has_steps:
            yield (
                "The log has no step, so all rollouts of a prompt are taken as one group, of a "
                "model that does not change."
            )
        if self.respelled:
            yield (
                f"{self.respelled} prompts differ from another only in white space and are counted "
                "as the same."
            )
        if self.unscored:
            yield f"{self.unscored} rollouts have no reward and are left out."
        if self.repeated:
            why = "TRL logs a batch that serves several steps again"
            if columns.kind == "verl":
                why = "a copy"
            yield f"{self.repeated} rows repeat the file before ({why}), and are counted once."
        if self.padding:
            yield f"{self.padding} rows are verl's padding and are left out."


def _concatenated(parts: Sequence[Arrays]) -> Arrays:
    """Arrays that all parts have; no steps where the name of one of verl's files is no number."""
    names = [name for name in parts[0] if all(name in part for part in parts)]
    return {name: np.concatenate([part[name] for part in parts]) for name in names}


def _text_of(value: Any) -> str:
    """A value as one text; that of a chat's message begins with its role and its content.

    Not `str`, which leaves out most of a long array.
    """
    if isinstance(value, Mapping):
        texts = {name: _text_of(field) for name, field in value.items() if field is not None}
        said = [f"{texts.pop('role', '')}: {texts.pop('content', '')}"] * ("content" in value)
        return "\n".join(said + [f"{name}: {texts[name]}" for name in sorted(texts) if texts[name]])
    if isinstance(value, list | tuple | np.ndarray):
        return "\n".join(map(_text_of, value))
    return str(value)


def _holds_numbers(column: "pd.Series") -> bool:
    """Whether all its values are numbers, or missing."""
    return all(value is None or isinstance(value, Number) for value in column.tolist())


def _numbers(
    column: "pd.Series",
    file: str,
    *,
    whole: bool = False,
    missing: bool = False,
    low: float = -math.inf,
) -> np.ndarray:
    """A column as floats, (R,); Refusal for the first value that does not fit.

    Args:
        column: of some rows.
        file: named in messages.
        whole: whether they must be integers.
        missing: whether NaN and None stand for no value.
        low: the least that they may be.
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


def _number_all(values: Sequence[str], number_of: dict[int, int]) -> np.ndarray:
    """A number for each value, by its hash; new ones get the next."""
    keys = map(hash, values)
    return np.array([number_of.setdefault(key, len(number_of)) for key in keys], np.int64)


def _verl_key(key: str, row: str) -> tuple[str, str, int]:
    """Group, session and output of verl's {uid}_{session}_{output}; another key says no group.

    Args:
        key: in the column uid, a rollout's.
        row: what counts as the session where the key names none.
    """
    uid, session, output = [*key.rsplit("_", 2), "", ""][:3]
    if session.isdecimal() and output.isdecimal():
        return uid, f"{uid}_{session}", int(output)
    return "", row, 0


def _last_outputs(arrays: Arrays) -> Arrays:
    """Only the last output of each session of a step."""
    sessions_R = _joint([arrays["steps"], arrays["sessions"]])
    order_R = np.lexsort((arrays["outputs"], sessions_R))
    is_last_R = np.append(np.diff(sessions_R[order_R]) != 0, True)
    kept_R = np.sort(order_R[is_last_R])
    return {name: values[kept_R] for name, values in arrays.items()}


def _blocks(steps_R: np.ndarray, prompts_R: np.ndarray) -> np.ndarray:
    """A number for each block of rows of the same step and prompt, (R,)."""
    is_new_R = (np.diff(steps_R) != 0) | (np.diff(prompts_R) != 0)
    return np.append(0, is_new_R.cumsum())


def _joint(keys: Sequence[np.ndarray]) -> np.ndarray:
    """A number from 0 for each different tuple of keys, (R,), in their order."""
    import pandas as pd

    table = pd.DataFrame(dict(enumerate(keys)))
    return table.groupby(list(table)).ngroup().to_numpy()
