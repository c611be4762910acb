"""Logs of any trainer as `Rollouts`: which prompt, which reward, and where there are any the step,
the group and the tokens.

Files are read in parts, and numbers are kept in place of texts, so that millions of rollouts fit.

Axis: R rollouts.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gdro.checks import Refusal
from gdro.inspect.columns import OF_TRL, Columns, choose_columns
from gdro.inspect.files import find_files, parts_of
from gdro.inspect.projects import PROJECTS
from gdro.inspect.table import About, Rollouts
from gdro.inspect.values import (
    GROUP,
    holds_numbers,
    joint,
    number_all,
    numbers,
    one_row_each,
    texts_of,
    with_nested,
)

if TYPE_CHECKING:
    import pandas as pd

Arrays = dict[str, np.ndarray]  # by name, one value for each rollout
HAVE_GAPS = (*OF_TRL, *PROJECTS.values())  # in their rewards


def read(
    *paths: str | Path,
    prompt: str | None = None,
    reward: str | Sequence[str] | None = None,
    step: str | None = None,
    tokens: str | None = None,
    prompt_tokens: str | None = None,
    group: str | None = None,
) -> Rollouts:
    """Read the rollouts of one run.

    Args:
        *paths: a folder, or files of one format.
        prompt, step, tokens, prompt_tokens, group: names of columns, dotted for values in nested
            ones; by default those of `NAMES` that there are, "none" for none. Where no column says
            the group, rollouts of a prompt in a step form one; in TRL's files, where the rows of a
            group stand together, a prompt that comes back behind others in the same step forms
            another.
        reward: name of the column of rewards, or of several, which are summed. A list is that of
            the rewards of a group.

    Raises:
        Refusal: for what cannot be read; a sentence that names the file or the column.
    """
    asked = {"prompt": prompt, "step": step, "group": group}
    asked |= {"tokens": tokens, "prompt_tokens": prompt_tokens}
    wanted = [reward] if isinstance(reward, str) else list(reward or [])
    is_named = bool(wanted) or any(asked.values())
    reader: Reader | None = None
    files = find_files([Path(path) for path in paths])
    for file in files:
        project = None if is_named else PROJECTS.get(file.name)
        if reader is None:
            first = next(parts_of(file, project=project), None)
            if first is None:  # Parquet without rows
                continue
            first = with_nested(first, [*wanted, *filter(None, asked.values())])
            reader = Reader(choose_columns(first, asked, wanted, str(file), project))
        reader.read_file(file, parts_of(file, reader.columns.texts, project))
    if reader is None or not any(len(arrays["rewards"]) for arrays in reader.files):
        raise Refusal("the log must have at least one rollout with a reward, got none")
    times = [file.stat().st_mtime for file in files]
    return reader.rollouts([files[n + 1] for n, gap in enumerate(np.diff(times)) if gap < -1])


class Reader:
    """Reads a log part by part."""

    def __init__(self, columns: Columns) -> None:
        self.columns = columns
        self.files: list[Arrays] = []
        # numbers of texts, by their hashes
        self.prompts: dict[int, int] = {}
        self.groups: dict[int, int] = {}
        self.sessions: dict[int, int] = {}
        self.has_group_uids = False
        self.last_file = b""  # prompts and completions of the file before, in logs of trainers
        self.rows = 0  # read so far
        self.steps: set[int] = set()
        self.scored: set[str] = set()  # columns of rewards that have any
        self.unscored = 0
        self.repeated = 0
        self.padding = 0
        self.evaluated: set[float] = set()  # steps whose files have rows of an evaluation

    def read_file(self, file: Path, parts: Iterator["pd.DataFrame"]) -> None:
        """Add the rollouts of a file; verl's name says the step where its rows do not."""
        columns = self.columns
        read = [self._read_part(part, str(file)) for part in parts]
        if not read:  # Parquet without rows
            return
        arrays = _concatenated(read)
        if columns.kind in OF_TRL and "groups" not in arrays and "prompts" in arrays:
            arrays["blocks"] = _blocks(arrays) + self.rows - len(arrays["rewards"])
        if columns.step is None and columns.kind == "verl" and file.stem.isdecimal():
            arrays["steps"] = np.full(len(arrays["rewards"]), int(file.stem))
        self.steps.update(np.unique(arrays.get("steps", [])).tolist())
        # TRL logs a batch again in the later steps that it serves
        if columns.kind in OF_TRL and arrays.keys() >= {"prompts", "texts"}:
            this_file = arrays["prompts"].tobytes() + arrays["texts"].tobytes()
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
        columns = self.columns
        self._check_late(part, file)
        if columns.kind == "GDROTrainer":
            is_trained = part["rollout_group"] >= 0  # else of an evaluation
            if columns.step in part:
                steps = numbers(part.loc[~is_trained, columns.step], file, whole=True)
                self.evaluated.update(steps.tolist())
            part = part[is_trained]
        part = with_nested(part, columns.all, {columns.tokens, columns.prompt_tokens})
        missing = [name for name in columns.all if name not in part]
        if missing:
            raise Refusal(f"{file} must have the columns {missing}, got {sorted(part)}")
        lists = [name for name in (columns.tokens, columns.text) if name is not None]
        before = len(part)
        part = one_row_each(part, columns.rewards[0], lists, self.rows)
        self.rows += max(before, len(part))  # an empty list has a group's number, too
        required = (columns.prompt, columns.group, columns.step, columns.discarded)
        for name in filter(None, required):
            is_missing = part[name].isna().to_numpy()
            if is_missing.any():
                row = part.index[is_missing.argmax()] + 1
                raise Refusal(f"{file} must have {name!r} in each row, got none in row {row}")
        arrays = {"rewards": self._rewards(part, file)}
        if columns.prompt is not None:
            arrays["prompts"] = number_all(texts_of(part[columns.prompt]), self.prompts)
        if columns.step is not None:
            arrays["steps"] = numbers(part[columns.step], file, whole=True).astype(np.int64)
        if columns.discarded is not None:
            arrays["discarded"] = part[columns.discarded].to_numpy(bool)
        if columns.group is not None:
            arrays |= self._groups(part[columns.group], file)
        elif GROUP in part:
            arrays["groups"] = part[GROUP].to_numpy(np.int64)
        return arrays | self._lengths(part, file)

    def _lengths(self, part: "pd.DataFrame", file: str) -> Arrays:
        """Lengths of prompts and completions, in tokens or characters, and hashes of the latter."""
        columns = self.columns
        may_miss = columns.kind in PROJECTS.values() or GROUP in part
        arrays = {}
        if columns.tokens is not None:
            arrays["lengths"] = numbers(part[columns.tokens], file, low=0, missing=may_miss)
            if columns.prompt_tokens is not None:
                column = part[columns.prompt_tokens]
                arrays["prompt_lengths"] = numbers(column, file, low=0, missing=may_miss)
        elif columns.question is not None and columns.text is not None:
            questions = texts_of(part[columns.question])
            arrays["prompt_lengths"] = np.array([len(text) for text in questions], float)
        if columns.text is not None and not (GROUP in part and part[columns.text].isna().all()):
            texts = texts_of(part[columns.text].fillna(""))
            arrays.setdefault("lengths", np.array([len(text) for text in texts], float))
            arrays["texts"] = np.array([hash(text) for text in texts], np.int64)
        return arrays

    def _check_late(self, part: "pd.DataFrame", file: str) -> None:
        """Refuse a column that would be read, but that the first rows do not have."""
        known = self.columns.known
        for name in part:
            is_reward = known and name not in known and holds_numbers(part[name])
            if (is_reward or name in self.columns.late) and part[name].notna().any():
                raise Refusal(
                    f"{file} must have no column that the first rows lack, got {name!r}: name the "
                    "columns to read, such as with --reward or --group"
                )

    def _rewards(self, part: "pd.DataFrame", file: str) -> np.ndarray:
        """Sum of the reward columns; NaN where a trainer has none of a rollout."""
        may_miss = self.columns.kind in HAVE_GAPS
        names = self.columns.rewards
        rewards_FR = np.array([numbers(part[name], file, missing=may_miss) for name in names])
        is_none_FR = np.isnan(rewards_FR)
        self.scored.update(np.array(names)[~is_none_FR.all(axis=1)])
        # as TRL does: a function that gave None for a row is left out of the sum
        sums_R = np.nansum(rewards_FR, axis=0)
        sums_R[is_none_FR.all(axis=0)] = np.nan
        return sums_R

    def _groups(self, column: "pd.Series", file: str) -> Arrays:
        """Number of each group, (R,), and what else verl's keys say."""
        values = texts_of(column)
        if self.columns.kind != "verl" or self.columns.group != "uid":
            return {"groups": number_all(values, self.groups)}
        # keys that repeat name groups, not rollouts, also where a later part has each of them once
        self.has_group_uids |= len(set(values)) < len(values)
        if self.has_group_uids:
            values = [f"{value}_{row}_0" for value, row in zip(values, column.index, strict=True)]
        rows = map(str, column.index)
        uids, sessions, outputs = zip(*map(_verl_key, values, rows), strict=True)
        return {
            "groups": number_all(uids, self.groups),
            "sessions": number_all([f"{file} {name}" for name in sessions], self.sessions),
            "outputs": np.array(outputs),
            "padding": np.array([uid.startswith("pad") and len(uid) == 35 for uid in uids]),
        }

    def rollouts(self, older: list[Path]) -> Rollouts:
        """All rollouts, at least one; `older` files were written before that of the step before."""
        columns = self.columns
        arrays = _concatenated(self.files)
        has_steps = "steps" in arrays
        steps_R = arrays.setdefault("steps", np.zeros(len(arrays["rewards"]), np.int64))
        if "sessions" in arrays:
            arrays = _last_outputs(arrays)
            steps_R = arrays["steps"]
        if "groups" not in arrays and columns.prompt is None:
            raise Refusal("group must be a column where prompt is none: name it with --group")
        if columns.kind == "prime-rl" and "groups" in arrays:  # a group may end in a later step
            first_G = np.full(arrays["groups"].max() + 1, steps_R.max())
            np.minimum.at(first_G, arrays["groups"], steps_R)
            steps_R = first_G[arrays["groups"]]
        keys = [steps_R]
        if columns.prompt is not None:
            keys.append(arrays["prompts"])
        if "groups" in arrays:
            keys.append(arrays["groups"])
        elif "blocks" in arrays:
            keys.append(arrays["blocks"])
        groups_R = joint(keys)
        lengths_R = arrays.get("lengths")
        prompt_lengths_R = arrays.get("prompt_lengths")
        if lengths_R is None or np.isnan(lengths_R).any():
            lengths_R = prompt_lengths_R = None
        return Rollouts(
            prompts_R=groups_R if columns.prompt is None else arrays["prompts"],
            steps_R=steps_R,
            groups_R=groups_R,
            rewards_R=arrays["rewards"],
            lengths_R=lengths_R,
            prompt_lengths_R=prompt_lengths_R,
            discarded_R=arrays.get("discarded"),
            about=About(
                kind=columns.kind,
                unit="tokens" if columns.tokens is not None else "characters",
                has_steps=has_steps,
                has_prompts=columns.prompt is not None,
                left_out=self.unscored,
                notes=tuple(self._notes(has_steps, "groups" in arrays, older)),
            ),
        )

    def _notes(self, has_steps: bool, has_groups: bool, older: list[Path]) -> Iterator[str]:
        columns = self.columns
        if len(self.scored) > 1:
            names = ", ".join(name for name in columns.rewards if name in self.scored)
            yield (
                f"The reward is the sum of {names}, with equal weights: name the one that judges "
                "the answer with --reward."
            )
        if missing := _missing_steps(self.steps, self.evaluated, columns.kind):
            yield missing
        if self.evaluated:
            yield "Rows of evaluations are left out; they may have overwritten others."
        if older and columns.kind != "table":
            yield f"{older[0]} is older than the file before: are they of one run?"
        if columns.prompt is None:
            yield "The log has no prompts, or none is named, so nothing is said about them."
        elif not has_steps and not has_groups:
            yield (
                "The log has no step, so all rollouts of a prompt are taken as one group, of a "
                "model that does not change."
            )
        if self.unscored:
            yield f"{self.unscored} rollouts have no reward and are left out."
        if self.repeated:
            yield f"{self.repeated} rows repeat the file before, and are counted once."
        if self.padding:
            yield f"{self.padding} rows are verl's padding and are left out."


