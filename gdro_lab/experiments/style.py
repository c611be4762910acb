"""One look for every figure: colours, sizes, file formats."""

from math import ceil
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import seaborn as sns
from matplotlib.figure import Figure

WIDTH = 7.0  # inches in print, where no text is smaller than 7 points
COLORS = sns.color_palette("colorblind").as_hex()
DIVERGING = "BrBG"  # more than GRPO: green, less: brown; no red
DATA = "#333333"  # prompts
REPORTED = "#8c8c8c"  # the paper's numbers
EMPTY = "#e8e8e8"  # empty bins
# a method of another paper: its label tells it apart, so a new one changes no figure
PEER = "#a6a6a6"
# one colour is one thing in every figure; COLORS, for colour-blind readers, is for our methods
METHOD_COLORS = {
    "base": "#d0d0d0",
    "grpo": COLORS[0],
    "prompt": COLORS[1],
    "rollout": COLORS[2],
    "resample": COLORS[4],
    "both": COLORS[9],
    "pivotal": COLORS[3],
    "pivotal_replay": "#8c510a",
    "oracle": "black",
}
# Tol's "muted" palette is for everything else: bandits, estimators
OTHERS = ["#332288", "#999933", "#882255", "#8c6d31", "#44aa99", "#ddcc77", "#aa4499"]
LABEL_COLORS = {
    "GRPO": METHOD_COLORS["grpo"],
    "pivotal": METHOD_COLORS["pivotal"],
    **dict(zip(["Hedge", "EXP3", "EXP3.P"], OTHERS[:1] + OTHERS[3:5], strict=True)),
    # pass rates, from nothing left to learn to nothing to learn from
    "solved, p > 0.9": "#4a6fa5",
    "0.3 to 0.9": "#2f9e8f",
    "0.02 to 0.3": "#117733",
    "out of reach, p < 0.02": "#5b4636",
}


def use_style() -> None:
    """Set the look of all figures; call it once before drawing."""
    looks: dict[str, Any] = {
        "font.size": 8,
        "axes.labelsize": 8,
        "axes.titlesize": 8.5,
        "axes.titlelocation": "left",
        "figure.titlesize": 9.5,
        "figure.dpi": 110,
        "figure.constrained_layout.use": True,
        "xtick.labelsize": 7.5,
        "ytick.labelsize": 7.5,
        "legend.fontsize": 7.5,
        "savefig.dpi": 200,
        "lines.linewidth": 1.4,
        "lines.markersize": 4,
        "grid.linewidth": 0.5,
    }
    sns.set_theme(context="paper", style="whitegrid", palette=COLORS, rc=looks)


def save(figure: Figure, folder: str | Path, name: str) -> Path:
    """Write a figure as PNG and PDF, the same bytes every time; close it, return the PNG's path."""
    path = Path(folder) / f"{name}.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    figure.savefig(path.with_suffix(".pdf"), metadata={"CreationDate": None})
    plt.close(figure)
    return path


def legend_below(figure: Figure, columns: int = 4) -> None:
    """One legend for all panels, under them, where it covers nothing."""
    handles: dict[str, Any] = {}
    for axis in figure.axes:
        lines, labels = axis.get_legend_handles_labels()
        handles |= dict(zip(labels, lines, strict=True))
    if len(handles) > 1:
        rows = ceil(len(handles) / columns)
        look: dict[str, Any] = {"ncols": ceil(len(handles) / rows), "frameon": False}
        figure.legend([*handles.values()], [*handles], loc="outside lower center", **look)
