"""The picture of docs/results.md, from data/measured alone: gains over GRPO at its learning rate.

    python scripts/gains.py    # figures/gains.png and .pdf

A panel a world, a row a method: the difference from GRPO in mean@8 and in the training mix, with
95% intervals; two replicates are shown as they are. `recompute.py front` prints the same numbers.
"""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gdro_lab.experiments.intervals import paired_t
from gdro_lab.experiments.style import WIDTH, save, use_style

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "data/measured"))  # its parts import each other by name

METHODS = ["Prompt-GDRO", "Rollout-GDRO", "both games", "PKPO", "pivotal"]
TITLES = {
    "rare-hard": "rare-hard\nrare prompts are hard",
    "all-hard": "all-hard\nall prompts are hard",
    "gym-weak": "gym-weak\npuzzles, weak model",
    "word problems": "word problems\nSmolLM2-135M",
}
# dark and light, filled and open, so that it reads in grey; label, colours, place beside the line
SCORES = {
    "mean_at_8": ("mean@8: every kind of prompt counts the same", "#0b4f8a", "#0b4f8a", "o", -0.17),
    "training_mix_mean": (
        "training mix: as frequent as in training",
        "#8a8a8a",
        "white",
        "D",
        0.17,
    ),
}


def gains(picture: dict[str, list]) -> Figure:
    """A panel a world, with a dot and an interval for each method and score."""
    figure, axes = plt.subplots(1, len(picture), figsize=(WIDTH, 2.9), sharex=True, sharey=True)
    for axis, (world, comparisons) in zip(axes, picture.items(), strict=True):
        _panel(axis, comparisons)
        axis.set_title(TITLES[world])
    axes[0].set_yticks(range(len(METHODS)), METHODS)
    axes[0].set_ylim(len(METHODS) - 0.5, -0.5)
    axes[0].set_xlim(-0.06, 0.16)
    axes[0].set_xticks([-0.05, 0, 0.05, 0.1, 0.15], ["−.05", "0", ".05", ".10", ".15"])
    figure.suptitle(
        "Gain over GRPO at the same learning rate, with 95% intervals", x=0.01, ha="left"
    )
    handles, names = axes[0].get_legend_handles_labels()
    figure.legend(handles[:2], names[:2], loc="outside lower center", ncols=2, frameon=False)
    return figure


def _panel(axis: Axes, comparisons: list) -> None:
    axis.axvline(0, color="black", linewidth=0.8)
    for name in METHODS:
        found = [one for one in comparisons if one.name() == name]
        for score, (label, color, face, marker, height) in SCORES.items():
            place = METHODS.index(name) + height
            look = {"color": color, "marker": marker, "markerfacecolor": face, "label": label}
            if found:
                _dots(axis, found[0].by_replicate()[score], place, look)
        if not found:
            axis.text(
                0.01,
                METHODS.index(name),
                "not run at equal\nlearning rates",
                va="center",
                color="#595959",
                size=7,
            )
    axis.grid(visible=False, axis="y")


def _dots(axis: Axes, by_replicate: pd.Series, place: float, look: dict) -> None:
    """The mean with its interval, or the replicates where there are two."""
    if len(by_replicate) < 3:
        axis.plot(by_replicate, np.full(2, place), linestyle="none", **look)
        return
    mean = by_replicate.mean()
    axis.errorbar(mean, place, xerr=paired_t(by_replicate).high - mean, **look)


if __name__ == "__main__":
    from front_parts import PICTURE

    use_style()
    print(save(gains(PICTURE), ROOT / "figures", "gains"))