def _concatenated(parts: Sequence[Arrays]) -> Arrays:
    """Arrays that all parts have; no steps where the name of one of verl's files is no number."""
    if len({"groups" in part for part in parts}) > 1:
        raise Refusal("the log must have lists of rewards in all rows, or in none")
    names = [name for name in parts[0] if all(name in part for part in parts)]
    return {name: np.concatenate([part[name] for part in parts]) for name in names}


def _missing_steps(seen: set[int], evaluated: set[float], kind: str) -> str:
    """A sentence about steps that are not in the log, or nothing."""
    steps = sorted(seen)
    first = min([1, *steps]) if kind in OF_TRL else min(steps, default=0)
    gap = max(steps, default=0) - first + 1 - len(steps)
    if not steps or gap == 0:
        return ""
    gaps = {after - before for before, after in pairwise(steps)}
    said = f"{gap:,} of {gap + len(steps):,} steps are"
    if len(gaps) == 1 and max(gaps) > 1:
        said = f"{max(gaps) - 1:,} of {max(gaps):,} steps are"
    names = ", ".join(map(str, steps[:4])) + (" …" if len(steps) > 4 else "")
    is_explained = gaps == {1} or set(range(first, steps[-1])) - seen <= evaluated
    advice = "; set logging_steps=1" if kind in OF_TRL and not is_explained else ""
    return f"Steps {names}: {said} not in this log{advice}."


