"""The paper's figures 1 and 3 to 9, drawn from runs' records as `gdro.report.read_runs` gives them.

Axes: S seeds, T steps, B bins (0 hardest). Batches are small, so shares are a trailing mean over `SMOOTH`
steps. Bands span the seeds.
"""

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.colors import TwoSlopeNorm
from matplotlib.figure import Figure
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import ArrayLike

from gdro import metrics
from gdro.profiles import BASE, Profile, repository
from gdro.style import COLORS, DATA, DIVERGING, EMPTY, METHODS, REPORTED, WIDTH, legend_below

SMOOTH = 15  # steps of the trailing mean
SNAPSHOTS = 4  # steps shown in figures 5 and 9
EASIER = 3  # first bin of the mass in figures 4 and 8


def runs_of(runs: list[dict], variant: str) -> list[dict]:
    """A variant's runs, by seed."""
    found = sorted((run for run in runs if run["variant"] == variant), key=lambda run: run["seed"])
    if not found:
        raise ValueError(f"no run of variant {variant!r}; there are {sorted({r['variant'] for r in runs})}")
    return found


def series(runs: list[dict], variant: str, key: str) -> np.ndarray:
    """A quantity of the record over seeds and steps: (S, T) or (S, T, B), NaN where there is none."""
    return np.array([[row[key] for row in run["record"]] for run in runs_of(runs, variant)], float)


def smoothed(values_ST: ArrayLike, window: int = SMOOTH) -> np.ndarray:
    """Trailing mean over the steps (axis 1) that skips NaN; NaN where the window has no value."""
    values = np.asarray(values_ST, float)
    before = np.full((len(values), window - 1, *values.shape[2:]), np.nan)
    return _nanmean(sliding_window_view(np.concatenate([before, values], axis=1), window, axis=1), -1)


def shares(runs: list[dict], variant: str, key: str = "") -> np.ndarray:
    """Trailing mean share of each bin, (S, T, B), of the prompts, or of them times `key` (rollouts)."""
    batch_STB = series(runs, variant, "share")
    if key:
        batch_STB = batch_STB * np.nan_to_num(series(runs, variant, key))
    mean_STB = smoothed(batch_STB)
    return _ratio(mean_STB, mean_STB.sum(axis=2, keepdims=True))


def weights(runs: list[dict], variant: str) -> np.ndarray:
    """Weight of each bin over the mean weight of its batch, (S, T, B); NaN where the bin has no prompt."""
    share_STB, weight_STB = series(runs, variant, "share"), series(runs, variant, "weight")
    parts = np.nan_to_num(weight_STB), 1.0
    mean_ST1 = _ratio(*((share_STB * part).sum(axis=2, keepdims=True) for part in parts))
    return np.where(share_STB > 0, weight_STB, np.nan) / mean_ST1


def _ratio(values, totals):
    return np.divide(values, totals, out=np.full(np.shape(values), np.nan), where=totals > 0)


def _nanmean(values, axis):
    known = ~np.isnan(values)
    return _ratio(np.where(known, values, 0.0).sum(axis=axis), known.sum(axis=axis))


def _of_steps(metric, *values_STB):
    """A metric of each step, (S, T); NaN where one of its arguments is."""
    known_ST = np.logical_and.reduce([np.isfinite(values).all(axis=2) for values in values_STB])
    result_ST = np.full(known_ST.shape, np.nan)
    result_ST[known_ST] = metric(*(values[known_ST] for values in values_STB))
    return result_ST


def paper_figures(profile: Profile, runs: list[dict], scores: pd.DataFrame) -> dict[str, Figure]:
    """Figures 1 and 3 to 9 and the learning curves, by file name, as far as the profile has the methods."""
    colors = variant_colors(profile)
    rewards = {
        profile.label(v): (smoothed(series(runs, v, "mean_reward")), colors[v]) for v in profile.variants
    }
    ends = {label: values_ST[:, -1].mean() for label, (values_ST, _) in rewards.items()}
    best = max(ends, key=lambda label: ends[label])
    title = f"Training reward at the end: {best} highest with {ends[best]:.2f}"
    drawn = {
        "fig1_overview": results_overview(profile, runs, scores),
        "learning_curves": _trends({"": ("mean reward of the batch", rewards)}, title),
    }
    played = {}
    for game in ("prompt", "rollout"):
        if found := [name for name, variant in profile.variants.items() if variant.method in (game, "both")]:
            played[game] = found[0]
            drawn |= game_figures(profile, runs, found[0], game)
    if len(played) == 2:
        drawn["fig6_lead_lag_wse"] = lead_lag_and_error(profile, runs, **played)
    return drawn


