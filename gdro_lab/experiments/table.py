"""From rows of scores, one a run and checkpoint, to the table of paired differences.

scores.csv      one row per world, method, learning rate, draw and checkpoint
families.csv    at the end of training, one row more per family, with its share of training and
                what was memorized
settings.json   what all runs of the folder have in common, and each world
table.csv, .md  each method at its best rate: differences from GRPO in pairs by draw, and memory
differences     a figure, as PNG and PDF
"""

import json
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gdro.checks import Refusal
from gdro.files import replace_text
from gdro_lab.experiments.blocks import BASE
from gdro_lab.experiments.intervals import holm, paired_t
from gdro_lab.experiments.memory import add_memory, format_memory
from gdro_lab.experiments.records import TOTALS, read_rows
from gdro_lab.experiments.scores import ROW_COLUMNS
from gdro_lab.experiments.spelling import slug_of
from gdro_lab.experiments.style import DATA, METHOD_COLORS, PEER, WIDTH, save, use_style

METRICS = {
    "mean_at_8": "mean@8",
    "pass_at_8": "pass@8",
    "worst_family": "worst family",
    # a gain in mean@8 without one here is redistribution
    "training_mix_mean": "training mix",
}
"""Names of the scores in tables and figures."""
BASELINE = "grpo"
RATE_SCORES = ["mean_at_8", "pass_at_8"]
"""The scores by whose sum learning rates are chosen."""
COSTS = (*TOTALS, "seconds")
PEER_MARKERS = "sD^v>"
"""Markers of the best methods without a colour of their own."""
REACH = "rollouts to reach GRPO's best"
SHARED = ("train", "size", "success_threshold")
"""Settings that all runs of a folder have in common, besides each world's."""


def write_scores(out: Path, baseline: str = BASELINE) -> None:
    """Write scores.csv, families.csv and settings.json from the files of the runs.

    Args:
        out: folder of the runs.
        baseline: of the table that is to be made of them.

    Raises:
        Refusal: for runs of other settings than those beside them, for copies, and for none.
    """
    runs = [read_rows(file) for file in sorted((out / "runs").glob("*/*.json"))]
    if not runs:
        raise Refusal(f"{out} has no runs: `gdro run` it first")
    settings = _shared_settings(out, runs)
    rows = [row for run in runs for row in run["rows"]]
    _check_baseline(baseline, [row["method"] for row in rows])
    names = ["world", "method", "learning_rate", "draw", "step"]
    last = max((row["step"] for row in rows), default=0)
    families = [
        {name: row[name] for name in names} | {"family": family} | scores | _on_train(row, family)
        for row in rows
        if row["step"] == last
        for family, scores in row["families"].items()
    ]
    tables = {
        "scores": pd.DataFrame(rows, columns=ROW_COLUMNS),
        "families": add_memory(pd.DataFrame(families)),
    }
    for name, table in tables.items():
        if len(table):  # a rate keeps all its digits
            table["learning_rate"] = table.learning_rate.map(repr)
        replace_text(out / f"{name}.csv", table.to_csv(index=False, float_format="%.6g"))
    replace_text(out / "settings.json", json.dumps(settings, indent=1))


def _check_baseline(baseline: str, methods: Iterable[str]) -> None:
    """Refuse (Refusal) a baseline that was not run."""
    known = sorted({BASELINE, *methods})
    if baseline not in known:
        raise Refusal(f"baseline must be one of {known}, got {baseline!r}")


def _shared_settings(out: Path, runs: list[dict[str, Any]]) -> dict[str, Any]:
    """What all runs have in common, and each world."""
    common: dict[str, Any] = {}
    worlds: dict[str, Any] = {}
    for run in runs:
        # a seed of the world is the draw
        world = {k: v for k, v in run["settings"]["world"].items() if k != "seed"}
        own = {name: run["settings"][name] for name in SHARED if name in run["settings"]}
        common = common or own
        if own != common or worlds.setdefault(world["name"], world) != world:
            row = run["rows"][0]
            raise Refusal(
                f"runs of {out} must have the same settings, got others for "
                f"{row['method']!r} in {world['name']!r}, draw {row['draw']}"
            )
    return common | {"worlds": worlds}


