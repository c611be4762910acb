"""Pictures of notebook 00, so that its cells hold what is taught.

Axes: P prompts, R answers of a prompt.
"""

from collections.abc import Callable, Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from gdro_lab.experiments.style import METHOD_COLORS, OTHERS, WIDTH
from gdro_lab.tasks.embedded import EmbeddedTask

KINDS = {0.02: "hardly ever", 0.5: "half of the time", 0.98: "nearly always"}
KIND_COLORS = (OTHERS[2], OTHERS[4], OTHERS[1])


def answer_grid(axis: Axes, correct_PR: np.ndarray, size: float) -> None:
    """A column for each prompt, with a filled square for a correct answer and an empty one else."""
    for label, face, chosen_PR in (
        ("correct", OTHERS[4], correct_PR),
        ("wrong", "white", ~correct_PR),
    ):
        place, row = np.nonzero(chosen_PR)
        axis.scatter(
            place,
            row,
            s=size,
            marker="s",
            c=face,
            edgecolors="black",
            lw=size**0.5 / 10,
            label=label,
        )
    prompts, answers = correct_PR.shape
    axis.set(xlim=(-0.7, prompts - 0.3), ylim=(-0.6, answers - 0.4), xlabel="prompt")
    axis.grid(False)


def one_step(correct_PR: np.ndarray, pass_rate_P: np.ndarray) -> Figure:
    """All answers of a step, with the prompts' kinds above them."""
    prompts, answers = correct_PR.shape
    figure, axis = plt.subplots(figsize=(WIDTH, 0.9 + 0.2 * answers))
    answer_grid(axis, correct_PR, size=70)
    axis.set(ylabel="answer", ylim=(-0.6, answers + 1))
    axis.set(yticks=range(answers), yticklabels=range(1, answers + 1))
    axis.set(xticks=range(prompts), xticklabels=range(1, prompts + 1))
    for rate, words in KINDS.items():
        places = np.flatnonzero(pass_rate_P == rate)
        axis.text(places.mean(), answers + 0.1, words, ha="center", fontsize=7.5)
        if places[0] > 0:
            axis.axvline(places[0] - 0.5, color="black", lw=0.8)
    figure.legend(loc="outside right center", frameon=False)
    mixed = (correct_PR.any(axis=1) & ~correct_PR.all(axis=1)).sum()
    figure.suptitle(
        f"{prompts} prompts with {answers} answers each: "
        f"{mixed} groups hold correct and wrong answers"
    )
    return figure


def mixed_picture(n: int, p: float) -> Figure:
    """A step in which all prompts have one pass rate; the columns of mixed groups are shaded."""
    prompts = 24
    correct_PR = np.less(np.random.default_rng(0).random((prompts, n)), p)
    hits_P = correct_PR.sum(axis=1)
    mixed_P = (hits_P > 0) & (hits_P < n)
    figure, axis = plt.subplots(figsize=(2.33, 2.3))
    for place in np.flatnonzero(mixed_P):
        axis.axvspan(place - 0.5, place + 0.5, color="#d5d5d5", lw=0)
    answer_grid(axis, correct_PR, size=9)
    axis.set(xticks=[], yticks=[0, n - 1], yticklabels=[1, n], ylabel="answer", ylim=(-0.6, 15.6))
    expected = prompts * (1 - p**n - (1 - p) ** n)
    axis.set_title(f"n = {n}, p = {p:g}: {mixed_P.sum()} of {prompts}\nmixed (mean {expected:.1f})")
    return figure


