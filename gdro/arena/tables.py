"""The arena's files: runs in, scores.csv and families.csv out; scores.csv in, tables and figures out."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from gdro.training.files import replace_text

CHECKPOINTS = {0.2: 8, 0.4: 8, 0.6: 8, 0.8: 8, 1.0: 32}  # samples a held-out prompt, by part of the steps
_COLUMNS = "world method learning_rate draw step rollouts tokens mean_at_8 pass_at_8 worst_family "
_COLUMNS += "training_mix_mean training_mix_pass_at_8 seconds controller_seconds"
SCORE_COLUMNS = _COLUMNS.split()  # of scores.csv
METRICS = {"mean_at_8": "mean@8", "pass_at_8": "pass@8", "worst_family": "worst family"}
METRICS |= {"training_mix_mean": "training mix"}  # a gain in mean@8 without one here is redistribution
BASELINE = "grpo"


def arena_rows(out: Path) -> list[dict[str, Any]]:
    """The rows of all runs; a ValueError names a file that is not whole."""
    rows = []
    for file in sorted((out / "runs").glob("*/*.json")):
        try:
            found = json.loads(file.read_text(encoding="utf-8"))
            whole = len(found) == len(CHECKPOINTS) and all(
                {*SCORE_COLUMNS, "families"} <= {*row} for row in found
            )
        except (ValueError, TypeError):
            whole = False
        if not whole:
            wanted = f"{len(CHECKPOINTS)} rows of scores"
            raise ValueError(f"{file} must hold {wanted}; delete it, and it is played again")
        rows += found
    return rows


def write_scores(out: Path) -> None:
    """Write scores.csv and families.csv from the files of the runs."""
    rows = arena_rows(out)
    names = ["world", "method", "learning_rate", "draw", "step"]
    last = max((row["step"] for row in rows), default=0)
    families = [
        {name: row[name] for name in names} | {"family": family} | of
        for row in rows
        if row["step"] == last
        for family, of in row["families"].items()
    ]
    tables = {"scores": pd.DataFrame(rows, columns=SCORE_COLUMNS), "families": pd.DataFrame(families)}
    for name, table in tables.items():
        if len(table):  # a rate keeps all its digits
            table["learning_rate"] = table.learning_rate.map(repr)
        replace_text(out / f"{name}.csv", table.to_csv(index=False, float_format="%.6g"))


def at_best_rate(scores: pd.DataFrame) -> pd.DataFrame:
    """The rows of each method at its best learning rate in that world, by mean@8 + pass@8 at the end.

    Rates are compared on the draws that all of them have played, if there are any.
    """
    ends = scores[scores.step == scores.step.max()].set_index(["world", "method", "draw", "learning_rate"])
    best = {}
    for key, value in (ends.mean_at_8 + ends.pass_at_8).unstack().groupby(["world", "method"]):
        value = value.dropna(axis=1, how="all")
        best[key] = (value if value.dropna().empty else value.dropna()).mean().idxmax()
    keys = zip(scores.world, scores.method, scores.learning_rate, strict=True)
    return scores[[best[world, method] == rate for world, method, rate in keys]]


def compare(scores: pd.DataFrame, baseline: str = BASELINE) -> pd.DataFrame:
    """Final scores, and differences to the baseline in pairs by draw: a row a world, method and metric.

    low, high: 95% interval of the mean difference, Student's t over draws. p_holm: of its being 0, with
    Holm's correction over all comparisons, of every world, method, learning rate and metric, though a
    method is returned at its best rate alone. Where draws are fewer than two, NaN.
    """
    best = at_best_rate(scores).groupby(["world", "method"]).learning_rate.first()
    rows = []
    ends = scores[scores.step == scores.step.max()].set_index("draw")
    for (world, method, rate), end in ends.groupby(["world", "method", "learning_rate"]):
        base = ends[(ends.world == world) & (ends.method == baseline)]
        base = base[base.learning_rate == best.get((world, baseline))]
        pairs = end.index.intersection(base.index)  # draws that both have played
        for metric in METRICS:
            difference = end.loc[pairs, metric] - base.loc[pairs, metric]
            several = len(pairs) > 1 and method != baseline and difference.std() > 1e-12
            test = stats.ttest_1samp(difference, 0.0) if several else None
            low, high = test.confidence_interval() if test else (np.nan, np.nan)
            row = {"world": world, "method": method, "learning_rate": rate, "draws": len(end)}
            row |= {"rollouts": end.rollouts.mean(), "tokens": end.tokens.mean(), "pairs": len(pairs)}
            row["metric"] = metric
            row |= {"score": end[metric].mean(), "difference": difference.mean(), "low": low, "high": high}
            row |= {"relative": difference.mean() / (base.loc[pairs, metric].mean() or np.nan)}
            rows.append(row | {"p_holm": test.pvalue if test else np.nan})
    table = pd.DataFrame(rows)
    p = table.p_holm.dropna().sort_values()
    table["p_holm"] = (p * np.arange(len(p), 0, -1)).cummax().clip(upper=1)
    keys = pd.MultiIndex.from_frame(table[["world", "method"]])
    return table[table.learning_rate.to_numpy() == best.loc[keys].to_numpy()].reset_index(drop=True)


def rollouts_to_reach(scores: pd.DataFrame) -> pd.DataFrame:
    """Part of GRPO's rollouts after which a method's means hold GRPO's best mean@8 and pass@8 together.

    Means are over the draws that both have played, GRPO at all its rates. GRPO's best are those at the end,
    each at the learning rate that is best for it. Linear between checkpoints, so 0.2 means "by the first";
    NaN where the two are not held to the end.
    """
    pair, rows = ["mean_at_8", "pass_at_8"], []
    for (world, method), runs in at_best_rate(scores).groupby(["world", "method"]):
        grpo = scores[(scores.world == world) & (scores.method == BASELINE)]
        shared = set(runs.draw).intersection(*(of.draw for _, of in grpo.groupby("learning_rate")))
        runs, grpo = runs[runs.draw.isin(shared)], grpo[grpo.draw.isin(shared)]
        if grpo.empty:
            continue
        targets = grpo[grpo.step == grpo.step.max()].groupby("learning_rate")[pair].mean().max()
        curve = runs.groupby("step")[["rollouts", *pair]].mean()
        rollouts = np.linspace(curve.rollouts.iloc[0], curve.rollouts.iloc[-1], 1001)
        reached = [np.interp(rollouts, curve.rollouts, curve[name]) >= targets[name] for name in pair]
        held = np.logical_and.accumulate(np.all(reached, axis=0)[::-1])[::-1]
        part = rollouts[held.argmax()] / grpo.rollouts.max() if held.any() else np.nan
        rows.append({"world": world, "method": method, "part": part})
    return pd.DataFrame(rows, columns=["world", "method", "part"])


def report(out: Path, baseline: str = BASELINE) -> str:
    """Write table.csv, table.md and the figures from scores.csv; returns the table as text.

    With another baseline than GRPO the tables are called after it, and no figures are drawn.
    """
    scores = pd.read_csv(out / "scores.csv")
    if scores.empty:
        raise ValueError(f"{out / 'scores.csv'} has no rows; play something with --methods")
    if baseline != BASELINE and baseline not in set(scores.method):
        known = sorted(set(scores.method))
        raise ValueError(f"baseline must be a method that was played, {known}, got {baseline!r}; choose one")
    table, reach = compare(scores, baseline), rollouts_to_reach(scores)
    stem = "table" if baseline == BASELINE else f"table-to-{slug_of(baseline)}"
    replace_text(out / f"{stem}.csv", table.to_csv(index=False, float_format="%.6g"))
    cells = [_cell(row, baseline) for row in table.itertuples()]
    shown = table.assign(cell=cells, metric=table.metric.map(METRICS))
    keys = ["world", "method", "learning_rate", "draws", "rollouts", "tokens"]
    wide = shown.pivot(index=keys, columns="metric", values="cell")[list(METRICS.values())].reset_index()
    wide = wide.merge(reach.rename(columns={"part": "rollouts to reach GRPO's best"}), how="left")
    text = wide.to_markdown(index=False, floatfmt=("", "", "g", "d", ".0f", ".0f", *4 * [""], ".2f"))
    text += (
        "\n\nThe training mix is mean@8 with the families weighed as in training. In brackets: difference to "
        f"{'GRPO' if baseline == BASELINE else baseline} in pairs by draw, 95% interval (Student's t), p "
        "with Holm's correction over all comparisons: every world, method, learning rate and metric. "
        "Intervals that contain 0 are inconclusive.\n"
    )
    replace_text(out / f"{stem}.md", text)
    if baseline == BASELINE:
        from gdro.arena.figures import draw_figures  # Matplotlib, where figures are drawn

        draw_figures(scores, table, reach, out)
    return text


def slug_of(method: str) -> str:
    """A method's spelling as part of a file's name."""
    return re.sub(r"[^\w.=-]", "_", method)


def _cell(row: Any, baseline: str) -> str:
    if row.method == baseline:
        return f"{row.score:.3f}"
    return f"{row.score:.3f} ({row.difference:+.3f}: {row.low:+.3f} … {row.high:+.3f}; p {row.p_holm:.3f})"