def variant_colors(profile: Profile) -> dict[str, str]:
    """Each variant's colour: that of its method, paler for the method's second and further variants."""
    colors = {BASE: METHODS[BASE]}
    for method in dict.fromkeys(variant.method for variant in profile.variants.values()):
        own = [name for name, variant in profile.variants.items() if variant.method == method]
        shades = sns.blend_palette([METHODS.get(method, COLORS[5]), "white"], len(own) + 1).as_hex()
        colors |= dict(zip(own, shades, strict=False))
    return colors


def results_overview(profile: Profile, runs: list[dict], scores: pd.DataFrame) -> Figure:
    """Figure 1: scores, gain over GRPO beside the paper's, weights and rollouts at the end of training."""
    figure = plt.figure(figsize=(WIDTH, 5.0))
    parts: Any = figure.subfigures(2, 1)
    (top, gains), (left, right) = (part.subplots(1, 2) for part in parts)
    colors, names = variant_colors(profile), list(dict.fromkeys(scores["score"]))
    for i, variant in enumerate(colors):
        rows = scores[scores["variant"] == variant].set_index("score").reindex(names)
        error = [rows["value"] - rows["low"], rows["high"] - rows["value"]]
        look = {"color": colors[variant], "label": profile.label(variant), "error_kw": {"lw": 0.8}}
        place, width = _beside(i, len(colors), len(names))
        top.bar(place, rows["value"], width, yerr=error, **look)
    top.set_xticks(range(len(names)), [name.replace(" ", "\n").replace("-", "\n") for name in names])
    top.set(ylabel="held-out score", ylim=(0, 1), title="Scores: mean, 95% over seeds and prompts")
    _gains(gains, profile, scores, colors)
    _last_fifth(left, profile, "prompt", lambda name: weights(runs, name), colors)
    left.set(ylabel="weight (batch mean 1)", title="Weights, last fifth of training")
    _last_fifth(right, profile, "rollout", lambda name: series(runs, name, "rollouts"), colors)
    right.set(ylabel="rollouts per prompt", title="Rollouts, last fifth (dashed: GRPO)")
    right.axhline(profile.train.num_generations, color=METHODS["grpo"], linestyle="--", linewidth=1)
    legend_below(figure)
    return figure


def _gains(axis, profile, scores, colors):
    """Relative gain in pass@k over GRPO: ours with intervals, the paper's in grey."""
    ours = scores[scores["score"] == f"pass@{profile.evaluation.k}"].set_index("variant")
    gains = ours.reindex(columns=["gain", "gain_low", "gain_high"]).dropna()
    gains *= 100 / ours["value"].get("grpo", np.nan)
    for name, (gain, low, high) in zip(gains.index, gains.to_numpy(), strict=True):
        look = {"color": colors[name], "xerr": [[gain - low], [high - gain]], "error_kw": {"lw": 0.8}}
        axis.barh(f"{profile.label(name)}, ours", gain, **look)
    reported = pd.read_csv(repository() / "data/paper/results.csv").set_index(["model", "method"])["pass@8"]
    for (model, method), value in reported.drop("GRPO", level="method").items():
        gain = 100 * (value / reported[model, "GRPO"] - 1)
        axis.barh(f"{method}, {model} (paper)", gain, color=REPORTED)
    axis.invert_yaxis()
    axis.axvline(0, color="black", linewidth=0.8)
    found = ", ".join(profile.label(name) for name in gains.index[gains["gain_low"] > 0])
    title = f"{found} above GRPO" if found else "Ours: no gain is shown"
    axis.set(xlabel="gain in pass@k over GRPO, %", title=title)


