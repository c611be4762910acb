"""Logs of any trainer as `Rollouts`: which prompt, which reward, and where there are any the step,
the group and the tokens.

    TRL     log_completions=True           completions/completions_*.parquet
    verl    trainer.rollout_data_dir=DIR   DIR/{step}.jsonl
    others  CSV, JSONL or Parquet          columns named by the user

Files are read in parts and only the columns that are needed, so that millions of rollouts fit. The
text of a prompt is kept as a hash.

Axis: R rollouts.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from gdro.checks import LARGEST, Refusal, short
from gdro.inspect.columns import Columns, choose_columns
from gdro.inspect.files import find_files, read_parts
from gdro.inspect.table import Rollouts


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
    files = find_files([Path(path) for path in paths])
    asked = {"prompt": prompt, "step": step, "tokens": tokens, "group": group}
    wanted = [reward] if isinstance(reward, str) else list(reward or [])
    reader: Reader | None = None
    for file in files:
        parts = read_parts(file)
        present, types = parts.columns, parts.numeric
        if reader is None:
            reader = Reader(choose_columns(present, types, asked, wanted, str(file)))
        missing = [name for name in reader.columns.all if name not in present]
        if missing:
            raise Refusal(f"{file} must have the columns {missing}, got {sorted(present)}")
        reader.read_file(file, parts.rows(reader.columns.all))
    assert reader is not None  # `find_files` finds at least one
    return reader.finish()


@dataclass(eq=False)
class Reader:
    """Reads a log part by part, and keeps numbers of prompts and groups in place of texts."""

    columns: Columns
    prompt_of: dict[int, int] = field(default_factory=dict)
    """Number of each prompt, by the hash of its text."""
    bare_of: dict[int, int] = field(default_factory=dict)
    """The same, by the hash of its text with each white space as one blank."""
    group_of: dict[int, int] = field(default_factory=dict)
    session_of: dict[int, int] = field(default_factory=dict)
    parts: list[dict[str, np.ndarray]] = field(default_factory=list)
    """One entry a part of a file: the arrays of its rollouts."""
    respelled: int = 0
    """Prompts that differ from another only in white space."""
    unscored: int = 0
    repeated: int = 0
    padding: int = 0
    last_file: int | None = None
    """Hash of the rows of the file before, in TRL's logs."""

    def read_file(self, file: Path, rows: Iterator[dict[str, list]]) -> None:
        """Add the rollouts of a file.

        Args:
            file: named in messages; verl's says the step where its rows do not.
            rows: parts of it, each a list of values for each column.
        """
        start = len(self.parts)
        hashes: list[int] = []
        place = 0
        for part in rows:
            arrays = self._read_part(part, f"{file}", place)
            place += len(arrays["rewards"])
            if self.columns.kind == "TRL" and self.columns.text is not None:
                texts = [hash(_text_of(text)) for text in part[self.columns.text]]
                hashes.append(hash((tuple(texts), arrays["prompts"].tobytes())))
            self.parts.append(arrays)
        if self.columns.step is None and self.columns.kind == "verl" and file.stem.isdigit():
            for arrays in self.parts[start:]:
                arrays["steps"] = np.full(len(arrays["rewards"]), int(file.stem))
        whole = hash(tuple(hashes)) if hashes else None
        if whole is not None and whole == self.last_file:  # TRL logs what it generated last
            self.repeated += place
            del self.parts[start:]
        self.last_file = whole
        self._drop(start)

    def _read_part(self, part: dict[str, list], file: str, place: int) -> dict[str, np.ndarray]:
        """The arrays of some rows, of which the first is row `place` of the file."""
        columns = self.columns
        arrays = {
            "prompts": self._prompts(part[columns.prompt], file, place),
            "rewards": self._rewards(part, file, place),
        }
        if columns.step is not None:
            steps = _numbers(part[columns.step], columns.step, file, place, whole=True)
            arrays["steps"] = steps.astype(np.int64)
        if columns.tokens is not None:
            arrays["lengths"] = _numbers(part[columns.tokens], columns.tokens, file, place, low=0)
        elif columns.text is not None:
            arrays["lengths"] = np.array([len(_text_of(v)) for v in part[columns.text]], float)
        if columns.group is not None:
            arrays |= self._groups(part[columns.group], file, place)
        return arrays

    def _prompts(self, values: list, file: str, place: int) -> np.ndarray:
        """Number of each prompt, (R,); texts that differ only in white space are one prompt."""
        numbers = np.empty(len(values), np.int64)
        seen: dict[int, int] = {}  # by identity: columns repeat their objects
        for i, value in enumerate(values):
            key = id(value)
            if key not in seen:
                if value is None or value != value:
                    raise Refusal(
                        f"{file} must have a prompt in each row, got {value} in row {place + i + 1}"
                    )
                seen[key] = self._number_of(_text_of(value))
            numbers[i] = seen[key]
        return numbers

    def _number_of(self, text: str) -> int:
        number = self.prompt_of.get(hash(text))
        if number is None:
            bare = hash(" ".join(text.split()))
            self.respelled += bare in self.bare_of
            number = self.bare_of.setdefault(bare, len(self.bare_of))
            self.prompt_of[hash(text)] = number
        return number

    def _rewards(self, part: dict[str, list], file: str, place: int) -> np.ndarray:
        """Sum of the reward columns; NaN where TRL has none of a rollout."""
        is_trl = self.columns.kind == "TRL"
        columns = [
            _numbers(part[name], name, file, place, missing=is_trl) for name in self.columns.rewards
        ]
        rewards_FR = np.array(columns)
        # as TRL does: a function that gave None for a row is left out of the sum
        sums_R = np.nansum(rewards_FR, axis=0)
        sums_R[np.isnan(rewards_FR).all(axis=0)] = np.nan
        return sums_R

    def _groups(self, values: list, file: str, place: int) -> dict[str, np.ndarray]:
        """Number of each group, (R,), and of verl's keys what they say beside."""
        if self.columns.kind != "verl" or self.columns.group != "uid":
            return {"groups": _number_all(values, self.group_of)}
        if len(set(map(str, values))) < len(values):  # they name groups, and no rollouts
            values = [f"{value}_{place + i}_0" for i, value in enumerate(values)]
        keys = [_verl_key(str(value), f"{file} {place + i}") for i, value in enumerate(values)]
        uids = [uid for uid, _, _ in keys]
        return {
            "groups": _number_all(uids, self.group_of),
            "sessions": _number_all([session for _, session, _ in keys], self.session_of),
            "outputs": np.array([output for _, _, output in keys]),
            "padding": np.array([uid.startswith("pad") and len(uid) == 35 for uid in uids]),
        }

    def _drop(self, start: int) -> None:
        """Leave out rows of the newest parts that are no rollouts of their own."""
        for place in range(start, len(self.parts)):
            arrays = self.parts[place]
            keep_R = ~np.isnan(arrays["rewards"])
            self.unscored += int((~keep_R).sum())
            if "padding" in arrays:
                padding_R = arrays.pop("padding")
                self.padding += int(padding_R.sum())
                keep_R &= ~padding_R
            self.parts[place] = {name: values[keep_R] for name, values in arrays.items()}

    def finish(self) -> Rollouts:
        """All rollouts; Refusal where there is none."""
        arrays = {
            name: np.concatenate([part[name] for part in self.parts])
            for name in (self.parts[0] if self.parts else {})
        }
        if not len(arrays.get("rewards", ())):
            raise Refusal("the log must have at least one rollout with a reward, got none")
        if "sessions" in arrays:
            arrays = _last_outputs(arrays)
        count = len(arrays["rewards"])
        has_steps = "steps" in arrays
        steps_R = arrays.get("steps", np.zeros(count, np.int64))
        keys = [steps_R, arrays["prompts"]]
        if "groups" in arrays:
            keys.append(arrays["groups"])
        elif self.columns.kind == "TRL":
            keys.append(_blocks(steps_R, arrays["prompts"]))
        unit = "tokens" if self.columns.tokens is not None else "characters"
        return Rollouts(
            prompts_R=arrays["prompts"],
            steps_R=steps_R,
            groups_R=_joint(keys),
            rewards_R=arrays["rewards"],
            lengths_R=arrays.get("lengths"),
            unit=unit,
            has_steps=has_steps,
            kind=self.columns.kind,
            notes=tuple(self._notes(has_steps)),
        )

    def _notes(self, has_steps: bool) -> Iterator[str]:
        columns = self.columns
        if len(columns.rewards) > 1:
            names = ", ".join(columns.rewards)
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
            yield (
                f"{self.repeated} rows were logged again with a later step, as TRL does where a "
                "batch serves several steps, and are counted once."
            )
        if self.padding:
            yield f"{self.padding} rows are verl's padding and are left out."


