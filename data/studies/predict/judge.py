"""Judges the configurations of plan.md on pools of the bases, and sets training's gains beside it.

    python data/studies/predict/judge.py pools    # rows.csv, two minutes a pool, then table.md

Pools and rows that are there are kept, so the same command goes on where it was stopped.
"""

import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.stats import spearmanr
from tqdm import tqdm

from gdro_lab.experiments.spelling import read_spelling
from gdro_lab.experiments.table import read_study
from gdro_lab.microscope.judge import Setting, judge, scores_against
from gdro_lab.microscope.pool import read_pool

HERE = Path(__file__).parent
ROWS = HERE / "rows.csv"
STUDIES = {
    "rare-hard": ("by-prompt/averaging-hard", "by-prompt/hard", "predict/rare-hard"),
    "gym-weak": ("by-prompt/averaging-gym", "by-prompt/gym", "predict/gym-weak"),
}
REPLICATES = range(2700, 2706)
CONFIGURATIONS = [
    *("pkpo", "rollout_prompts", "pkpo_rollouts", "rollout", "rollout:averaging=prompt"),
    *("rollout_weights", "prompt", "both", "pivotal", "vip", "knapsack", "coba", "maxrl"),
]
SETTING = Setting(prompts=32, plays=8, splits=10, visits=2)
"""What the plan says of a batch."""
runpy.run_path(str(HERE.parent / "by-prompt/methods.py"))  # registers rollout_weights
KEY = ["world", "configuration", "replicate"]


def judge_all(pools: Path) -> None:
    """Write rows.csv: what the microscope says of each configuration on each pool."""
    rows = pd.read_csv(ROWS) if ROWS.is_file() else pd.DataFrame(columns=KEY)
    places = [(world, replicate) for world in STUDIES for replicate in REPLICATES]
    for world, replicate in tqdm(places, unit="pool"):
        if ((rows.world == world) & (rows.replicate == replicate)).any():
            continue
        path = pools / f"{world}-{replicate}.npz"
        options = f"--world {world} --world-seed {replicate} --width 32"
        make = [sys.executable, "-m", "gdro_lab.microscope", "make", str(path), *options.split()]
        if not path.is_file():
            subprocess.run(make, check=True)
        pool = read_pool(path)
        baseline = judge(pool, "grpo", SETTING)
        for spelled in CONFIGURATIONS:
            row: dict[str, object] = dict(zip(KEY, (world, spelled, replicate), strict=True))
            variant = read_spelling(spelled)
            try:
                judged = judge(pool, variant.method, SETTING, **variant.options)
                found = scores_against(judged, baseline)
                row |= {score: value for score, (value, _, _) in found.items()}
            except ValueError as error:
                row["refused"] = str(error)
            rows = pd.concat([rows, pd.DataFrame([row])])
        rows.to_csv(ROWS, index=False, float_format="%.5g")


def gains_of(world: str) -> pd.DataFrame:
    """Gain over grpo by configuration: a column for each score at the first and last checkpoint."""
    runs = pd.concat([read_study(study) for study in STUDIES[world]])
    runs = runs[(runs.world == world) & runs.replicate.isin(REPLICATES)]
    runs = runs.drop_duplicates([*KEY, "step"])  # grpo's are in several
    scores = runs.set_index(["configuration", "replicate", "step"])[
        ["mean_at_8", "pass_at_8", "training_mix_mean"]
    ]
    gains = scores.loc[CONFIGURATIONS] - scores.loc["grpo"]
    by_step = gains.groupby(["configuration", "step"]).mean().unstack("step")
    return by_step.loc[CONFIGURATIONS, (slice(None), [by_step.columns.levels[1].min(), 150])]


def correlation(predictions: dict[str, pd.Series], gains: dict[str, pd.Series]) -> str:
    """Spearman's, mean of the worlds, with its interval by bootstrap over configurations."""
    rng = np.random.default_rng(0)
    count = len(CONFIGURATIONS)
    draws = np.vstack([np.arange(count), rng.integers(count, size=(10_000, count))])
    found = [
        np.mean(
            [spearmanr(predictions[w].iloc[at], gains[w].iloc[at]).statistic for w in predictions]
        )
        for at in draws
    ]
    low, high = np.nanpercentile(found[1:], [2.5, 97.5])
    return f"{found[0]:+.2f} [{low:+.2f}, {high:+.2f}]"


def table() -> str:
    """Every rank correlation, and what it is made of."""
    rows = pd.read_csv(ROWS)
    gains = {world: gains_of(world) for world in STUDIES}
    said = {}
    for score in ("snr_ratio", "variance_ratio", "cosine"):
        logs = rows.assign(value=np.log(rows[score].clip(lower=1e-9)))
        by_world = logs.groupby(["world", "configuration"]).value.mean()
        said[score] = {world: by_world[world].reindex(CONFIGURATIONS) for world in STUDIES}
    cells = {
        (f"{score}, {step} batches", said_by): correlation(
            said[said_by], {world: gains[world][score, step] for world in STUDIES}
        )
        for said_by in said
        for score, step in gains["rare-hard"].columns
    }
    lines = ["Rank correlation over configurations, mean of two worlds, 95% interval", ""]
    lines.append(pd.Series(cells).unstack().to_markdown())
    for world, of_world in gains.items():
        shown = of_world.droplevel(1, axis=1).set_axis(
            [f"{score}, {step}" for score, step in of_world.columns], axis=1
        )
        shown.insert(0, "signal-to-noise", np.exp(said["snr_ratio"][world]))
        lines += ["", f"## {world}", "", shown.round(3).to_markdown()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(exist_ok=True)
    judge_all(folder)
    (HERE / "table.md").write_text(table())
