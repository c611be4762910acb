"""From the runs of an arena to scores.csv, and from that alone to tables and figures.

scores.csv      one row per world, method, learning rate, draw and checkpoint
families.csv    at the end of training, one row more per family, with its share of training
table.csv, .md  each method at its best rate, with differences to GRPO in pairs by draw
differences, frontier, rollouts    figures, as PNG and PDF
"""

import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from scipy import stats

from gdro.checks import need
from gdro.files import replace_text
from gdro_lab.experiments.style import DATA, METHOD_COLORS, PEER, WIDTH, save, use_style

# samples a held-out prompt, by part of the steps
CHECKPOINTS = {0.2: 8, 0.4: 8, 0.6: 8, 0.8: 8, 1.0: 32}
SCORE_COLUMNS = [
    *("world", "method", "learning_rate", "draw", "step", "rollouts", "tokens"),
    *("mean_at_8", "pass_at_8", "worst_family", "training_mix_mean", "training_mix_pass_at_8"),
    *("seconds", "trained_tokens", "replayed", "train_mean"),
]
METRICS = {"mean_at_8": "mean@8", "pass_at_8": "pass@8", "worst_family": "worst family"}
# a gain in mean@8 without one here is redistribution
METRICS |= {"training_mix_mean": "training mix"}
BASELINE, BASE = "grpo", "base"
PAIR = ["mean_at_8", "pass_at_8"]
COSTS = ("rollouts", "tokens", "trained_tokens", "seconds")
MARKERS = "sD^v>"  # of the best of the methods without a colour of their own


def slug_of(method: str) -> str:
    """A method's spelling as part of a file's name."""
    return re.sub(r"[^\w.=-]", "_", method)


def write_scores(out: Path) -> None:
    """Write scores.csv and families.csv from the files of the runs."""
    files = sorted((out / "runs").glob("*/*.json"))
    rows = [row for file in files for row in json.loads(file.read_text(encoding="utf-8"))]
    names = ["world", "method", "learning_rate", "draw", "step"]
    last = max((row["step"] for row in rows), default=0)
    families = [
        {name: row[name] for name in names} | {"family": family} | of
        for row in rows
        if row["step"] == last
        for family, of in row["families"].items()
    ]
    tables = {"scores": pd.DataFrame(rows, columns=SCORE_COLUMNS)}
    tables["families"] = pd.DataFrame(families)
    for name, table in tables.items():
        if len(table):  # a rate keeps all its digits
            table["learning_rate"] = table.learning_rate.map(repr)
        replace_text(out / f"{name}.csv", table.to_csv(index=False, float_format="%.6g"))


def at_best_rate(scores: pd.DataFrame) -> pd.DataFrame:
    """The rows of each method at its best learning rate in a world, by mean@8 + pass@8 at the end.

    Rates are compared on the draws that all of them have played, if there are any.
    """
    ends = scores[scores.step == scores.step.max()]
    ends = ends.set_index(["world", "method", "draw", "learning_rate"])
    best = {}
    for key, value in ends[PAIR].sum(axis=1).unstack().groupby(["world", "method"]):
        value = value.dropna(axis=1, how="all")
        best[key] = (value if value.dropna().empty else value.dropna()).mean().idxmax()
    keys = zip(scores.world, scores.method, scores.learning_rate, strict=True)
    return scores[[best[world, method] == rate for world, method, rate in keys]]


