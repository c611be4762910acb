"""The paper's figures 1 and 3 to 9 from the records of runs, as `report.read_runs` has them.

A quantity of the record is a table with a row for each (seed, step) and a column for each bin (0
hardest), or a single column. Batches are small, so shares are a trailing mean over `SMOOTH` steps.
Bands span the seeds.
"""

from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.container import BarContainer
from matplotlib.figure import Figure

from gdro import metrics
from gdro_lab.experiments.blocks import BASE
from gdro_lab.experiments.panels import (
    Colors,
    Maps,
    Tables,
    Trends,
    bar_groups,
    heatmaps,
    of_seeds,
    snapshots,
    trends,
)
from gdro_lab.experiments.profile import Profile
from gdro_lab.experiments.style import (
    DATA,
    METHOD_COLORS,
    OTHERS,
    REPORTED,
    WIDTH,
    legend_below,
)

PAPER = Path(__file__).parent / "paper"  # the numbers that the paper prints
GAMES = ("prompt", "rollout")

SMOOTH = 15  # steps of the trailing mean
EASIER = 3, 8  # first bins of the masses in figures 4 and 8
# of methods side by side, to be told apart in grey
HATCHES = "", "", "//", "\\\\", "xx", "..", "--"  # none for the base and GRPO


def select_runs(runs: list[dict], variant: str) -> list[dict]:
    """A variant's runs, by seed."""
    of_variant = [run for run in runs if run["variant"] == variant]
    if not of_variant:
        known = sorted({run["variant"] for run in runs})
        raise ValueError(f"variant must be one of {known}, got {variant!r}")
    return sorted(of_variant, key=lambda run: run["seed"])


def series(runs: list[dict], variant: str, key: str) -> pd.DataFrame:
    """A quantity of the record by (seed, step), NaN where there is none."""
    tables = {}
    for run in select_runs(runs, variant):
        rows = [row[key] for row in run["record"]]
        tables[run["seed"]] = pd.DataFrame(rows, range(1, len(rows) + 1), dtype=float)
    return pd.concat(tables, names=["seed", "step"])


def smooth(table: Any) -> Any:
    """Trailing mean over the steps that skips NaN; NaN where the window has no value."""
    mean = table.groupby(level="seed").rolling(SMOOTH, min_periods=1).mean().droplevel(0)
    return mean.round(12)  # a running sum leaves 1e-17 where all is 0


def shares(runs: list[dict], variant: str, key: str = "") -> pd.DataFrame:
    """Trailing mean share of each bin, of the prompts, or of them times `key` (rollouts)."""
    batch = series(runs, variant, "share")
    if key:
        batch *= series(runs, variant, key).fillna(0.0)
    mean = smooth(batch)
    return mean.div(mean.sum(axis=1), axis=0)


def weights(runs: list[dict], variant: str) -> pd.DataFrame:
    """Weight of each bin over the mean weight of its batch; NaN where the bin has no prompt."""
    share = series(runs, variant, "share")
    weight = series(runs, variant, "weight")
    return weight.where(share > 0).div((share * weight).sum(axis=1) / share.sum(axis=1), axis=0)


def _of_steps(metric: Callable[..., Any], *tables: pd.DataFrame) -> pd.Series:
    """A metric by (seed, step), where none of its arguments is NaN."""
    known = pd.concat(tables, axis=1).dropna().index
    return pd.Series(metric(*(table.loc[known] for table in tables)), known)


def paper_figures(profile: Profile, runs: list[dict], scores: pd.DataFrame) -> dict[str, Figure]:
    """Figures 1 and 3 to 9 and learning curves by file name, where the profile has the methods."""
    rewards = {profile.label(v): series(runs, v, "mean_reward")[0] for v in profile.variants}
    reward = smooth(pd.DataFrame(rewards))
    title = "Training rewards cannot rank methods that choose their prompts"
    panels = {"": ("mean reward of the batch", reward)}
    drawn = {"fig1_overview": results_overview(profile, runs, scores)}
    drawn["learning_curves"] = trends(panels, label_colors(profile), title)
    played = {}
    for game in GAMES:
        if found := _variants(profile, game):
            played[game] = found[0]
            drawn |= game_figures(profile, runs, found[0], game)
    if len(played) == 2:
        drawn["fig6_lead_lag_wse"] = lead_lag_and_error(profile, runs, **played)
    return drawn


def _variants(profile: Profile, game: str) -> list[str]:
    return [name for name, variant in profile.variants.items() if variant.method in (game, "both")]


