"""Records in, figures out: the paper's figures 1 and 3 to 9, for our runs.

Each function takes runs as `gdro.results.read_runs` gives them and returns a matplotlib Figure.
Axes: S seeds, T steps, B bins. Bin 0 is the hardest. Batches are small, so shares are shown as a
trailing mean over `SMOOTH` steps; bands span the seeds. Colours are colour-blind safe.
"""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.colors import TwoSlopeNorm

from gdro import metrics
from gdro.profiles import BASE, Profile
from gdro.results import runs_of

SMOOTH = 15  # steps of the trailing mean
SNAPSHOTS = 4  # steps shown in figures 5 and 9
EASIER, EASIEST = 3, 8  # first bins of the masses in figures 4 and 8
PALETTE = sns.color_palette("colorblind")
REPORTED = "#777777"  # numbers the paper reports


def use_style():
    """The look of all figures: white grid, readable in print."""
    sns.set_theme(
        context="paper",
        style="whitegrid",
        palette="colorblind",
        rc={"figure.dpi": 110, "savefig.dpi": 160, "savefig.bbox": "tight", "axes.titlesize": 10},
    )


def save(figure, folder: str | Path, name: str) -> Path:
    """Write a figure as PNG and close it; returns its path."""
    path = Path(folder) / f"{name}.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    plt.close(figure)
    return path


def series(runs: list[dict], variant: str, key: str) -> np.ndarray:
    """A quantity of the record over seeds and steps: (S, T) or (S, T, B), NaN where there is none."""
    return np.array([[row[key] for row in run["record"]] for run in runs_of(runs, variant)], float)


def smoothed(values_ST, window: int = SMOOTH):
    """Trailing mean over the steps (axis 1), skipping NaN; NaN where the window has no value."""
    values_ST = np.asarray(values_ST, float)
    known = ~np.isnan(values_ST)
    sums, counts = (np.cumsum(part, axis=1) for part in (np.where(known, values_ST, 0.0), known))
    sums[:, window:], counts[:, window:] = (
        sums[:, window:] - sums[:, :-window],
        counts[:, window:] - counts[:, :-window],
    )
    return np.divide(sums, counts, out=np.full(sums.shape, np.nan), where=counts > 0)


def shares(runs: list[dict], variant: str) -> np.ndarray:
    """Share of the prompts that lie in each bin, trailing mean, (S, T, B), over prompts with a bin."""
    batch_STB = smoothed(series(runs, variant, "share"))
    return batch_STB / batch_STB.sum(axis=2, keepdims=True)


# Figure 1: results, weights, rollouts


def results_overview(profile: Profile, runs: list[dict], scores: pd.DataFrame, reported: pd.DataFrame):
    """Figure 1: scores of all methods, gain over GRPO beside the paper's, last weights and rollouts."""
    figure, axes = plt.subplots(2, 2, figsize=(10, 6.4))
    _score_bars(axes[0, 0], scores)
    _gain_bars(axes[0, 1], profile, scores, reported)
    _tail_bars(axes[1, 0], profile, runs, "weight", "prompt", "advantage weight, mean of a batch = 1")
    _tail_bars(axes[1, 1], profile, runs, "rollouts", "rollout", "rollouts per prompt")
    axes[1, 1].axhline(profile.train.mean_rollouts, color="black", linewidth=0.8, linestyle="--")
    figure.tight_layout()
    return figure


def _score_bars(axis, scores):
    names, labels = list(dict.fromkeys(scores["score"])), list(dict.fromkeys(scores["label"]))
    width = 0.8 / len(labels)
    for i, label in enumerate(labels):
        rows = scores[scores["label"] == label].set_index("score").reindex(names)
        error = [rows["value"] - rows["low"], rows["high"] - rows["value"]]
        color = "#bbbbbb" if label == BASE else PALETTE[(i - 1) % len(PALETTE)]
        place = np.arange(len(names)) + (i - (len(labels) - 1) / 2) * width
        axis.bar(place, rows["value"], width, yerr=error, color=color, label=label, capsize=2)
    axis.set_xticks(range(len(names)), [name.replace(" ", "\n") for name in names])
    axis.set(ylabel="held-out score", title="Scores (bars: mean; whiskers: 95% over seeds and prompts)")
    axis.set_ylim(0, 1)
    axis.legend(fontsize=7, ncol=2)


