"""Worked solutions that a model is taught before it is trained: prompts and what answers them.

They are neither trained on nor held out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gdro_lab.tasks import GymChoice, MathChoice, draw_task, load_split
from gdro_lab.tasks.answers import style_of
from gdro_lab.tasks.base import split_by_share

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class Solution(NamedTuple):
    """A prompt and the completion to learn."""

    prompt: str | list[dict[str, str]]
    """A text, or a chat whose next turn is the completion."""
    completion: str
    """Without the token that ends it."""


def load_solutions(
    choice: GymChoice | MathChoice,
    tokenizer: PreTrainedTokenizerBase,
    examples: int,
    seed: int,
    template: Mapping[str, Any] | None = None,
) -> list[Solution]:
    """Draw worked solutions of a profile's task; fewer where the task has no more of them.

    Args:
        choice: the task.
        tokenizer: one with a chat template is taught chats, another texts.
        examples: how many are drawn; where training sources have shares, in these shares.
        seed: of the draw and of the order.
        template: arguments of the chat template.

    Raises:
        ValueError: the task leaves none to teach.
    """
    if choice.kind == "math":
        rows = _unused_rows(choice, tokenizer, template)
        longest = choice.max_completion_tokens
    else:
        task = draw_task(choice, style_of(tokenizer))
        rows = task.solutions(examples)  # type: ignore[union-attr]
        longest = task.max_completion_tokens
    # one that is longer, its end included, would teach answers that are cut off
    tokens = [tokenizer(row["solution"], add_special_tokens=False)["input_ids"] for row in rows]
    short = [row for row, ids in zip(rows, tokens, strict=True) if len(ids) < longest]
    if not short:
        raise ValueError(
            f"the task leaves no worked solution of at most {longest} tokens to teach: "
            "train on fewer rows, or allow longer completions"
        )
    order = np.random.default_rng(seed).permutation(len(short))
    shuffled = [short[place] for place in order]
    shares = choice.shares if choice.kind == "math" else None
    chosen = _in_proportion(shuffled, examples, shares) if shares else shuffled[:examples]
    return [Solution(row["prompt"], row["solution"]) for row in chosen]


def _unused_rows(
    choice: MathChoice, tokenizer: PreTrainedTokenizerBase, template: Mapping[str, Any] | None
) -> Sequence[Mapping[str, Any]]:
    """Rows with a solution that the draw of training problems has left."""
    # a copy is not validated, which would refuse shares without a train_size
    whole = choice.model_copy(update={"train_size": None})
    rows = load_split(whole, tokenizer, held_out=False, template=template).rows
    drawn = load_split(choice, tokenizer, held_out=False, template=template).rows
    uids = {row["uid"] for row in drawn}
    return [row for row in rows if row["uid"] not in uids and row.get("solution")]


def _in_proportion(
    rows: Sequence[Mapping[str, Any]], examples: int, shares: Mapping[str, float]
) -> list[Mapping[str, Any]]:
    """Rows of each data set by its share of the training problems, of those that have any."""
    sizes = Counter(row["dataset"] for row in rows)
    names = [name for name in shares if sizes[name]]
    total = sum(shares[name] for name in names)
    counts = split_by_share([shares[name] / total for name in names], examples)
    left = dict(zip(names, counts, strict=True))
    chosen = []
    for row in rows:
        if left[row["dataset"]] > 0:
            left[row["dataset"]] -= 1
            chosen.append(row)
    return chosen
