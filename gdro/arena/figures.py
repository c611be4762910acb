"""The arena's figures: our methods in colour, the five best of the others named, the rest grey."""

from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from gdro.arena.tables import BASELINE, METRICS
from gdro.results.style import DATA, METHOD_COLORS, PEER, WIDTH, legend_below, save, use_style

MARKERS = "sD^v>"  # of the best of the others, which have one colour
PAIR = ["mean_at_8", "pass_at_8"]


def draw_figures(scores: pd.DataFrame, table: pd.DataFrame, reach: pd.DataFrame, out: Path) -> None:
    """Write differences, frontier and rollouts, as PNG and PDF.

    Args:
        scores: of scores.csv.
        table: of `gdro.arena.tables.compare`.
        reach: of `gdro.arena.tables.rollouts_to_reach`.
        out: the folder.
    """
    matplotlib.use("Agg")
    use_style()
    looks = _looks(table)
    save(_differences(table, looks), out, "differences")
    save(_frontier(scores, table, looks), out, "frontier")
    if len(reach):  # empty without a baseline
        save(_rollouts(reach, looks), out, "rollouts")


def _looks(table: pd.DataFrame) -> dict[str, dict[str, Any]]:
    """Colour and marker of each method, best first by mean@8 and pass@8 over GRPO together."""
    gains = table[table.metric.isin(PAIR) & (table.method != BASELINE)].groupby("method").difference.sum()
    looks, markers = {}, list(MARKERS)
    for method in gains.sort_values(ascending=False).index:
        color, marker = METHOD_COLORS.get(method.split(":")[0], PEER), "o"
        if color == PEER and markers:
            color, marker = DATA, markers.pop(0)
        looks[method] = {"color": color, "marker": marker}
    return looks


def _grid(panels: int, columns: int, heights: Any, **options: Any) -> tuple[Figure, np.ndarray]:
    """A figure of so many panels; heights: of a row of them in inches, or of each row."""
    import matplotlib.pyplot as plt

    rows = -(-panels // columns)
    height_R = np.broadcast_to(heights, rows)
    options |= {"figsize": (WIDTH, height_R.sum()), "height_ratios": height_R, "squeeze": False}
    figure, axes = plt.subplots(rows, columns, **options)
    for axis in axes.flat[panels:]:
        axis.axis("off")
    return figure, axes


def _differences(table, looks):
    """A row a method, a column a metric: intervals, filled where they exclude 0."""
    played = {world: set(of.method) for world, of in table.groupby("world")}
    named = {world: [method for method in looks if method in of] for world, of in played.items()}
    heights = [max(0.7 + 0.15 * len(methods), 1.4) for methods in named.values()]
    figure, axes = _grid(len(named) * len(METRICS), len(METRICS), heights, sharey="row")
    for (world, methods), line in zip(named.items(), axes, strict=True):
        for axis, (metric, label) in zip(line, METRICS.items(), strict=True):
            rows = table[(table.world == world) & (table.metric == metric)].set_index("method").loc[methods]
            for place, (method, row) in enumerate(rows.iterrows()):
                half, sure = np.nan_to_num((row.high - row.low) / 2), row.low > 0 or row.high < 0
                look = looks[method] | {"capsize": 2, "markerfacecolor": None if sure else "white"}
                axis.errorbar(row.difference, place, xerr=half, linestyle="", **look)
            axis.axvline(0, color="black", linewidth=0.8)
            axis.set_title(f"{label}\n{(rows.low > 0).sum()} above, {(rows.high < 0).sum()} below")
            axis.locator_params(axis="x", nbins=3)
        names = [f"{method}, {_short(rows.learning_rate[method])}" for method in methods]
        line[0].set_yticks(range(len(methods)), names)
        line[0].set(ylabel=world, ylim=(max(len(methods), 1) - 0.5, -0.5))
    figure.supxlabel(
        "difference to GRPO, 95% intervals over draws; filled: the interval excludes 0", fontsize=8
    )
    return figure


def _short(rate):
    return np.format_float_scientific(rate, trim="-", exp_digits=1)


def _frontier(scores, table, looks):
    """mean@8 against pass@8, as differences to GRPO; a method's learning rates are joined."""
    worlds = sorted(table.world.unique())
    columns = min(len(worlds), 3)
    figure, axes = _grid(len(worlds), columns, 2.4 if columns > 1 else 5)
    keys = ["world", "method", "learning_rate", "draw"]
    ends = scores[scores.step == scores.step.max()].set_index(keys)[PAIR].sort_index()
    kinds = ["learning_rate", "difference", "low", "high"]
    for world, axis in zip(worlds, axes.flat, strict=False):
        rows = table[(table.world == world) & table.metric.isin(PAIR)]
        wide = rows.pivot(index="method", columns="metric", values=kinds)
        if BASELINE not in wide.index:
            continue
        rate_of = wide.learning_rate[PAIR[0]]
        grpo = ends.loc[world, BASELINE, rate_of[BASELINE]]
        for place, (method, look) in enumerate(looks.items()):
            if method not in wide.index:
                continue
            own = ends.loc[world, method].sub(grpo, level="draw").groupby("learning_rate").mean()
            on_top = {"zorder": 3 - place / len(looks)}
            axis.plot(*own.to_numpy().T, color=look["color"], linewidth=0.7, **on_top)
            axis.plot(*own.to_numpy().T, linestyle="", markerfacecolor="white", **look, **on_top)
            name, halves = method, (wide.high - wide.low).loc[method, PAIR] / 2
            if len(worlds) == 1:  # a method may have another rate in another world
                name += f", {_short(rate_of[method])}"
            if look["color"] == PEER:
                name, halves = "the others", np.nan * halves
            axis.errorbar(
                *wide.difference.loc[method, PAIR],
                *halves[::-1],
                **look,
                **on_top,
                linestyle="",
                linewidth=0.8,
                label=name,
            )
        axis.axvline(0, color=METHOD_COLORS[BASELINE], linewidth=0.8)
        axis.axhline(0, color=METHOD_COLORS[BASELINE], linewidth=0.8)
        axis.set(title=world, xlabel="mean@8 over GRPO", ylabel="pass@8 over GRPO")
        axis.locator_params(axis="x", nbins=5)
    figure.suptitle("Filled: the better learning rate, with 95% intervals; hollow: another; lines at 0: GRPO")
    legend_below(figure)
    return figure


def _rollouts(reach, looks):
    """Part of GRPO's rollouts, for the methods that get there; the others are counted."""
    worlds = sorted(reach.world.unique())
    found = reach.dropna(subset=["part"])
    colors = {BASELINE: METHOD_COLORS[BASELINE]} | {method: look["color"] for method, look in looks.items()}
    most = found.groupby("world").size().max() if len(found) else 1
    figure, axes = _grid(len(worlds), min(len(worlds), 3), 1.1 + 0.2 * most)
    for world, axis in zip(worlds, axes.flat, strict=False):
        part = found[found.world == world].set_index("method").part.sort_values()
        axis.barh(part.index, part, color=[colors[method] for method in part.index])
        axis.axvline(1, color="black", linewidth=0.8)
        axis.invert_yaxis()
        missing = (reach.world == world).sum() - len(part)
        title = f"{world}; {missing} do not reach it" if missing else world
        axis.set(title=title, xlabel="part of GRPO's rollouts", xlim=(0, 1.05))
    finding = ""
    if len(found):
        first = found.loc[found.part.idxmin()]
        finding = f": {first.method} after {100 * first.part:.0f}%"
    figure.suptitle(f"Rollouts to reach GRPO's best mean@8 and pass@8 together{finding}")
    return figure