def random_tables(task: EmbeddedTask, sign: str, framed: Sequence[tuple[int, int]]) -> Figure:
    """The table of each sign; the entries `framed` of one of them are what an answer needs."""
    figure, axes = plt.subplots(1, len(task.tables), figsize=(WIDTH, 2.0), sharey=True)
    for axis, family, table in zip(axes, task.spec.families, task.tables, strict=True):
        axis.imshow(table, cmap="Greys", vmin=-1, vmax=9)
        for (a, b), value in np.ndenumerate(table):
            used = family.operator == sign and (a, b) in framed
            weight = "bold" if used else "normal"
            axis.text(b, a, value, ha="center", va="center", weight=weight)
            if used:
                corner = (b - 0.46, a - 0.46)
                axis.add_patch(plt.Rectangle(corner, 0.92, 0.92, fill=False, ec="black", lw=1.6))
        axis.set(title=f"a {family.operator} b", xlabel="b", xticks=range(4), yticks=range(4))
        axis.grid(False)
    axes[0].set_ylabel("a")
    return figure


def mixed_by_kind(n: int, prompts: pd.Series, mixed: pd.Series) -> Figure:
    """Left: the probability that a group is mixed. Right: how many groups of each kind are."""
    p = np.linspace(0, 1, 201)
    figure, (left, right) = plt.subplots(1, 2, figsize=(WIDTH, 2.7), width_ratios=[1.3, 1])
    for size, style in zip((2 * n, n, max(n // 2, 1)), ("-.", "-", ":"), strict=True):
        left.plot(p, 1 - p**size - (1 - p) ** size, f"k{style}", lw=1.3, label=f"n = {size}")
    for rate, color, mark in zip(prompts.index, KIND_COLORS, "vos", strict=True):
        left.plot(rate, 1 - rate**n - (1 - rate) ** n, mark, color=color, ms=7)
    left.set(xlabel="pass rate p of the prompt", ylabel="probability", ylim=(0, 1.05))
    left.set_title("Probability that a group of n is mixed")
    left.legend(loc="lower center", frameon=False)
    names = [words.replace(" of the time", "") for words in KINDS.values()]
    right.bar(names, prompts, color=KIND_COLORS, alpha=0.35, edgecolor="black")
    right.bar(names, mixed, color=KIND_COLORS, edgecolor="black", hatch="//")
    right.set(title=f"groups of {n}", ylabel="groups of the batch")
    right.yaxis.set_major_locator(MaxNLocator(integer=True))
    # bars have three colours, so the legend has none
    all_groups = Patch(facecolor="#dddddd", edgecolor="black", label="all groups")
    mixed_ones = Patch(
        facecolor="#888888", edgecolor="black", hatch="//", label="mixed, on average"
    )
    right.legend(handles=[all_groups, mixed_ones], loc="upper left", frameon=False)
    silent = 100 * (1 - mixed.sum() / prompts.sum())
    figure.suptitle(f"On average {silent:.0f}% of the groups are not mixed, and teach nothing")
    return figure


def adversary_picture(
    signal: Callable[[np.ndarray], np.ndarray],
    sets: pd.Series,
    plain: float,
    words: Mapping[str, str],
    color: str,
) -> Figure:
    """Left: what an adversary looks at. Right: what it makes of it, beside GRPO.

    Args:
        signal: of the pass rate.
        sets: by pass rate.
        plain: the same under GRPO.
        words: `name`, what it `sees`, `sets` and `does`.
    """
    figure, (left, right) = plt.subplots(1, 2, figsize=(WIDTH, 2.3))
    rates = sets.index.to_numpy()
    place = np.arange(len(rates))
    curve = np.linspace(0, 1, 101)
    left.plot(curve, signal(curve), color="black")
    left.plot(rates, signal(rates), "o", color=color, ms=7)
    left.set(xlabel="pass rate p", title=f"It looks at {words['sees']}")
    right.bar(place - 0.2, len(rates) * [plain], 0.38, color=METHOD_COLORS["base"], label="GRPO")
    right.bar(place + 0.2, sets, 0.38, color=color, hatch="//", label=words["name"])
    right.set(xticks=place, xticklabels=[f"p = {p:g}" for p in rates])
    right.set_title(f"It sets the {words['sets']} of a prompt")
    right.yaxis.set_major_locator(MaxNLocator(integer=sets.max() > 4))
    figure.legend(loc="outside lower center", ncols=2, frameon=False)
    figure.suptitle(f"{words['name']} {words['does']}")
    return figure