def _on_train(row: Mapping[str, Any], family: str) -> dict[str, float | None]:
    """Accuracy on training prompts of a family; empty for a run from before it was measured."""
    return {"train": row["train_families"].get(family)} if "train_families" in row else {}


def final_rows(scores: pd.DataFrame) -> pd.DataFrame:
    """The rows at the end of training."""
    return scores[scores.step == scores.step.max()]


def at_best_rate(scores: pd.DataFrame) -> pd.DataFrame:
    """The rows of each method at its best learning rate in a world, by mean@8 + pass@8 at the end.

    Rates are compared on the draws that all of them were run on, if there are any.
    """
    ends = final_rows(scores).set_index(["world", "method", "draw", "learning_rate"])
    best = {}
    for arm, merits in ends[RATE_SCORES].sum(axis=1).unstack().groupby(["world", "method"]):
        played = merits.dropna(axis=1, how="all")
        shared = played.dropna()
        best[arm] = (played if shared.empty else shared).mean().idxmax()
    arms = zip(scores.world, scores.method, scores.learning_rate, strict=True)
    return scores[[best[world, method] == rate for world, method, rate in arms]]


def compare(scores: pd.DataFrame, baseline: str = BASELINE) -> pd.DataFrame:
    """Final scores and paired differences from the baseline, by world, method and metric.

    low, high: 95% interval of the mean difference, Student's t over draws. p_holm: p of the
    hypothesis that it is 0, corrected over every world, method, learning rate and metric, though a
    method is returned only at its best rate. NaN where draws are fewer than two, and for the base.
    """
    best = at_best_rate(scores).groupby(["world", "method"]).learning_rate.first()
    ends = final_rows(scores).set_index("draw")
    costs = [name for name in COSTS if name in ends]
    rows = []
    for (world, method, rate), end in ends.groupby(["world", "method", "learning_rate"]):
        reference = ends[(ends.world == world) & (ends.method == baseline)]
        reference = reference[reference.learning_rate == best.get((world, baseline))]
        pairs = end.index.intersection(reference.index)  # draws that both have played
        arm = {"world": world, "method": method, "learning_rate": rate, "draws": len(end)}
        arm |= end[costs].mean().to_dict() | {"pairs": len(pairs)}
        for metric in METRICS:
            difference = end.loc[pairs, metric] - reference.loc[pairs, metric]
            # neither the baseline's other rates nor the base count among Holm's tests
            is_tested = method not in (baseline, BASE)
            test = paired_t(difference if is_tested else difference[:0])
            of_baseline = reference.loc[pairs, metric].mean() or np.nan
            scored = {
                "metric": metric,
                "score": end[metric].mean(),
                "difference": difference.mean(),
                "low": test.low,
                "high": test.high,
                "relative": difference.mean() / of_baseline,
                "p_holm": test.p,
            }
            rows.append(arm | scored)
    table = pd.DataFrame(rows)
    # over all rates, though one is returned: choosing the best of them is part of the test
    table["p_holm"] = holm(table.p_holm)
    arms = pd.MultiIndex.from_frame(table[["world", "method"]])
    return table[table.learning_rate.to_numpy() == best.loc[arms].to_numpy()].reset_index(drop=True)


def rollouts_to_reach(scores: pd.DataFrame) -> pd.DataFrame:
    """Part of GRPO's rollouts after which a method's means stay at GRPO's best mean@8 and pass@8.

    Means are over the draws that both were run on, GRPO at all its rates. GRPO's best are those at
    the end, each at the learning rate that is best for it. Linear between checkpoints, so 0.2 means
    "by the first"; NaN if the two are not kept to the end.
    """
    rows = []
    trained = scores[scores.method != BASE]
    for (world, method), runs in at_best_rate(trained).groupby(["world", "method"]):
        grpo = scores[(scores.world == world) & (scores.method == BASELINE)]
        draws_of_rates = [set(runs.draw) for _, runs in grpo.groupby("learning_rate")]
        shared = set(runs.draw).intersection(*draws_of_rates)
        runs = runs[runs.draw.isin(shared)]
        grpo = grpo[grpo.draw.isin(shared)]
        if not grpo.empty:
            rows.append({"world": world, "method": method, "part": _part_to_reach(runs, grpo)})
    return pd.DataFrame(rows, columns=["world", "method", "part"])


