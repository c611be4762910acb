"""Which columns of a log are read, by its schema and by what the user names."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from gdro.checks import Refusal

NAMES = {  # where the user names no column, the first of these that the log has is read
    "prompt": ("prompt", "input", "question", "problem_id"),
    "reward": ("reward", "score", "scalar_reward", "total_reward", "group_rewards"),
    "step": ("step", "iteration"),
    "tokens": ("tokens", "completion_tokens"),
    "prompt_tokens": ("prompt_tokens",),
    "group": ("group", "group_id", "rollout_group", "group_idx"),
    "text": ("completion", "output"),
}
NONE = "none"  # what a user says in place of a name for a column that is not to be used
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
    def required(self) -> list[str]:
        """Names of those that each row must have; `numbers` checks those of numbers."""
        names = [self.prompt, self.group, self.step, self.discarded]
        return [name for name in names if name is not None]

    @property
    def texts(self) -> set[str]:
        """Names of those that are read as texts, even where their values look like numbers."""
        names = {self.prompt, self.group, self.text} - {*self.rewards, self.step, self.tokens}
        return {name for name in names if name is not None}


def choose_columns(
    present: Sequence[str],
    numeric: Sequence[str],
    empty: Sequence[str],
    asked: Mapping[str, str | None],
    rewards: Sequence[str],
    file: str,
    project: str | None = None,
) -> Columns:
    """Choose the columns that are read, by what the first file has.

    Args:
        present: names of all columns, in the file's order.
        numeric: those that hold numbers.
        empty: those that hold nothing in the first rows.
        asked: what the user said of prompt, step, tokens, prompt_tokens and group.
        rewards: the columns of rewards that the user named.
        file: named in messages.
        project: whose rows were made flat.
    """
    kind = project or _kind_of(present)
    chosen: dict[str, str | None] = {}
    for role in ("prompt", "step", "tokens", "prompt_tokens", "group", "text"):
        name = asked.get(role)
        if name is None:
            name = next((one for one in NAMES[role] if one in present), None)
        chosen[role] = None if name == NONE else name
    question = chosen["prompt"]
    if kind == "verl" and asked["group"] is None and "uid" in present:
        chosen["group"] = "uid"
    if kind == "GDROTrainer" and asked["prompt"] is None:
        chosen["prompt"] = "uid"
    open_roles = [r for r in ("step", "tokens", "group") if chosen[r] is None and asked[r] is None]
    late = [name for role in open_roles for name in NAMES[role]]
    if kind == "verl" and "group" in open_roles:
        late.append("uid")
    known: set[str | None] = set()
    if not rewards and kind in ("TRL", "GDROTrainer"):
        others = {"advantage", "discarded", "uid", *chosen.values()}
        others = others.union(*(NAMES[role] for role in chosen))
        rewards = [name for name in numeric if name not in others]
        known = others.union(present).difference(empty)
    elif not rewards:
        rewards = [name for name in NAMES["reward"] if name in present][:1]
    if not rewards:
        raise Refusal(
            f"{file} must have a column of rewards, got {list(present)}: name it with --reward"
        )
    if chosen["prompt"] is None and chosen["group"] is None and asked["prompt"] is None:
        raise Refusal(
            f"{file} must have a column of prompts or of groups, got {list(present)}: name it with "
            "--prompt or --group"
        )
    has_tokens = chosen["tokens"] is not None
    if has_tokens and kind not in ("TRL", "GDROTrainer"):
        chosen["text"] = None
    is_text = question is not None and not question.endswith(IDS) and question not in numeric
    return Columns(
        **chosen,
        question=question if is_text and not has_tokens else None,
        rewards=tuple(rewards),
        discarded="discarded" if kind == "GDROTrainer" and "discarded" in present else None,
        kind=kind,
        known=known,
        late=late,
    )


def _kind_of(present: Sequence[str]) -> str:
    if {"prompt", "completion", "advantage"} <= set(present):
        return "GDROTrainer" if {"uid", "rollout_group"} <= set(present) else "TRL"
    return "verl" if {"input", "output", "score"} <= set(present) else "table"
