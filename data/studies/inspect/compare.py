"""Hold the forecasts of `gdro inspect` to the runs that play.py has made; print the tables.

    python data/studies/inspect/compare.py FOLDER --out data/studies/inspect

Each method's forecast is made from GRPO's run of the same draw and seed, and compared with the
method's own run. "As it was" is GRPO's run itself. The second table holds the first half of every
run to its second half.
"""

import argparse
from pathlib import Path

import numpy as np
import pandas as pd

from gdro.inspect import Groups
from gdro.inspect.difficulty import PassRates, mixed_probability
from gdro.inspect.forecast import forecast

FORECAST = ("pivotal", "rollout_prompts", "rollout", "both")


def read_groups(file: Path) -> Groups:
    """The rollout groups of a run."""
    table = pd.read_csv(file)
    trials_G = table["rollouts"].to_numpy()
    hits_G = table["correct"].to_numpy()
    return Groups(
        prompts_G=table["prompt"].factorize()[0],
        steps_G=table["step"].to_numpy(),
        trials_G=trials_G,
        hits_G=hits_G,
        is_flat_G=(hits_G == 0) | (hits_G == trials_G),
        lengths_G=None,
    )


def read_runs(folder: Path) -> pd.DataFrame:
    """A row for each run, with its groups."""
    rows = []
    for file in sorted(folder.glob("*.csv")):
        world, rest = file.stem.split("_", 1)
        method, draw, seed = rest.rsplit("_", 2)
        rows.append((world, method, draw[4:], seed[4:], read_groups(file)))
    return pd.DataFrame(rows, columns=["world", "method", "draw", "seed", "groups"])


def trained_share(groups: Groups) -> float:
    """Share of the rollouts that are in mixed groups."""
    return groups.trials_G[groups.is_mixed_G].sum() / groups.trials_G.sum()


def compare_methods(runs: pd.DataFrame) -> pd.DataFrame:
    """Forecast from GRPO's run, as it was there, and the method's run.

    Of the share of mixed groups, and for methods that move rollouts of the share of rollouts in
    them. A run of GRPO with fewer prompts has more rollouts of each.
    """
    rows = []
    for (world, draw, seed), part in runs.groupby(["world", "draw", "seed"]):
        groups = part.set_index("method")["groups"].drop("grpo", errors="ignore")
        was = part["groups"][part["method"] == "grpo"]
        if was.empty:
            continue
        [was] = was
        methods = [name for name in groups.index if name in FORECAST]
        rates = PassRates(was.trials_G, was.hits_G, was.prompts_G)
        found = forecast(was, rates, True, methods, seed=0)
        for method, run in groups.items():
            row = {"world": world, "method": method, "draw": draw, "seed": seed, "of": "groups"}
            row |= {"as it was": was.is_mixed_G.mean(), "run": run.is_mixed_G.mean()}
            if method in FORECAST:
                rows.append(row | {"forecast": found[method]["mixed"]})
            else:
                mixed_M = mixed_probability(rates.grid_M, int(run.trials_G.mean()))
                rows.append(row | {"forecast": mixed_M @ rates.weights_M})
            if method in FORECAST and (run.trials_G != run.trials_G[0]).any():
                shares = {"as it was": trained_share(was), "run": trained_share(run)}
                shares["forecast"] = found[method]["trained_rollouts"]
                rows.append(row | {"of": "rollouts"} | shares)
    return pd.DataFrame(rows)


def compare_halves(runs: pd.DataFrame) -> pd.DataFrame:
    """Share of mixed groups in the second half of each run, and what the first half says of it."""
    rows = []
    for run in runs.itertuples():
        steps_G = run.groups.steps_G
        middle = np.median(np.unique(steps_G))
        first = run.groups.take(steps_G <= middle)
        second = run.groups.take(steps_G > middle)
        last = first.take(first.steps_G > middle * 0.8)
        rows.append(
            {
                "world": run.world,
                "method": run.method,
                "seed": run.seed,
                "first half": first.is_mixed_G.mean(),
                "its last fifth": last.is_mixed_G.mean(),
                "second half": second.is_mixed_G.mean(),
            }
        )
    return pd.DataFrame(rows)


def errors(table: pd.DataFrame, by: list[str], guesses: list[str], truth: str) -> pd.DataFrame:
    """Mean absolute error of each guess, and the largest of the first."""
    gaps = table[guesses].sub(table[truth], axis=0).abs()
    gaps["largest"] = gaps[guesses[0]]
    gaps["runs"] = 1
    rules = dict.fromkeys(guesses, "mean") | {"largest": "max", "runs": "sum"}
    return gaps.groupby([table[name] for name in by]).agg(rules)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, help="folder for methods.csv and halves.csv")
    args = parser.parse_args()
    runs = read_runs(args.folder)
    methods = compare_methods(runs)
    halves = compare_halves(runs)
    if args.out is not None:
        methods.to_csv(args.out / "methods.csv", index=False, float_format="%.4f")
        halves.to_csv(args.out / "halves.csv", index=False, float_format="%.4f")
    print(methods.to_markdown(index=False, floatfmt=".3f"), end="\n\n")
    guesses = ["forecast", "as it was"]
    print(
        errors(methods, ["world", "method"], guesses, "run").to_markdown(floatfmt=".3f"), end="\n\n"
    )
    guesses = ["its last fifth", "first half"]
    print(errors(halves, ["world"], guesses, "second half").to_markdown(floatfmt=".3f"))
