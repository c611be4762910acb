"""Which columns of a log are read, by its schema and by what the user names."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gdro.checks import Refusal
from gdro.inspect.values import holds_numbers

if TYPE_CHECKING:
    import pandas as pd

NAMES = {  # where the user names no column, the first of these that the log has is read
    "prompt": ("prompt", "input", "question", "problem_id"),
    "reward": ("reward", "score", "scalar_reward", "total_reward", "group_rewards"),
    "step": ("step", "iteration"),
    "tokens": ("tokens", "completion_tokens"),
    "prompt_tokens": ("prompt_tokens",),
    "group": ("group", "group_id", "rollout_group", "group_idx"),
    "text": ("completion", "output"),
}
OF_KIND: dict[str, dict[str, tuple[str, ...]]] = {
    "verl": {"group": ("uid", *NAMES["group"])},
    "GDROTrainer": {"prompt": ("uid",)},
}
OF_TRL = ("TRL", "GDROTrainer")
NONE = "none"  # what a user says in place of a name for a column that is not to be used
INDEX = ("index", "level_0", "Unnamed: 0", "__index_level_0__")  # of a table, by pandas
IDS = ("id", "idx", "index", "key", "hash")  # endings of names of columns that hold no texts


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Which columns of a log are read. A dotted name is of a value in a nested column."""

    prompt: str | None
    """Texts or ids of prompts; None where only the groups tell them apart."""
    question: str | None
    """Texts of prompts, for their lengths where there are no tokens."""
    rewards: tuple[str, ...]
    """Summed where they are several."""
    step: str | None
    tokens: str | None
    prompt_tokens: str | None
    group: str | None
    discarded: str | None
    """Whether a rollout was sampled and not trained on, in GDROTrainer's table."""
    text: str | None
    """Completions: for lengths where there are no tokens, and to find what was logged twice."""
    kind: str
    """As of `Rollouts`."""
    known: Collection[str | None]
    """Columns that are no further rewards, in TRL's logs; empty where the rewards are named."""
    late: Collection[str]
    """Names of columns that would be read, but that the first rows do not have."""

    @property
    def all(self) -> list[str]:
        """Names of the columns, each once."""
        names = [self.prompt, *self.rewards, self.step, self.tokens, self.prompt_tokens, self.group]
        names += [self.discarded, self.text, self.question]
        return list(dict.fromkeys(name for name in names if name is not None))

    @property
    def texts(self) -> set[str]:
        """Names of those that are read as texts, even where their values look like numbers."""
        names = {self.prompt, self.group, self.text} - {*self.rewards, self.step, self.tokens}
        return {name for name in names if name is not None}


def choose_columns(
    first: "pd.DataFrame",
    asked: Mapping[str, str | None],
    rewards: Sequence[str],
    file: str,
    project: str | None = None,
) -> Columns:
    """Choose the columns that are read, by what the first rows of the first file have.

    `asked` and `rewards` are those that the user named; rows of a `project` were made flat.
    """
    present = list(first)
    kind = project or _kind_of(present)
    names = NAMES | OF_KIND.get(kind, {})
    chosen: dict[str, str | None] = {}
    for role in ("prompt", "step", "tokens", "prompt_tokens", "group", "text"):
        name = asked.get(role)
        if name is None:
            name = next((one for one in names[role] if one in present), None)
        chosen[role] = None if name == NONE else name
    open_roles = [r for r in ("step", "tokens", "group") if chosen[r] is None and asked[r] is None]
    known: set[str | None] = set()
    if not rewards and kind in OF_TRL:
        others = {"advantage", "discarded", "uid", *INDEX, *chosen.values()}
        others = others.union(*(names[role] for role in chosen))
        rewards = [name for name in present if name not in others and holds_numbers(first[name])]
        known = others.union(name for name in present if first[name].notna().any())
    elif not rewards:
        rewards = [name for name in names["reward"] if name in present][:1]
    for role, is_there in {
        "reward": rewards,
        "prompt": chosen["prompt"] or chosen["group"],
    }.items():
        if not is_there and asked.get(role) != NONE:
            raise Refusal(
                f"{file} must have a column of {role}s, got {present}: name it with --{role}"
            )
    question = None if chosen["tokens"] else _question(first, chosen["prompt"], kind)
    if chosen["tokens"] is not None and kind not in OF_TRL:
        chosen["text"] = None
    return Columns(
        **chosen,
        question=question,
        rewards=tuple(rewards),
        discarded="discarded" if kind == "GDROTrainer" and "discarded" in present else None,
        kind=kind,
        known=known,
        late=[name for role in open_roles for name in names[role]],
    )


def _kind_of(present: Sequence[str]) -> str:
    if {"prompt", "completion", "advantage"} <= set(present):
        return "GDROTrainer" if {"uid", "rollout_group"} <= set(present) else "TRL"
    return "verl" if {"input", "output", "score"} <= set(present) else "table"


def _question(first: "pd.DataFrame", prompt: str | None, kind: str) -> str | None:
    """The column with the texts of prompts; None where it has ids."""
    if kind == "GDROTrainer":
        return "prompt"
    if prompt is None or prompt not in first or prompt.endswith(IDS):
        return None
    return None if holds_numbers(first[prompt]) else prompt
