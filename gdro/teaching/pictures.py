"""Pictures that notebook 04 draws more than once: gains as maps in which only decided cells have a colour."""

from collections.abc import Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.colors import SymLogNorm
from matplotlib.figure import Figure

from gdro.results.style import DIVERGING, WIDTH


def decided_heatmap(axis: Axes, gains: np.ndarray, verdicts: np.ndarray, reach: float, **labels: Any) -> None:
    """Gains in points, (rows, columns), with ▲ or ▼ and a colour where the verdict is +1 or −1, white at 0.

    Args:
        reach: the gain of the strongest colour.
        labels: `xticklabels` and `yticklabels`.
    """
    values = np.round(gains, 1) + 0.0  # no −0.0
    marked = np.char.add(np.char.mod("%+.1f", values), np.take([" ▼", "", " ▲"], verdicts + 1))
    look: dict[str, Any] = {"norm": SymLogNorm(1.0, vmin=-reach, vmax=reach), "cmap": DIVERGING, "fmt": ""}
    look |= {"annot": marked, "annot_kws": {"size": 7}, "cbar": False}
    sns.heatmap(np.where(verdicts, values, 0), ax=axis, **look, **labels)
    axis.tick_params(labelrotation=0)


def gain_map_figure(
    gains: np.ndarray,
    verdicts: np.ndarray,
    methods: Sequence[str],
    tails: Sequence[float],
    spreads: Sequence[float],
    rollouts: Sequence[int],
) -> Figure:
    """A panel for each method: tails × (budgets × spreads).

    Args:
        gains: (methods, tails, spreads, budgets), points.
        verdicts: the same shape, as `Gain.verdict`.
        methods: their names.
        rollouts: those spent, by budget.
    """
    figure, axes = plt.subplots(
        len(methods), 1, figsize=(WIDTH, 0.9 + len(methods) * (0.15 + 0.2 * len(tails)))
    )
    for axis, method, *of_method in zip(axes, methods, gains, verdicts, strict=True):
        by_tail, sure = (of.swapaxes(1, 2).reshape(len(tails), -1)[::-1] for of in of_method)
        names = {"xticklabels": [*spreads] * len(rollouts), "yticklabels": [*tails][::-1]}
        decided_heatmap(axis, by_tail, sure, max(1.0, np.abs(gains).max()), **names)
        axis.vlines(len(spreads) * np.arange(1, len(rollouts)), 0, len(tails), color="black", lw=1)
        axis.set_ylabel(method.replace(", ", ",\n") + "\ntail", fontsize=7)
        if axis is not axes[-1]:
            axis.set_xticklabels([])
    for budget, spent in enumerate(rollouts):
        axes[0].text(
            len(spreads) * (budget + 0.5), -0.15, f"after {spent:,} rollouts", ha="center", va="bottom"
        )
    axes[-1].set_xlabel("spread (logits)")
    return figure
