"""The arena's scores.csv in; table.csv, table.md and figures out."""

from pathlib import Path

import numpy as np
import pandas as pd
from scipy import stats

from gdro.records import replace_text

METRICS = {"mean_at_8": "mean@8", "pass_at_8": "pass@8", "worst_family": "worst family"}
BASELINE = "grpo"


def at_best_rate(scores: pd.DataFrame) -> pd.DataFrame:
    """The rows of each method at its best learning rate in that world, by mean@8 + pass@8 at the end."""
    ends = scores[scores.step == scores.step.max()]
    value = (ends.mean_at_8 + ends.pass_at_8).groupby([ends.world, ends.method, ends.learning_rate]).mean()
    best = value.reset_index().sort_values(0).groupby(["world", "method"]).learning_rate.last()
    return scores.merge(best.reset_index())


def compare(scores: pd.DataFrame) -> pd.DataFrame:
    """Final scores, and differences to GRPO in pairs by draw: a row a world, method and metric.

    low, high: 95% interval of the mean difference, Student's t over draws. p_holm: of its being 0, with
    Holm's correction over the metrics of a method in a world. Where draws are fewer than two, NaN.
    """
    best = at_best_rate(scores)
    ends = best[best.step == best.step.max()].set_index("draw")
    rows = []
    for (world, method), end in ends.groupby(["world", "method"]):
        grpo = ends[(ends.world == world) & (ends.method == BASELINE)]
        pairs = end.index.intersection(grpo.index)  # draws that both have played
        several = len(pairs) > 1 and method != BASELINE
        tests = {}
        for metric in METRICS:
            difference = end.loc[pairs, metric] - grpo.loc[pairs, metric]
            test = stats.ttest_1samp(difference, 0.0) if several and difference.std() > 0 else None
            low, high = test.confidence_interval() if test else (np.nan, np.nan)
            tests[metric] = test.pvalue if test else np.nan
            row = {"world": world, "method": method, "learning_rate": end.learning_rate.iloc[0]}
            row |= {"draws": len(end), "tokens": end.tokens.mean(), "pairs": len(pairs), "metric": metric}
            row |= {"score": end[metric].mean(), "difference": difference.mean(), "low": low, "high": high}
            rows.append(row | {"relative": difference.mean() / (grpo.loc[pairs, metric].mean() or np.nan)})
        holm = pd.Series(tests).sort_values()
        holm = (holm * np.arange(len(holm), 0, -1)).cummax().clip(upper=1)
        for row in rows[-len(METRICS) :]:
            row["p_holm"] = holm[row["metric"]]
    return pd.DataFrame(rows)


def rollouts_to_reach(scores: pd.DataFrame) -> pd.DataFrame:
    """Part of GRPO's rollouts after which a method's means hold GRPO's best mean@8 and pass@8 together.

    GRPO's best are those at the end, each at the learning rate that is best for it. Linear between
    checkpoints, so 0.2 means "by the first"; NaN where the two are not reached together.
    """
    keys, pair = ["world", "method", "learning_rate", "step"], ["mean_at_8", "pass_at_8"]
    all_rates = scores.groupby(keys)[pair].mean().reset_index()
    grpo = all_rates[(all_rates.method == BASELINE) & (all_rates.step == all_rates.step.max())]
    targets = grpo.groupby("world")[pair].max()
    budgets = scores[scores.method == BASELINE].groupby("world").rollouts.max()
    curves = at_best_rate(scores).groupby(["world", "method", "step"])[["rollouts", *pair]].mean()
    rows = []
    for (world, method), curve in curves.groupby(["world", "method"]):
        if world not in targets.index:
            continue
        rollouts = np.linspace(curve.rollouts.iloc[0], curve.rollouts.iloc[-1], 1001)
        reached = [
            np.interp(rollouts, curve.rollouts, curve[name]) >= targets.loc[world, name] for name in pair
        ]
        first = np.flatnonzero(np.all(reached, axis=0))
        part = rollouts[first[0]] / budgets[world] if len(first) else np.nan
        rows.append({"world": world, "method": method, "part": part})
    return pd.DataFrame(rows, columns=["world", "method", "part"])


