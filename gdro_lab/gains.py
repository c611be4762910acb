"""The picture of docs/results.md, from data/studies alone: gains over GRPO at its learning rate.

    python -m gdro_lab.gains    # figures/gains.png and .pdf

A panel a world, a row a method: the difference from GRPO in mean@8, pass@8 and the training mix,
with 95% intervals. The rows are those of data/claims.csv, of the study by-prompt where it has the
method. The title says in how many worlds an interval lies above 0.
"""

import re

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gdro_lab.claims import ROOT, pairs_of, read_claims
from gdro_lab.experiments.style import WIDTH, save, use_style
from gdro_lab.intervals import paired_t

Pairs = dict[tuple[str, str], pd.DataFrame]

METHODS = {
    "prompt": "Prompt-GDRO",
    "rollout": "Rollout-GDRO",
    "both": "both games",
    "rollout_prompts": "rollouts by prompt",
    "pkpo": "PKPO",
    "pkpo_rollouts": "PKPO and rollouts\nby prompt",
    "pivotal": "pivotal",
}
TITLES = {
    "rare-hard": "rare-hard\nrare ones hard",
    "all-hard": "all-hard\nall hard",
    "gym-weak": "gym-weak\npuzzles",
    "steps": "steps\nanswers in steps",
    "learnable": "learnable\nSmolLM2-135M",
}
# dark and light, filled and open, so that it reads in grey; label, colours, place beside the line
SCORES = {
    "mean_at_8": ("mean@8: every kind of prompt counts the same", "#0b4f8a", "#0b4f8a", "o", -0.26),
    "pass_at_8": ("pass@8: any of 8 correct", "#c2571a", "#f5d0b5", "s", 0.0),
    "training_mix_mean": (
        "training mix: mean@8, kinds as frequent as in training",
        "#8a8a8a",
        "white",
        "D",
        0.26,
    ),
}


def gains_figure(claims: pd.DataFrame) -> Figure:
    """A panel a world, with a dot and an interval for each method and score."""
    rates = claims[["configuration", "baseline"]].map(re.compile(r"@(\S+)").findall)
    equal = claims[rates.configuration == rates.baseline]
    pairs = {
        (claim.id.removeprefix("by-prompt/"), claim.score): pairs_of(claim)
        for claim in equal.itertuples()
    }
    figure, axes = plt.subplots(1, len(TITLES), figsize=(WIDTH, 4.4), sharex=True, sharey=True)
    for axis, (world, title) in zip(axes, TITLES.items(), strict=True):
        _panel(axis, world, pairs)
        axis.set(title=title, xlabel="gain over GRPO")
    axes[0].set_yticks(range(len(METHODS)), METHODS.values())
    axes[0].set_ylim(len(METHODS) - 0.5, -0.5)
    axes[0].set_xlim(-0.09, 0.16)
    axes[0].set_xticks([-0.05, 0, 0.05, 0.1, 0.15], ["−.05", "0", ".05", ".10", ".15"])
    tiny = [world for world in TITLES if world not in ("steps", "learnable")]
    counts = {method: sum(_gains(pairs, world, method) for world in tiny) for method in METHODS}

    def found(world: str) -> str:
        names = [name for method, name in METHODS.items() if _gains(pairs, world, method)]
        return ", ".join(names) or "no method"

    figure.suptitle(
        f"mean@8 rises with both games in {counts['both']} of {len(tiny)} tiny worlds, with PKPO "
        f"in {counts['pkpo']}, with pivotal in {counts['pivotal']};\n"
        f"where answers have steps with {found('steps')}, on SmolLM2 with {found('learnable')}",
        x=0.01,
        ha="left",
    )
    handles, names = axes[0].get_legend_handles_labels()
    figure.legend(
        handles[:3],
        names[:3],
        title="At GRPO's learning rate, with 95% intervals",
        title_fontsize="medium",
        alignment="left",
        loc="outside lower left",
        ncols=2,
        frameon=False,
    )
    return figure


def _gains(pairs: Pairs, world: str, method: str) -> bool:
    """Whether a method ran in a world, and its interval of mean@8 lies above 0."""
    claim = (f"{world}/{method}", "mean_at_8")
    if claim not in pairs:
        return False
    interval = paired_t(pairs[claim].difference)
    return bool(interval.mean > interval.half)


def _panel(axis: Axes, world: str, pairs: Pairs) -> None:
    axis.axvline(0, color="black", linewidth=0.8)
    for row, method in enumerate(METHODS):
        claim = f"{world}/{method}"
        if (claim, "mean_at_8") not in pairs:
            axis.text(0.01, row, "not run", va="center", color="#595959", size=7)
            continue
        for score, (label, color, face, marker, height) in SCORES.items():
            interval = paired_t(pairs[claim, score].difference)
            axis.errorbar(
                interval.mean,
                row + height,
                xerr=interval.half,
                color=color,
                marker=marker,
                markerfacecolor=face,
                label=label,
            )
    axis.grid(visible=False, axis="y")


if __name__ == "__main__":
    use_style()
    print(save(gains_figure(read_claims()), ROOT / "figures", "gains"))
