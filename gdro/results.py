"""Runs in, the table of results out: scores with intervals, what was spent, differences to GRPO.

Axes: S seeds, P held-out prompts. All numbers come from the runs' records.
"""

import sys
from pathlib import Path

import numpy as np
import pandas as pd

from gdro.bins import DifficultyBins
from gdro.metrics import bootstrap_interval, mean_at_k, pass_at_k, worst_group
from gdro.profiles import BASE, Profile, run_folder
from gdro.records import read_manifest, read_table

FEWEST_IN_A_BIN = 10  # a bin with fewer held-out prompts is not called the worst


def read_runs(profile: Profile, runs_dir: str | Path) -> list[dict]:
    """All runs of a profile, the base first: variant, seed, manifest, record, evaluation.

    Raises ValueError if one is missing or was made with other settings.
    """
    wanted = [(BASE, profile.seeds[0])]
    wanted += [(variant, seed) for variant in profile.variants for seed in profile.seeds]
    runs = []
    for variant, seed in wanted:
        folder = run_folder(runs_dir, variant, seed)
        manifest = read_manifest(folder / "manifest.json")
        if manifest.get("settings") != profile.settings_of(variant):
            raise ValueError(
                f"the run in {folder} was made with other settings than profile {profile.name!r} has now; "
                "delete the folder and run it again"
            )
        runs.append(
            {
                "variant": variant,
                "seed": seed,
                "manifest": manifest,
                "record": [] if variant == BASE else read_table(folder / "record.jsonl"),
                "evaluation": read_table(folder / "evaluation.jsonl"),
            }
        )
    return runs


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

    Scores: mean@n, pass@k, worst-family pass@1, worst-bin pass@1 (not for the base, whose samples chose
    the bins). Differences are paired by seed and prompt, with the variant's baseline; NaN where there is
    none. Intervals are bootstrapped over seeds and prompts from a fixed seed; the worst group of a
    method is taken as found.
    """
    groups = prompt_groups(runs, profile.evaluation.k)
    scores = {
        variant: prompt_scores(runs, variant, profile.evaluation.k) for variant in [BASE, *profile.variants]
    }
    rows = []
    for variant, values in scores.items():
        for name, kind, groups_P in (
            (f"mean@{profile.evaluation.samples}", "mean", None),
            (f"pass@{profile.evaluation.k}", "pass", None),
            ("worst-family pass@1", "mean", groups["family"]),
            ("worst-bin pass@1", "mean", groups["bin"]),
        ):
            if variant == BASE and name.startswith("worst-bin"):
                continue
            parts_SP = _parts(values[kind], groups_P)
            row = {"variant": variant, "label": profile.label(variant), "score": name}
            row |= _estimate("", parts_SP, resamples)
            baseline = _baseline_of(profile, variant)
            if baseline is not None:
                row |= _estimate("gain", parts_SP - _parts(scores[baseline][kind], groups_P), resamples)
            rows.append(row)
    return pd.DataFrame(rows)


def family_table(profile: Profile, runs: list[dict], resamples: int = 2000) -> pd.DataFrame:
    """One row a variant and family (a skill, a data set, a level): mean@n with its 95% interval."""
    families_P = prompt_groups(runs, profile.evaluation.k)["family"]
    rows = []
    for variant in [BASE, *profile.variants]:
        means_SP = prompt_scores(runs, variant, profile.evaluation.k)["mean"]
        for family in dict.fromkeys(families_P):
            row = {"variant": variant, "label": profile.label(variant), "score": str(family)}
            rows.append(row | _estimate("", means_SP[:, families_P == family], resamples))
    return pd.DataFrame(rows)


def _baseline_of(profile, variant):
    """The variant that another is compared with, None for those that are compared with none."""
    if variant == BASE:
        return None
    baseline = profile.variants[variant].baseline
    return baseline if baseline in profile.variants and baseline != variant else None


def _parts(values_SP, groups_P):
    """What each prompt adds to the score, so that its mean is the score: (S, P).

    Without groups the values themselves; with groups those of the worst group, scaled up by P over its
    size, and 0 for all other prompts.
    """
    if groups_P is None:
        return values_SP
    worst, _ = worst_group(values_SP.mean(axis=0), groups_P)
    members_P = groups_P == worst
    return values_SP * members_P * (len(groups_P) / members_P.sum())


def _estimate(name, parts_SP, resamples):
    low, high = bootstrap_interval(parts_SP, np.random.default_rng(0), resamples=resamples)
    if not name:  # a score, not a difference: the widening for few seeds may not carry it out of [0, 1]
        low, high = max(low, 0.0), min(high, 1.0)
    prefix = f"{name}_" if name else ""
    return {name or "value": float(parts_SP.mean()), f"{prefix}low": low, f"{prefix}high": high}


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


def printed_tables(
    profile: Profile, scores: pd.DataFrame, families: pd.DataFrame, spending: pd.DataFrame
) -> str:
    """The results as Markdown: scores, differences to GRPO, families, what was spent; intervals are 95%."""
    names = list(dict.fromkeys(scores["score"]))
    parts = ["Scores on held-out prompts\n", _interval_table(scores, names, "value", "low", "high", "{:.3f}")]
    if "gain" in scores:
        gains = scores.dropna(subset=["gain"])
        parts += ["\nDifference to GRPO, paired by seed and prompt: an interval that holds 0 shows none\n"]
        parts += [_interval_table(gains, names, "gain", "gain_low", "gain_high", "{:+.3f}")]
    parts += [f"\nmean@{profile.evaluation.samples} by family\n"]
    names = list(dict.fromkeys(families["score"]))
    parts += [_interval_table(families, names, "value", "low", "high", "{:.3f}")]
    parts += ["\nWhat was spent, mean over seeds\n", _spending_lines(spending)]
    return "\n".join(parts)


def _interval_table(scores, names, value, low, high, form):
    lines = [_line(["method", *names]), "|" + "---|" * (len(names) + 1)]
    for label, of_label in scores.groupby("label", sort=False):
        by_name = of_label.set_index("score")
        cells = [
            f"{form} ({form} to {form})".format(*by_name.loc[name, [value, low, high]])
            if name in by_name.index
            else "–"
            for name in names
        ]
        lines.append(_line([str(label), *cells]))
    return "\n".join(lines)


def _spending_lines(spending):
    columns = [
        "rollouts",
        "tokens",
        "tokens to GRPO",
        "train s",
        "of it generate s",
        "of it controller",
        "evaluate s",
    ]
    lines = [_line(["method", *columns]), "|" + "---|" * (len(columns) + 1)]
    grpo = spending.set_index("variant")["tokens"].get("grpo", np.nan)
    for row in spending.to_dict("records"):
        to_grpo = "–" if np.isnan(grpo) else f"{100 * (row['tokens'] / grpo - 1):+.2f}%"
        cells = [row["label"], f"{row['rollouts']:,.0f}", f"{row['tokens']:,.0f}", to_grpo]
        cells += [f"{row['train s']:.0f}", f"{row['generate s']:.0f}"]
        cells += [f"{100 * row['controller s'] / row['train s']:.2f}%", f"{row['evaluate s']:.0f}"]
        lines.append(_line(cells))
    return "\n".join(lines)


def _line(cells):
    return "| " + " | ".join(cells) + " |"


def main(arguments: list[str]) -> None:
    """`python -m gdro.results show PROFILE`: print the table and where the pictures are."""
    if len(arguments) != 2 or arguments[0] != "show":
        raise SystemExit("usage: python -m gdro.results show PROFILE")
    manifest = read_manifest(Path("runs") / arguments[1] / "results" / "manifest.json")
    print("\n" + manifest["table"])
    print("figures:  " + "\n          ".join(manifest["figures"]))
    print(f"records:  runs/{arguments[1]}/")


if __name__ == "__main__":
    main(sys.argv[1:])
