"""The README's picture, from data/studies alone: where the rollouts go, and what that gains.

    python scripts/greeting.py    # figures/greeting.png and .pdf

Left: rollouts by pass rate, from greeting/rollouts.csv, which scripts/record_rollouts.py makes.
Right: arena-fair/rare-hard, differences from GRPO in pairs by replicate, every method at its better
rate and in its better batch shape.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import gdro.peers  # noqa: F401
from gdro.registry import METHODS
from gdro_lab.experiments.style import DATA, METHOD_COLORS, WIDTH, save, use_style
from gdro_lab.experiments.table import BASELINE, METRICS, STUDIES, compare, read_study

ROOT = Path(__file__).parents[1]
OURS = "pivotal"
SCORE = "mean_at_8"
SCORES = [SCORE, "training_mix_mean"]  # in the title
SPENDERS = {BASELINE: "GRPO", OURS: "Pivotal"}
# light to dark, so that it reads in grey: label, colour, and the colour of text on it; the labels
# are those of notebook 07
CLASSES = {
    "0.9-1": ("solved, p > .9", "#d9e8b0", "black"),
    "0.3-0.9": (".3 to .9", "#7fcdbb", "black"),
    "0.02-0.3": (".02 to .3", "#1d91c0", "white"),
    "0-0.02": ("out of reach, p < .02", "#081d58", "white"),
}
READABLE = 6  # a bar of so many percent holds its number


def greeting() -> Figure:
    """Where the rollouts go, and what that gains."""
    table = compare(read_study("arena-fair/rare-hard"))
    of_metric = table.set_index(["metric", "configuration"])
    figure = plt.figure(figsize=(WIDTH, 2.7))
    left, right = figure.subfigures(1, 2, width_ratios=[3, 3.2])  # type: ignore[misc]
    _spending(left, pd.read_csv(STUDIES / "greeting/rollouts.csv"))
    _gains(right, of_metric.loc[SCORE])
    gains = [f"{METRICS[metric]} {_gain(of_metric.loc[metric].score)}" for metric in SCORES]
    figure.suptitle(f"Fewer rollouts on solved prompts: {', '.join(gains)} in rare-hard")
    return figure


def _spending(figure: Figure, rollouts: pd.DataFrame) -> None:
    """Shares of all the rollouts by the prompt's pass rate, a bar a method."""
    axis = figure.subplots()
    of_method = rollouts.groupby("method")[list(CLASSES)].sum()
    shares = 100 * of_method.div(of_method.sum(axis=1), axis=0)
    middle: dict[str, Any] = {"ha": "center", "va": "center"}
    for place, method in enumerate(SPENDERS):
        left = 0.0
        for name, (label, color, ink) in CLASSES.items():
            share = shares.loc[method, name]
            axis.barh(place, share, left=left, color=color, edgecolor="white", label=label)
            if share >= READABLE:
                axis.text(left + share / 2, place, f"{share:.0f}", color=ink, **middle)
            left += share
    axis.set_yticks(range(len(SPENDERS)), SPENDERS.values())
    axis.set(ylim=(len(SPENDERS) - 0.5, -0.5), xlim=(0, 100), xlabel="% of the rollouts of a run")
    axis.set_title("Rollouts by the prompt's pass rate p")
    axis.grid(False)
    handles, names = axis.get_legend_handles_labels()
    several = len(CLASSES)  # every method repeats the labels
    look: dict[str, Any] = {"ncols": 2, "frameon": False, "handlelength": 1, "columnspacing": 1}
    figure.legend(handles[:several], names[:several], loc="outside lower center", **look)


def _gains(figure: Figure, of_score: pd.DataFrame) -> None:
    """Differences from GRPO, the largest first; filled: significant after Holm's correction."""
    rows = of_score.drop(BASELINE).sort_values("difference", ascending=False)
    shapes = rows.index.str.partition(":").get_level_values(0)
    rows = rows[~shapes.duplicated()]  # the better shape comes first
    axis = figure.subplots()
    colors = [METHOD_COLORS[OURS] if method == OURS else DATA for method in rows.index]
    _dots(axis, rows, map(_name, rows.index), colors, rows.p_holm < 0.05)
    axis.set_title(f"{METRICS[SCORE]} minus GRPO's, {rows.replicates.max()} replicates")
    axis.set_xlabel("difference; filled: significant (Holm)")


def _dots(
    axis: Axes, table: pd.DataFrame, names: Iterable[str], colors: list[str], filled: pd.Series
) -> None:
    """A dot with its interval for each row, the first at the top."""
    rows = np.arange(len(table))
    axis.hlines(rows, table.low, table.high, colors=colors)
    faces = [color if sure else "white" for color, sure in zip(colors, filled, strict=True)]
    axis.scatter(table.difference, rows, c=faces, edgecolors=colors, s=16, zorder=3)
    axis.axvline(0, color="black", linewidth=0.8)
    axis.set_yticks(rows, list(names))
    axis.set_ylim(len(table) - 0.5, -0.5)
    axis.locator_params(axis="x", nbins=5)


def _name(method: str) -> str:
    """As in "PKPO, 64 prompts"."""
    name, *options = method.split(":")
    shape = [f"{value} prompts" for key, _, value in (o.partition("=") for o in options) if value]
    return ", ".join([METHODS[name].__name__, *shape])


def _gain(scores: pd.Series) -> str:
    """As in ".71 → .84"."""
    return f"{_short(scores[BASELINE])} → {_short(scores[OURS])}"


def _short(score: float) -> str:
    return f"{score:.2f}".lstrip("0")


if __name__ == "__main__":
    use_style()
    print(save(greeting(), ROOT / "figures", "greeting"))
