"""Tables of paired differences from stored rows, for `recompute.py`."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pandas as pd

from gdro_lab.experiments.intervals import holm, paired_t
from gdro_lab.experiments.table import METRICS

HERE = Path(__file__).parent
FOUR = list(METRICS)
PRIMARY = ["training_mix_mean", "pass_at_8"]
"""The scores of the primary tests in smol/ and replay/."""


def ends(folder: Path, file: str = "scores.csv") -> pd.DataFrame:
    """The last row of each run, with `arm`, as in "pivotal:prompts=64@2e-4"."""
    rows = pd.read_csv(folder / file)
    rows = rows[rows.step == rows.step.max()].copy()
    rows["arm"] = [
        f"{method}@{np.format_float_scientific(rate, trim='-', exp_digits=1)}"
        for method, rate in zip(rows.method, rows.learning_rate, strict=True)
    ]
    return rows


def paired(rows: pd.DataFrame, arm: str, baseline: str, values: list[str] = FOUR) -> pd.DataFrame:
    """Differences of an arm to a baseline by draw: a row for each value, with p uncorrected."""
    of = rows.groupby(["arm", "draw"])[values].mean()
    by_draw = (of.loc[arm] - of.loc[baseline]).dropna()
    return differences(by_draw).assign(arm=arm, baseline=baseline)


def each_paired(
    rows: pd.DataFrame, arms: Iterable[str], baseline: str, values: list[str] = FOUR
) -> pd.DataFrame:
    """`paired` of each of these arms."""
    return pd.concat([paired(rows, arm, baseline, values) for arm in arms], ignore_index=True)


def all_paired(rows: pd.DataFrame, baseline: str, values: list[str] = FOUR) -> pd.DataFrame:
    """`paired` of every trained arm but the baseline."""
    trained = rows.loc[rows.method != "base", "arm"]
    arms = [arm for arm in trained.unique() if arm != baseline]
    return each_paired(rows, arms, baseline, values)


def differences(by_draw: pd.DataFrame) -> pd.DataFrame:
    """Mean, interval, p and the number of draws above 0 of each column.

    NaN where there is one draw, or where all differences are the same.
    """
    tests = [paired_t(by_draw[name]) for name in by_draw]
    table = pd.DataFrame({"value": by_draw.columns, "difference": by_draw.mean().to_numpy()})
    table["difference"] = table.difference.round(12) + 0.0  # no −0 of sums that cancel
    table["interval"] = [f"{test.low:+.3f} to {test.high:+.3f}" for test in tests]
    table["half"] = [(test.high - test.low) / 2 for test in tests]
    table["p"] = [test.p for test in tests]
    return table.assign(above=(by_draw > 0).sum().to_numpy(), draws=len(by_draw))


def totals(rows: pd.DataFrame, values: list[str]) -> pd.DataFrame:
    """Sum of some scores by method and rate, mean over draws, and the rate that is best.

    All runs of a tuning must be there: a rate that lacks a run is compared on other draws.
    """
    counts = rows.groupby(["method", "learning_rate"]).size()
    assert counts.min() == counts.max(), counts
    total = rows[values].sum(axis=1)
    by_rate = rows.assign(total=total).pivot_table(
        index="method", columns="learning_rate", values="total"
    )
    return by_rate.assign(rate=by_rate.idxmax(axis=1))


def memory_of(folder: Path) -> pd.Series:
    """Memory of each run, mean of the families: training minus held-out, minus the base's."""
    return ends(folder, "families.csv").groupby(["world", "arm", "draw"]).memory.mean()


def show_plan(title: str, table: pd.DataFrame, is_primary: pd.Series) -> None:
    """Print the primary tests of a plan, Holm over these, then the others without a correction."""
    primary = table[is_primary]
    show(
        f"{title}: {len(primary)} primary tests, Holm over these",
        primary.assign(holm=holm(primary.p)),
    )
    show(f"{title}: intervals without a correction", table[~is_primary])


def show(title: str, table: pd.DataFrame) -> None:
    print(f"\n## {title}\n\n{table.to_markdown(index=False, floatfmt='.4g')}")
