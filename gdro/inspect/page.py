"""One screen of plain words about a summary."""

from collections.abc import Iterator, Mapping
from itertools import pairwise
from textwrap import wrap
from typing import Any, NamedTuple

KINDS = {"solved": "all correct", "failed": "none correct", "mixed": "some correct"}
WIDTH = 98  # characters of a line
FEW = 0.2  # share of groups that may teach nothing
CLEARLY = 0.05  # of a share: about the error of a forecast


def page(summary: Mapping[str, Any], title: str = "") -> str:
    """One screen of plain words about what `summarize` returns."""
    blocks = [
        _head(summary, title),
        in_short(summary),
        _where(summary),
        _difficulty(summary),
        _other_n(summary),
        _methods(summary),
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


def _methods(summary: Mapping[str, Any]) -> Iterator[str]:
    yield "WHAT A METHOD WOULD DO, with as many rollouts, if prompts were learned as in this run"
    where = "rollouts by pass rate of the prompt"
    yield f"  {'':<18}{'mixed':>8}{where:>40}{'trained':>9}{'':>8}{'first':>8}"
    edges = summary["pass_rates"]["edges"]
    classes = "".join(f"{f'{low:g}-{high:g}':>10}" for low, high in pairwise(edges))
    yield f"  {'':<18}{'groups':>8}{classes}{'rollouts':>9}{'noise':>8}{'visits':>8}"
    for name, entry in {"as it was": summary["as_it_was"], **summary["methods"]}.items():
        spent = "".join(f"{_share(part):>10}" for part in entry["rollouts_by_pass_rate"])
        noise = "" if entry.get("noise") is None else f"{entry['noise']:.2f}"
        first = "" if "first_visits" not in entry else _share(entry["first_visits"])
        # without a draw, a forecast was no better than the log's own share
        mixed = _share(entry["mixed"]) if entry.get("draws", True) else "as was"
        yield (
            f"  {name:<18}{mixed:>8}{spent}"
            f"{_share(entry['trained_rollouts']):>9}{noise:>8}{first:>8}"
        )
    yield "Noise: variance of a batch's mean reward, over that of grpo. First visits: groups of"
    yield "prompts that the method has not seen before."


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
    if advice.method is not None:
        entry = summary["methods"][advice.method]
        was = _share(summary["as_it_was"]["mixed"])
        said.append(
            f"With {advice.method} and the same number of rollouts, {_share(entry['mixed'])} of "
            f"all groups would have been mixed instead of {was}; {_share(entry['first_visits'])} "
            "of the groups would be of prompts that it had not seen before."
        )
    if advice.rollouts is not None:
        name = str(advice.rollouts)
        said.append(
            f"With {name} rollouts a prompt about {_share(summary['mixed_by_n'][name])} would be "
            f"mixed ({_interval(summary['mixed_by_n_interval'][name])}), on fewer prompts at equal "
            "cost."
        )
    if not advice.lines and silent > FEW:
        said.append(
            "No other number of rollouts and no method shown here changes that much: other prompts "
            "would."
        )
    elif not advice.lines:
        said.append("Little is wasted: nothing here has to be changed.")
    said.append("This forecasts where rollouts go, not what a model learns from them.")
    if advice.lines:
        said.append(
            "Which method to take: docs/choose.md. What would change the share of mixed groups:"
        )
    yield from wrap(" ".join(said), WIDTH)
    for line in advice.lines:
        yield f"    {line}"


class Advice(NamedTuple):
    """What would change the share of mixed groups, if anything."""

    method: str | None
    """With clearly more mixed groups at as many rollouts."""
    rollouts: int | None
    """The least number of a prompt with clearly more mixed groups."""
    lines: list[str]
    """Lines of a configuration with these."""


def advise(summary: Mapping[str, Any]) -> Advice:
    """Find what `page` recommends, if anything."""
    now = summary["groups"]["mixed"]
    if 1 - now <= FEW:
        return Advice(None, None, [])
    methods = summary["methods"]
    method = max(methods, key=lambda name: methods[name]["mixed"])
    if methods[method]["mixed"] < summary["as_it_was"]["mixed"] + CLEARLY:
        method = None
    more = [
        int(n)
        for n, share in summary["mixed_by_n"].items()
        if int(n) > summary["rollouts_per_group"] and share >= now + 2 * CLEARLY
    ]
    rollouts = min(more, default=None)
    is_verl = summary["kind"] == "verl"
    lines = []
    if method is not None:
        in_trl = f'GDROConfig(gdro_method="{method}")    # TRL: in place of GRPOConfig'
        lines.append(f"gdro.method={method}    # docs/verl.md" if is_verl else in_trl)
    if rollouts is not None:
        in_trl = f"GRPOConfig(num_generations={rollouts})    # TRL"
        lines.append(f"actor_rollout_ref.rollout.n={rollouts}" if is_verl else in_trl)
    return Advice(method, rollouts, lines)


def _row(name: str, cells: Any) -> str:
    return f"  {name:<24}" + "".join(f"{cell:>12}" for cell in cells)


def _share(value: float) -> str:
    """As a percentage, with a decimal near 0 and 1."""
    is_whole = 0.01 <= value <= 0.99 or min(value, 1 - value) < 0.0005
    return f"{value:.0%}" if is_whole else f"{value:.1%}"


def _interval(ends: list[float]) -> str:
    return f"{100 * ends[0]:.0f}-{100 * ends[1]:.0f}%"
