"""What all tasks share: strict settings, counts by share, a tokenizer, what a run is judged by."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from gdro_lab.models import Tokenizer

PAD_TOKEN = "<pad>"
EOS_TOKEN = "<eos>"
TaskRow = dict[str, Any]  # with the columns prompt, uid, family and answer

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]*$")]  # becomes a folder
# whole numbers in a YAML file; the upper bound refuses what cannot be meant
BoundedCount = Annotated[int, Field(ge=1, le=10**9)]
BoundedNatural = Annotated[int, Field(ge=0, le=10**9)]
Request = Annotated[str, Field(pattern=r"\{problem\}")]  # the problem goes there
BaseSize = Literal["tiny", "small", "mid"]  # of a tiny base, see gdro_lab.tasks.tiny.TINY_CONFIGS


ALL = "all"
"""In tables, the family of a row that is about all families; none may be called so."""


def check_written(name: str, what: str) -> None:
    """Refuse (ValueError) a name that a table could not show: a formula, or the end of a cell."""
    if re.search(r"[$|\r\n]", name):
        raise ValueError(f"{what} must have no $, | or line end, got {name!r}")


def check_families(names: Sequence[str]) -> None:
    """Refuse (ValueError) families that no table could tell apart."""
    if not names or len(set(names)) < len(names) or ALL in names:
        raise ValueError(f"families must have names of their own, none {ALL!r}, got {names}")
    for name in names:
        check_written(name, "a family")


class Strict(BaseModel):
    """Refuses unknown fields, other types and non-finite numbers; cannot be changed once made."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


def split_by_share(shares: Sequence[float], total: int) -> list[int]:
    """Whole counts in proportion to the shares, by largest remainder; they sum to `total`."""
    exact = np.array([share * total for share in shares])
    counts = np.floor(exact).astype(int)
    order = np.argsort(counts - exact, kind="stable")  # among equal remainders, the first wins
    counts[order[: total - counts.sum()]] += 1
    return counts.tolist()


def character_tokenizer(characters: Iterable[str]) -> Tokenizer:
    """Build a tokenizer with one token per character, no merges, padding on the left.

    Other characters raise an exception: a token for them would silently accept a wrong data set.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokens = [PAD_TOKEN, EOS_TOKEN, *characters]
    backend = Tokenizer(models.WordLevel({token: place for place, token in enumerate(tokens)}))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    backend.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=PAD_TOKEN,
        eos_token=EOS_TOKEN,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )


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
    tokenizer: Tokenizer,
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
