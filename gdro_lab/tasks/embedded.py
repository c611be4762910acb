"""The embedded task: chains of one made-up operation, answered step by step.

A prompt reads `7*4*3?` and its one correct answer `7*4=8;8*3=4`. Each family of prompts has its
own operator sign and its own random table f(a, b) of digits, so nothing learned on one family helps
another. Families differ in their share of the training prompts, in size, and in how well the base
knows them.

Axes: D digits of one family (0 … n_digits - 1), P prompts, O operands of a prompt, T steps of a
chain.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from gdro_lab.models import Tokenizer
from gdro_lab.tasks.base import (
    BoundedCount,
    Strict,
    TaskRow,
    character_tokenizer,
    check_families,
    split_by_share,
)

DIGITS = "0123456789"
CONCENTRATION = 12.0
"""The teacher's accuracy on a fact is Beta-distributed with the family's mean m and variance
m (1 − m) / (1 + this)."""


@dataclass(config=Strict.model_config)
class EmbeddedFamily:
    """One skill: an operator with a table."""

    name: str
    """What tables call the skill."""
    operator: Annotated[str, Field(pattern=r"^[^\d\s?=;]$")]
    """The character between two operands."""
    n_digits: Annotated[int, Field(ge=2, le=len(DIGITS))]
    """Digits 0 … n_digits − 1, so n_digits² facts."""
    share: Annotated[float, Field(gt=0, le=1)]
    """Share of the training prompts."""
    teacher_accuracy: Annotated[float, Field(gt=0, lt=1)]
    """Mean probability that the teacher states a fact correctly; at 0, sampling would never find
    it."""


@dataclass(config=Strict.model_config)
class EmbeddedSpec:
    """What the task is, before anything is drawn."""

    families: tuple[EmbeddedFamily, ...]
    """Their shares sum to 1; their names and operators differ."""
    n_operands: Annotated[int, Field(ge=2, le=7)] = 3
    """Operands of a prompt, which is answered in n_operands − 1 steps."""
    n_train: BoundedCount = 1000
    """Distinct training prompts, over all families."""
    n_eval_per_family: BoundedCount = 40
    """Distinct held-out prompts, none of them trained on."""

    def __post_init__(self) -> None:
        check_families([family.name for family in self.families])
        operators = [family.operator for family in self.families]
        if len(set(operators)) < len(operators):
            raise ValueError(f"families must differ in operator, got {operators}")
        total = sum(family.share for family in self.families)
        if not abs(total - 1) <= 1e-9:  # NaN, too
            raise ValueError(f"families must have shares that sum to 1, got {total:g}")
        for family, count in zip(self.families, self.train_counts(), strict=True):
            available = family.n_digits**self.n_operands
            asked = count + self.n_eval_per_family
            if count <= 0 or asked > available:
                raise ValueError(
                    f"n_train {self.n_train} and n_eval_per_family {self.n_eval_per_family} ask "
                    f"for {count} to train on, {asked} of the {available} prompts of family "
                    f"{family.name!r}"
                )

    def train_counts(self) -> list[int]:
        """Training prompts of each family."""
        return split_by_share([family.share for family in self.families], self.n_train)

    def draw(self, seed: int) -> EmbeddedTask:
        """Draw tables, the teacher's accuracies and the two splits, which share no prompt.

        Tables and held-out prompts do not depend on `n_train`.
        """
        rng = np.random.default_rng(seed)
        tables = []
        accuracies = []
        for family in self.families:
            shape_DD = (family.n_digits, family.n_digits)
            tables.append(rng.integers(family.n_digits, size=shape_DD))
            a = family.teacher_accuracy * CONCENTRATION
            b = (1 - family.teacher_accuracy) * CONCENTRATION
            accuracies.append(rng.beta(a, b, size=shape_DD))

        train = []
        evaluation = []
        for index, count in enumerate(self.train_counts()):
            order_P = rng.permutation(self.families[index].n_digits ** self.n_operands)
            n_eval = self.n_eval_per_family  # held-out prompts first: none depends on n_train
            evaluation += _rows(self, index, tables[index], np.sort(order_P[:n_eval]))
            train += _rows(self, index, tables[index], order_P[n_eval : n_eval + count])
        train = [train[place] for place in rng.permutation(len(train))]
        return EmbeddedTask(self, tuple(tables), tuple(accuracies), tuple(train), tuple(evaluation))

    @property
    def max_completion_tokens(self) -> int:
        """Tokens of every correct answer, its end-of-text token included."""
        return 6 * (self.n_operands - 1)  # a step is "a*b=c" and a ";" or the end-of-text token


def reward(completions: Sequence[str], answer: Sequence[str], **kwargs: Any) -> list[float]:
    """1.0 where a completion is the one correct text, else 0.0; one of TRL's `reward_funcs`."""
    return [float(text == correct) for text, correct in zip(completions, answer, strict=True)]


