"""Which columns of a log are read, by its schema and by what the user names."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from gdro.checks import Refusal

NAMES = {  # where the user names no column, the first of these that the log has is read
    "prompt": ("prompt", "input"),
    "reward": ("reward", "score"),
    "step": ("step",),
    "tokens": ("tokens", "completion_tokens"),
    "group": ("group", "group_id"),
    "text": ("completion", "output"),
}
NONE = "none"  # what a user says in place of a name for a column that is not to be used


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Which columns of a log are read."""

    prompt: str
    rewards: tuple[str, ...]
    """Summed where they are several."""
    step: str | None
    tokens: str | None
    group: str | None
    text: str | None
    """Completions: for lengths where there are no tokens, and to find what was logged twice."""
    kind: str
    """"TRL", "verl" or "table"."""
    known: Collection[str | None]
    """Columns that are no further rewards, in TRL's logs; empty where the rewards are named."""
    late: Collection[str]
    """Names of columns that would be read, but that the first rows do not have."""

    @property
    def all(self) -> list[str]:
        """Names of the columns, each once."""
        names = [self.prompt, *self.rewards, self.step, self.tokens, self.group, self.text]
        return list(dict.fromkeys(name for name in names if name is not None))

    @property
    def texts(self) -> set[str]:
        """Names of those that are read as texts, even where their values look like numbers."""
        names = {self.prompt, self.group, self.text} - {*self.rewards, self.step, self.tokens}
        return {name for name in names if name is not None}


def choose_columns(
    present: Sequence[str],
    numeric: Sequence[str],
    asked: Mapping[str, str | None],
    rewards: Sequence[str],
    file: str,
) -> Columns:
    """Choose the columns that are read, by what the first file has.

    Args:
        present: names of all columns, in the file's order.
        numeric: those that hold numbers, or nothing so far.
        asked: what the user said of prompt, step, tokens and group.
        rewards: the columns of rewards that the user named.
        file: named in messages.
    """
    kind = "table"
    if {"prompt", "completion", "advantage"} <= set(present):
        kind = "TRL"
    elif {"input", "output", "score"} <= set(present):
        kind = "verl"
    chosen: dict[str, str | None] = {}
    for role in ("prompt", "step", "tokens", "group", "text"):
        name = asked.get(role)
        if name is None:
            name = next((one for one in NAMES[role] if one in present), None)
        chosen[role] = None if name == NONE else name
    if kind == "verl" and asked["group"] is None and "uid" in present:
        chosen["group"] = "uid"
    open_roles = [r for r in ("step", "tokens", "group") if chosen[r] is None and asked[r] is None]
    late = [name for role in open_roles for name in NAMES[role]]
    if kind == "verl" and "group" in open_roles:
        late.append("uid")
    known: set[str | None] = set()
    if not rewards and kind == "TRL":
        others = {"advantage", "rollout_group", "discarded", *chosen.values()}.union(
            *(NAMES[role] for role in chosen)
        )
        rewards = [name for name in numeric if name not in others]
        known = others.union(present)
    elif not rewards:
        rewards = [name for name in NAMES["reward"] if name in present][:1]
    for role, is_there in {"prompt": chosen["prompt"], "reward": rewards}.items():
        if not is_there:
            raise Refusal(
                f"{file} must have a column of {role}s, got {list(present)}: name it with --{role}"
            )
    _check_once(chosen, rewards)
    if chosen["tokens"] is not None and kind != "TRL":
        chosen["text"] = None
    return Columns(
        prompt=str(chosen["prompt"]),
        rewards=tuple(rewards),
        step=chosen["step"],
        tokens=chosen["tokens"],
        group=chosen["group"],
        text=chosen["text"],
        kind=kind,
        known=known,
        late=late,
    )


def _check_once(chosen: Mapping[str, str | None], rewards: Sequence[str]) -> None:
    """Refuse a column of rewards that is named twice, or read as something else too."""
    if len(set(rewards)) < len(rewards):
        raise Refusal(f"reward must name each column once, got {list(rewards)}")
    for role in ("prompt", "step", "tokens", "group"):
        if chosen[role] in rewards:
            raise Refusal(f"{role} must not be a column of rewards, got {chosen[role]!r}")
