"""Parts of `recompute.py` on the plans of games-confirmed, replay, palindromes and k-progress."""

import json
from collections.abc import Iterable
from pathlib import Path

import pandas as pd
from paired_rows import (
    FOUR,
    HERE,
    PRIMARY,
    all_paired,
    differences,
    each_paired,
    ends,
    memory_of,
    paired,
    show,
    show_plan,
    totals,
)

from gdro_lab.experiments.intervals import holm

THREE = ["mean_at_8", *PRIMARY]
RATES = ("rates", "rates-strings", "rates-low")  # folders of tuning runs in replay
REPLAYS = ("pivotal_replay", "pivotal_replay:epsilon=1")  # the library's, by how prompts are drawn
# folders of fresh draws in replay
FRESH = ("fresh", "fresh-strings", "fresh-raft", "fresh-library", "fresh-library-even")
K_WORLDS = {  # folder in k-progress, and GRPO's learning rate there
    "gym-weak": ("gym-weak", None),
    "rare-hard": ("rare-hard", "2e-4"),
    "out-of-reach": ("hard-worlds", "1e-4"),
    "all-hard": ("hard-worlds", "1e-4"),
}


def family_scores(folder: Path) -> pd.DataFrame:
    """mean@8 of each family at the end, a column each, by arm and draw."""
    return ends(folder, "families.csv").pivot_table(
        index=["arm", "draw"], columns="family", values="mean_at_8"
    )


def memory_by_family(folder: Path) -> pd.DataFrame:
    """Memory of each arm in each family, a column each, mean of the draws."""
    rows = ends(folder, "families.csv").query("method != 'base'")
    wide = rows.pivot_table(index=["world", "arm"], columns="family", values="memory")
    return wide.reset_index()


def confirmed() -> None:
    """The plan of games-confirmed: rates by the tuning draws, then the fresh draws of a world."""
    for world in ("rare-hard", "all-hard", "out-of-reach", "gym-weak"):
        suffix = "" if world == "rare-hard" else f"-{world}"
        folder = HERE / f"games-confirmed/tuning{suffix}"
        rows = ends(folder)
        show(f"{world}, tuning draws: means", rows.groupby("arm")[FOUR].mean().reset_index())
        tuned = rows[rows.method != "base"]
        by_rate = totals(tuned, FOUR[:2])
        show(f"{world}, tuning draws: mean@8 + pass@8", by_rate.reset_index())
        over = by_rate.drop(columns="rate").sub(by_rate.drop(columns="rate").loc["grpo"])
        show(
            "the same over GRPO, mean of all rates", over.mean(axis=1).rename("over").reset_index()
        )
        fresh = HERE / "games-confirmed" / world
        rows = ends(fresh)
        base = rows.loc[rows.method == "grpo", "arm"].iloc[0]
        table = all_paired(rows, base)
        is_primary = table.arm.isin(["both@1e-4", "prompt@1e-4"]) & table.value.isin(FOUR[:2])
        title = f"{world}, fresh draws minus {base}"
        if world == "rare-hard":
            show_plan(title, table, is_primary)
        else:
            show(f"{title}: intervals without a correction", table)
        show(f"{world}, fresh draws: means", rows.groupby("arm")[FOUR].mean().reset_index())
        by_family = family_scores(fresh)
        means = by_family.groupby("arm").mean().reset_index()
        show(f"{world}, fresh draws: mean@8 by family", means)
        families = by_family.columns.tolist()
        table = all_paired(rows.join(by_family, on=["arm", "draw"]), base, families)
        show(f"{world}, the same minus {base}: intervals without a correction", table)


def equal_rates() -> None:
    """The games at GRPO's rate, by the second plan of games-confirmed."""
    folder = HERE / "games-confirmed/equal-rates"
    rows = ends(folder)
    table = all_paired(rows, "grpo@2e-4")
    is_primary = table.arm.eq("both@2e-4") & table.value.isin(FOUR[:2])
    show_plan("at equal rates", table, is_primary)
    show("at equal rates: means", rows.groupby("arm")[FOUR].mean().reset_index())


def replay() -> None:
    """The first part of the plan of replay: the ways to replay, each at its rate."""
    folder = HERE / "replay/tuning"
    rows = ends(folder)
    rows = rows[rows.method != "base"].join(memory_of(folder), on=["world", "arm", "draw"])
    by_rate = totals(rows, THREE)
    show("replay, tuning draws: mean@8 + pass@8 + training mix", by_rate.reset_index())
    best = rows[rows.learning_rate == rows.method.map(by_rate.rate)]
    table = best.groupby("method")[[*FOUR, "memory", "trained_tokens"]].mean()
    grpo = table.loc["grpo"]
    table["tokens over GRPO's"] = table.trained_tokens / grpo.trained_tokens
    table["memory over GRPO's"] = table.memory - grpo.memory
    show("replay: each at its rate", table.reset_index())
    replays = table[table.index.str.contains("bank|replay")].assign(
        total=by_rate.drop(columns="rate").max(axis=1)
    )
    allowed = replays[
        (replays["tokens over GRPO's"] <= 1.5) & (replays["memory over GRPO's"] <= 0.02)
    ]
    frozen = (allowed if len(allowed) else replays).total.idxmax()
    print(f"\nfrozen: {frozen}; within both bounds: {', '.join(allowed.index) or 'none'}")


