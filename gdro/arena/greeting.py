"""The README's picture, from data/measured alone: where the rollouts go, and what that gains.

    python -m gdro.arena.greeting    # figures/greeting.png and .pdf

Left: shares of the rollouts by pass rate over training, from greeting/rollouts.csv, which
scripts/record_rollouts.py makes. The rest: differences to GRPO in pairs by draw, from arena/*/scores.csv and,
for pivotal, arena-transfer/scores.csv; "significant" is after Holm's correction over all of the latter.
"""

from collections.abc import Iterable
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gdro.arena.tables import BASELINE, METRICS, compare
from gdro.methods import METHODS
from gdro.results.style import LABEL_COLORS, METHOD_COLORS, PEER, WIDTH, save, use_style
from gdro.training.files import repository

HOME, HEADLINE = "rare-hard", ("mean_at_8", "pass_at_8", "worst_family")
EVERYWHERE = {"mean_at_8": "mean@8", "training_mix_mean": "training mix"}
OURS = {"pivotal": "Pivotal", "both": "both games", "rollout": "Rollout-GDRO", "prompt": "Prompt-GDRO"}
NO_PEERS = {BASELINE, "pivotal_before", "oracle", "family_even", "pooled", "power", "composed", *OURS}
BEST = 4  # peers drawn: those highest in mean@8 + pass@8
CLASSES = {"0-0.02": "out of reach, p < .02", "0.02-0.3": ".02 to .3", "0.3-0.9": ".3 to .9"}
CLASSES |= {"0.9-1": "solved, p > .9"}


def greeting(measured: Path) -> Figure:
    """The same rollouts, spent where they teach."""
    # what these folders call pivotal is that of 0.2.0
    earlier = [pd.read_csv(file) for file in sorted((measured / "arena").glob("*/scores.csv"))]
    earlier = [table.replace({"method": {"pivotal": "pivotal_before"}}) for table in earlier]
    now = pd.read_csv(measured / "arena-transfer" / "scores.csv")
    everything = pd.concat([*earlier, now])
    home = compare(everything[everything.world == HOME]).set_index(["metric", "method"])
    gains = {metric: home.loc[metric] for metric in HEADLINE}
    everywhere = compare(now)
    everywhere = everywhere[everywhere.method == "pivotal"].set_index(["metric", "world"])
    rollouts = pd.read_csv(measured / "greeting/rollouts.csv")
    worlds = sorted(now.world[now.method == "pivotal"].unique())
    figure = plt.figure(figsize=(WIDTH, 4.5 + 0.16 * len(worlds)))
    upper, lower = figure.subfigures(2, 1, height_ratios=[3.4, 1.1 + 0.16 * len(worlds)])  # type: ignore[misc]
    left, right = upper.subfigures(1, 2, width_ratios=[2.6, 4.4])  # type: ignore[misc]

    axes = left.subplots(2, 1, sharex=True)
    for axis, (method, name) in zip(axes, {BASELINE: "GRPO", "pivotal": "Pivotal"}.items(), strict=True):
        of_steps = rollouts[rollouts.method == method].groupby("step")[list(CLASSES)].sum()
        shares = 100 * of_steps.div(of_steps.sum(axis=1), axis=0)
        trail = shares.rolling(15, min_periods=1).mean()
        look = {"labels": CLASSES.values(), "colors": list(map(LABEL_COLORS.get, CLASSES.values()))}
        axis.stackplot(trail.index, trail.T, linewidth=0, **look)
        title = f"{name}: {shares['0.9-1'].mean():.0f}% on solved prompts"
        axis.set(title=title, ylabel="% of rollouts", ylim=(0, 100), xlim=(1, trail.index.max()))
    axes[1].set_xlabel("training step")
    legend = [entries[::-1] for entries in axes[0].get_legend_handles_labels()]  # as they are stacked
    left.legend(*legend, loc="outside lower center", ncols=2, frameon=False, handlelength=1, columnspacing=1)

    merit = (gains["mean_at_8"].difference + gains["pass_at_8"].difference).sort_values(ascending=False)
    peers = [name for name in merit.index if name in set(METHODS) - NO_PEERS][:BEST]
    names = {name: OURS[name] for name in OURS if name in merit} | {n: METHODS[n].__name__ for n in peers}
    for axis, (metric, table) in zip(
        right.subplots(1, len(HEADLINE), sharey=True), gains.items(), strict=True
    ):
        _dots(axis, table.loc[list(names)], names.values(), [METHOD_COLORS.get(name, PEER) for name in names])
        axis.set_title(METRICS[metric])
    right.supxlabel(f"difference to GRPO at equal rollouts, {HOME}", fontsize=8)

    panels = lower.subplots(1, len(EVERYWHERE), sharey=True)
    for axis, metric in zip(panels, EVERYWHERE, strict=True):
        table = everywhere.loc[metric].loc[worlds]
        _dots(axis, table, worlds, METHOD_COLORS["pivotal"])
        decided = table[table.p_holm < 0.05].difference
        found = f"{(decided > 0).sum()} of {len(table)} worlds above, {(decided < 0).sum()} below"
        axis.set(title=f"Pivotal, {EVERYWHERE[metric]}: {found}")
    lower.supxlabel("difference to GRPO by world; counted: significant after Holm's correction", fontsize=8)
    found = ", ".join(f"{METRICS[m]} {table.difference['pivotal']:+.2f}" for m, table in gains.items())
    figure.suptitle(f"Pivotal in {HOME}, at equal rollouts: {found}")
    return figure


def _dots(axis: Axes, table: pd.DataFrame, names: Iterable[str], colors: str | list[str]) -> None:
    """A dot with its interval for each row, the first at the top."""
    rows = np.arange(len(table))
    axis.hlines(rows, table.low, table.high, colors=colors)
    axis.scatter(table.difference, rows, c=colors, s=16, zorder=3)
    axis.axvline(0, color="black", linewidth=0.8)
    axis.set_yticks(rows, names)
    axis.set_ylim(len(table) - 0.5, -0.5)
    axis.locator_params(axis="x", nbins=4)


if __name__ == "__main__":
    use_style()
    print(save(greeting(repository() / "data/measured"), repository() / "figures", "greeting"))
