"""One screen of plain words about a summary."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from textwrap import wrap
from typing import Any

KINDS = {"solved": "all correct", "failed": "none correct", "mixed": "some correct"}
WIDTH = 98  # characters of a line
WORTH = 0.95  # of the computation, if no more is needed, a line says how to save the rest


def page(summary: Mapping[str, Any], title: str = "") -> str:
    """One screen of plain words about what `summarize` returns."""
    blocks = [_head(summary, title), in_short(summary)]
    if summary["groups"] is not None:  # else it is not known which rollouts are correct
        blocks.append(_where(summary))
        if summary["pass_rates"] is not None:
            blocks.append(_difficulty(summary["pass_rates"]))
        blocks.append(_other_n(summary))
    return "\n\n".join("\n".join(block) for block in blocks)


def _head(summary: Mapping[str, Any], title: str) -> Iterator[str]:
    of = f"{summary['number_of_groups']:,} groups"
    if summary["prompts"] is not None:
        of = f"{summary['prompts']:,} prompts"
    steps = "" if summary["steps"] is None else f" in {summary['steps']:,} steps"
    correct = ""
    if summary["pass_rate"] is not None:
        correct = f", {_share(summary['pass_rate'])} of them correct"
    if title:
        yield title
    yield (
        f"{summary['rollouts']:,} rollouts of {of}{steps}, {summary['rollouts_per_group']:.3g} a "
        f"group{correct}"
    )
    for note in summary["notes"]:
        yield from wrap(f"Note: {note}", WIDTH, subsequent_indent="  ")


def in_short(summary: Mapping[str, Any]) -> Iterator[str]:
    """What cannot change the model, and the line that saves it, as lines."""
    yield "WHAT CANNOT CHANGE THE MODEL"
    share = _share(summary["silent"])
    said = [
        f"{share} of the rollout groups ({_interval(summary['silent_interval'])}) have equal "
        "rewards: GRPO's advantages are 0 there, so they add nothing to the gradient."
    ]
    needed = summary["needed"]
    if summary["withheld"] is not None:
        said.append(f"Nothing is concluded, since {summary['withheld']}.")
    elif needed is not None and summary["kind"] != "GDROTrainer":  # which leaves it out
        said.append(_needs(needed))
    said.append("Which method to take: docs/choose.md.")
    yield from wrap(" ".join(said), WIDTH)
    if summary["withheld"] is None and needed is not None and needed["share"] < WORTH:
        yield from _advice(summary["kind"], needed["of"])


def _needs(needed: Mapping[str, Any]) -> str:
    share = _share(needed["share"])
    if needed["of"] not in ("tokens", "characters"):
        return (
            f"Without them forward and backward need {share} of the {needed['of']}; how long the "
            "prompts are, which have to be computed only once for all rollouts, the log does not "
            "say."
        )
    of = f"{share} of the tokens that TRL computes"
    if needed["of"] == "characters":
        of = f"about {share} of what TRL computes (by characters: the log counts no tokens)"
    return (
        "Without them, and with each prompt computed once for its rollouts, forward and backward "
        f"need {of}, or {_share(needed['share_with_beta'])} with beta > 0, where every rollout has "
        "a gradient. Sampling costs the same."
    )


def _advice(kind: str, counted_in: str) -> Iterator[str]:
    """The line of a configuration that saves it."""
    if kind == "verl" and counted_in == "characters":
        yield "    actor_rollout_ref.actor.use_prefix_grouper=True    # in verl: each prompt once"
    elif kind not in ("verl", "GDROTrainer"):
        yield '    GDROConfig(gdro_method="grpo", gradient_checkpointing=False)    # in TRL'


def _where(summary: Mapping[str, Any]) -> Iterator[str]:
    yield "WHERE THE ROLLOUTS WENT (95% interval in brackets)"
    unit = "tokens" if summary["tokens"] is not None else "characters"
    groups = _with_interval(summary["groups"], summary["groups_interval"])
    columns = {"groups": groups, "rollouts": _shares(summary["rollouts_in"])}
    if summary["length_in"] is not None:
        columns[unit] = _shares(summary["length_in"])
    if parts := summary["over_the_run"]:
        for name, part in {"first fifth": parts[0], "last fifth": parts[-1]}.items():
            columns[name] = _with_interval(part, part["interval"])
    yield _row("", columns, 15)
    for place, (kind, said) in enumerate(KINDS.items()):
        yield _row(f"{kind} ({said})", [column[place] for column in columns.values()], 15)


def _shares(shares: Mapping[str, float]) -> list[str]:
    return [_share(shares[kind]) for kind in KINDS]


def _with_interval(shares: Mapping[str, Any], ends: Mapping[str, list[float]]) -> list[str]:
    return [f"{_share(shares[kind])} ({_interval(ends[kind])})" for kind in KINDS]


def _difficulty(rates: Mapping[str, Any]) -> Iterator[str]:
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
    yield "WHAT ANOTHER NUMBER OF ROLLOUTS WOULD BRING, with as many rollouts, prompts like these"
    yield _row("rollouts a prompt", summary["mixed_by_n"])
    per = per_thousand(summary)
    yield _row("mixed groups per 1,000", [f"{number:.3g}" for number, _ in per.values()])
    yield _row("  rollouts", [_range(ends) for _, ends in per.values()])
    if summary["withheld"] is not None:
        return
    better = summary["better_n"]
    if better is None:
        said = "No other number brings clearly more mixed groups than this log's."
    else:
        number, ends = per[str(better)]
        said = (
            f"With {better} rollouts a prompt, and more prompts, 1,000 rollouts bring "
            f"{number:.3g} mixed groups ({_range(ends)})."
        )
    yield from wrap(f"{said} What a mixed group teaches, no log says.", WIDTH)


def per_thousand(summary: Mapping[str, Any]) -> dict[str, tuple[float, list[float]]]:
    """Mixed groups in a thousand rollouts, with the interval, by the rollouts of a prompt."""
    ends = summary["mixed_by_n_interval"]
    return {
        n: (1000 / int(n) * share, [1000 / int(n) * end for end in ends[n]])
        for n, share in summary["mixed_by_n"].items()
    }


def _row(name: str, cells: Any, width: int = 12) -> str:
    return f"  {name:<22}" + "".join(f"{cell:>{width}}" for cell in cells)


def _share(value: float) -> str:
    """As a percentage, with a decimal near 0 and 1."""
    is_whole = 0.01 <= value <= 0.99 or min(value, 1 - value) < 0.0005
    return f"{value:.0%}" if is_whole else f"{value:.1%}"


def _interval(ends: Sequence[float]) -> str:
    return f"{_range([100 * end for end in ends])}%"


def _range(ends: Sequence[float]) -> str:
    """Two numbers, with as many decimals as tell them apart."""
    low, high = ends
    decimals = next((d for d in range(6) if f"{low:.{d}f}" != f"{high:.{d}f}"), 6)
    return f"{low:.{decimals}f}-{high:.{decimals}f}"