def _gain_bars(axis, profile, scores, reported):
    ours = scores[scores["score"] == f"pass@{profile.evaluation.k}"].set_index("variant")
    bars: list[tuple] = []
    for i, variant in enumerate(profile.variants):
        if variant != "grpo" and "gain" in ours:
            row, grpo = ours.loc[variant], ours["value"]["grpo"]
            spread = [100 * (row.gain - row.gain_low) / grpo, 100 * (row.gain_high - row.gain) / grpo]
            bars.append((f"{row.label}, ours", 100 * row.gain / grpo, spread, PALETTE[i % len(PALETTE)]))
    for model, of_model in reported.groupby("model"):
        value = of_model.set_index("method")["pass@8"]
        for method in ("Prompt-GDRO", "Rollout-GDRO"):
            gain = 100 * (value[method] / value["GRPO"] - 1)
            bars.append((f"{method}, {model} (reported)", gain, None, REPORTED))
    for place, (_, gain, spread, color) in enumerate(bars):
        error = None if spread is None else np.array(spread)[:, None]
        axis.barh(place, gain, color=color, xerr=error, capsize=2, alpha=1 if spread else 0.6)
    axis.set_yticks(range(len(bars)), [bar[0] for bar in bars], fontsize=7)
    axis.invert_yaxis()
    axis.axvline(0, color="black", linewidth=0.8)
    axis.set(
        xlabel=f"gain in pass@{profile.evaluation.k} (paper: pass@8) over GRPO, %",
        title="Relative gain; grey: reported by the paper on math data",
    )