def _verl_key(key: str, row: str) -> tuple[str, str, int]:
    """Group, session and output of verl's {uid}_{session}_{output}.

    Of another key `row` is the session, and it says no group.
    """
    uid, session, output = [*key.rsplit("_", 2), "", ""][:3]
    if session.isdecimal() and output.isdecimal():
        return uid, f"{uid}_{session}", int(output)
    return "", row, 0


def _last_outputs(arrays: Arrays) -> Arrays:
    """Only the last output of each session of a step."""
    sessions_R = joint([arrays["steps"], arrays["sessions"]])
    order_R = np.lexsort((arrays["outputs"], sessions_R))
    is_last_R = np.append(np.diff(sessions_R[order_R]) != 0, True)
    kept_R = np.sort(order_R[is_last_R])
    return {name: values[kept_R] for name, values in arrays.items()}


def _blocks(arrays: Arrays) -> np.ndarray:
    """A number for each group of TRL's, whose rows stand together, (R,).

    All 0 in a table that was sorted or shuffled: there a prompt has several blocks in a step, of
    which some are no whole groups.
    """
    pairs_R = joint([arrays[name] for name in ("steps", "prompts") if name in arrays])
    is_first_R = np.append(True, np.diff(pairs_R) != 0)[: len(pairs_R)]
    blocks_R = is_first_R.cumsum() - 1
    sizes_B = np.bincount(blocks_R)
    totals = np.bincount(pairs_R)
    size = np.bincount(totals[totals > 1], minlength=1).argmax() or 1  # of most groups
    has_others_B = np.bincount(pairs_R[is_first_R])[pairs_R[is_first_R]] > 1
    if (has_others_B & (sizes_B % size > 0))[1:].any():  # an evaluation may have cut the first
        return np.zeros_like(blocks_R)
    places_R = np.arange(len(blocks_R)) - np.flatnonzero(is_first_R)[blocks_R]
    return (places_R % size == 0).cumsum()
