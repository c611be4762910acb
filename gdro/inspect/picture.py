"""The picture of a summary: where rollouts went, how hard prompts are, what another n brings."""

import os
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gdro.checks import Refusal
from gdro.inspect.page import per_thousand

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

KINDS = ("failed", "mixed", "solved")  # from below
# told apart in grey, too: dark, light, middle
LOOKS: dict[str, dict[str, Any]] = {
    "failed": {"color": "#3b2f2f"},
    "mixed": {"color": "#e8c84a"},
    "solved": {"color": "#6f9bbd", "hatch": "//", "edgecolor": "white", "linewidth": 0},
}


def save(summary: Mapping[str, Any], out: Path) -> None:
    """Write the picture, all of it or nothing, as where the disk is full."""
    partial = out.with_name(f".{out.stem}.part{out.suffix}")
    try:
        draw(summary).savefig(partial, dpi=150)
        os.replace(partial, out)
    except (OSError, ValueError, ImportError) as error:  # no such folder, format, or matplotlib
        raise Refusal(f"out must be a picture that can be written, got {out}: {error}") from None
    finally:
        partial.unlink(missing_ok=True)


def draw(summary: Mapping[str, Any]) -> "Figure":
    """Panels of what `gdro.inspect.summarize` returns; Refusal without a threshold."""
    from matplotlib.figure import Figure

    if summary["groups"] is None:
        raise Refusal("out needs to know which rollouts are correct: name --threshold")

    figure = Figure(figsize=(11, 3.6), layout="constrained")
    panels = figure.subplots(1, 2 if summary["pass_rates"] is None else 3)
    _draw_groups(panels[0], summary)
    if summary["pass_rates"] is not None:
        _draw_rates(panels[1], summary["pass_rates"])
    _draw_other_n(panels[-1], summary)
    for panel in panels:
        panel.spines[["top", "right"]].set_visible(False)
    for panel in panels[:-1]:
        panel.set_ylim(0, 100)
    return figure


def _draw_groups(panel: "Axes", summary: Mapping[str, Any]) -> None:
    """Shares of groups in each fifth of the run, or in all of it."""
    parts = summary["over_the_run"] or [summary["groups"]]
    names = [str(part.get("from_step", "whole log")) for part in parts]
    below = np.zeros(len(parts))
    for kind in KINDS:
        shares = np.array([100 * part[kind] for part in parts])
        panel.bar(range(len(parts)), shares, bottom=below, label=kind, width=0.85, **LOOKS[kind])
        below += shares
    silent = 100 * summary["silent"]
    panel.set_title(f"{silent:.0f}% of the groups have equal rewards", loc="left", fontsize=10)
    panel.set(xticks=range(len(parts)), xticklabels=names, ylabel="rollout groups, %")
    panel.set_xlabel("fifths of the run, by first step" if len(parts) > 1 else "")
    panel.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=3, frameon=False)


def _draw_rates(panel: "Axes", rates: Mapping[str, Any]) -> None:
    """The deconvolved distribution of pass rates."""
    shares = 100 * np.array(rates["shares"])
    ends = 100 * np.array(rates["interval"])
    errors = np.abs(ends.T - shares)
    names = [f"{low:g}\u2013{high:g}" for low, high in pairwise(rates["edges"])]
    panel.bar(range(len(shares)), shares, width=0.7, color="#9a9a9a")
    panel.errorbar(range(len(shares)), shares, errors, fmt="none", color="black", capsize=3)
    mastered = shares[-1]
    panel.set_title(f"{mastered:.0f}% of the prompts: nearly solved", loc="left", fontsize=10)
    panel.set(xticks=range(len(shares)), xticklabels=names, ylabel="prompts, %")
    panel.set_xlabel("pass rate of a prompt, as last sampled")


def _draw_other_n(panel: "Axes", summary: Mapping[str, Any]) -> None:
    """Mixed groups that a thousand rollouts bring, against the number of rollouts of a prompt."""
    per = per_thousand(summary)
    n = [int(name) for name in per]
    ends = np.array([both for _, both in per.values()])
    panel.fill_between(n, *ends.T, color="#d9d9d9", label="95% interval")
    panel.plot(n, [number for number, _ in per.values()], "o-", color="black", label="expected")
    own = summary["rollouts_per_group"]
    mixed = 1000 * summary["groups"]["mixed"] / own
    panel.plot(
        [own], [mixed], "D", color="#e8c84a", markeredgecolor="black", label="this log", ms=8
    )
    panel.set_xscale("log", base=2)
    panel.set(xticks=n, xticklabels=n, xlabel="rollouts of a prompt")
    panel.set_ylabel("mixed groups per 1,000 rollouts")
    panel.set_ylim(bottom=0)
    panel.set_title("Other numbers of rollouts", loc="left", fontsize=10)
    panel.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=3, frameon=False)
