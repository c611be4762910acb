"""Runs in, the table of results out: scores with intervals, what was spent, differences to GRPO.

Axes: S seeds, P held-out prompts. All numbers come from the runs' records.
"""

import numpy as np
import pandas as pd

from gdro.bins import DifficultyBins
from gdro.experiment import BASE, Profile
from gdro.metrics import bootstrap_interval, mean_at_k, pass_at_k, worst_group

FEWEST_IN_A_BIN = 10  # a bin with fewer held-out prompts is not called the worst


def runs_of(runs: list[dict], variant: str) -> list[dict]:
    """A variant's runs, by seed."""
    found = sorted((run for run in runs if run["variant"] == variant), key=lambda run: run["seed"])
    if not found:
        raise ValueError(f"no run of variant {variant!r}; there are {sorted({r['variant'] for r in runs})}")
    return found


def prompt_scores(runs: list[dict], variant: str, k: int) -> dict[str, np.ndarray]:
    """mean@n and pass@k of every prompt: {"mean": (S, P), "pass": (S, P)}, prompts ordered by uid."""
    tables = [sorted(run["evaluation"], key=lambda row: row["uid"]) for run in runs_of(runs, variant)]
    successes_SP = np.array([[row["successes"] for row in table] for table in tables])
    trials_SP = np.array([[row["trials"] for row in table] for table in tables])
    return {"mean": mean_at_k(successes_SP, trials_SP), "pass": pass_at_k(successes_SP, trials_SP, k)}


def prompt_groups(runs: list[dict], k: int) -> dict[str, np.ndarray]:
    """Groupings of the held-out prompts, (P,) each: skill family, and bin of the base model's pass@k.

    Bins are the base's, so that they are the same prompts for every method; bins with fewer than
    `FEWEST_IN_A_BIN` prompts are joined to the next easier one.
    """
    table = sorted(runs_of(runs, BASE)[0]["evaluation"], key=lambda row: row["uid"])
    uids = [row["uid"] for row in table]
    bins = DifficultyBins(k=k)
    bins.update(uids, [row["successes"] for row in table], [row["trials"] for row in table])
    bin_ids = bins.assign(uids)
    for bin_id in range(bins.num_bins - 1):
        members = bin_ids == bin_id
        if 0 < members.sum() < FEWEST_IN_A_BIN:
            bin_ids[members] = bin_id + 1
    return {"family": np.array([row["family"] for row in table]), "bin": bin_ids}


def score_table(profile: Profile, runs: list[dict], resamples: int = 2000) -> pd.DataFrame:
    """One row a variant and score: value, 95% interval, difference to GRPO and its interval.

    Scores: mean@n, pass@k, worst-family pass@1, worst-bin pass@1. Differences are paired by seed and
    prompt, with the variant named "grpo" (NaN where the profile has none). Intervals are bootstrapped
    over seeds and prompts from a fixed seed.
    """
    k = profile.evaluation.k
    groups = prompt_groups(runs, k)
    scores = {variant: prompt_scores(runs, variant, k) for variant in [BASE, *profile.variants]}
    rows = []
    for variant, values in scores.items():
        for name, kind, groups_P in (
            (f"mean@{profile.evaluation.samples}", "mean", None),
            (f"pass@{k}", "pass", None),
            ("worst-family pass@1", "mean", groups["family"]),
            ("worst-bin pass@1", "mean", groups["bin"]),
        ):
            values_SP = values[kind]
            row = {"variant": variant, "label": profile.label(variant), "score": name}
            row["value"] = _value(values_SP, groups_P)
            row["low"], row["high"] = bootstrap_interval(
                values_SP, np.random.default_rng(0), groups_P, resamples=resamples
            )
            if "grpo" in scores and variant not in ("grpo", BASE):
                grpo_SP = scores["grpo"][kind]
                row["gain"] = row["value"] - _value(grpo_SP, groups_P)
                if groups_P is None:
                    row["gain_low"], row["gain_high"] = bootstrap_interval(
                        values_SP - grpo_SP, np.random.default_rng(0), resamples=resamples
                    )
            rows.append(row)
    return pd.DataFrame(rows)


def _value(values_SP, groups_P):
    if groups_P is None:
        return float(values_SP.mean())
    return worst_group(values_SP.mean(axis=0), groups_P)[1]


def spending_table(profile: Profile, runs: list[dict]) -> pd.DataFrame:
    """Rollouts and tokens of training, and seconds by stage, one row a variant (mean over seeds).

    Raises ValueError if two variants of the same number of steps spent different numbers of rollouts.
    """
    rows = []
    for variant in profile.variants:
        manifests = [run["manifest"] for run in runs_of(runs, variant)]
        seconds = [manifest["seconds"] for manifest in manifests]
        rows.append(
            {
                "variant": variant,
                "label": profile.label(variant),
                "rollouts": np.mean([manifest["rollouts"] for manifest in manifests]),
                "tokens": np.mean([manifest["tokens"] for manifest in manifests]),
                "train s": np.mean([stage["train"] for stage in seconds]),
                "generate s": np.mean([stage["generate"] for stage in seconds]),
                "controller s": np.mean([stage["controller"] for stage in seconds]),
                "evaluate s": np.mean([stage["evaluate"] for stage in seconds]),
            }
        )
    table = pd.DataFrame(rows)
    if table["rollouts"].nunique() > 1:
        spent = dict(zip(table["variant"], table["rollouts"], strict=True))
        raise ValueError(f"rollouts spent differ, so scores cannot be compared: {spent}")
    return table


def printed_table(profile: Profile, scores: pd.DataFrame, spending: pd.DataFrame) -> str:
    """The result as a Markdown table: scores with their intervals, rollouts, tokens, seconds."""
    spent = spending.set_index("variant")
    names = list(dict.fromkeys(scores["score"]))
    header = ["method", *names, "rollouts", "tokens", "train s", "of it controller"]
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    for variant, of_variant in scores.groupby("variant", sort=False):
        by_name = of_variant.set_index("score")
        cells = [profile.label(str(variant))]
        cells += [
            f"{by_name.value[name]:.3f} ({by_name.low[name]:.3f}–{by_name.high[name]:.3f})" for name in names
        ]
        if variant in spent.index:
            row = spent.loc[variant]
            cells += [f"{row['rollouts']:,.0f}", f"{row['tokens']:,.0f}", f"{row['train s']:.0f}"]
            cells.append(f"{100 * row['controller s'] / row['train s']:.2f}%")
        else:
            cells += ["0", "0", "0", "–"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)