def label_colors(profile: Profile) -> dict[str, str]:
    """A colour for each variant's label: its method's, paler for the method's further variants.

    A method without a colour in `METHOD_COLORS` gets the next of `OTHERS`.
    """
    colors = {profile.label(BASE): METHOD_COLORS[BASE]}
    free = cycle(OTHERS)
    for method in dict.fromkeys(variant.method for variant in profile.variants.values()):
        names = [name for name, variant in profile.variants.items() if variant.method == method]
        labels = [profile.label(name) for name in names]
        color = METHOD_COLORS.get(method) or next(free)
        shades = sns.blend_palette([color, "white"], len(labels) + 1).as_hex()
        colors |= dict(zip(labels, shades, strict=False))
    return colors


def results_overview(profile: Profile, runs: list[dict], scores: pd.DataFrame) -> Figure:
    """Figure 1: scores, gain over GRPO beside the paper's, weights and rollouts at the end."""
    figure = plt.figure(figsize=(WIDTH, 5.0))
    parts: Any = figure.subfigures(2, 1)
    (top, gains), (left, right) = (part.subplots(1, 2) for part in parts)
    colors = label_colors(profile)
    wide = scores.pivot(index="score", columns="label", values=["value", "low", "high"])
    wide = wide.loc[scores["score"].unique()]
    value, low, high = (wide[kind][[*colors]] for kind in ("value", "low", "high"))
    # as pandas asks: (labels, below and above, scores)
    errors = np.stack([value - low, high - value]).transpose(2, 0, 1)
    bar_groups(top, value, colors, yerr=errors)
    _hatch(top, [*colors], colors)
    top.set_xticklabels([name.replace(" ", "\n").replace("-", "\n") for name in value.index])
    top.set(xlabel="", ylabel="held-out score", ylim=(0, 1))
    top.set_title("Scores: mean, 95% over seeds and prompts")
    ours, reported = _gains(
        gains, scores[scores["score"] == f"pass@{profile.evaluation.k}"], colors
    )
    names = [profile.label(found[0]) for game in GAMES if (found := _variants(profile, game))]
    said = ", ".join(f"{name} {ours[name]:+.1f}%" for name in dict.fromkeys(names) if name in ours)
    figure.suptitle(
        f"Gain in pass@{profile.evaluation.k} over GRPO: {said or 'not measured'}; "
        f"in the paper {reported.min():+.0f} to {reported.max():+.0f}%"
    )
    factors = {profile.label(v): weights(runs, v) for v in _variants(profile, "prompt")}
    _last_fifth(left, factors, colors)
    left.set(ylabel="weight (batch mean 1)", title="Weights, last fifth of training")
    moving = _variants(profile, "rollout")
    rollouts = {profile.label(v): series(runs, v, "rollouts") for v in moving}
    _last_fifth(right, rollouts, colors)
    right.set(ylabel="rollouts per prompt", title="Rollouts, last fifth (dashed: GRPO)")
    look = {"color": METHOD_COLORS["grpo"], "linestyle": "--", "linewidth": 1}
    right.axhline(profile.train.num_generations, **look)
    legend_below(figure)
    return figure


def _hatch(axis: Axes, labels: list[str], colors: Colors) -> None:
    """Hatch the bars of each label, in the order of drawing, with one pattern in all panels."""
    hatch_of = dict(zip(colors, cycle(HATCHES), strict=False))
    drawn = [bars for bars in axis.containers if isinstance(bars, BarContainer)]
    for label, bars in zip(labels, drawn, strict=True):
        for bar in bars:
            bar.set_hatch(hatch_of[label])


def _gains(axis: Axes, scores: pd.DataFrame, colors: Colors) -> tuple[pd.Series, pd.Series]:
    """Relative gain in pass@k over each variant's GRPO, with intervals; the paper's in grey.

    Returns:
        Gains in %, ours by label and the paper's.
    """
    columns = ["value", "gain", "gain_low", "gain_high"]
    gains = scores.set_index("label").reindex(columns=columns).dropna()
    gains = 100 * gains.div(gains["value"] - gains["gain"], axis=0)
    error = [gains["gain"] - gains["gain_low"], gains["gain_high"] - gains["gain"]]
    look: dict[str, Any] = {
        "color": [colors[label] for label in gains.index],
        "error_kw": {"lw": 0.8},
    }
    axis.barh(gains.index + ", ours", gains["gain"], xerr=error, **look)
    reported = pd.read_csv(PAPER / "results.csv").set_index(["model", "method"])["pass@8"]
    gain = 100 * (reported / reported.xs("GRPO", level="method") - 1).drop("GRPO", level="method")
    axis.barh([f"{method}, {model}" for model, method in gain.index], gain, color=REPORTED)
    axis.invert_yaxis()
    axis.axvline(0, color="black", linewidth=0.8)
    axis.set(xlabel="gain in pass@k over GRPO, %", title="Gain in pass@k (grey: the paper's)")
    return gains["gain"], gain