def _part_to_reach(runs: pd.DataFrame, grpo: pd.DataFrame) -> float:
    """Part of GRPO's rollouts after which a method's mean scores stay at or above GRPO's best."""
    targets = final_rows(grpo).groupby("learning_rate")[RATE_SCORES].mean().max()
    curve = runs.groupby("step")[["rollouts", *RATE_SCORES]].mean()
    rollouts = np.linspace(curve.rollouts.iloc[0], curve.rollouts.iloc[-1], 1001)
    reached = [
        np.interp(rollouts, curve.rollouts, curve[name]) >= targets[name] for name in RATE_SCORES
    ]
    # from the end backwards: reached there and never lost again
    held = np.logical_and.accumulate(np.all(reached, axis=0)[::-1])[::-1]
    return rollouts[held.argmax()] / grpo.rollouts.max() if held.any() else np.nan


def table_stem(baseline: str) -> str:
    """Name of the files of a table of differences from a baseline."""
    return "table" if baseline == BASELINE else f"table-to-{slug_of(baseline)}"


def report(out: Path, baseline: str = BASELINE) -> str:
    """Write table.csv, table.md and the figure from scores.csv; return the table as text.

    With another baseline than GRPO the tables are called after it, and no figure is drawn.
    """
    if not (out / "scores.csv").is_file():
        raise Refusal(f"runs must have a scores.csv, got {out}: `gdro run` it first")
    scores = pd.read_csv(out / "scores.csv")
    if scores.empty:
        raise Refusal(f"{out / 'scores.csv'} has no rows: `gdro run` it first")
    _check_baseline(baseline, scores.method)
    table = compare(scores, baseline)
    text = format_table(table, rollouts_to_reach(scores), baseline)
    if (out / "families.csv").is_file():  # stored folders may have no more than the scores
        rates = table.groupby(["world", "method"]).learning_rate.first()
        text += format_memory(pd.read_csv(out / "families.csv"), rates)
    stem = table_stem(baseline)
    replace_text(out / f"{stem}.csv", table.to_csv(index=False, float_format="%.6g"))
    replace_text(out / f"{stem}.md", text)
    if baseline == BASELINE:
        matplotlib.use("Agg")
        use_style()
        save(draw_differences(table), out, "differences")
    return text


def format_table(table: pd.DataFrame, reach: pd.DataFrame | None, baseline: str) -> str:
    """The result of `compare` as Markdown, a row a method, with any of `rollouts_to_reach`."""
    cells = [_cell(row, baseline) for row in table.itertuples()]
    shown = table.assign(cell=cells, metric=table.metric.map(METRICS))
    costs = [name for name in COSTS if name in table]
    keys = ["world", "method", "learning_rate", "draws", *costs]
    shown[keys] = shown[keys].fillna(-1)  # a pivot leaves out rows without a key
    wide = shown.pivot(index=keys, columns="metric", values="cell")[[*METRICS.values()]]
    wide = wide.reset_index().replace(-1, np.nan)
    if reach is not None:
        wide = wide.merge(reach.rename(columns={"part": REACH}), how="left")
    wide = wide.astype(object).where(wide.notna(), None)  # what is missing is printed as a dash
    formats = ("", "", "g", "d", *len(costs) * [",.0f"], *len(METRICS) * [""], ".2f")
    name = "GRPO" if baseline == BASELINE else baseline
    return wide.to_markdown(index=False, floatfmt=formats, missingval="–") + (
        "\n\nThe training mix is mean@8 with the families weighted as in training. In brackets: "
        f"difference from {name} in pairs by draw, 95% "
        "interval (Student's t), p with Holm's correction over all comparisons: every world, "
        "method, learning rate and metric. Intervals that contain 0 are inconclusive.\n"
    )