def report(out: Path) -> str:
    """Write table.csv, table.md and the figures from scores.csv; returns the table as text."""
    scores = pd.read_csv(out / "scores.csv")
    table, reach = compare(scores), rollouts_to_reach(scores)
    replace_text(out / "table.csv", table.to_csv(index=False, float_format="%.6g"))
    shown = table.assign(cell=table.apply(_cell, axis=1), metric=table.metric.map(METRICS))
    keys = ["world", "method", "learning_rate", "draws", "tokens"]
    wide = shown.pivot(index=keys, columns="metric", values="cell")[list(METRICS.values())].reset_index()
    wide = wide.merge(reach.rename(columns={"part": "rollouts to reach GRPO's best"}), how="left")
    text = wide.to_markdown(index=False, floatfmt=("", "", "g", "d", ".0f", "", "", "", ".2f"))
    text += (
        "\n\nIn brackets: difference to GRPO in pairs by draw, 95% interval (Student's t), p with Holm's "
        "correction over the three metrics. Intervals that contain 0 are inconclusive.\n"
    )
    replace_text(out / "table.md", text)
    _draw_figures(scores, table, reach, out)
    return text


def _cell(row):
    if row.method == BASELINE:
        return f"{row.score:.3f}"
    return f"{row.score:.3f} ({row.difference:+.3f}: {row.low:+.3f} … {row.high:+.3f}; p {row.p_holm:.3f})"


def _draw_figures(scores, table, reach, out):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    import seaborn as sns

    sns.set_theme(context="paper", style="whitegrid", palette="colorblind")
    worlds, methods = sorted(table.world.unique()), sorted(table.method.unique())
    others = [method for method in methods if method != BASELINE]
    colors = dict(zip(methods, sns.color_palette("husl", len(methods)), strict=True)) | {BASELINE: "black"}
    size = (2.6 * len(worlds) + 1, 2 + 0.3 * len(methods))

    figure, axes = plt.subplots(
        1, len(METRICS), figsize=(10, 1 + 0.25 * len(worlds) * (len(others) + 1)), sharey=True
    )
    for axis, metric in zip(axes, METRICS, strict=True):
        rows = table[(table.metric == metric) & (table.method != BASELINE)]
        heights = [
            -(worlds.index(w) * (len(others) + 1) + others.index(m))
            for w, m in zip(rows.world, rows.method, strict=True)
        ]
        errors = [rows.difference - rows.low, rows.high - rows.difference]
        axis.errorbar(rows.difference, heights, xerr=np.nan_to_num(errors), fmt="none", color="0.6", zorder=1)
        axis.scatter(rows.difference, heights, c=[colors[m] for m in rows.method], zorder=2)
        axis.set_yticks(heights, [f"{w}  {m}" for w, m in zip(rows.world, rows.method, strict=True)])
        axis.axvline(0, color="black", linewidth=0.8)
        axis.set_title(f"{METRICS[metric]}, difference to GRPO")
        axis.locator_params(axis="x", nbins=4)
    _save(figure, out / "differences.png")

    figure, axes = plt.subplots(1, len(worlds), figsize=size, squeeze=False, layout="constrained")
    ends = scores[scores.step == scores.step.max()]
    means = ends.groupby(["world", "method", "learning_rate"])[list(METRICS)].mean().reset_index()
    for axis, world in zip(axes[0], worlds, strict=True):
        for method, rows in means[means.world == world].groupby("method"):
            axis.plot(rows.mean_at_8, rows.pass_at_8, "o-", color=colors[method], label=method, markersize=4)
        axis.set(title=world, xlabel="mean@8", ylabel="pass@8")
    axes[0, -1].legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize=7)
    _save(figure, out / "frontier.png")

    figure, axes = plt.subplots(
        1, len(worlds), figsize=size, squeeze=False, layout="constrained", sharey=True
    )
    for axis, world in zip(axes[0], worlds, strict=True):
        part = reach[reach.world == world].set_index("method").part.reindex(methods)
        axis.barh(methods, part, color=[colors[method] for method in methods])
        axis.axvline(1, color="black", linewidth=0.8)
        axis.set(title=world, xlabel="part of GRPO's rollouts", xlim=(0, 1.05))
    figure.suptitle("Rollouts to reach GRPO's best mean@8 and pass@8 together (no bar: not reached)")
    _save(figure, out / "rollouts.png")


def _save(figure, path):
    figure.savefig(path, dpi=160, bbox_inches="tight")
    figure.clf()