def _last_fifth(axis, profile, game, values_of, colors):
    """Mean by bin, dots for seeds; bins without prompts have no bar."""
    variants = [name for name, variant in profile.variants.items() if variant.method in (game, "both")]
    for i, name in enumerate(variants):
        values_STB = values_of(name)
        mean_SB = _nanmean(values_STB[:, -max(values_STB.shape[1] // 5, 1) :], axis=1)
        place, width = _beside(i, len(variants), mean_SB.shape[1])
        axis.bar(place, _nanmean(mean_SB, axis=0), width, color=colors[name])
        axis.plot(np.tile(place, len(mean_SB)), mean_SB.ravel(), "k.", markersize=2.5)
        axis.set(xticks=range(mean_SB.shape[1]), xlim=(-0.6, mean_SB.shape[1] - 0.4))
    axis.set_xlabel("bin, 0 hardest (dots: seeds)")


def _beside(i, count, size):
    """Places and width of the i-th of `count` bars at each of `size` ticks."""
    return np.arange(size) + 0.8 * ((i + 0.5) / count - 0.5), 0.8 / count


def game_figures(profile: Profile, runs: list[dict], variant: str, game: str) -> dict[str, Figure]:
    """Figures 3 to 5 (game "prompt") or 7 to 9 ("rollout"): what the adversary saw and did."""
    label, data_STB = profile.label(variant), shares(runs, variant)
    maps: dict[str, tuple] = {"share of prompts": (data_STB, None)}
    prompts = {"prompts": (data_STB, DATA)}
    if game == "prompt":
        last_B = _nanmean(data_STB[:, -1], axis=0)
        crowd = f"{label}: bin {last_B.argmax()} holds {100 * last_B.max():.0f}% of the prompts at the end"
        maps["weight (batch mean 1)"] = smoothed(weights(runs, variant)), 1.0
        maps["success rate"] = smoothed(series(runs, variant, "success")), None
        chosen = {"adversary q": (series(runs, variant, "probability"), METHODS[game])}
        trends = _trends(*_distributions(prompts | chosen, f"{label}: the adversary's q"))
        names = "fig3_prompt_heatmaps", "fig4_adversary_trends", "fig5_bin_snapshots"
        return dict(zip(names, (_heatmaps(maps, crowd), trends, _snapshots(prompts, crowd)), strict=True))
    even, budget_STB = profile.train_of(variant).num_generations, shares(runs, variant, "rollouts")
    rollouts_STB = smoothed(series(runs, variant, "rollouts"))
    maps["rollouts per prompt"] = rollouts_STB, float(even)
    spent = prompts | {"rollouts": (budget_STB, METHODS[game])}
    panels, finding = _distributions(spent, f"{label}: the budget")
    panels["Shadow price"] = "μ (mean bin: 1)", {"_price": (series(runs, variant, "price"), METHODS[game])}
    moved = 50 * np.nanmean(np.abs(budget_STB - data_STB).sum(axis=2))
    least, most = np.nanmin(rollouts_STB), np.nanmax(rollouts_STB)
    title = f"{label}: bins get {least:.1f} to {most:.1f} rollouts per prompt (GRPO: {even:g})"
    moves = f"{label} moves {moved:.1f}% of the rollouts between bins"
    return {
        "fig7_rollout_heatmaps": _heatmaps(maps, title),
        "fig8_budget_trends": _trends(panels, finding),
        "fig9_data_against_budget": _snapshots(spent, moves),
    }


def lead_lag_and_error(profile: Profile, runs: list[dict], prompt: str, rollout: str) -> Figure:
    """Figure 6: lead–lag Δμ(t), (32), and WSE(t), (33), against uniform rollouts; σ̂ is a trailing mean."""
    weight_STB, share_STB = series(runs, prompt, "weight"), shares(runs, prompt)
    lead_ST = _of_steps(metrics.lead_lag, weight_STB, share_STB)
    even_ST = _of_steps(metrics.lead_lag, np.ones(weight_STB.shape), share_STB)
    share_STB, sigma_STB = series(runs, rollout, "share"), smoothed(series(runs, rollout, "deviation"))
    share_STB = np.where(np.isnan(sigma_STB), 0.0, share_STB)
    errors_ST = [
        metrics.weighted_standard_error(sigma_STB, share_STB, rollouts)
        for rollouts in (series(runs, rollout, "rollouts"), profile.train_of(rollout).num_generations)
    ]
    cut = 100 * (1 - errors_ST[0].mean() / errors_ST[1].mean())
    other = pd.read_csv(repository() / "data/paper/other.csv")
    paper = other.loc[other["quantity"].str.startswith("WSE"), "value"]
    lead = {profile.label(prompt): (lead_ST, METHODS["prompt"]), "equal weights": (even_ST, DATA)}
    errors = {
        profile.label(rollout): (smoothed(errors_ST[0]), METHODS["rollout"]),
        "uniform, same budget": (smoothed(errors_ST[1]), METHODS["grpo"]),
    }
    panels = {"Lead–lag (32)": ("Δμ, bins", lead), "WSE (33)": ("weighted standard error", errors)}
    title = f"Weights lean {np.nanmean(even_ST - lead_ST):.2f} bins to the hard side; WSE {abs(cut):.1f}% "
    title += f"{'below' if cut >= 0 else 'above'} uniform (paper: {paper.min():g} to {paper.max():g}% below)"
    return _trends(panels, title)


def one_run(record: list[dict], title: str) -> Figure:
    """A single run: share of prompts by bin, weights and rollouts over the steps."""
    runs = [{"variant": "it", "seed": 0, "record": record}]
    share_STB, rollouts_STB = series(runs, "it", "share"), series(runs, "it", "rollouts")
    even = np.nansum(share_STB * rollouts_STB) / share_STB.sum()
    panels = {
        "share of prompts": (shares(runs, "it"), None),
        "weight (batch mean 1)": (smoothed(weights(runs, "it")), 1.0),
        "rollouts per prompt": (smoothed(rollouts_STB), even),
    }
    # a method that has no weights, or moves no rollouts, has no such panel
    return _heatmaps({name: panel for name, panel in panels.items() if np.isfinite(panel[0]).any()}, title)


def _distributions(kinds, what):
    """Panels of two distributions over the bins, {name: ((S, T, B), colour)}, and what they show."""
    metric_of = {
        ("Mean bin index", "bin (0 hardest)"): metrics.mean_bin_index,
        (f"Mass in bins ≥ {EASIER}", "share"): lambda values: metrics.mass_from_bin(values, EASIER),
        ("Effective bins", "exp(entropy)"): metrics.effective_number,
    }
    panels = {
        title: (ylabel, {name: (_of_steps(metric, values), color) for name, (values, color) in kinds.items()})
        for (title, ylabel), metric in metric_of.items()
    }
    (data, _), (other, _) = panels["Mean bin index"][1].values()
    ahead = np.nanmean(other - data)
    return panels, f"{what} lies {abs(ahead):.2f} bins {'easier' if ahead > 0 else 'harder'} than the prompts"


def _panels(count, height, **options):
    figure, axes = plt.subplots(1, count, figsize=(WIDTH, height), squeeze=False, **options)
    return figure, axes[0]


def _trends(panels, title):
    """Means over seeds with bands that span them. panels: {title: (ylabel, {label: ((S, T), colour)})}."""
    figure, axes = _panels(len(panels), 2.4)
    for axis, (name, (ylabel, lines)) in zip(axes, panels.items(), strict=True):
        for label, (values_ST, color) in lines.items():
            steps, style = np.arange(1, values_ST.shape[1] + 1), "--" if color == METHODS["grpo"] else "-"
            axis.plot(steps, _nanmean(values_ST, axis=0), style, color=color, label=label)
            band = np.fmin.reduce(values_ST, axis=0), np.fmax.reduce(values_ST, axis=0)
            axis.fill_between(steps, *band, color=color, alpha=0.2, linewidth=0)
        axis.set(xlabel="step", ylabel=ylabel, title=name)
    figure.suptitle(title)
    legend_below(figure)
    return figure


def _heatmaps(panels, title):
    """Steps × bins. panels: {title: ((S, T, B), white at this value or None)}."""
    figure, axes = _panels(len(panels), 2.4)
    for axis, (name, (values_STB, center)) in zip(axes, panels.items(), strict=True):
        mean_BT = _nanmean(values_STB, axis=0).T
        bins, steps = mean_BT.shape
        if name == "share of prompts":
            mean_BT = np.where(mean_BT > 0, mean_BT, np.nan)
        look: dict[str, Any] = {"cmap": "viridis"}
        ticks = None
        if center is not None:
            low, high = np.nanmin(mean_BT), np.nanmax(mean_BT)
            norm = TwoSlopeNorm(center, min(low, center - 0.1), max(high, center + 0.1))
            look = {"cmap": DIVERGING, "norm": norm}
            ticks = np.interp(np.arange(5), [0, 2, 4], [norm.vmin, center, norm.vmax])
        look |= {"aspect": "auto", "origin": "lower", "interpolation": "nearest"}
        image = axis.imshow(mean_BT, extent=(0.5, steps + 0.5, -0.5, bins - 0.5), **look)
        figure.colorbar(image, ax=axis, format="%.2f", ticks=ticks)
        axis.set(xlabel="step", ylabel="bin (0 hardest)", title=name, facecolor=EMPTY, yticks=range(bins))
        axis.grid(False)
    figure.suptitle(f"{title}; grey: no prompts")
    return figure


def _snapshots(kinds, title):
    """Distributions over the bins at four steps. kinds: {label: ((S, T, B), colour)}."""
    figure, axes = _panels(SNAPSHOTS, 2.3, sharey=True)
    for part, axis in enumerate(axes, start=1):
        for i, (label, (values_STB, color)) in enumerate(kinds.items()):
            _, steps, bins = values_STB.shape
            step = steps * part // SNAPSHOTS
            place, width = _beside(i, len(kinds), bins)
            axis.bar(place, _nanmean(values_STB[:, step - 1], axis=0), width, label=label, color=color)
        # on a linear scale one crowded bin hides the others
        axis.set_yscale("function", functions=(np.sqrt, np.square))
        axis.set(title=f"step {step}", xlabel="bin (0 hardest)", xticks=range(bins), ylim=(0, 1))
        axis.set_yticks([0, 0.01, 0.05, 0.1, 0.25, 0.5, 1])
    axes[0].set_ylabel("share (square-root scale)")
    figure.suptitle(title)
    legend_below(figure)
    return figure
