"""Plays the arms of the plan in plan.md on pools, and makes the tables.

    python data/studies/gradients/judge_pools.py pools/gym-*.npz    # rows.csv, some minutes a pool
    python data/studies/gradients/judge_pools.py                    # table.md from the rows

Rows that are there are kept, so the same command goes on where it was stopped.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import methods as own_methods  # noqa: F401  (registers what only this study plays)
import numpy as np
import pandas as pd
from scipy.stats import gmean
from tqdm import tqdm

from gdro.registry import method_names
from gdro_lab.intervals import holm, paired_t
from gdro_lab.microscope.judge import Judged, Setting, judge, scores_against
from gdro_lab.microscope.pool import Pool, read_pool

HERE = Path(__file__).parent
ROWS = HERE / "rows.csv"
ADVANTAGES = ("rloo", "grpo", "pkpo")
MEAN = {"divide_by": "rollouts"}
CONDITIONS: dict[str, dict] = {
    "all 64 prompts": MEAN,
    "all 64 prompts, two visits before": MEAN | {"visits": 2},
    "16 prompts": MEAN | {"prompts": 16, "plays": 8},
    "all 64 prompts, divided by tokens": {},
}
BY_PROMPT = {"averaging": "prompt"}
FAMILY = {"groups": True}
ARMS: dict[str, tuple[dict, dict]] = {  # by name: parts of `composed`, and setting
    "uniform": ({}, {}),
    "bins, by rollout": ({"rollouts": "rollout"}, {}),
    "bins": ({"rollouts": {"rollout": BY_PROMPT}}, BY_PROMPT),
    "prompts, family prior": ({"rollouts": "rollout_prompts"}, BY_PROMPT | FAMILY),
    "prompts, batch prior": ({"rollouts": "rollout_prompts"}, BY_PROMPT),
    "prompts, flat prior": ({"rollouts": "rollout_prompts_flat"}, BY_PROMPT),
    "vip, by rollout": ({"rollouts": "vip"}, {}),
    "vip": ({"rollouts": "vip"}, BY_PROMPT),
    "knapsack, by rollout": ({"rollouts": "knapsack"}, {}),
    "knapsack": ({"rollouts": "knapsack"}, BY_PROMPT),
    "coba, by rollout": ({"rollouts": "coba"}, {}),
    "coba": ({"rollouts": "coba"}, BY_PROMPT),
}
DRAWS = {
    "pivotal's draw": ({"draw": "pivotal"}, {}),
    "families evenly": ({"draw": "family_even"}, FAMILY),
}
NO_METHODS = {"composed", "oracle", "rollout_prompts_flat"}  # parts, the truth, the study's own
PRIMARY = ["bins", "prompts, family prior"]


def tables_of(pool: Pool, done: set[tuple]) -> Iterator[list[dict]]:
    """The rows of a pool, table by table, the primary one first; not those that are done."""
    for condition, batch in CONDITIONS.items():
        draws = "prompts" in batch
        for advantages in ADVANTAGES:
            if (condition, advantages) in done:
                continue
            baseline = judge(pool, "composed", Setting(**batch), advantages=advantages)
            rows = []
            for arm, (parts, played) in (ARMS | DRAWS if draws else ARMS).items():
                setting = Setting(**batch, **played)
                found = judge(pool, "composed", setting, advantages=advantages, **parts)
                label = {"condition": condition, "advantages": advantages, "arm": arm}
                rows.append(label | scores(found, baseline))
            yield rows
        if (condition, "own") not in done:
            yield registered(pool, condition, batch)


def registered(pool: Pool, condition: str, batch: dict) -> list[dict]:
    """Every registered method as it is, against GRPO; a refused one has its reason."""
    baseline = judge(pool, "grpo", Setting(**batch))
    rows = []
    for method in method_names():
        if method in NO_METHODS:
            continue
        label = {"condition": condition, "advantages": "own", "arm": method}
        try:
            found = judge(pool, method, Setting(**batch))
        except ValueError as error:
            rows.append(label | {"refused": str(error)})
            continue
        rows.append(label | scores(found, baseline))
    return rows


def scores(found: Judged, baseline: Judged) -> dict:
    """Ratios to the baseline with their intervals, and the parts that they are of."""
    row = {}
    for score, (value, low, high) in scores_against(found, baseline).items():
        row |= {score: value, f"{score}_low": low, f"{score}_high": high}
    whole = found.scores()
    return row | {name: whole[name] for name in ("variance", "variance_of_draws", "square")}


def table(rows: pd.DataFrame) -> str:
    """Means over pools, geometric ones of ratios of variance, with the primary tests."""
    lines = []
    primary = rows[
        (rows.condition == "all 64 prompts") & (rows.advantages == "rloo") & rows.arm.isin(PRIMARY)
    ]
    logs = np.log(primary.pivot(index="pool", columns="arm", values="variance_ratio")[PRIMARY])
    lines.append(f"Pools: {', '.join(logs.index)}.\n")
    if len(logs) > 1:
        found = {arm: paired_t(logs[arm]) for arm in PRIMARY}
        bounds = {arm: (one.low, one.high, one.p) for arm, one in found.items()}
        tests = pd.DataFrame(bounds, ["low", "high", "p"]).T
        tests["holm"] = holm(tests.p)
        shown = np.exp(tests[["low", "high"]]).assign(ratio=np.exp(logs.mean()), holm=tests.holm)
        lines.append("Primary tests\n\n" + shown.round(3).to_markdown())
    for (condition, advantages), part in rows.groupby(["condition", "advantages"], sort=False):
        played = part[part.variance_ratio.notna()]
        by_arm = played.groupby("arm", sort=False)
        shown = by_arm[["variance_ratio", "snr_ratio", "cosine"]].mean()
        shown["variance_ratio"] = by_arm.variance_ratio.agg(lambda ratios: gmean(ratios))
        if part.pool.nunique() == 1:
            for score in ("variance_ratio", "snr_ratio"):
                bounds = played.set_index("arm")[[f"{score}_low", f"{score}_high"]]
                shown[f"{score} 95%"] = bounds.apply(
                    lambda pair: "[{:.2f}, {:.2f}]".format(*pair), axis=1
                )
        if advantages == "own":  # of different lengths, so their variances say nothing
            shown = shown.filter(regex="^(?!variance)")
        lines.append(f"\n## {condition}, advantages: {advantages}\n")
        lines.append(shown.round(2).to_markdown())
    if "refused" not in rows:
        return "\n".join(lines) + "\n"
    refused = rows[rows.refused.notna()].drop_duplicates("arm")
    lines += ["\nRefused:", *(f"- {row.arm}: {row.refused}" for row in refused.itertuples())]
    return "\n".join(lines) + "\n"


def main() -> None:
    columns = ["pool", "condition", "advantages"]
    rows = pd.read_csv(ROWS) if ROWS.is_file() else pd.DataFrame(columns=columns)
    for path in map(Path, sys.argv[1:]):
        made = rows[rows.pool == path.stem]
        done = set(zip(made.condition, made.advantages, strict=True))
        total = len(CONDITIONS) * (len(ADVANTAGES) + 1) - len(done)
        for table_rows in tqdm(tables_of(read_pool(path), done), path.stem, total, unit="table"):
            rows = pd.concat([rows, pd.DataFrame(table_rows).assign(pool=path.stem)])
            rows.to_csv(ROWS, index=False, float_format="%.5g")
    (HERE / "table.md").write_text(table(pd.read_csv(ROWS)))


if __name__ == "__main__":
    main()
