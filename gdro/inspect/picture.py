"""The picture of a summary: where rollouts went, how hard prompts are, what another n brings."""

import os
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gdro.checks import Refusal

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
FORMATS = (".png", ".pdf", ".svg")


def check_picture(out: Path) -> None:
    """Refuse a path where no picture can be written, before anything is read."""
    if out.suffix.lower() not in FORMATS or not out.parent.is_dir():
        raise Refusal(f"out must be a {', '.join(FORMATS)} in a folder that exists, got {out}")
    if out.is_dir() or not os.access(out if out.exists() else out.parent, os.W_OK):
        raise Refusal(f"out must be a file that can be written, got {out}")
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise Refusal(f"out needs matplotlib, got {out}: pip install matplotlib") from None


def draw(summary: Mapping[str, Any]) -> "Figure":
    """Three panels of what `gdro.inspect.summarize` returns."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 3.4), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    _draw_groups(left, summary)
    _draw_rates(middle, summary["pass_rates"])
    _draw_other_n(right, summary)
    for panel in (left, middle, right):
        panel.spines[["top", "right"]].set_visible(False)
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
    panel.set_title(f"{silent:.0f}% of the groups taught GRPO nothing", loc="left", fontsize=10)
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
    """Share of mixed groups against the number of rollouts."""
    n = [int(name) for name in summary["mixed_by_n"]]
    shares = 100 * np.array([*summary["mixed_by_n"].values()])
    ends = 100 * np.array([*summary["mixed_by_n_interval"].values()])
    panel.fill_between(n, *ends.T, color="#d9d9d9", label="95% interval")
    panel.plot(n, shares, "o-", color="black", label="expected")
    own = summary["rollouts_per_group"]
    mixed = 100 * summary["groups"]["mixed"]
    panel.plot(
        [own], [mixed], "D", color="#e8c84a", markeredgecolor="black", label="this log", ms=8
    )
    panel.set_xscale("log", base=2)
    panel.set(xticks=n, xticklabels=n, xlabel="rollouts of a prompt", ylabel="mixed groups, %")
    panel.set_title("Other numbers of rollouts", loc="left", fontsize=10)
    panel.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=3, frameon=False)