def effects() -> None:
    """Second and third parts of the plan of replay: rates, bank or draw, the library's replay."""
    tuned = pd.concat(ends(HERE / "replay" / name) for name in RATES)
    tuned = tuned[tuned.method != "base"]
    for world, rows in tuned.groupby("world"):
        show(f"replay, rates: sum of three, {world}", totals(rows, THREE).reset_index())
        tokens = rows.pivot_table(index="method", columns="learning_rate", values="trained_tokens")
        show(f"replay, rates: trained tokens, {world}", tokens.reset_index())
    worlds = tuned.groupby("arm").world.transform("nunique")
    tuned = tuned[worlds == tuned.world.nunique()]  # 8e-4 was played in one world
    show("replay, rates: sum of three, mean of worlds", totals(tuned, THREE).reset_index())
    played = [HERE / "replay" / name for name in FRESH]
    rows = pd.concat(
        ends(folder).join(memory_of(folder), on=["world", "arm", "draw"]) for folder in played
    )
    bases = rows[rows.method == "base"].drop_duplicates(["world", "draw"])
    show("replay, bases: means", bases.groupby("world")[FOUR].mean().reset_index())
    for folder in played:
        show(f"replay/{folder.name}: memory by family", memory_by_family(folder))
    rows = rows[rows.method != "base"]
    values = [*FOUR, "memory", "trained_tokens"]
    for world, own in rows.groupby("world"):
        of = own.groupby(["method", "draw"])[values].mean()
        show(f"replay, {world}: means", of.groupby("method").mean().reset_index())
        show(f"replay, {world}: main effects", main_effects(of[THREE]))
        show_over(f"replay, {world}", of, "grpo")
        show_over(f"replay, {world}", of, "raft", REPLAYS)
        show_over(f"replay, {world}", of, "pivotal:epsilon=1")
    show_early(played)
    of = rows.groupby(["method", "draw"])[values].mean()  # over the worlds
    table = main_effects(of[PRIMARY])
    show("replay, primary tests: main effects", table.assign(holm=holm(table.p)))
    show("replay, main effects on mean@8 and memory", main_effects(of[["mean_at_8", "memory"]]))
    show_over("replay, mean of the worlds", of, "grpo")
    show_over("replay, mean of the worlds", of, "pivotal:epsilon=1", ["raft", *REPLAYS])
    show_over("replay, mean of the worlds", of, "raft", ["bank_on_visit:epsilon=0.1", *REPLAYS])
    show_over("replay, mean of the worlds", of, "pivotal_replay:epsilon=1", ["pivotal_replay"])
    table = differences(of.loc["pivotal_replay", THREE] - of.loc["grpo", THREE])
    title = "replay, third part: pivotal_replay minus grpo, Holm over the three"
    show(title, table.assign(holm=holm(table.p)))


def show_early(folders: list[Path]) -> None:
    """Print RAFT and the library's bank at 40% of the batches minus GRPO at the end.

    They have then trained on one to one and a half times the tokens on which GRPO trains in all.
    """
    scores = pd.concat(pd.read_csv(folder / "scores.csv") for folder in folders)
    of = scores.set_index(["world", "method", "step", "draw"]).sort_index()
    last = scores.step.max()
    for world in scores.world.unique():
        grpo = of.loc[(world, "grpo", last)]
        for method in ("raft", *REPLAYS):
            early = of.loc[(world, method, 0.4 * last)]
            title = f"replay, {world}: {method} at 40% of the batches minus grpo at its end"
            show(title, differences(early[THREE] - grpo[THREE]))
            tokens = early.trained_tokens.mean() / grpo.trained_tokens.mean()
            print(f"\nTrained tokens over GRPO's: {tokens:.2f}")


def main_effects(of: pd.DataFrame) -> pd.DataFrame:
    """Effects of the bank and of the pivotal draw on the columns of `of`.

    An effect is averaged over the two levels of the other factor. `of` has a row for each method
    and draw.
    """
    even = of.loc["pivotal:epsilon=1"]
    drawn = of.loc["pivotal"]
    even_bank = of.loc["bank_on_visit"]
    drawn_bank = of.loc["bank_on_visit:epsilon=0.1"]
    bank = (even_bank - even + drawn_bank - drawn) / 2
    draw = (drawn - even + drawn_bank - even_bank) / 2
    tables = [differences(bank).assign(of="bank"), differences(draw).assign(of="draw")]
    return pd.concat(tables, ignore_index=True)


def show_over(
    title: str, of: pd.DataFrame, other: str, methods: Iterable[str] | None = None
) -> None:
    """Print methods, by default all, minus another; also as a share of the other's mean."""
    base = of.loc[other]
    for name in methods or of.index.unique("method").drop(other):
        table = differences(of.loc[name] - base)
        table["relative"] = table.difference / base.mean().reindex(table.value).to_numpy()
        show(f"{title}: {name} minus {other}, without a correction", table)


