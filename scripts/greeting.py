"""The README's picture, from data/measured alone: where the rollouts go, and what that gains.

    python scripts/greeting.py    # figures/greeting.png and .pdf

Left: rollouts by pass rate over training, from greeting/rollouts.csv, which
scripts/record_rollouts.py makes. The rest is one set of draws, arena-fair/rare-hard: differences to
GRPO in pairs by draw, of every method at its better rate, and of pivotal in each family.
"""

from collections.abc import Iterable
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy import stats

import gdro.peers  # noqa: F401
from gdro.registry import METHODS
from gdro_lab.experiments.intervals import holm
from gdro_lab.experiments.style import DATA, METHOD_COLORS, WIDTH, save, use_style
from gdro_lab.experiments.table import BASELINE, METRICS, compare

ROOT = Path(__file__).parents[1]
OURS, FROZEN = "pivotal", "pivotal:prompts=64"  # FROZEN: as confirmed on these draws
SHOWN = ("mean_at_8", "pass_at_8", "training_mix_mean")
# light to dark, so that it reads in grey; the labels are those of notebook 07
CLASSES = {
    "0-0.02": ("out of reach, p < .02", "#081d58"),
    "0.02-0.3": (".02 to .3", "#1d91c0"),
    "0.3-0.9": (".3 to .9", "#7fcdbb"),
    "0.9-1": ("solved, p > .9", "#edf8d9"),
}


def greeting(measured: Path) -> Figure:
    """Where the rollouts go, and what that gains and costs."""
    folder = measured / "arena-fair/rare-hard"
    table = compare(pd.read_csv(folder / "scores.csv"))
    figure = plt.figure(figsize=(WIDTH, 4.1))
    left, right = figure.subfigures(1, 2, width_ratios=[2.5, 4.5])  # type: ignore[misc]
    upper, lower = right.subfigures(2, 1, height_ratios=[2.2, 1.9])  # type: ignore[misc]
    _spending(left, pd.read_csv(measured / "greeting/rollouts.csv"))
    _gains(upper, table)
    _families(lower, pd.read_csv(folder / "families.csv"))

    scores = table.pivot(index="method", columns="metric", values="score")
    found = [
        f"{METRICS[m]} {_short(scores[m][BASELINE])} → {_short(scores[m][FROZEN])}"
        for m in SHOWN[:2]
    ]
    title = f"{_name(FROZEN)}, in rare-hard, {table.draws.max()} draws, equal rollouts"
    figure.suptitle(f"{title}: {', '.join(found)}")
    return figure


def _spending(figure: Figure, rollouts: pd.DataFrame) -> None:
    """Shares of the rollouts by the prompt's pass rate, step by step."""
    axes = figure.subplots(2, 1, sharex=True)
    labels, colors = zip(*CLASSES.values(), strict=True)
    for axis, (method, name) in zip(axes, {BASELINE: "GRPO", OURS: "Pivotal"}.items(), strict=True):
        of_steps = rollouts[rollouts.method == method].groupby("step")[list(CLASSES)].sum()
        shares = 100 * of_steps.div(of_steps.sum(axis=1), axis=0)
        trail = shares.rolling(15, min_periods=1).mean()
        look = {"labels": labels, "colors": colors, "edgecolor": "white", "linewidth": 0.6}
        axis.stackplot(trail.index, trail.T, **look)
        axis.set(title=f"{name}: {shares['0.9-1'].mean():.0f}% on solved prompts")
        axis.set(ylabel="% of rollouts", ylim=(0, 100), xlim=(1, trail.index.max()))
    axes[1].set_xlabel("training step")
    handles, names = axes[0].get_legend_handles_labels()
    look = {"ncols": 2, "frameon": False, "handlelength": 1, "columnspacing": 1}
    figure.legend(handles[::-1], names[::-1], loc="outside lower center", **look)


def _gains(figure: Figure, table: pd.DataFrame) -> None:
    """Differences to GRPO, best in mean@8 first; filled: significant after Holm's correction."""
    wide = table[table.method != BASELINE].set_index(["metric", "method"])
    order = wide.loc[SHOWN[0]].difference.sort_values(ascending=False).index
    for axis, metric in zip(figure.subplots(1, len(SHOWN), sharey=True), SHOWN, strict=True):
        rows = wide.loc[metric].loc[order]
        _dots(axis, rows, map(_name, order), [_color(name) for name in order], rows.p_holm < 0.05)
        axis.set_title(METRICS[metric])
    figure.supxlabel("difference to GRPO; filled: significant after Holm's correction", fontsize=8)


def _families(figure: Figure, families: pd.DataFrame) -> None:
    """Pivotal in each family, the most frequent first, with Holm's correction over them."""
    keys = ["learning_rate", "draw", "family"]
    runs = families.set_index(["method", *keys]).mean_at_8
    by_draw = (runs[FROZEN] - runs[BASELINE]).xs(2e-4).unstack()
    share = families.groupby("family").share.first().sort_values(ascending=False)
    by_draw = by_draw[share.index]
    test = stats.ttest_1samp(by_draw, 0)
    low, high = test.confidence_interval()
    rows = pd.DataFrame({"difference": by_draw.mean(), "low": low, "high": high, "p": test.pvalue})
    sure = holm(rows.p) < 0.05
    axis = figure.subplots()
    names = [f"{name}, {100 * part:.0f}% of prompts" for name, part in share.items()]
    _dots(axis, rows, names, [METHOD_COLORS[OURS]] * len(rows), sure)
    gain, lose = (sure & (rows.difference > 0)).sum(), (sure & (rows.difference < 0)).sum()
    axis.set(title=f"{_name(FROZEN)}: {gain} of {len(rows)} families gain, {lose} lose")
    axis.set(xlabel="difference to GRPO in mean@8, families by frequency")


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
    axis.locator_params(axis="x", nbins=3)


def _name(method: str) -> str:
    """As in "PKPO, 64 prompts"."""
    name, *options = method.split(":")
    shape = [f"{value} prompts" for key, _, value in (o.partition("=") for o in options) if value]
    return ", ".join([METHODS[name].__name__, *shape])


def _color(method: str) -> str:
    return METHOD_COLORS[OURS] if method.split(":")[0] == OURS else DATA


def _short(score: float) -> str:
    return f"{score:.2f}".lstrip("0")


if __name__ == "__main__":
    use_style()
    print(save(greeting(ROOT / "data/measured"), ROOT / "figures", "greeting"))