def compare(scores: pd.DataFrame, baseline: str = BASELINE) -> pd.DataFrame:
    """Final scores and differences to the baseline, in pairs by draw, by world, method and metric.

    low, high: 95% interval of the mean difference, Student's t over draws. p_holm: of its being 0,
    corrected over every world, method, learning rate and metric, though a method is returned at its
    best rate alone. NaN where draws are fewer than two, and for the base.
    """
    best = at_best_rate(scores).groupby(["world", "method"]).learning_rate.first()
    rows = []
    ends = scores[scores.step == scores.step.max()].set_index("draw")
    costs = [name for name in COSTS if name in ends]
    for (world, method, rate), end in ends.groupby(["world", "method", "learning_rate"]):
        base = ends[(ends.world == world) & (ends.method == baseline)]
        base = base[base.learning_rate == best.get((world, baseline))]
        pairs = end.index.intersection(base.index)  # draws that both have played
        row = {"world": world, "method": method, "learning_rate": rate, "draws": len(end)}
        row |= end[costs].mean().to_dict() | {"pairs": len(pairs)}
        for metric in METRICS:
            difference = end.loc[pairs, metric] - base.loc[pairs, metric]
            several = len(pairs) > 1 and method != baseline and difference.std() > 1e-12
            test = stats.ttest_1samp(difference, 0.0) if several and method != BASE else None
            low, high = test.confidence_interval() if test else (np.nan, np.nan)
            mean, of = difference.mean(), base.loc[pairs, metric].mean() or np.nan
            found = {"metric": metric, "score": end[metric].mean(), "difference": mean}
            found |= {"low": low, "high": high, "relative": mean / of}
            rows.append(row | found | {"p_holm": test.pvalue if test else np.nan})
    table = pd.DataFrame(rows)
    table["p_holm"] = holm(table.p_holm)
    keys = pd.MultiIndex.from_frame(table[["world", "method"]])
    return table[table.learning_rate.to_numpy() == best.loc[keys].to_numpy()].reset_index(drop=True)


def holm(p: pd.Series) -> pd.Series:
    """Holm's correction of these p-values; NaN stays and is not counted."""
    known = p.dropna().sort_values()
    corrected = (known * np.arange(len(known), 0, -1)).cummax().clip(upper=1)
    return corrected.reindex(p.index)


def rollouts_to_reach(scores: pd.DataFrame) -> pd.DataFrame:
    """Part of GRPO's rollouts after which a method's means hold GRPO's best mean@8 and pass@8.

    Means are over the draws that both have played, GRPO at all its rates. GRPO's best are those at
    the end, each at the learning rate that is best for it. Linear between checkpoints, so 0.2 means
    "by the first"; NaN where the two are not held to the end.
    """
    rows = []
    trained = scores[scores.method != BASE]
    for (world, method), runs in at_best_rate(trained).groupby(["world", "method"]):
        grpo = scores[(scores.world == world) & (scores.method == BASELINE)]
        shared = set(runs.draw).intersection(*(of.draw for _, of in grpo.groupby("learning_rate")))
        runs, grpo = runs[runs.draw.isin(shared)], grpo[grpo.draw.isin(shared)]
        if grpo.empty:
            continue
        targets = grpo[grpo.step == grpo.step.max()].groupby("learning_rate")[PAIR].mean().max()
        curve = runs.groupby("step")[["rollouts", *PAIR]].mean()
        rollouts = np.linspace(curve.rollouts.iloc[0], curve.rollouts.iloc[-1], 1001)
        reached = [
            np.interp(rollouts, curve.rollouts, curve[name]) >= targets[name] for name in PAIR
        ]
        held = np.logical_and.accumulate(np.all(reached, axis=0)[::-1])[::-1]
        part = rollouts[held.argmax()] / grpo.rollouts.max() if held.any() else np.nan
        rows.append({"world": world, "method": method, "part": part})
    return pd.DataFrame(rows, columns=["world", "method", "part"])