def _text_of(value: Any) -> str:
    """A text, or the texts of a chat's messages."""
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping) and "content" in value:
        return f"{value.get('role', '')}: {_text_of(value['content'])}"
    if isinstance(value, list):
        return "\n".join(map(_text_of, value))
    return str(value)


def _numbers(
    values: list,
    name: str,
    file: str,
    place: int,
    *,
    whole: bool = False,
    missing: bool = False,
    low: float = -math.inf,
) -> np.ndarray:
    """A column as floats, (R,); Refusal for the first value that does not fit.

    Args:
        values: of some rows, the first of which is row `place` of the file, from 0.
        name: of the column.
        file: named in messages.
        place: of the first value.
        whole: whether they must be integers.
        missing: whether NaN and None stand for no value.
        low: the least that they may be.
    """
    numbers_R = np.empty(len(values))
    most = 2**53 if whole else LARGEST  # above it, floats are no longer exact
    for i, value in enumerate(values):
        if missing and (value is None or value != value):
            numbers_R[i] = math.nan
            continue
        is_number = isinstance(value, int | float) and low <= value <= most and value >= -most
        if not is_number or (whole and value != int(value)):
            raise Refusal(_fault(file, name, value, place + i, whole))
        numbers_R[i] = value
    return numbers_R