def _tail_bars(axis, profile, runs, key, game, ylabel):
    variants = [name for name, variant in profile.variants.items() if variant.method in (game, "both")]
    width = 0.8 / max(len(variants), 1)
    for i, variant in enumerate(variants):
        values_STB = series(runs, variant, key)
        tail_STB = values_STB[:, -max(values_STB.shape[1] // 5, 1) :]
        if key == "weight":
            tail_STB = tail_STB / _batch_mean_weight(runs, variant)[:, -tail_STB.shape[1] :, None]
        mean_SB = _nanmean(tail_STB, axis=1)
        mean_B = _nanmean(mean_SB, axis=0)
        place = np.arange(len(mean_B)) + (i - (len(variants) - 1) / 2) * width
        axis.bar(place, mean_B, width, label=profile.label(variant))
        axis.plot(np.tile(place, len(mean_SB)), mean_SB.ravel(), "k.", markersize=3)
    axis.set(xlabel="bin (0 hardest)", ylabel=ylabel, title="Last fifth of training (dots: seeds)")
    if variants:
        axis.set(xticks=range(values_STB.shape[2]), xlim=(-0.6, values_STB.shape[2] - 0.4))
        axis.legend(fontsize=7)
    else:
        axis.text(0.5, 0.5, "no such run in this profile", ha="center", transform=axis.transAxes)


def _batch_mean_weight(runs, variant):
    """Mean weight of the prompts of each batch, (S, T)."""
    share_STB, weight_STB = series(runs, variant, "share"), series(runs, variant, "weight")
    return (share_STB * weight_STB).sum(axis=2) / np.maximum(share_STB.sum(axis=2), 1e-12)


# Figures 3 to 6: Prompt-GDRO


def prompt_heatmaps(profile: Profile, runs: list[dict], variant: str):
    """Figure 3: prompt share, adversary's weight and mean reward, steps × bins, mean over seeds."""
    weight_STB = series(runs, variant, "weight") / _batch_mean_weight(runs, variant)[:, :, None]
    panels = [
        (shares(runs, variant), "share of prompts", "viridis", None),
        (smoothed(weight_STB), "weight (batch mean 1)", "vlag", 1.0),
        (smoothed(series(runs, variant, "success")), "success rate", "cividis", None),
    ]
    return _heatmaps(panels, f"{profile.label(variant)}: what it saw and did")


def adversary_trends(profile: Profile, runs: list[dict], variant: str):
    """Figure 4: mean bin index, mass in bins ≥ 3 and ≥ 8, entropy of the adversary's weights."""
    share_STB = shares(runs, variant)
    q_STB = series(runs, variant, "probability")
    figure, axes = plt.subplots(1, 3, figsize=(10, 2.9))
    _band(axes[0], metrics.mean_bin_index(share_STB), "prompts", PALETTE[0])
    _band(axes[0], metrics.mean_bin_index(q_STB), "adversary q", PALETTE[1])
    axes[0].set(title="Mean bin index", ylabel="bin (0 hardest)")
    _mass_lines(axes[1], share_STB, "prompts")
    axes[1].set(title="Mass in the easier bins", ylabel="share of prompts", ylim=(0, 1.02))
    _band(axes[2], metrics.effective_number(q_STB), "adversary q", PALETTE[1])
    axes[2].set(title="Effective number of bins, exp(entropy)", ylabel="bins", ylim=(0, q_STB.shape[2] + 1))
    return _finish_trends(figure, axes, f"{profile.label(variant)} over training")


def bin_snapshots(profile: Profile, runs: list[dict], variant: str):
    """Figure 5: distribution of the prompts over the bins at four steps."""
    share_STB = shares(runs, variant)
    figure, axes = plt.subplots(1, SNAPSHOTS, figsize=(10, 2.5), sharey=True)
    for axis, step in zip(axes, _snapshot_steps(share_STB.shape[1]), strict=True):
        mean_B = share_STB[:, step].mean(axis=0)
        axis.bar(range(len(mean_B)), mean_B, color=PALETTE[0])
        axis.set(title=f"step {step + 1}", xlabel="bin (0 hardest)", xticks=range(len(mean_B)))
    axes[0].set_ylabel(f"share of prompts\n(trailing {SMOOTH} steps)")
    figure.suptitle(f"{profile.label(variant)}: where the prompts are", fontsize=11)
    figure.tight_layout()
    return figure


def lead_lag_and_error(profile: Profile, runs: list[dict], prompt: str, rollout: str, reported: pd.DataFrame):
    """Figure 6: lead–lag Δμ(t), (32), and WSE(t), (33), against uniform rollouts."""
    figure, axes = plt.subplots(1, 2, figsize=(10, 3.1))
    lead_ST = metrics.lead_lag(series(runs, prompt, "weight"), shares(runs, prompt))
    _band(axes[0], lead_ST, profile.label(prompt), PALETTE[0])
    equal_ST = metrics.lead_lag(np.ones(series(runs, prompt, "weight").shape), shares(runs, prompt))
    _band(axes[0], equal_ST, "equal weights (no adversary)", PALETTE[7], "--")
    axes[0].set(title="Lead–lag (32): below the dashed line, towards harder bins", ylabel="Δμ(t), bins")
    error_ST, uniform_ST = weighted_errors(profile, runs, rollout)
    _band(axes[1], smoothed(error_ST), f"{profile.label(rollout)} allocation", PALETTE[1])
    _band(axes[1], smoothed(uniform_ST), "uniform, same budget", PALETTE[0])
    cut = 100 * (1 - np.nanmean(error_ST) / np.nanmean(uniform_ST))
    paper = reported.loc[reported["quantity"].str.startswith("WSE"), "value"]
    axes[1].set(
        title=f"WSE (33): {abs(cut):.1f}% {'below' if cut >= 0 else 'above'} uniform "
        f"(paper reports {paper.min():.1f} to {paper.max():.1f}% below)",
        ylabel="weighted standard error",
        ylim=(0, None),
    )
    return _finish_trends(figure, axes, "")


def weighted_errors(profile: Profile, runs: list[dict], variant: str):
    """WSE of each batch as allotted and with n̄ everywhere, (S, T) each; σ̂ is a trailing mean."""
    share_STB, rollouts_STB = series(runs, variant, "share"), series(runs, variant, "rollouts")
    sigma_STB = smoothed(series(runs, variant, "deviation"))
    present = (share_STB > 0) & ~np.isnan(sigma_STB)
    share_STB = np.where(present, share_STB, 0.0)
    sigma_STB, rollouts_STB = np.where(present, sigma_STB, 0.0), np.where(present, rollouts_STB, 1.0)
    uniform_STB = np.full(share_STB.shape, float(profile.train_of(variant).mean_rollouts))
    return (
        metrics.weighted_standard_error(sigma_STB, share_STB, rollouts_STB),
        metrics.weighted_standard_error(sigma_STB, share_STB, uniform_STB),
    )


# Figures 7 to 9: Rollout-GDRO


def rollout_heatmaps(profile: Profile, runs: list[dict], variant: str):
    """Figure 7: prompt share and rollouts per prompt, steps × bins, mean over seeds."""
    panels = [
        (shares(runs, variant), "share of prompts", "viridis", None),
        (
            smoothed(series(runs, variant, "rollouts")),
            "rollouts per prompt",
            "vlag",
            float(profile.train_of(variant).mean_rollouts),
        ),
    ]
    return _heatmaps(panels, f"{profile.label(variant)}: data and compute")


def budget_trends(profile: Profile, runs: list[dict], variant: str):
    """Figure 8: mean bin index, share of prompts and of rollouts in the easier bins, price."""
    share_STB, budget_STB = shares(runs, variant), budget_shares(runs, variant)
    figure, axes = plt.subplots(1, 4, figsize=(12.5, 2.9))
    _band(axes[0], metrics.mean_bin_index(share_STB), "prompts", PALETTE[0])
    _band(axes[0], metrics.mean_bin_index(budget_STB), "rollouts", PALETTE[1])
    axes[0].set(title="Mean bin index", ylabel="bin (0 hardest)")
    for part, first in enumerate((EASIER, EASIEST)):
        style = ("-", "--")[part]
        for values, name, color in ((share_STB, "prompts", PALETTE[0]), (budget_STB, "rollouts", PALETTE[1])):
            _band(axes[1], metrics.mass_from_bin(values, first), f"{name}, bins ≥ {first}", color, style)
    axes[1].set(title="Mass in the easier bins", ylabel="share", ylim=(0, 1.02))
    _band(axes[2], metrics.effective_number(share_STB), "prompts", PALETTE[0])
    _band(axes[2], metrics.effective_number(budget_STB), "rollouts", PALETTE[1])
    axes[2].set(title="Effective number of bins", ylabel="bins", ylim=(0, None))
    _band(axes[3], series(runs, variant, "price"), "price μ", PALETTE[2])
    axes[3].set(title="Shadow price", ylabel="relative to the average bin")
    return _finish_trends(figure, axes, f"{profile.label(variant)} over training")


def data_against_budget(profile: Profile, runs: list[dict], variant: str):
    """Figure 9: share of prompts beside share of rollouts, by bin, at four steps."""
    share_STB, budget_STB = shares(runs, variant), budget_shares(runs, variant)
    figure, axes = plt.subplots(1, SNAPSHOTS, figsize=(10, 2.5), sharey=True)
    for axis, step in zip(axes, _snapshot_steps(share_STB.shape[1]), strict=True):
        place = np.arange(share_STB.shape[2])
        axis.bar(place - 0.2, share_STB[:, step].mean(axis=0), 0.4, label="prompts", color=PALETTE[0])
        axis.bar(place + 0.2, budget_STB[:, step].mean(axis=0), 0.4, label="rollouts", color=PALETTE[1])
        axis.set(title=f"step {step + 1}", xlabel="bin (0 hardest)", xticks=place)
    axes[0].set_ylabel(f"share\n(trailing {SMOOTH} steps)")
    axes[0].legend(fontsize=7)
    figure.suptitle(f"{profile.label(variant)}: data share against budget share", fontsize=11)
    figure.tight_layout()
    return figure


def budget_shares(runs: list[dict], variant: str) -> np.ndarray:
    """Share of the rollouts that each bin was given, trailing mean, (S, T, B)."""
    spent_STB = series(runs, variant, "share") * np.nan_to_num(series(runs, variant, "rollouts"))
    spent_STB = smoothed(spent_STB)
    return spent_STB / spent_STB.sum(axis=2, keepdims=True)


# One run, and learning curves of all


def one_run(record: list[dict], title: str):
    """A single run: share of prompts by bin, weights, rollouts, and the reward over the steps."""
    runs = [{"variant": "it", "seed": 0, "record": record}]
    figure, axes = plt.subplots(1, 4, figsize=(12.5, 2.8))
    for axis, (values_STB, name, palette) in zip(
        axes,
        (
            (shares(runs, "it"), "share of prompts", "viridis"),
            (series(runs, "it", "weight"), "adversary's weight", "magma"),
            (smoothed(series(runs, "it", "rollouts")), "rollouts per prompt", "cividis"),
        ),
        strict=False,
    ):
        image = axis.imshow(values_STB[0].T, aspect="auto", origin="lower", cmap=palette)
        axis.set(xlabel="step", ylabel="bin (0 hardest)", title=name)
        axis.grid(False)
        figure.colorbar(image, ax=axis)
    _band(axes[3], smoothed(series(runs, "it", "mean_reward")), "mean reward", PALETTE[0])
    axes[3].set(xlabel="step", title=f"reward (trailing {SMOOTH} steps)")
    figure.suptitle(title, fontsize=11)
    figure.tight_layout()
    plt.close(figure)  # the notebook shows the object it is handed, once
    return figure


def learning_curves(profile: Profile, runs: list[dict]):
    """Mean reward of the training batches of every variant, trailing mean, band over seeds."""
    figure, axis = plt.subplots(figsize=(6, 3.2))
    for i, variant in enumerate(profile.variants):
        _band(axis, smoothed(series(runs, variant, "mean_reward")), profile.label(variant), PALETTE[i % 10])
    axis.set(ylabel=f"mean reward of the batch\n(trailing {SMOOTH} steps)", title="Training reward")
    return _finish_trends(figure, [axis], "")


def stage_bars(stages: pd.DataFrame, title: str):
    """Seconds a training step, split by stage: one bar a row (variant), one colour a column (stage)."""
    figure, axis = plt.subplots(figsize=(7, 1.2 + 0.4 * len(stages)))
    stages.iloc[::-1].plot.barh(stacked=True, ax=axis, color=PALETTE[: stages.shape[1]], width=0.7)
    axis.set(xlabel="seconds a training step", title=title)
    axis.grid(axis="y", visible=False)
    axis.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False)
    return figure


# Shared parts


def _heatmaps(panels, title):
    figure, axes = plt.subplots(1, len(panels), figsize=(3.6 * len(panels) + 0.6, 3.0))
    for axis, (values_STB, name, palette, center) in zip(axes, panels, strict=True):
        mean_TB = _nanmean(values_STB, axis=0)
        norm = None
        if center is not None:  # diverging colours, white at what GRPO would do
            low, high = np.nanmin(mean_TB), np.nanmax(mean_TB)
            norm = TwoSlopeNorm(center, min(low, center - 0.1), max(high, center + 0.1))
        steps, bins = mean_TB.shape
        image = axis.imshow(
            mean_TB.T, aspect="auto", origin="lower", cmap=palette, interpolation="nearest",
            extent=(0.5, steps + 0.5, -0.5, bins - 0.5), norm=norm,
        )  # fmt: skip
        axis.set(xlabel="step", ylabel="bin (0 hardest)", title=name, yticks=range(bins))
        axis.grid(False)
        axis.set_facecolor("#dddddd")
        figure.colorbar(image, ax=axis)
    figure.suptitle(f"{title} (grey: no prompt in that bin)", fontsize=11)
    figure.tight_layout()
    return figure


def _mass_lines(axis, share_STB, name):
    for first, color in ((EASIER, PALETTE[0]), (EASIEST, PALETTE[2])):
        _band(axis, metrics.mass_from_bin(share_STB, first), f"{name}, bins ≥ {first}", color)


def _band(axis, values_ST, label, color, style="-"):
    steps = np.arange(1, values_ST.shape[1] + 1)
    axis.plot(steps, _nanmean(values_ST, axis=0), style, color=color, label=label, linewidth=1.4)
    if len(values_ST) > 1:
        low, high = np.fmin.reduce(values_ST, axis=0), np.fmax.reduce(values_ST, axis=0)
        axis.fill_between(steps, low, high, color=color, alpha=0.2, linewidth=0)


def _nanmean(values, axis):
    known = ~np.isnan(values)
    total, count = np.where(known, values, 0.0).sum(axis=axis), known.sum(axis=axis)
    return np.divide(total, count, out=np.full(np.shape(total), np.nan), where=count > 0)


def _snapshot_steps(num_steps):
    return np.linspace(num_steps / SNAPSHOTS, num_steps, SNAPSHOTS).astype(int) - 1


def _finish_trends(figure, axes, title):
    for axis in axes:
        axis.set_xlabel("step")
        axis.legend(fontsize=7)
    if title:
        figure.suptitle(title, fontsize=11)
    figure.tight_layout()
    return figure
