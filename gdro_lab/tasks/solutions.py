"""Worked solutions that a model is taught before it is trained: prompts and what answers them.

They are neither trained on nor held out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gdro_lab.tasks import GymChoice, draw_task
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
    choice: GymChoice, tokenizer: PreTrainedTokenizerBase, examples: int, seed: int
) -> list[Solution]:
    """Draw worked solutions of a world of reasoning-gym; fewer where it has no more of them.

    Args:
        choice: the world.
        tokenizer: one with a chat template is taught chats, another texts.
        examples: how many are drawn.
        seed: of the order.
    """
    task = draw_task(choice, style_of(tokenizer))
    rows = task.solutions(examples)  # type: ignore[union-attr]
    # one that is longer, its end included, would teach answers that are cut off
    tokens = [tokenizer(row["solution"], add_special_tokens=False)["input_ids"] for row in rows]
    longest = task.max_completion_tokens
    short = [row for row, ids in zip(rows, tokens, strict=True) if len(ids) < longest]
    order = np.random.default_rng(seed).permutation(len(short))
    return [Solution(short[place]["prompt"], short[place]["solution"]) for place in order]