def _fault(file: str, name: str, value: object, place: int, whole: bool) -> str:
    kind = "a whole number" if whole else "a finite number"
    return f"{file} must have {kind} in column {name!r}, got {short(value)} in row {place + 1}"


def _number_all(values: list, number_of: dict[int, int]) -> np.ndarray:
    """A number for each value, by its hash; new ones get the next."""
    keys = (hash(str(value)) for value in values)
    return np.array([number_of.setdefault(key, len(number_of)) for key in keys], np.int64)


def _verl_key(key: str, row: str) -> tuple[str, str, int]:
    """Group, session and output of verl's {uid}_{session}_{output}; another key says no group.

    Args:
        key: in the column uid, a rollout's.
        row: a session of its own, where the key names none.
    """
    uid, session, output = [*key.rsplit("_", 2), "", ""][:3]
    if session.isdigit() and output.isdigit():
        return uid, f"{uid}_{session}", int(output)
    return "", row, 0


def _last_outputs(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Only the last output of each session."""
    order_R = np.lexsort((arrays["outputs"], arrays["sessions"]))
    sessions_R = arrays["sessions"][order_R]
    is_last_R = np.append(sessions_R[1:] != sessions_R[:-1], True)
    kept_R = np.sort(order_R[is_last_R])
    return {name: values[kept_R] for name, values in arrays.items()}


def _blocks(steps_R: np.ndarray, prompts_R: np.ndarray) -> np.ndarray:
    """A number for each block of rows of the same step and prompt, (R,)."""
    is_new_R = (np.diff(steps_R) != 0) | (np.diff(prompts_R) != 0)
    return np.append(0, is_new_R.cumsum())


def _joint(keys: Sequence[np.ndarray]) -> np.ndarray:
    """A number from 0 for each different tuple of keys, (R,), in their order."""
    joint_R = np.zeros(len(keys[0]), np.int64)
    for key_R in keys:
        _, place_R = np.unique(key_R, return_inverse=True)
        # below R², which fits
        _, joint_R = np.unique(joint_R * (int(place_R.max()) + 1) + place_R, return_inverse=True)
    return joint_R
