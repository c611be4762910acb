"""What a run trains on, or is judged by."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass
class Split:
    """Prompts, the reward of their completions, and what was left out."""

    rows: list[dict[str, Any]]
    """With the columns prompt, answer, uid and the task's own groups. In held-out rows, `family`
    names the group by which scores are split. `solution`, where any row has one, is a worked
    solution that ends with the answer, or None."""
    reward: Callable[..., list[float]]
    """As TRL calls it; the profile's `success_threshold` says which rewards count as correct."""
    max_prompt_tokens: int
    """Tokens of the longest prompt."""
    max_completion_tokens: int
    """Tokens that a completion may have."""
    dropped: list[str] = field(default_factory=list)
    """Name and reason of each row of the source that was left out."""

    def summary(self) -> str:
        """A line: how many prompts there are, how many rows were left out, and why the first."""
        line = f"{len(self.rows)} prompts"
        if not self.dropped:
            return line
        return f"{line}; {len(self.dropped)} rows left out, the first of them {self.dropped[0]}"

    def report(self) -> dict[str, Any]:
        """For a manifest: rows used and dropped, completions by outcome if they are counted."""
        outcomes = dict(getattr(self.reward, "counts", {}))
        return {"rows": len(self.rows), "dropped": self.dropped, "outcomes": outcomes}


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
