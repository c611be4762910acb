"""Where prompts and rewards come from: the embedded task, reasoning-gym's, math data sets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from gdro.checks import need
from gdro_lab.tasks.base import Count, NotNegative, Strict
from gdro_lab.tasks.embedded import DEFAULT_SPEC, EmbeddedSpec
from gdro_lab.tasks.world import read_world

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from gdro_lab.tasks.base import Task

MathName = Literal["dapo", "math500", "aime2024", "aime2025", "amc", "minerva", "olympiad", "gpqa"]


class EmbeddedChoice(Strict):
    """The embedded task in a profile; see gdro_lab.tasks.embedded."""

    kind: Literal["embedded"] = "embedded"
    seed: NotNegative = 0
    n_train: Count = 1000
    n_eval_per_family: Count = 40


class GymChoice(Strict):
    """A world of reasoning-gym, its name or file; see gdro_lab.tasks.reasoning_gym."""

    kind: Literal["reasoning_gym"]
    world: str = "gym-strings"
    seed: NotNegative = 0


class MathChoice(Strict):
    """Math data sets; see gdro_lab.tasks.math_data.

    paths: local copies, in the hub's schema. signed: a wrong completion earns −1 in training.
    """

    kind: Literal["math"]
    train: MathName = "dapo"
    evaluate: list[MathName] = Field(["math500"], min_length=1)
    paths: dict[MathName, str] = Field({})
    signed: bool = True
    max_prompt_tokens: Count = 1024
    max_completion_tokens: Count = 3072


@dataclass
class Split:
    """What a run trains on, or is judged by.

    rows: with the columns prompt, answer, uid and the task's own groups. In held-out rows,
        ``family`` names the group by which scores are split.
    reward: as TRL calls it; above 0 is correct.
    max_prompt_tokens: tokens of the longest prompt.
    dropped: why each row of the source that is left out was dropped.
    """

    rows: list[dict[str, Any]]
    reward: Callable[..., list[float]]
    max_prompt_tokens: int
    max_completion_tokens: int
    dropped: list[str] = field(default_factory=list)

    def report(self) -> dict[str, Any]:
        """For a manifest: rows used and dropped, completions by outcome if they are counted."""
        outcomes = dict(getattr(self.reward, "counts", {}))
        return {"rows": len(self.rows), "dropped": self.dropped, "outcomes": outcomes}


def load_split(
    choice: EmbeddedChoice | GymChoice | MathChoice,
    tokenizer: PreTrainedTokenizerBase,
    *,
    held_out: bool,
    template: Mapping[str, Any] | None = None,
) -> Split:
    """Read the training prompts of a profile's task, or the held-out ones; only these are read.

    template: arguments of the chat template, for the lengths of prompts.
    """
    if choice.kind == "math":
        return _math_split(choice, tokenizer, held_out, template)
    task = draw_task(choice, "text" if tokenizer.chat_template is None else "chat")
    rows = list(task.eval if held_out else task.train)
    longest = max(map(len, prompt_token_ids(tokenizer, [row["prompt"] for row in rows], template)))
    return Split(rows, task.reward, longest, task.max_completion_tokens)


def draw_task(choice: EmbeddedChoice | GymChoice, style: str = "text") -> Task:
    """Draw the task, with the lessons of the tiny base; ``style`` is for original questions."""
    if choice.kind == "reasoning_gym":
        return read_world(choice.world).spec.draw(choice.seed, style)  # type: ignore[return-value]
    sizes = {"n_train": choice.n_train, "n_eval_per_family": choice.n_eval_per_family}
    return EmbeddedSpec(DEFAULT_SPEC.families, **sizes).draw(choice.seed)  # type: ignore


def prompt_token_ids(
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[str | Sequence[dict]],
    template: Mapping[str, Any] | None = None,
) -> list[list[int]]:
    """Token ids of each prompt, a text, or a chat up to where its template begins the answer."""
    to_answer = {"add_generation_prompt": True, "return_dict": False} | dict(template or {})
    return [
        list(tokenizer(prompt)["input_ids"])
        if isinstance(prompt, str)
        else tokenizer.apply_chat_template(list(prompt), **to_answer)
        for prompt in prompts
    ]


def _math_split(
    choice: MathChoice, tokenizer: PreTrainedTokenizerBase, held_out: bool, template: Any
) -> Split:
    from gdro_lab.tasks.math_data import load_math
    from gdro_lab.tasks.math_reward import MathReward

    for name in (choice.train, *choice.evaluate):  # all of them now, not after hours of training
        path = choice.paths.get(name, ".")
        there = Path(path).exists()
        need(there, f"task.paths must name files or folders, got {path!r} for {name!r}")
    style, rows, dropped = "text" if tokenizer.chat_template is None else "chat", [], []
    for name in choice.evaluate if held_out else [choice.train]:
        good, bad = load_math(name, choice.paths.get(name), style=style)
        rows += [row | {"family": name} for row in good]
        dropped += bad
    prompts = [row["prompt"] for row in rows]
    lengths = [len(ids) for ids in prompt_token_ids(tokenizer, prompts, template)]
    most = max(lengths) if held_out else choice.max_prompt_tokens
    least = min(lengths)
    need(least <= most, f"task.max_prompt_tokens must be at least {least}, got {most}")
    kept = [row for row, length in zip(rows, lengths, strict=True) if length <= most]
    dropped += [
        f"{row['uid']}: a prompt of {length} tokens, over {most}"
        for row, length in zip(rows, lengths, strict=True)
        if length > most
    ]
    reward = MathReward(signed=choice.signed and not held_out)
    longest = max(length for length in lengths if length <= most)
    return Split(kept, reward, longest, choice.max_completion_tokens, dropped)
