"""Where prompts and rewards come from: the embedded task, reasoning-gym's, math problems."""

from collections.abc import Mapping
from typing import Any

from gdro_lab.models import Tokenizer
from gdro_lab.tasks.answers import Style, style_of
from gdro_lab.tasks.base import Split, prompt_token_ids
from gdro_lab.tasks.choices import EmbeddedChoice, GymChoice, MathChoice
from gdro_lab.tasks.world import Task, read_world

__all__ = [
    "EmbeddedChoice",
    "GymChoice",
    "MathChoice",
    "Split",
    "draw_task",
    "load_split",
    "prompt_token_ids",
]


def load_split(
    choice: EmbeddedChoice | GymChoice | MathChoice,
    tokenizer: Tokenizer,
    *,
    held_out: bool,
    template: Mapping[str, Any] | None = None,
) -> Split:
    """Read the training prompts of a profile's task, or the held-out ones.

    template: arguments of the chat template, for the lengths of prompts.
    """
    if choice.kind == "math":
        from gdro_lab.tasks.math_task import load_math_split

        return load_math_split(choice, tokenizer, held_out=held_out, template=template)
    task = draw_task(choice, style_of(tokenizer))
    rows = list(task.eval if held_out else task.train)
    longest = max(map(len, prompt_token_ids(tokenizer, [row["prompt"] for row in rows], template)))
    return Split(rows, task.reward, longest, task.max_completion_tokens)


def draw_task(choice: EmbeddedChoice | GymChoice, style: Style = "text") -> Task:
    """Draw the task, with the lessons of the tiny base; `style` is for original questions."""
    if choice.kind == "reasoning_gym":
        spec = read_world(choice.world).spec  # of reasoning-gym, by the checks of a profile
        return spec.draw(choice.seed, style)  # type: ignore
    return choice.spec().draw(choice.seed)  # type: ignore
