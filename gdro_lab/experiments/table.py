"""From rows of scores, one a run and checkpoint, to the table of paired differences.

runs.csv      one row per world, configuration, learning rate, replicate, checkpoint and family
table.md      each configuration at its best learning rate: differences from GRPO in pairs by
              replicate, and memorization gaps
"""

from collections.abc import Iterable
from functools import cache, partial
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from gdro.checks import Refusal
from gdro.files import replace_text
from gdro_lab.experiments.blocks import BASE
from gdro_lab.experiments.records import TOTALS, read_manifest
from gdro_lab.experiments.scores import COLUMNS, format_gap, memorization_gaps
from gdro_lab.intervals import holm, paired_t
from gdro_lab.tasks.base import ALL

STUDIES = Path(__file__).parents[2] / "data/studies"
"""Where the rows of each study are stored."""
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
RUN_KEY = ["world", "configuration", "learning_rate", "replicate"]
"""What tells the runs of a study apart."""
read_csv = partial(pd.read_csv, keep_default_na=False, na_values="")  # a family may be called NA


def rows_of(study: str, runs: Iterable[list[dict[str, Any]]]) -> pd.DataFrame:
    """The rows of runs.csv: one a checkpoint of each run, and at its last one more for each family.

    Args:
        study: what the rows are called after.
        runs: the checkpoints of each, with the columns of `Run`, what was spent, and the scores of
            `score_families`.
    """
    rows = []
    for checkpoints in runs:
        for scores in checkpoints:
            row = scores | {"study": study, "family": ALL}
            rows.append(row)
        key = {name: row[name] for name in COLUMNS[: COLUMNS.index("family")]}
        on_train = row.get("train_families", {})
        for family, of_family in row["families"].items():
            rows.append(key | {"family": family, "train_mean": on_train.get(family)} | of_family)
    table = pd.DataFrame(rows).reindex(columns=COLUMNS)
    table["memorization_gap"] = memorization_gaps(table[table.family != ALL])
    return table


def rows_as_csv(rows: pd.DataFrame) -> str:
    """The text of runs.csv."""
    exact = rows.assign(learning_rate=rows.learning_rate.map(repr))  # all its digits
    exact = exact.astype(dict.fromkeys(TOTALS, "Int64"))
    return exact.to_csv(index=False, float_format="%.6g")


def read_study(name: str) -> pd.DataFrame:
    """Stored rows over all families, of a study or of a part, as in "arena-fair/rare-hard"."""
    return stored_rows(name).query("family == @ALL")


def read_families(name: str) -> pd.DataFrame:
    """Stored rows of each family alone, of a study or of a part of it."""
    return stored_rows(name).query("family != @ALL")


def stored_rows(name: str, studies: Path = STUDIES) -> pd.DataFrame:
    """All stored rows of a study or of a part of it."""
    file = studies / name.partition("/")[0] / "runs.csv"
    rows = _read(file, file.stat().st_mtime_ns)
    parts = sorted(set(rows.study))
    if name not in parts:
        raise Refusal(f"study must be one of {parts}, got {name!r}")
    return rows[rows.study == name]


@cache
def _read(file: Path, written: int) -> pd.DataFrame:
    """The rows of a file that was written at this time."""
    return read_csv(file)


def final_rows(scores: pd.DataFrame) -> pd.DataFrame:
    """The rows at the end of training."""
    return scores[scores.step == scores.step.max()]


def at_best_rate(scores: pd.DataFrame) -> pd.DataFrame:
    """The rows of each configuration at its best learning rate in a world.

    That has the highest mean@8 + pass@8 at the end, on the replicates that all learning rates were
    run on, if there are any.
    """
    ends = final_rows(scores).set_index(["world", "configuration", "replicate", "learning_rate"])
    best = {}
    for arm, merits in ends[RATE_SCORES].sum(axis=1).unstack().groupby(["world", "configuration"]):
        played = merits.dropna(axis=1, how="all")
        shared = played.dropna()
        best[arm] = (played if shared.empty else shared).mean().idxmax()
    arms = zip(scores.world, scores.configuration, scores.learning_rate, strict=True)
    return scores[[best[world, configuration] == rate for world, configuration, rate in arms]]


