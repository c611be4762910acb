"""Where prompts and rewards come from: the embedded task, reasoning-gym's and the math data sets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from gdro.tasks.protocol import Task
    from gdro.tasks.settings import ChainChoice, GymChoice, MathChoice


@dataclass
class Split:
    """What a run trains on, or is judged by.

    rows: with the columns prompt, answer, uid and the task's own groups. In held-out rows, ``family`` names
        the group by which scores are split.
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
        """For a run's manifest: rows used, rows dropped, and completions by outcome, if the reward counts."""
        outcomes = dict(getattr(self.reward, "counts", {}))
        return {"rows": len(self.rows), "dropped": self.dropped, "outcomes": outcomes}


def load_split(
    choice: ChainChoice | GymChoice | MathChoice, tokenizer: PreTrainedTokenizerBase, *, held_out: bool
) -> Split:
    """Read the training prompts of a profile's task, or the held-out ones; only these are read."""
    if choice.kind == "math":
        return _math_split(choice, tokenizer, held_out)
    task = draw_task(choice, "text" if tokenizer.chat_template is None else "chat")
    rows = list(task.eval if held_out else task.train)
    longest = max(map(len, prompt_token_ids(tokenizer, [row["prompt"] for row in rows])))
    return Split(rows, task.reward, longest, task.max_completion_tokens)


def draw_task(choice: ChainChoice | GymChoice, style: str = "text") -> Task:
    """Draw the task, with the lessons of the tiny base; ``style`` is for original questions."""
    if choice.kind == "reasoning_gym":
        from gdro.tasks.world import read_world

        return read_world(choice.world).spec.draw(choice.seed, style)
    from gdro.tasks import chain

    sizes = {"n_train": choice.n_train, "n_eval_per_family": choice.n_eval_per_family}
    return chain.ChainSpec(chain.DEFAULT_SPEC.families, **sizes).draw(choice.seed)


def prompt_token_ids(
    tokenizer: PreTrainedTokenizerBase, prompts: Sequence[str | Sequence[dict]]
) -> list[list[int]]:
    """Token ids of each prompt, a text or a chat; a chat ends where the template begins the answer."""
    to_answer = {"add_generation_prompt": True, "return_dict": False}
    return [
        list(tokenizer(prompt)["input_ids"])
        if isinstance(prompt, str)
        else tokenizer.apply_chat_template(list(prompt), **to_answer)
        for prompt in prompts
    ]


def _math_split(choice: MathChoice, tokenizer: PreTrainedTokenizerBase, held_out: bool) -> Split:
    from gdro.tasks.math.data import load_math
    from gdro.tasks.math.rewards import MathReward

    for name in (choice.train, *choice.evaluate):  # all of them now, not after hours of training
        if not Path(path := choice.paths.get(name, ".")).exists():
            raise ValueError(f"task.paths must name files or folders, got {path!r} for {name!r}; correct it")
    style, rows, dropped = "text" if tokenizer.chat_template is None else "chat", [], []
    for name in choice.evaluate if held_out else [choice.train]:
        good, bad = load_math(name, choice.paths.get(name), style=style)
        rows += [row | {"family": name} for row in good]
        dropped += bad
    lengths = [len(ids) for ids in prompt_token_ids(tokenizer, [row["prompt"] for row in rows])]
    most = max(lengths) if held_out else choice.max_prompt_tokens
    if min(lengths) > most:
        raise ValueError(f"task.max_prompt_tokens must be at least {min(lengths)}, got {most}; raise it")
    sized = list(zip(rows, lengths, strict=True))
    dropped += [f"{row['uid']}: a prompt of {size} tokens, over {most}" for row, size in sized if size > most]
    return Split(
        [row for row, size in sized if size <= most],
        MathReward(signed=choice.signed and not held_out),
        max(size for size in lengths if size <= most),
        choice.max_completion_tokens,
        dropped,
    )