def _cell(row: Any, baseline: str) -> str:
    if np.isnan(row.score):  # a training mix of families that are not held out
        return "–"
    if row.method == baseline or np.isnan(row.difference):  # the latter: no pair was played
        return f"{row.score:.3f}"
    if np.isnan(row.low):  # no interval: the base, or too few draws
        return f"{row.score:.3f} ({row.difference:+.3f})"
    interval = f"{row.low:+.3f} … {row.high:+.3f}; p {row.p_holm:.3f}"
    return f"{row.score:.3f} ({row.difference:+.3f}: {interval})"


class Look(NamedTuple):
    """How a method is drawn."""

    color: str
    marker: str


def draw_differences(table: pd.DataFrame) -> Figure:
    """A row a method, a column a metric: intervals, filled where they exclude 0.

    Our methods have their colours, the five best of the others markers, the rest is grey; the best
    in mean@8 and pass@8 together comes first.
    """
    table = table[~table.method.isin([BASE, BASELINE])]
    looks = _looks(table)
    methods_of = {
        world: [method for method in looks if method in set(rows.method)]
        for world, rows in table.groupby("world")
    }
    heights = [max(0.7 + 0.15 * len(methods), 1.4) for methods in methods_of.values()]
    figure, axes = plt.subplots(
        max(len(methods_of), 1),
        len(METRICS),
        figsize=(WIDTH, sum(heights) or 1),
        sharey="row",
        squeeze=False,
        height_ratios=heights or None,
    )
    for (world, methods), line in zip(methods_of.items(), axes, strict=False):
        for axis, metric in zip(line, METRICS, strict=True):
            rows = table[(table.world == world) & (table.metric == metric)]
            _draw_metric(axis, metric, rows.set_index("method").loc[methods], looks)
        rates = table[table.world == world].groupby("method").learning_rate.first()
        printed = rates.map(partial(np.format_float_scientific, trim="-", exp_digits=1))
        names = [f"{method}, {printed[method]}" for method in methods]
        line[0].set_yticks(range(len(methods)), names)
        line[0].set(ylabel=world, ylim=(len(methods) - 0.5, -0.5))
    note = "difference from GRPO, 95% intervals over draws; filled: the interval excludes 0"
    figure.supxlabel(note, fontsize=8)
    return figure


def _looks(table: pd.DataFrame) -> dict[str, Look]:
    """The look of each method, the best first."""
    merit = table[table.metric.isin(RATE_SCORES)].groupby("method").difference.sum()
    markers = list(PEER_MARKERS)
    looks = {}
    for method in merit.sort_values(ascending=False).index:
        color = METHOD_COLORS.get(method.split(":")[0], PEER)
        marker = "o"
        if color == PEER and markers:
            color = DATA
            marker = markers.pop(0)
        looks[method] = Look(color, marker)
    return looks


def _draw_metric(axis: Axes, metric: str, rows: pd.DataFrame, looks: dict[str, Look]) -> None:
    """The intervals of one metric, a row a method."""
    for place, (method, row) in enumerate(rows.iterrows()):
        look = looks[str(method)]
        is_decided = row.low > 0 or row.high < 0
        axis.errorbar(
            row.difference,
            place,
            xerr=np.nan_to_num((row.high - row.low) / 2),
            color=look.color,
            marker=look.marker,
            markerfacecolor=None if is_decided else "white",
            linestyle="",
            capsize=2,
        )
    axis.axvline(0, color="black", linewidth=0.8)
    counts = f"{(rows.low > 0).sum()} above, {(rows.high < 0).sum()} below"
    axis.set_title(f"{METRICS[metric]}\n{counts}")
    axis.locator_params(axis="x", nbins=3)