def compare(scores: pd.DataFrame, baseline: str = BASELINE) -> pd.DataFrame:
    """Final scores and paired differences from the baseline, by world, configuration and metric.

    low, high: 95% interval of the mean difference, Student's t over replicates. p_holm: p of the
    hypothesis that it is 0, corrected over every world, configuration, learning rate and metric,
    though a configuration is returned only at its best learning rate. NaN where replicates are
    fewer than two, and for the base.
    """
    best = at_best_rate(scores).groupby(["world", "configuration"]).learning_rate.first()
    ends = final_rows(scores).set_index("replicate")
    costs = [name for name in COSTS if name in ends and ends[name].notna().any()]
    rows = []
    for (world, configuration, rate), end in ends.groupby(
        ["world", "configuration", "learning_rate"]
    ):
        reference = ends[(ends.world == world) & (ends.configuration == baseline)]
        reference = reference[reference.learning_rate == best.get((world, baseline))]
        pairs = end.index.intersection(reference.index)  # replicates that both have played
        arm = {
            "world": world,
            "configuration": configuration,
            "learning_rate": rate,
            "replicates": len(end),
        }
        arm |= end[costs].mean().to_dict()
        for metric in METRICS:
            difference = end.loc[pairs, metric] - reference.loc[pairs, metric]
            # neither the baseline's other rates nor the base count among Holm's tests
            is_tested = configuration not in (baseline, BASE)
            test = paired_t(difference if is_tested else difference[:0])
            scored = {
                "metric": metric,
                "score": end[metric].mean(),
                "difference": difference.mean(),
                "low": test.low,
                "high": test.high,
                "p_holm": test.p,
            }
            rows.append(arm | scored)
    table = pd.DataFrame(rows)
    # over all rates, though one is returned: choosing the best of them is part of the test
    table["p_holm"] = holm(table.p_holm)
    arms = pd.MultiIndex.from_frame(table[["world", "configuration"]])
    return table[table.learning_rate.to_numpy() == best.loc[arms].to_numpy()].reset_index(drop=True)


def write_loop_report(out: Path) -> str:
    """Write runs.csv from the files of the runs, then the table; return it.

    Refusal for broken files, and where there are none.
    """
    runs = [read_manifest(file)["rows"] for file in sorted((out / "runs").glob("*/*.json"))]
    if not runs:
        raise Refusal(f"{out} has no runs: `gdro run` it first")
    rows = rows_of(out.name, runs)
    csv = rows_as_csv(rows)
    table = write_tables(out, read_csv(StringIO(csv)))
    replace_text(out / "runs.csv", csv)
    return table


def write_tables(out: Path, rows: pd.DataFrame) -> str:
    """Write the table of rows, and return it."""
    scores = rows[rows.family == ALL]
    table = compare(scores)
    text = format_table(table, BASELINE)
    rates = table.groupby(["world", "configuration"]).learning_rate.first()
    text += format_gap(rows[rows.family != ALL], rates)
    replace_text(out / "table.md", text)
    return text


def format_table(table: pd.DataFrame, baseline: str) -> str:
    """The result of `compare` as Markdown, a row each."""
    cells = [_cell(row, baseline) for row in table.itertuples()]
    shown = table.assign(cell=cells, metric=table.metric.map(METRICS))
    costs = [name for name in COSTS if name in table]
    keys = ["world", "configuration", "learning_rate", "replicates", *costs]
    shown[keys] = shown[keys].fillna(-1)  # a pivot leaves out rows without a key
    wide = shown.pivot(index=keys, columns="metric", values="cell")[[*METRICS.values()]]
    wide = wide.reset_index().replace(-1, np.nan)
    wide = wide.astype(object).where(wide.notna(), None)  # what is missing is printed as a dash
    formats = ("", "", "g", "d", *len(costs) * [",.0f"], *len(METRICS) * [""])
    name = "GRPO" if baseline == BASELINE else baseline
    return wide.to_markdown(index=False, floatfmt=formats, missingval="–") + (
        "\n\nThe training mix is mean@8 with the families weighted as in training. In brackets: "
        f"difference from {name} in pairs by replicate, 95% "
        "interval (Student's t), p with Holm's correction over all comparisons: every world, "
        "configuration, learning rate and metric. Intervals that contain 0 are inconclusive.\n"
    )


def _cell(row: Any, baseline: str) -> str:
    if np.isnan(row.score):  # a training mix of families that are not held out
        return "–"
    if row.configuration == baseline or np.isnan(row.difference):  # the latter: no pair was played
        return f"{row.score:.3f}"
    if np.isnan(row.low):  # no interval: the base, or too few replicates
        return f"{row.score:.3f} ({row.difference:+.3f})"
    interval = f"{row.low:+.3f} … {row.high:+.3f}; p {row.p_holm:.3f}"
    return f"{row.score:.3f} ({row.difference:+.3f}: {interval})"
