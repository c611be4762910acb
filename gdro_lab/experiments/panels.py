"""What the figures of runs are drawn with: lines, maps and bars over the bins, panel by panel."""

from collections.abc import Mapping
from itertools import cycle
from typing import Any, TypeVar

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm, PowerNorm
from matplotlib.figure import Figure

from gdro_lab.experiments.style import (
    DATA,
    DIVERGING,
    EMPTY,
    METHOD_COLORS,
    WIDTH,
    legend_below,
)

Table = TypeVar("Table", pd.DataFrame, pd.Series)
Tables = Mapping[str, pd.DataFrame]
"""Tables by label."""
Colors = Mapping[str, Any]
"""Colours by label."""
Trends = dict[str, tuple[str, pd.DataFrame]]
"""By the title of a panel: what its y axis shows, and a table with a column for each line."""
Maps = dict[str, tuple[pd.DataFrame, float | None]]
"""By the title of a panel: a table, and its value under an even split, if any."""

SHARE = "share of prompts"  # the title of a map
SNAPSHOTS = 4  # steps shown in figures 5 and 9
# of methods side by side, to be told apart in grey
LINES = "-", "-.", ":", (0, (5, 1, 1, 1, 1, 1))


def of_seeds(table: Table) -> Table:
    """Mean over the seeds, by step."""
    return table.groupby(level="step").mean()


def bar_groups(axis: Axes, table: pd.DataFrame, colors: Colors, **look: Any) -> None:
    """A group of bars for each row of a table, a bar for each column."""
    look |= {"color": colors, "width": 0.8, "rot": 0, "legend": False, "error_kw": {"lw": 0.8}}
    table.plot.bar(ax=axis, **look)


def panel_axes(count: int, height: float, title: str, **options: Any) -> tuple[Figure, np.ndarray]:
    """`count` axes in rows of at most four; places that are left over stay empty."""
    rows = -(-count // 4)
    size = (WIDTH, 0.4 + (height - 0.4) * rows)
    figure, axes = plt.subplots(rows, -(-count // rows), figsize=size, squeeze=False, **options)
    figure.suptitle(title)
    for axis in axes.flat[count:]:
        axis.remove()
    return figure, axes.flat[:count]


def trends(panels: Trends, colors: Colors, title: str, more: int = 0) -> Figure:
    """Means over seeds with bands that span them.

    A table has a column for each line. `more` panels are left empty for others.
    """
    figure, axes = panel_axes(len(panels) + more, 2.4, title)
    for axis, (name, (ylabel, table)) in zip(axes, panels.items(), strict=False):
        lines = cycle(LINES)
        for label in table:
            dashed = colors[label] in (METHOD_COLORS["grpo"], DATA)
            line = "--" if dashed else next(lines)
            look: dict[str, Any] = {"color": colors[label], "linestyle": line}
            look |= {"errorbar": ("pi", 100), "err_kws": {"linewidth": 0}, "legend": False}
            sns.lineplot(table.reset_index(), x="step", y=label, label=label, ax=axis, **look)
        axis.set(xlabel="step", ylabel=ylabel, title=name)
    legend_below(figure)
    return figure


def heatmaps(panels: Maps, title: str) -> Figure:
    """Steps × bins; an even value is white.

    Around the even value equal ratios are equally dark, and less than it is hatched, so that the
    two sides can be told apart in grey.
    """
    figure, axes = panel_axes(len(panels), 2.5, title)
    compared = any(even is not None for _, even in panels.values())
    note = "grey: no prompts" + ("; white: as GRPO, hatched: less" if compared else "")
    figure.supxlabel(note, fontsize=7)
    for axis, (name, (table, even)) in zip(axes, panels.items(), strict=True):
        mean = of_seeds(table).T
        look: dict[str, Any] = {"cmap": "viridis"}
        if name == SHARE:  # figure 5's scale: on a linear one all but the crowded bin is dark
            mean = mean.where(mean > 0)
            look["norm"] = PowerNorm(0.5, vmin=0)
        elif even is not None:
            # the largest ratio to even, up or down; 1.1 at least, so that rounding stays invisible
            reach = max(1.1, np.nanmax(np.abs(np.log(mean / even)).map(np.exp)))
            look = {"cmap": DIVERGING, "norm": LogNorm(even / reach, even * reach)}
        axis.grid(False)
        image = axis.pcolormesh(mean.columns, mean.index, mean, rasterized=True, **look)
        if even is None:
            figure.colorbar(image, ax=axis, format="%.1f")
        else:
            look = {"facecolor": "none", "edgecolor": "#777777", "linewidth": 0, "hatch": "////"}
            for b, row in mean.iterrows():
                less = (row < 0.97 * even).to_numpy()
                axis.fill_between(mean.columns, b - 0.5, b + 0.5, less, step="mid", **look)
            ticks = even * reach ** np.linspace(-1, 1, 5)
            bar = figure.colorbar(image, ax=axis, format="%.1f", ticks=ticks)
            bar.ax.minorticks_off()
        axis.set(xlabel="step", ylabel="bin (0 hardest)", title=name, yticks=mean.index)
        axis.set_facecolor(EMPTY)
    return figure


def snapshots(kinds: Tables, colors: Colors, title: str) -> Figure:
    """Distributions over the bins at four steps."""
    figure, axes = panel_axes(SNAPSHOTS, 2.3, title, sharey=True)
    means = pd.concat({label: of_seeds(table).stack() for label, table in kinds.items()}, axis=1)
    for part, axis in enumerate(axes, start=1):
        step = max(means.index.levels[0].max() * part // SNAPSHOTS, 1)
        bar_groups(axis, means.loc[step], colors)
        # on a linear scale one crowded bin hides the others
        axis.set_yscale("function", functions=(np.sqrt, np.square))
        axis.set(title=f"step {step}", xlabel="bin (0 hardest)", ylim=(0, 1))
        axis.set_yticks([0, 0.01, 0.05, 0.1, 0.25, 0.5, 1])
    axes[0].set_ylabel("share (square-root scale)")
    legend_below(figure)
    return figure