def hard() -> None:
    """The plan of pivotal-hard: pivotal minus GRPO where every family is hard."""
    folder = HERE / "pivotal-hard/fresh"
    rows = ends(folder)
    table = all_paired(rows, "grpo@2e-4")
    is_primary = (table.arm == "pivotal@2e-4") & (table.value != "worst_family")
    show_plan("pivotal-hard, minus GRPO", table, is_primary)
    show("pivotal-hard, pivotal minus PKPO", paired(rows, "pivotal@2e-4", "pkpo@2e-4"))
    show("pivotal-hard: means", rows.groupby("arm")[FOUR].mean().reset_index())
    by_family = family_scores(folder)
    families = by_family.columns.tolist()
    rows = rows.join(by_family, on=["arm", "draw"])
    show("pivotal-hard, families, minus GRPO", all_paired(rows, "grpo@2e-4", families))
    memory = memory_of(folder).groupby("arm").mean().rename("memory")
    costs = rows.groupby("arm")[["trained_tokens"]].mean().join(memory)
    show("pivotal-hard: memory and tokens", costs.reset_index())


def progress() -> None:
    """The plans of k-progress: a k that follows progress beside k = 8, and the control."""
    of_all = []
    values = [*FOUR, "both"]
    for world, (folder, rate) in K_WORLDS.items():
        rows = ends(HERE / "k-progress" / folder).query("world == @world")
        rows["both"] = (rows.mean_at_8 + rows.pass_at_8) / 2
        means = rows.groupby(["method", "draw"])[values].mean()
        of_all.append(means.loc["pivotal:k=8"] - means.loc["pivotal"])
        show(f"k-progress, {world}: means", rows.groupby("arm")[FOUR].mean().reset_index())
        show(f"k-progress, {world}: k = 8 minus a k that follows progress", differences(of_all[-1]))
        if rate is not None:
            show(f"k-progress, {world}, minus grpo@{rate}", all_paired(rows, f"grpo@{rate}"))
    show("k-progress, the draws of all four worlds", differences(pd.concat(of_all)))
    folders = ("hard-worlds", "hard-worlds-2e-4")
    at_both = pd.concat(ends(HERE / "k-progress" / folder) for folder in folders)
    for world, rows in at_both[at_both.method != "base"].groupby("world"):
        show(f"{world}, both rates: means", rows.groupby("arm")[FOUR].mean().reset_index())
        show(f"{world}, both rates, minus grpo@2e-4, post hoc", all_paired(rows, "grpo@2e-4"))
    logs = sorted((HERE / "smol/logs/words").glob("pivotal@*.json"))
    k_of = pd.Series(
        {log.stem: [row["k"] for row in json.loads(log.read_text())["record"]] for log in logs}
    )
    k_table = k_of.explode().astype(int).groupby(level=0).agg(["min", "mean", "max"])
    show("pivotal's k on word problems, fresh draws", k_table.reset_index(names="run"))
    grpo = ends(HERE / "games-confirmed/gym-weak").query("method == 'grpo'")
    pivotal = ends(HERE / "k-progress/gym-weak").query("method != 'grpo'")
    rows = pd.concat([pivotal, grpo, ends(HERE / "k-progress/control")])
    rows = rows[rows.method != "base"]
    show("k-progress, control: means", rows.groupby("arm")[FOUR].mean().reset_index())
    for arm in ("grpo@5e-5", "grpo@1e-4", "pkpo@1e-4"):
        show(f"k-progress, control: minus {arm}, post hoc", all_paired(rows, arm))


def palindromes() -> None:
    """The plan of palindromes: rates by the tuning draws, then the fresh draws."""
    folder = HERE / "palindromes/tuning"
    tuned = ends(folder).query("method != 'base'")
    show("palindromes, tuning draws: means", tuned.groupby("arm")[FOUR].mean().reset_index())
    show("palindromes, tuning draws: mean@8 + pass@8", totals(tuned, FOUR[:2]).reset_index())
    fresh = HERE / "palindromes/fresh"
    rows = ends(fresh).join(memory_of(fresh), on=["world", "arm", "draw"])
    values = [*FOUR, "any_of_32", "distinct", "train_distinct", "memory"]
    show(
        "palindromes, means", rows.groupby("arm")[[*values, "trained_tokens"]].mean().reset_index()
    )
    table = all_paired(rows, "grpo@2e-4", values)
    show("palindromes, minus grpo@2e-4: intervals without a correction", table)
    at_4e4 = [arm for arm in rows.arm.unique() if arm.endswith("@4e-4") and arm != "grpo@4e-4"]
    for other in ("grpo@4e-4", "pivotal@4e-4"):
        arms = [arm for arm in at_4e4 if arm != other]
        table = each_paired(rows, arms, other, values)
        show(f"palindromes, minus {other}: intervals without a correction", table)
