"""Pictures of notebook 04: maps of gains, curves, ablations, and the toy beside real trainings.

Axes: M methods, C checkpoints, L labels.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import SymLogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter

from gdro_lab.experiments import style
from gdro_lab.toy import TOY_METHODS, Game, World, maps, play

COLORS = {method: style.METHOD_COLORS[method] for method in TOY_METHODS}
LINES = dict(zip(TOY_METHODS, ("-", "o-", "s-", "^--", "v:", "D--"), strict=True))
MEASURE_NAMES = {"pass_at_8": "pass@8", "worst_skill": "accuracy of the worst skill"}


def heatmap(
    axis: Axes, gains: np.ndarray, verdicts: np.ndarray, norm: SymLogNorm, **labels: Any
) -> None:
    """Gains in points, with a sign and a colour where the verdict is not 0."""
    shown = np.round(gains, 1) + 0.0  # no −0.0
    marked = np.char.add(np.char.mod("%+.1f", shown), np.take(["▼", "", "▲"], verdicts + 1))
    look = {"norm": norm, "cmap": style.DIVERGING, "cbar": False, "linewidths": 0.5}
    look |= {"fmt": "", "annot": marked, "annot_kws": {"size": 8.5}}
    sns.heatmap(np.where(verdicts, shown, 0), ax=axis, **look, **labels)
    axis.tick_params(labelrotation=0)


def color_bar(figure: Figure, axes: Any, norm: SymLogNorm, reach: float) -> None:
    """What the colours mean, in points, up to the largest gain."""
    steps = [step for step in (1, 3, 10, 30) if step <= reach]
    if figure.get_figheight() < 2:
        steps = steps[-1:]
    ticks = [-step for step in reversed(steps)] + [0, *steps]
    # a bar of the same width beside pictures of any height
    aspect = 10 * figure.get_figheight()
    bar = figure.colorbar(ScalarMappable(norm, style.DIVERGING), ax=axes, pad=0.01, aspect=aspect)
    bar.ax.yaxis.set_major_locator(FixedLocator(ticks))
    bar.ax.yaxis.set_major_formatter(
        FuncFormatter(lambda value, _: f"{value:+g}" if value else "0")
    )
    bar.ax.minorticks_off()
    bar.set_label("points", fontsize=7)


def gain_map(
    gains: np.ndarray,
    verdicts: np.ndarray,
    tails: Sequence[float],
    spreads: Sequence[float],
    rollouts: Sequence[int],
    found: str,
) -> Figure:
    """A panel for each method (row) and budget (column): tails × spreads.

    Args:
        gains: over GRPO in points, (M, tails, spreads, C), of all methods but GRPO.
        verdicts: alike, in −1, 0, 1.
        rollouts: spent at each checkpoint.
        found: what the title says.
    """
    names = [name for method, name in TOY_METHODS.items() if method != "grpo"]
    size = (style.WIDTH, 0.95 + 0.85 * len(names))
    figure, axes = plt.subplots(len(names), len(rollouts), figsize=size, squeeze=False)
    reach = max(1.0, float(np.abs(gains).max()))
    norm = SymLogNorm(1.0, vmin=-reach, vmax=reach)  # colours that are even about 0
    for m, row in enumerate(axes):
        bottom = m == len(names) - 1
        for c, axis in enumerate(row):
            heatmap(
                axis,
                gains[m, ::-1, :, c],
                verdicts[m, ::-1, :, c],
                norm,
                xticklabels=list(spreads) if bottom else [],
                yticklabels=list(tails)[::-1] if c == 0 else [],
            )
            axis.set_xlabel("spread (logits)" if bottom else "")
        words = names[m].replace(",", "").split()
        row[0].set_ylabel("\n".join([*words, "", "tail"]), fontsize=8)
    for axis, spent in zip(axes[0], rollouts, strict=True):
        axis.set_title(f"{spent:,} rollouts")
    color_bar(figure, axes, norm, reach)
    figure.suptitle(found)
    return figure


def curves(world: World, seeds: Sequence[int], checkpoints: Sequence[int]) -> Figure:
    """Gains over GRPO of all methods in one world, with 95% intervals; paired by seed."""
    methods = [method for method in TOY_METHODS if method != "grpo"]
    games = [Game(world, method, step_size=16.0) for method in ("grpo", *methods)]
    results = play(games, seeds, checkpoints)
    spent = np.array(checkpoints) * games[0].batch * games[0].mean_rollouts
    figure, axes = plt.subplots(1, len(maps.MEASURES), figsize=(style.WIDTH, 2.9))
    found = ""
    for axis, (key, (title, measure)) in zip(axes, maps.MEASURES.items(), strict=True):
        values = 100 * np.moveaxis(measure(results), 1, -1)  # games, checkpoints, seeds
        gain = maps.paired_gain(values[1:], values[:1])
        for m, method in enumerate(methods):
            x = spent + spent[-1] * 0.012 * (m - 2)  # side by side, so that no interval hides one
            look = {"color": COLORS[method], "fmt": LINES[method], "ms": 3.5, "lw": 1.1}
            look |= {"elinewidth": 0.8, "label": TOY_METHODS[method]}
            axis.errorbar(x, gain.mean[m], gain.half[m], **look)
        axis.axhline(0, color="black", lw=0.8)
        axis.set(title=title, xlabel="rollouts spent")
        if key == "worst_skill":
            middle = len(checkpoints) // 2
            best = np.argsort(-gain.mean[:, middle])[:2]
            parts = [f"{TOY_METHODS[methods[m]]} {gain.mean[m, middle]:+.0f}" for m in best]
            found = f"Worst skill after {spent[middle]:,} rollouts: {', '.join(parts)}"
    axes[0].set_ylabel("gain over GRPO, points")
    words = f"tail {world.tail:g}, spread {world.spread:g}, rare skills {world.rare}"
    figure.suptitle(f"{found}\n(toy world: {words})")
    style.legend_below(figure, 3)
    return figure


def ablation(
    method: str,
    labels: Sequence[str],
    gains: Mapping[str, maps.Gain],
    over_grpo: Mapping[str, maps.Gain],
) -> Figure:
    """What each change adds to a method, by measure."""
    size = (style.WIDTH, 1.25 + 0.16 * len(labels))
    figure, axes = plt.subplots(1, len(gains), figsize=size, sharey=True)
    names = list(labels)
    for axis, (name, gain) in zip(axes, gains.items(), strict=True):
        color = np.where(gain.verdict(), COLORS[method], "white")
        axis.hlines(names, gain.mean - gain.half, gain.mean + gain.half, color="black", lw=0.8)
        axis.scatter(gain.mean, names, c=color, edgecolors="black", s=20, zorder=3)
        axis.axvline(0, color="black", lw=0.8)
        axis.set_title(f"{name} (as it is {over_grpo[name].mean:+.1f})")
    axes[0].invert_yaxis()
    figure.supxlabel("what the change adds, points; filled: the 95% interval leaves out 0", size=8)
    mix = gains["training mix"]
    two = np.argsort(-np.abs(np.where(mix.verdict(), mix.mean, 0)))[:2]
    found = " and ".join(f"{names[i]} ({mix.mean[i]:+.1f})" for i in two)
    figure.suptitle(f"{TOY_METHODS[method]}: largest effects on the training mix\n{found}")
    return figure


def beside_real(parts: Mapping[str, pd.DataFrame], labels: Mapping[str, str]) -> Figure:
    """Gains of the toy and of real trainings, with intervals, a panel for each score.

    Args:
        parts: by score, rows are variants; columns toy, toy_low, toy_high, gain, gain_low, …
        labels: of the variants.
    """
    figure, axes = plt.subplots(1, len(parts), figsize=(style.WIDTH, 3.3), sharey=True)
    kinds = {"toy": ("toy", "s", 0.15, style.OTHERS[1])}
    kinds["gain"] = ("real tiny model", "o", -0.15, style.DATA)
    outside: dict[str, None] = {}
    for axis, (score, part) in zip(axes, parts.items(), strict=True):
        heights = np.arange(len(part))[::-1]
        for kind, (label, mark, shift, color) in kinds.items():
            middle, low, high = part[[kind, f"{kind}_low", f"{kind}_high"]].to_numpy().T
            reach = [middle - low, high - middle]
            look = {"fmt": mark, "color": color, "capsize": 2, "label": label}
            axis.errorbar(middle, heights + shift, xerr=reach, **look)
        axis.axvline(0, color="black", lw=0.8)
        axis.set(title=score, xlabel="gain over GRPO, points")
        axis.set_yticks(heights, [labels[variant] for variant in part.index])
        inside = part.toy.between(part.gain_low, part.gain_high)
        outside |= dict.fromkeys(labels[variant] for variant in part.index[~inside])
    figure.suptitle(f"The toy lies outside the real interval:\n{'; '.join(outside) or 'nowhere'}")
    style.legend_below(figure)
    return figure
