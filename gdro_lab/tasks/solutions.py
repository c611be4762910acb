"""Worked solutions that a model is taught before it is trained: prompts and what answers them.

They are neither trained on nor held out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gdro_lab.tasks import GymChoice, MathChoice, draw_task, load_split
from gdro_lab.tasks.answers import style_of

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
        examples: how many are drawn.
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
    return [Solution(row["prompt"], row["solution"]) for row in shuffled[:examples]]


def _unused_rows(
    choice: MathChoice, tokenizer: PreTrainedTokenizerBase, template: Mapping[str, Any] | None
) -> Sequence[Mapping[str, Any]]:
    """Rows with a solution that the draw of training problems has left."""
    whole = choice.model_copy(update={"train_size": None})
    rows = load_split(whole, tokenizer, held_out=False, template=template).rows
    drawn = load_split(choice, tokenizer, held_out=False, template=template).rows
    uids = {row["uid"] for row in drawn}
    return [row for row in rows if row["uid"] not in uids and row.get("solution")]