@dataclasses.dataclass(frozen=True, eq=False)
class EmbeddedTask:
    """A drawn task: the tables, what the teacher knows of them, and the two splits.

    A row is a dict of `prompt`, `uid` (an int: the number of the prompt among all those of the
    families, the same in every draw), `family` and `answer`, the whole correct completion.
    """

    spec: EmbeddedSpec
    tables: tuple[np.ndarray, ...]  # per family table_DD, table_DD[a, b] = f(a, b)
    accuracies: tuple[np.ndarray, ...]  # per family accuracy_DD: how often the teacher is correct
    train: tuple[TaskRow, ...]  # shuffled
    eval: tuple[TaskRow, ...]  # family by family
    reward = staticmethod(reward)

    @property
    def shares(self) -> dict[str, float]:
        """Each family's share of the training prompts; they sum to 1."""
        return {family.name: family.share for family in self.spec.families}

    @property
    def max_completion_tokens(self) -> int:
        return self.spec.max_completion_tokens

    def teach(self, rng: np.random.Generator, n: int) -> tuple[list[str], list[str]]:
        """Draw `n` prompts and the noisy teacher's completions: what the base model learns from.

        Families are drawn evenly, prompts evenly within the family, never held-out ones. At each
        step the teacher states the fact with that fact's accuracy, otherwise another digit of the
        family, and continues from what it stated.
        """
        spec = self.spec
        eval_uids = np.array([row["uid"] for row in self.eval])
        family_P = rng.integers(len(spec.families), size=n)
        prompts = [""] * n
        completions = [""] * n
        for index, family in enumerate(spec.families):
            places_P = np.flatnonzero(family_P == index)
            codes = np.arange(family.n_digits**spec.n_operands)
            codes = codes[~np.isin(codes + _uid_offset(spec, index), eval_uids)]
            operands_PO = _operands(spec, index, rng.choice(codes, size=len(places_P)))
            results_PT = np.empty((len(places_P), spec.n_operands - 1), dtype=int)
            left_P = operands_PO[:, 0]
            for step in range(spec.n_operands - 1):
                facts = (left_P, operands_PO[:, step + 1])
                true_P = self.tables[index][facts]
                is_correct_P = rng.random(len(places_P)) < self.accuracies[index][facts]
                # a shift by 1 … n_digits - 1 gives each of the other digits with equal probability
                shift_P = rng.integers(1, family.n_digits, size=len(places_P))
                left_P = np.where(is_correct_P, true_P, (true_P + shift_P) % family.n_digits)
                results_PT[:, step] = left_P
            for place, operands_O, results_T in zip(places_P, operands_PO, results_PT, strict=True):
                prompts[place], completions[place] = _texts(family, operands_O, results_T)
        return prompts, completions

    def correct_texts(self, row: Mapping[str, Any]) -> tuple[str, ...]:
        """Every completion of a row that is rewarded."""
        return (row["answer"],)

    def tokenizer(self) -> Tokenizer:
        """One token for each digit, the three signs of every text, and the families' operators."""
        operators = (family.operator for family in self.spec.families)
        return character_tokenizer([*DIGITS, *"?=;", *operators])

    def fingerprint(self) -> str:
        """SHA-256, in hex, of all that the teacher depends on: not of the training split."""
        content = {
            "families": [dataclasses.asdict(family) for family in self.spec.families],
            "n_operands": self.spec.n_operands,
            "tables": [table_DD.tolist() for table_DD in self.tables],
            "accuracies": [accuracy_DD.tolist() for accuracy_DD in self.accuracies],
            "eval": sorted(row["uid"] for row in self.eval),
        }
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


DEFAULT_SPEC = EmbeddedSpec(
    families=(
        EmbeddedFamily("star", "*", n_digits=10, share=0.50, teacher_accuracy=0.97),
        EmbeddedFamily("plus", "+", n_digits=10, share=0.25, teacher_accuracy=0.85),
        EmbeddedFamily("hash", "#", n_digits=8, share=0.12, teacher_accuracy=0.65),
        EmbeddedFamily("amp", "&", n_digits=6, share=0.07, teacher_accuracy=0.45),
        EmbeddedFamily("tilde", "~", n_digits=5, share=0.04, teacher_accuracy=0.36),
        EmbeddedFamily("caret", "^", n_digits=5, share=0.02, teacher_accuracy=0.30),
    )
)


def _uid_offset(spec: EmbeddedSpec, index: int) -> int:
    """First uid of family `index`: families' prompts are numbered one after the other."""
    return sum(family.n_digits**spec.n_operands for family in spec.families[:index])


def _operands(spec: EmbeddedSpec, index: int, code_P: np.ndarray) -> np.ndarray:
    """Read numbers of prompts within a family as operands_PO, most significant first."""
    shape = (spec.families[index].n_digits,) * spec.n_operands
    return np.stack(np.unravel_index(code_P, shape), axis=-1)


def _texts(family: EmbeddedFamily, operands_O: np.ndarray, results_T: Any) -> tuple[str, str]:
    """Prompt and completion."""
    sign = family.operator
    steps = zip([operands_O[0], *results_T[:-1]], operands_O[1:], results_T, strict=True)
    return sign.join(map(str, operands_O)) + "?", ";".join(f"{a}{sign}{b}={c}" for a, b, c in steps)


def _rows(
    spec: EmbeddedSpec, index: int, table_DD: np.ndarray, code_P: np.ndarray
) -> list[dict[str, Any]]:
    """Rows of the prompts numbered `code_P` within family `index`."""
    family = spec.families[index]
    offset = _uid_offset(spec, index)
    rows = []
    for code, operands_O in zip(code_P, _operands(spec, index, code_P), strict=True):
        reached = list(itertools.accumulate(operands_O, lambda left, right: table_DD[left, right]))
        prompt, answer = _texts(family, operands_O, reached[1:])
        columns = {"prompt": prompt, "uid": offset + int(code), "family": family.name}
        rows.append(columns | {"answer": answer})
    return rows
