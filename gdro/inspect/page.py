"""One screen of plain words about a summary."""

from collections.abc import Iterator, Mapping
from itertools import pairwise
from textwrap import wrap
from typing import Any

KINDS = {"solved": "all correct", "failed": "none correct", "mixed": "some correct"}
WIDTH = 98  # characters of a line
FEW = 0.2  # share of groups that may teach nothing
CLEARLY = 0.05  # of a share


def page(summary: Mapping[str, Any], title: str = "") -> str:
    """One screen of plain words about what `summarize` returns."""
    blocks = [
        _head(summary, title),
        in_short(summary),
        _where(summary),
        _difficulty(summary),
        _other_n(summary),
    ]
    return "\n\n".join("\n".join(block) for block in blocks)


def _head(summary: Mapping[str, Any], title: str) -> Iterator[str]:
    steps = "" if summary["steps"] is None else f" in {summary['steps']:,} steps"
    if title:
        yield title
    yield (
        f"{summary['rollouts']:,} rollouts of "
        f"{summary['prompts']:,} prompts{steps}, {summary['rollouts_per_group']:.3g} a group, "
        f"{_share(summary['pass_rate'])} of them correct"
    )
    for note in summary["notes"]:
        yield from wrap(f"Note: {note}", WIDTH, subsequent_indent="  ")


def _where(summary: Mapping[str, Any]) -> Iterator[str]:
    yield "WHERE THE ROLLOUTS WENT"
    unit = "tokens" if summary["tokens"] is not None else "characters"
    parts = summary["over_the_run"]
    columns = {"groups": summary["groups"], "rollouts": summary["rollouts_in"]}
    if summary["length_in"] is not None:
        columns[unit] = summary["length_in"]
    if len(parts) > 1:
        columns["first fifth"] = parts[0]
        columns["last fifth"] = parts[-1]
    yield _row("", columns)
    for kind, said in KINDS.items():
        yield _row(f"{kind} ({said})", [_share(column[kind]) for column in columns.values()])
    yield "Where all rewards of a group are equal, GRPO's advantages are 0, and it teaches nothing."


def _difficulty(summary: Mapping[str, Any]) -> Iterator[str]:
    rates = summary["pass_rates"]
    yield "HOW HARD THE PROMPTS ARE, as each was last sampled (95% interval below)"
    names = [f"{low:g}-{high:g}" for low, high in pairwise(rates["edges"])]
    yield _row("pass rate", names)
    yield _row("share of prompts", map(_share, rates["shares"]))
    yield _row("", map(_interval, rates["interval"]))
    shown = ["1", "8", "64"]
    yield _row("", [f"pass@{k}" for k in shown])
    yield _row("solved in k tries", [_share(rates["pass_at_k"][k]) for k in shown])
    yield _row("", [_interval(rates["pass_at_k_interval"][k]) for k in shown])


def _other_n(summary: Mapping[str, Any]) -> Iterator[str]:
    yield "WHAT ANOTHER NUMBER OF ROLLOUTS WOULD BRING, with the same prompts and model"
    mixed = summary["mixed_by_n"]
    yield _row("rollouts a prompt", mixed)
    yield _row("mixed groups", map(_share, mixed.values()))
    yield _row("", map(_interval, summary["mixed_by_n_interval"].values()))
    costs = summary["rollouts_per_mixed_group"].values()
    yield _row("rollouts a mixed group", ["-" if cost is None else f"{cost:.3g}" for cost in costs])
    yield "The last line is what dynamic sampling (DAPO) pays for each group that it keeps."


def in_short(summary: Mapping[str, Any]) -> Iterator[str]:
    """The numbers that decide, and what would change the share of mixed groups, as lines."""
    yield "IN SHORT"
    groups = summary["groups"]
    silent = groups["solved"] + groups["failed"]
    said = [
        f"{_share(summary['silent'])} of the groups taught GRPO nothing, as all their rewards were "
        f"equal. In {_share(groups['solved'])} of the groups all rollouts were correct, in "
        f"{_share(groups['failed'])} none was, and {_share(groups['mixed'])} were mixed."
    ]
    parts = summary["over_the_run"]
    if len(parts) > 1:
        late = _share(parts[-1]["mixed"])
        said.append(
            f"In the last fifth of the run {late} were mixed: expect that of its next steps."
        )
    advice = advise(summary)
    if advice is not None:
        name = str(advice)
        said.append(
            f"With {name} rollouts a prompt about {_share(summary['mixed_by_n'][name])} would be "
            f"mixed ({_interval(summary['mixed_by_n_interval'][name])}), on fewer prompts at equal "
            "cost."
        )
    elif silent > FEW:
        said.append("No other number of rollouts changes that much: other prompts would.")
    else:
        said.append("Little is wasted: nothing here has to be changed.")
    said.append("Which method to take: docs/choose.md.")
    yield from wrap(" ".join(said), WIDTH)
    if advice is not None:
        is_verl = summary["kind"] == "verl"
        in_trl = f"GRPOConfig(num_generations={advice})    # TRL"
        yield f"    actor_rollout_ref.rollout.n={advice}" if is_verl else f"    {in_trl}"


def advise(summary: Mapping[str, Any]) -> int | None:
    """The least number of rollouts of a prompt with clearly more mixed groups, if that matters."""
    now = summary["groups"]["mixed"]
    if 1 - now <= FEW:
        return None
    more = [
        int(n)
        for n, share in summary["mixed_by_n"].items()
        if int(n) > summary["rollouts_per_group"] and share >= now + 2 * CLEARLY
    ]
    return min(more, default=None)


def _row(name: str, cells: Any) -> str:
    return f"  {name:<24}" + "".join(f"{cell:>12}" for cell in cells)


def _share(value: float) -> str:
    """As a percentage, with a decimal near 0 and 1."""
    is_whole = 0.01 <= value <= 0.99 or min(value, 1 - value) < 0.0005
    return f"{value:.0%}" if is_whole else f"{value:.1%}"


def _interval(ends: list[float]) -> str:
    return f"{100 * ends[0]:.0f}-{100 * ends[1]:.0f}%"