def report(out: Path, baseline: str = BASELINE) -> str:
    """Write table.csv, table.md and the figure from scores.csv; return the table as text.

    With another baseline than GRPO the tables are called after it, and no figure is drawn.
    """
    scores = pd.read_csv(out / "scores.csv")
    need(len(scores), f"{out / 'scores.csv'} has no rows; play something with --methods")
    known = sorted({BASELINE, *scores.method})
    need(baseline in known, f"baseline must be one of {known}, got {baseline!r}")
    table, reach = compare(scores, baseline), rollouts_to_reach(scores)
    stem = "table" if baseline == BASELINE else f"table-to-{slug_of(baseline)}"
    replace_text(out / f"{stem}.csv", table.to_csv(index=False, float_format="%.6g"))
    cells = [_cell(row, baseline) for row in table.itertuples()]
    shown = table.assign(cell=cells, metric=table.metric.map(METRICS))
    keys = ["world", "method", "learning_rate", "draws", *(c for c in COSTS if c in table)]
    shown[keys] = shown[keys].fillna(-1)  # a pivot leaves out rows without a key
    wide = shown.pivot(index=keys, columns="metric", values="cell")[[*METRICS.values()]]
    wide = wide.reset_index().replace(-1, np.nan)
    wide = wide.merge(reach.rename(columns={"part": "rollouts to reach GRPO's best"}), how="left")
    formats = ("", "", "g", "d", *(len(keys) - 4) * [",.0f"], *len(METRICS) * [""], ".2f")
    text = wide.to_markdown(index=False, floatfmt=formats, missingval="–") + (
        "\n\nThe training mix is mean@8 with the families weighed as in training. In brackets: "
        f"difference to {'GRPO' if baseline == BASELINE else baseline} in pairs by draw, 95% "
        "interval (Student's t), p with Holm's correction over all comparisons: every world, "
        "method, learning rate and metric. Intervals that contain 0 are inconclusive.\n"
    )
    replace_text(out / f"{stem}.md", text)
    if baseline == BASELINE:
        matplotlib.use("Agg")
        use_style()
        save(draw_differences(table), out, "differences")
    return text


def _cell(row: Any, baseline: str) -> str:
    if row.method == baseline:
        return f"{row.score:.3f}"
    if np.isnan(row.low):  # no interval: the base, or too few draws
        return f"{row.score:.3f} ({row.difference:+.3f})"
    interval = f"{row.low:+.3f} … {row.high:+.3f}; p {row.p_holm:.3f}"
    return f"{row.score:.3f} ({row.difference:+.3f}: {interval})"


def draw_differences(table: pd.DataFrame) -> Figure:
    """A row a method, a column a metric: intervals, filled where they exclude 0.

    Our methods have their colours, the five best of the others markers, the rest is grey; the best
    in mean@8 and pass@8 together comes first.
    """
    table = table[~table.method.isin([BASE, BASELINE])]
    merit = table[table.metric.isin(PAIR)].groupby("method").difference.sum()
    looks, markers = {}, list(MARKERS)
    for method in merit.sort_values(ascending=False).index:
        color, marker = METHOD_COLORS.get(method.split(":")[0], PEER), "o"
        if color == PEER and markers:
            color, marker = DATA, markers.pop(0)
        looks[method] = {"color": color, "marker": marker, "linestyle": "", "capsize": 2}
    played = {world: set(of.method) for world, of in table.groupby("world")}
    named = {world: [method for method in looks if method in of] for world, of in played.items()}
    heights = [max(0.7 + 0.15 * len(methods), 1.4) for methods in named.values()]
    figure, axes = plt.subplots(
        max(len(named), 1), len(METRICS), figsize=(WIDTH, sum(heights) or 1), sharey="row",
        squeeze=False, height_ratios=heights or None,
    )  # fmt: skip
    for (world, methods), line in zip(named.items(), axes, strict=False):
        for axis, (metric, label) in zip(line, METRICS.items(), strict=True):
            rows = table[(table.world == world) & (table.metric == metric)]
            rows = rows.set_index("method").loc[methods]
            for place, (method, row) in enumerate(rows.iterrows()):
                half, sure = np.nan_to_num((row.high - row.low) / 2), row.low > 0 or row.high < 0
                look = looks[method] | {"markerfacecolor": None if sure else "white"}
                axis.errorbar(row.difference, place, xerr=half, **look)
            axis.axvline(0, color="black", linewidth=0.8)
            axis.set_title(f"{label}\n{(rows.low > 0).sum()} above, {(rows.high < 0).sum()} below")
            axis.locator_params(axis="x", nbins=3)
        rates = rows.learning_rate.map(partial(np.format_float_scientific, trim="-", exp_digits=1))
        names = [f"{method}, {rates[method]}" for method in methods]
        line[0].set_yticks(range(len(methods)), names)
        line[0].set(ylabel=world, ylim=(len(methods) - 0.5, -0.5))
    what = "difference to GRPO, 95% intervals over draws; filled: the interval excludes 0"
    figure.supxlabel(what, fontsize=8)
    return figure
