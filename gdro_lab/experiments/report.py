"""The results of trainings in TRL: scores with intervals, differences from GRPO, what was spent.

All numbers come from the records of the runs, and a table has one kind of interval. Where seeds
share a task, there are one or two of them, of which Student's t says nothing, and the same held-out
prompts: intervals are bootstrapped over seeds and prompts. Where each seed draws its own task, the
runs are rows of `gdro_lab.experiments.table`, whose intervals are over replicates. Axes: S seeds, P
held-out prompts.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from textwrap import indent
from typing import Any

import numpy as np
import pandas as pd

from gdro import metrics
from gdro.bins import DifficultyBins
from gdro.checks import Refusal
from gdro.files import replace_text
from gdro_lab.experiments.blocks import BASE
from gdro_lab.experiments.figures import paper_figures, select_runs
from gdro_lab.experiments.profile import Profile
from gdro_lab.experiments.records import TOTALS, read_result, totals
from gdro_lab.experiments.scores import K, score_families, train_scores
from gdro_lab.experiments.style import save, use_style
from gdro_lab.experiments.table import compare, format_table, rows_as_csv, rows_of
from gdro_lab.intervals import bootstrap_interval
from gdro_lab.tasks.base import ALL

FEWEST_IN_A_BIN = 10
"""A bin with fewer held-out prompts is not called the worst."""
MOST = 8
"""Questions whose texts are shown."""
STAGES = ("train", "generate", "controller", "evaluate")

PromptScores = dict[str, np.ndarray]
"""mean@n and pass@k of every prompt: {"mean": (S, P), "pass": (S, P)}, in order of uid."""
Kinds = Mapping[str, Callable[[PromptScores], np.ndarray]]
"""By name of a score, the values (S, P) whose mean it is."""


def read_runs(profile: Profile, runs_dir: str | Path) -> list[dict[str, Any]]:
    """All runs of a profile, the base first: variant, seed, manifest, record, evaluation.

    Refusal if one is missing, or was made with other settings.
    """
    runs: list[dict[str, Any]] = []
    starts: dict[Any, str] = {}
    uids_of: dict[Any, list[str]] = {}
    variants = [BASE, *profile.variants]
    for listed in sorted(profile.runs(), key=lambda run: variants.index(run.configuration)):
        folder = listed.file(Path(runs_dir)).parent
        run: dict[str, Any] = {"variant": listed.configuration, "seed": listed.replicate}
        run |= read_result(folder)
        run["evaluation"].sort(key=lambda row: row["uid"])
        manifest = run["manifest"]
        wanted = {"settings": listed.settings, "seed": listed.replicate}
        if not wanted.items() <= manifest.items():
            raise Refusal(
                f"runs must be those of profile {profile.name!r} as it is now, got other settings "
                f"or another seed in {folder}"
            )
        if starts.setdefault(listed.start_title, manifest["start"]) != manifest["start"]:
            raise Refusal(f"{folder} started from another base than other runs did: train it again")
        drawn = None if profile.one_task else listed.replicate
        uids = [row["uid"] for row in run["evaluation"]]
        if uids_of.setdefault(drawn, uids) != uids:
            raise Refusal(
                f"{folder} must be evaluated on the problems of 'base', got others: delete its "
                "manifest.json and run again"
            )
        runs.append(run)
    return runs


def trl_rows(profile: Profile, runs: list[dict[str, Any]]) -> pd.DataFrame:
    """The runs as rows of runs.csv, as those of the loop are."""
    shares = {}
    for run in runs:
        if "families" in run["manifest"]:  # the base, not trained, takes those of its seed
            counts = pd.Series(run["manifest"]["families"])
            shares[run["seed"]] = (counts / counts.sum()).to_dict()
    columns = {(run.configuration, run.replicate): run.columns for run in profile.runs()}
    ends = []
    for run in runs:
        of_run = columns[run["variant"], run["seed"]]
        ends.append([_end(profile, run, of_run, shares.get(run["seed"], {}))])
    return rows_of(profile.name, ends)


def _end(
    profile: Profile, run: dict[str, Any], columns: dict[str, Any], shares: Mapping[str, float]
) -> dict[str, Any]:
    """What a run had spent and scored at its end."""
    held_out = pd.DataFrame(run["evaluation"])
    row = columns | {"step": profile.train.max_steps} | totals(run["record"])
    row |= score_families(
        held_out.family.to_list(), held_out.successes.to_numpy(), held_out.trials.to_numpy(), shares
    )
    if run["seen"]:
        seen = pd.DataFrame(run["seen"])
        row |= train_scores(run["seen"], seen.successes.to_numpy(), seen.trials[0], shares)
    return row


def prompt_scores(runs: list[dict[str, Any]], variant: str, k: int) -> PromptScores:
    """The scores of every prompt by every seed of a variant."""
    rows = [run["evaluation"] for run in select_runs(runs, variant)]
    counts = np.array([[[row["successes"], row["trials"]] for row in of_run] for of_run in rows])
    hits_SP = counts[..., 0]
    trials_SP = counts[..., 1]
    return {"mean": hits_SP / trials_SP, "pass": metrics.pass_at_k(hits_SP, trials_SP, k)}


def prompt_groups(runs: list[dict[str, Any]], k: int) -> dict[str, np.ndarray]:
    """Groups of the held-out prompts, (P,) each: family, and bin of the base model's pass@k.

    The bins hold the same prompts for every method. A bin with fewer than `FEWEST_IN_A_BIN` prompts
    is joined to the next easier one, the easiest bin to the one before it.
    """
    table = pd.DataFrame(select_runs(runs, BASE)[0]["evaluation"])
    # bins of the base, not of the trained models: these would choose their own worst bin
    bins = DifficultyBins(k=k)
    bins.update(table.uid.tolist(), table.successes.tolist(), table.trials.tolist())
    bins_P = bins.assign(table.uid.tolist())
    for bin_id in range(bins.num_bins - 1):
        if (bins_P == bin_id).sum() < FEWEST_IN_A_BIN:
            bins_P[bins_P == bin_id] = bin_id + 1
    names, counts = np.unique(bins_P, return_counts=True)
    if counts[-1] < FEWEST_IN_A_BIN and len(names) > 1:
        bins_P[bins_P == names[-1]] = names[-2]
    return {"family": table.family.to_numpy(str), "bin": bins_P}


def score_table(
    profile: Profile, runs: list[dict[str, Any]], resamples: int = 2000
) -> pd.DataFrame:
    """One row per variant and score: value and gain over its baseline, each with a 95% interval.

    The base has no worst-bin pass@1, since its samples chose the bins. Gains are paired by seed and
    prompt, NaN where there is no baseline. Intervals are bootstrapped over seeds and prompts from a
    fixed seed, with the worst group of a method taken as found.
    """
    groups = prompt_groups(runs, profile.evaluation.k)
    kinds: Kinds = {
        f"mean@{profile.evaluation.samples}": lambda values: values["mean"],
        f"pass@{profile.evaluation.k}": lambda values: values["pass"],
        "worst-family pass@1": lambda values: _worst_parts(values["mean"], groups["family"]),
        "worst-bin pass@1": lambda values: _worst_parts(values["mean"], groups["bin"]),
    }
    table = _estimates(profile, runs, kinds, resamples)
    return table[(table["variant"] != BASE) | ~table["score"].str.startswith("worst-bin")]


def family_table(
    profile: Profile, runs: list[dict[str, Any]], resamples: int = 2000
) -> pd.DataFrame:
    """Like `score_table`, with the mean@n of each family (a skill, a data set, a level)."""
    family_P = prompt_groups(runs, profile.evaluation.k)["family"]

    def scores_of(name: object) -> Callable[[PromptScores], np.ndarray]:
        return lambda values: values["mean"][:, family_P == name]

    kinds: Kinds = {str(name): scores_of(name) for name in dict.fromkeys(family_P)}
    return _estimates(profile, runs, kinds, resamples)


def _estimates(
    profile: Profile, runs: list[dict[str, Any]], kinds: Kinds, resamples: int
) -> pd.DataFrame:
    """Rows of a score table."""

    def interval(values_SP: np.ndarray) -> tuple[float, float]:
        # a new generator each time: no row depends on those before it
        return bootstrap_interval(values_SP, np.random.default_rng(0), resamples=resamples)

    scores = {v: prompt_scores(runs, v, profile.evaluation.k) for v in [BASE, *profile.variants]}
    rows = []
    for variant, values in scores.items():
        baseline = None if variant == BASE else profile.variants[variant].baseline
        for name, kind in kinds.items():
            # intervals are widened for few seeds, which could carry a score out of [0, 1]
            low, high = np.clip(interval(kind(values)), 0, 1).tolist()
            row = {
                "variant": variant,
                "label": profile.label(variant),
                "score": name,
                "value": float(kind(values).mean()),
                "low": low,
                "high": high,
            }
            if baseline in profile.variants and baseline != variant:
                # the same seeds and prompts on both sides, so what they have in common cancels
                gain_SP = kind(values) - kind(scores[baseline])
                low, high = interval(gain_SP)
                row |= {"gain": float(gain_SP.mean()), "gain_low": low, "gain_high": high}
            rows.append(row)
    return pd.DataFrame(rows)


def _worst_parts(values_SP: np.ndarray, groups_P: np.ndarray) -> np.ndarray:
    """The worst group's score, spread over all prompts, (S, P): a row's mean is that group's.

    Only the deviations from that mean have the weight P/members. Otherwise a bootstrap over prompts
    would add the noise of how many members it happens to draw.
    """
    means = pd.Series(values_SP.mean(axis=0)).groupby(groups_P).mean()
    members_P = groups_P == means.idxmin()  # ties go to the first name
    mean_S1 = values_SP[:, members_P].mean(axis=1, keepdims=True)
    return mean_S1 + (values_SP - mean_S1) * members_P * (len(groups_P) / members_P.sum())


def spending_table(profile: Profile, runs: list[dict[str, Any]]) -> pd.DataFrame:
    """What training took, and seconds by stage, one row per variant (mean over seeds)."""
    rows = [
        {"variant": run["variant"], "label": profile.label(run["variant"])}
        | {key: run["manifest"][key] for key in TOTALS}
        | {f"{stage} s": run["manifest"]["seconds"][stage] for stage in STAGES}
        for run in runs
        if run["variant"] != BASE
    ]
    return pd.DataFrame(rows).groupby(["variant", "label"], sort=False).mean().reset_index()


def format_tables(
    profile: Profile, scores: pd.DataFrame, families: pd.DataFrame, spending: pd.DataFrame
) -> str:
    """The results as Markdown: scores, differences, families, what was spent; 95% intervals.

    The same on every machine: seconds have a table of their own.
    """
    names = {
        "label": "method",
        "tokens": "tokens with prompts",
        "trained_tokens": "tokens trained",
    }
    spent = spending[["label", *TOTALS]].rename(columns=names)
    baselines = [profile.variants[variant].baseline for variant in spending["variant"]]
    trained = spending.set_index("variant")["trained_tokens"]
    of_baselines = trained.reindex(baselines).to_numpy()
    all_grpo = all(variant.baseline == "grpo" for variant in profile.variants.values())
    baseline = "GRPO" if all_grpo else "the variant's own GRPO"
    spent[f"trained, of {baseline}'s"] = (trained / of_baselines).to_numpy()
    formats = ("", ",.0f", ",.0f", ",.0f", ".2f")
    costs = spent.to_markdown(index=False, floatfmt=formats, missingval="–")
    gain_title = (
        f"Difference from {baseline}, paired by seed and prompt; "
        "intervals that contain 0 are inconclusive"
    )
    spent_title = "What was spent, mean over seeds"
    if spending["rollouts"].nunique() > 1:  # a method that waits or stops early spends more or less
        spent_title += "; rollouts differ, so scores are not at equal budgets"
    value = ("value", "low", "high")
    gain = ("gain", "gain_low", "gain_high")
    tables = {
        "Scores on held-out prompts": _intervals(scores, value, "{:.3f}"),
        gain_title: _intervals(scores, gain, "{:+.3f}"),
        f"mean@{profile.evaluation.samples} by family": _intervals(families, value, "{:.3f}"),
        spent_title: costs,
    }
    return "\n\n".join(f"{title}\n\n{table}" for title, table in tables.items() if table)


def seconds_table(spending: pd.DataFrame) -> str:
    """Seconds by stage as Markdown, mean over seeds."""
    title = "Seconds of this machine; generate and controller are parts of train"
    seconds = spending.drop(columns=["variant", *TOTALS])
    seconds = seconds.rename(columns={"label": "method"})
    return f"{title}\n\n{seconds.to_markdown(index=False, floatfmt='.1f')}"


def _intervals(table: pd.DataFrame, columns: tuple[str, str, str], form: str) -> str:
    """Methods × scores, each cell "value (low to high)", as Markdown; "" for no value."""
    table = table.reindex(columns=["label", "score", *columns]).dropna()
    if table.empty:
        return ""
    template = f"{form} ({form} to {form})"
    cells = [template.format(*row) for row in table[[*columns]].to_numpy()]
    wide = table.assign(cell=cells).pivot(index="label", columns="score", values="cell")
    wide = wide.reindex(index=table["label"].unique(), columns=table["score"].unique()).fillna("–")
    return wide.rename_axis(index="method", columns=None).to_markdown(disable_numparse=True)


def write_report(profile: Profile, runs_dir: str | Path) -> str:
    """Write results/ and figures/ of a profile from its records; return tables and paths.

    Where each seed has drawn problems of its own, there is the table of pairs alone.
    """
    runs_dir = Path(runs_dir)
    results = runs_dir / "results"
    figures_dir = runs_dir / "figures"
    runs = read_runs(profile, runs_dir)
    use_style()
    spending = spending_table(profile, runs)
    seconds = seconds_table(spending)
    texts = {"seconds.md": seconds + "\n"}
    if profile.evaluation.samples >= K:  # pass@8 needs eight
        texts["runs.csv"] = rows_as_csv(trl_rows(profile, runs))
    figures = {}
    if profile.one_task or len(profile.seeds) == 1:
        scores = score_table(profile, runs)
        families = family_table(profile, runs)
        texts["table.md"] = format_tables(profile, scores, families, spending) + "\n"
        texts["texts.md"] = texts_before_and_after(profile, runs)
        figures = paper_figures(profile, runs, scores)
    else:
        texts["table.md"] = paired_tables(profile, trl_rows(profile, runs))
    # nothing is written before all is made
    for name in ("runs.csv", "texts.md"):  # an earlier report's
        (results / name).unlink(missing_ok=True)
    for name, text in texts.items():
        if text:
            replace_text(results / name, text)
    for name, figure in figures.items():
        save(figure, figures_dir, name)
    return (
        f"{texts['table.md']}\n{seconds}\n\ntable: {results / 'table.md'}, figures: {figures_dir}/"
    )


def paired_tables(profile: Profile, rows: pd.DataFrame) -> str:
    """Differences in pairs by replicate, with Holm's p.

    Each table is of a baseline and the variants that name it; only scores if there is no such one.
    """
    scores = rows[rows.family == ALL]
    tables = []
    for baseline in dict.fromkeys(variant.baseline for variant in profile.variants.values()):
        of_it = [name for name, v in profile.variants.items() if v.baseline == baseline]
        part = scores[scores.configuration.isin([BASE, baseline, *of_it])]
        tables.append(format_table(compare(part, baseline), baseline))
    return "\n".join(tables)


def texts_before_and_after(profile: Profile, runs: list[dict[str, Any]]) -> str:
    """Markdown of the questions whose texts an evaluation kept; "" where it kept none.

    Shown is the first sample of every model, right or wrong: nothing is picked by what it says.

    Args:
        profile: its variants are shown in their order, the first seed of each.
        runs: as `gdro_lab.experiments.report.read_runs` gives them.
    """
    kept = {}
    for variant in [BASE, *profile.variants]:
        rows = select_runs(runs, variant)[0]["evaluation"]
        kept[variant] = {row["uid"]: row for row in rows if "texts" in row}
    base = pd.DataFrame(kept[BASE].values())
    if base.empty:
        return ""
    rates = base.successes / base.trials
    hardest = base.uid[rates.sort_values(kind="stable").index].head(MOST)
    parts = ["# What the models say, before and after training"]
    parts.append(
        "The questions of those kept that the base solves least often. Each model's first sample; "
        "in brackets, how many of its samples are correct."
    )
    for uid in hardest:
        question = indent(kept[BASE][uid]["question"].strip(), "> ", lambda line: True)
        parts.append(f"## {kept[BASE][uid]['family']}\n\n{question}")
        for variant, rows in kept.items():
            row = rows[uid]
            title = f"**{profile.label(variant)}** ({row['successes']} of {row['trials']})"
            parts.append(f"{title}\n\n```text\n{row['texts'][0].strip()}\n```")
    return "\n\n".join(parts) + "\n"