def _last_fifth(axis: Axes, tables: Tables, colors: Colors) -> None:
    """Bars: mean by bin over the last fifth of training; dots: seeds. Empty bins have no bar."""
    if tables:
        runs = pd.concat(tables, names=["label"]).groupby(level=["label", "seed"], sort=False)
        ends = runs.apply(lambda run: run.tail(max(len(run) // 5, 1)).mean())
        long = ends.melt(var_name="bin", ignore_index=False).reset_index()
        look = {"x": "bin", "y": "value", "hue": "label", "ax": axis, "legend": False}
        sns.barplot(long, palette=colors, saturation=1, errorbar=None, **look)
        _hatch(axis, [*tables], colors)
        look |= {"dodge": True, "jitter": False, "size": 2.5}
        sns.stripplot(long, palette=dict.fromkeys(colors, "k"), **look)
    axis.set_xlabel("bin, 0 hardest (dots: seeds)")
    axis.grid(axis="x", visible=False)


def game_figures(profile: Profile, runs: list[dict], variant: str, game: str) -> dict[str, Figure]:
    """Figures 3 to 5 (game "prompt") or 7 to 9 ("rollout"): what the adversary saw and did."""
    label = profile.label(variant)
    share = shares(runs, variant)
    colors = {"prompts": DATA}
    colors |= dict.fromkeys(["adversary q", "rollouts", "_price"], METHOD_COLORS[game])
    maps: Maps = {"share of prompts": (share, None)}
    if game == "prompt":
        last = of_seeds(share).iloc[-1]
        held = f"{100 * last.max():.0f}% of the prompts at the end"
        crowd = f"{label}: bin {last.argmax()} holds {held}"
        maps["weight (batch mean 1)"] = smooth(weights(runs, variant)), 1.0
        maps["success rate"] = smooth(series(runs, variant, "success")), None
        chosen = {"prompts": share, "adversary q": series(runs, variant, "probability")}
        panels, finding = _distributions(chosen, f"{label}: the adversary's q")
        return {
            "fig3_prompt_heatmaps": heatmaps(maps, crowd),
            "fig4_adversary_trends": trends(panels, colors, finding),
            "fig5_bin_snapshots": snapshots({"prompts": share}, colors, crowd),
        }
    even = profile.train_of(variant).num_generations
    budget = shares(runs, variant, "rollouts")
    rollouts = smooth(series(runs, variant, "rollouts"))
    maps["rollouts per prompt"] = rollouts, float(even)
    spent = {"prompts": share, "rollouts": budget}
    panels, finding = _distributions(spent, f"{label}: the budget")
    # matplotlib leaves labels that begin with _ out of legends
    price = series(runs, variant, "price").set_axis(["_price"], axis=1)
    panels["Shadow price"] = "μ (mean bin: 1)", price
    moved = 50 * (budget - share).abs().sum(axis=1, skipna=False).mean()
    last = of_seeds(rollouts).iloc[-1]
    bounds = f"at the end bins get {last.min():.1f} to {last.max():.1f} rollouts per prompt"
    moves = f"{label} moves {moved:.1f}% of the rollouts between bins"
    return {
        "fig7_rollout_heatmaps": heatmaps(maps, f"{label}: {bounds} (GRPO: {even:g})"),
        "fig8_budget_trends": trends(panels, colors, finding),
        "fig9_data_against_budget": snapshots(spent, colors, moves),
    }


def lead_lag_and_error(profile: Profile, runs: list[dict], prompt: str, rollout: str) -> Figure:
    """Figure 6: lead–lag (32), WSE (33) against uniform rollouts, its reduction beside the paper's.

    "Best by bins" minimizes (33) at each step's own shares and trailing mean σ̂ by n ∝ σ̂^(2/3).
    """
    weight = series(runs, prompt, "weight")
    share = shares(runs, prompt)
    lead = _of_steps(metrics.lead_lag, weight, share)
    even = _of_steps(metrics.lead_lag, weight.notna() * 1.0, share)
    deviation = smooth(series(runs, rollout, "deviation"))
    share = series(runs, rollout, "share").where(deviation.notna(), 0.0)
    even_n = profile.train_of(rollout).num_generations
    error, uniform = (
        pd.Series(metrics.weighted_standard_error(deviation, share, rollouts), share.index)
        for rollouts in (series(runs, rollout, "rollouts"), even_n)
    )
    leads = pd.DataFrame({profile.label(prompt): lead, "equal weights": even})
    errors = pd.DataFrame({profile.label(rollout): error, "uniform, same budget": uniform})
    colors = [METHOD_COLORS["prompt"], DATA, METHOD_COLORS["rollout"], METHOD_COLORS["grpo"]]
    # minimizing Σ q σ/√n at Σ q n = n̄ gives n ∝ σ^(2/3), and this value
    least = (share * deviation ** (2 / 3)).sum(axis=1) ** 1.5 / np.sqrt(even_n)
    cuts = {
        name: 100 * (1 - values.mean() / uniform.mean())
        for name, values in {"as run": error, "best by bins": least}.items()
    }
    other = pd.read_csv(PAPER / "other.csv")
    paper = other[other["figure"] == "WSE"].set_index("model")["value"]
    title = f"Weights lean {(even - lead).mean():.2f} bins to the hard side; WSE is "
    side = "below" if cuts["as run"] >= 0 else "above"
    title += f"{abs(cuts['as run']):.1f}% {side} uniform "
    title += f"(paper: {paper.min():g} to {paper.max():g}%)"
    panels = {"Lead–lag (32)": ("Δμ, bins", leads)}
    panels["WSE (33)"] = "weighted standard error", smooth(errors)
    figure = trends(panels, dict(zip([*leads, *errors], colors, strict=True)), title, 1)
    axis = figure.axes[-1]
    look: dict[str, Any] = {
        "color": [METHOD_COLORS["rollout"]] * len(cuts) + [REPORTED] * len(paper)
    }
    names = [f"ours, {name}" for name in cuts] + [f"paper, {model}" for model in paper.index]
    bars = axis.barh(names, [*cuts.values(), *paper], **look)
    axis.bar_label(bars, fmt="%.1f", padding=2, fontsize=7)
    longest = max(paper.max(), *cuts.values())
    ours = cuts["as run"]
    lowest = ours - 0.15 * longest if ours < 0 else 0  # room for a label on the left
    axis.set(title="WSE below uniform", xlabel="percent", xlim=(lowest, 1.25 * longest))
    axis.invert_yaxis()
    axis.grid(axis="y", visible=False)
    return figure


def one_run(record: list[dict], title: str) -> Figure:
    """A single run by bin and step: share of prompts, success rate, and what the method changes."""
    runs = [{"variant": "run", "seed": 0, "record": record}]
    share = series(runs, "run", "share")
    rollouts = series(runs, "run", "rollouts")
    mean = np.nansum(share * rollouts) / np.nansum(share)
    panels: Maps = {"share of prompts": (shares(runs, "run"), None)}
    panels["success rate"] = smooth(series(runs, "run", "success")), None
    acts = {"weight (batch mean 1)": (weights(runs, "run"), 1.0)}
    acts["rollouts per prompt"] = rollouts, mean
    for name, (table, even) in acts.items():  # a method that leaves it even has no such panel
        if (table / even - 1).abs().max(axis=None) > 0.01:
            panels[name] = smooth(table), even
    return heatmaps(panels, title)


def _distributions(kinds: Tables, what: str) -> tuple[Trends, str]:
    """Panels of two distributions over the bins, and what they show."""
    metric_of: dict[tuple[str, str], Any] = {
        ("Mean bin index", "bin (0 hardest)"): metrics.mean_bin_index
    }
    for first in EASIER:
        mass = f"Mass in bins ≥ {first}", "share"
        metric_of[mass] = lambda shares, first=first: shares.iloc[:, first:].sum(axis=1)
    metric_of["Effective bins", "exp(entropy)"] = metrics.effective_number
    panels = {}
    for (title, ylabel), metric in metric_of.items():
        of_steps = {label: _of_steps(metric, table) for label, table in kinds.items()}
        panels[title] = ylabel, pd.DataFrame(of_steps)
    data, other = panels["Mean bin index"][1].to_numpy().T
    ahead = np.nanmean(other - data)
    side = "easier" if ahead > 0 else "harder"
    return panels, f"{what} lies {abs(ahead):.2f} bins {side} than the prompts over the run"
