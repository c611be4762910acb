"""Parts of `recompute.py` on the study on a real model, by the plans in smol/."""

import json
from pathlib import Path

import pandas as pd
from paired_rows import (
    FOUR,
    HERE,
    PRIMARY,
    all_paired,
    differences,
    ends,
    memory_of,
    paired,
    show,
    show_plan,
)

from gdro.metrics import weighted_standard_error
from gdro.theory import variance_proxy
from gdro_lab.experiments.intervals import holm
from gdro_lab.experiments.table import RATE_SCORES, at_best_rate

COSTS = ["rollouts", "tokens", "trained_tokens", "seconds", "distinct"]


def show_earlier(world: str, fresh: pd.DataFrame) -> None:
    """What arms have at 60% of the rollouts, minus GRPO at the end, by draw and on average."""
    keys = ["method", "learning_rate", "draw"]
    rows = pd.read_csv(HERE / "smol/scores.csv")
    at_36 = rows[(rows.world == world) & (rows.step == 36)].set_index(keys)
    if at_36.empty:  # evaluated at the end alone
        return
    tokens = at_36.groupby(keys[:2]).trained_tokens.mean()
    show(f"{world}, trained tokens at batch 36", tokens.reset_index())
    early = at_36[FOUR]
    grpo = fresh[fresh.method == "grpo"].groupby("draw")[FOUR].mean()
    by_draw = early.sub(grpo, level="draw")
    show(f"{world}, batch 36 minus GRPO at batch 60", by_draw.reset_index())
    if by_draw.index.unique("draw").size < 2:  # no interval
        return
    late = (fresh.set_index(keys)[FOUR] - early).dropna()
    kinds = {"the same, mean over draws": by_draw, "batch 60 minus batch 36": late}
    for title, rows in kinds.items():
        arms = [differences(part).assign(arm=arm) for arm, part in rows.groupby("method")]
        show(f"{world}, {title}: intervals without a correction", pd.concat(arms))


def show_memory(world: str, memory: pd.Series) -> None:
    """Memory of each trained arm minus GRPO's on the same draws."""
    of = memory.unstack("draw")
    grpo = of[of.index.str.startswith("grpo@")].iloc[0]
    table = [differences((row - grpo).dropna().to_frame("memory")) for _, row in of.iterrows()]
    table = pd.concat(table).assign(arm=of.index).query("arm != @grpo.name")
    show(f"{world}, memory minus {grpo.name}'s: intervals without a correction", table)


def mixed_groups() -> pd.DataFrame:
    """Part of each run's rollout groups that have correct and wrong rollouts, by TRL's log.

    "first ten" is of the first ten batches, most of the first epoch.
    """
    mixed = {}
    for file in sorted((HERE / "smol/logs").glob("*/*.json")):
        logs = pd.DataFrame(json.loads(file.read_text())["logs"])
        if len(logs):  # the base has none; a row of the log is the mean of ten batches
            arm, _, draw = file.stem.partition("_draw")
            of_batches = 1 - logs.frac_reward_zero_std
            means = {"mixed": of_batches.mean(), "first ten": of_batches.iloc[0]}
            mixed[file.parent.name, arm, int(draw)] = means
    return pd.DataFrame(mixed).T.rename_axis(["world", "arm", "draw"])


def means_by_bin(entry: str, method: str) -> pd.DataFrame:
    """Means of an entry of the record by bin, after the first epoch.

    Args:
        entry: "weight" or "rollouts".
        method: the first letters of the methods whose runs are read.
    """
    rows = []
    for file in sorted((HERE / "smol/logs").glob(f"*/{method}*.json")):
        record = json.loads(file.read_text())["record"][12:]
        means = pd.DataFrame([row[entry] for row in record], dtype=float).mean()
        share = pd.DataFrame([row["share"] for row in record]).mean()
        rows.append({"run": f"{file.parent.name}/{file.stem}", "hardest bin": share[0], **means})
    return pd.DataFrame(rows)


def smol() -> None:
    """The study on a real model: rates by the tuning draw, then the fresh draws, and costs."""
    rows = ends(HERE / "smol")
    show("base, by draw", rows[rows.method == "base"][["world", "draw", *FOUR, "distinct"]])
    trained = rows[rows.method != "base"]
    tuned = trained[trained.world == "words-tuning"]
    show("tuning, draw 0", tuned[["arm", *FOUR, *COSTS]])
    rates = at_best_rate(tuned).arm.tolist()
    show("rates that it chooses", pd.DataFrame({"arm": rates}))
    mixed = mixed_groups()
    show("mixed groups: with correct and wrong rollouts", mixed.reset_index())
    for entry, method in (("weight", "prompt"), ("rollouts", "rollout"), ("rollouts", "both")):
        table = means_by_bin(entry, method)
        show(f"{method}: share of prompts in the hardest bin, and {entry} by bin", table)
    memory = memory_of(HERE / "smol")
    show("memory: training minus held-out minus the base's, mean of families", memory.reset_index())
    by_run = pd.concat([mixed, memory], axis=1)
    for world, fresh in trained[trained.world != "words-tuning"].groupby("world"):
        show(f"{world}, fresh draws", fresh[["arm", "draw", *FOUR, *COSTS]])
        means = fresh.groupby("arm")[[*FOUR, *COSTS]].mean()
        means = means.join(by_run.loc[world].groupby("arm").mean())
        means["texts of a solved one"] = means.distinct / means.pass_at_8
        show(f"{world}, means over draws", means.reset_index())
        show_memory(world, memory.loc[world])
        show_earlier(world, fresh)
        grpo = next(arm for arm in rates if arm.startswith("grpo@"))
        if fresh.arm.nunique() < 2 or fresh.draw.nunique() < 2:  # no interval
            continue
        base = rows[(rows.world == world) & (rows.method == "base")]
        for arm in base.arm.unique():  # none where the base is not played yet
            show(f"{world}, base minus {grpo}", paired(pd.concat([fresh, base]), arm, grpo))
        table = all_paired(fresh, grpo)
        is_primary = table.arm.str.match("(pivotal|bank)@") & table.value.isin(PRIMARY)
        primary = table[is_primary & (world == "words")]
        tests = f"{len(primary)} of the 4 primary tests, Holm over these"
        show(f"{world}, {tests}", primary.assign(holm=holm(primary.p)))
        table["holm_of_arm"] = table.groupby("arm").p.transform(holm)
        others = table.drop(primary.index)
        title = f"{world}, minus {grpo}: intervals without a correction, Holm over an arm's four"
        show(title, others)


def smol_rollout() -> None:
    """Rollout-GDRO on further draws of the study on a real model, by the second plan in smol/."""
    folder = HERE / "smol-rollout"
    first = ends(HERE / "smol").query("world == 'words'")
    second = ends(folder)
    known = first[first.arm.isin(["grpo@2.5e-6", "rollout@5e-6"])]
    rows = pd.concat([known, second[second.method != "base"]])
    gaps = pd.concat([gap_of(HERE / "smol"), gap_of(folder)])
    rows = rows.join(gaps, on=["arm", "draw"])
    further = rows[rows.draw >= 3]
    values = [*FOUR, "memory", "trained_tokens"]
    show("further draws", further[["arm", "draw", *FOUR, *COSTS]])
    show("means", further.groupby("arm")[[*FOUR, *COSTS]].mean().reset_index())
    table = paired(further, "rollout@5e-6", "grpo@2.5e-6", values)
    show_plan("minus grpo@2.5e-6", table, table.value.isin(PRIMARY))
    table = paired(further, "rollout@5e-6", "grpo@5e-6", values)
    show("minus grpo@5e-6, the control: intervals without a correction", table)
    table = paired(further, "grpo@5e-6", "grpo@2.5e-6", values)
    show("grpo@5e-6 minus grpo@2.5e-6: intervals without a correction", table)
    tuning = ends(HERE / "smol").query("world == 'words-tuning'")
    grpo = pd.concat([tuning, further]).query("method == 'grpo'")
    grpo["sum"] = grpo[RATE_SCORES].sum(axis=1)
    rates = grpo.pivot(index="draw", columns="arm", values="sum")
    rates = rates.dropna(axis="columns")  # other rates have only the tuning draw
    rates.loc["mean"] = rates.mean()
    show("mean@8 + pass@8 of GRPO, with the tuning draw", rates.reset_index())
    both = first[first.method == "both"].set_index("draw")[FOUR]
    control = further[further.arm == "grpo@5e-6"].set_index("draw")[FOUR]
    show("both games minus grpo@5e-6, by draw", (both - control).dropna().reset_index())
    table = paired(rows, "rollout@5e-6", "grpo@2.5e-6", values)
    show("all draws that are there, minus grpo@2.5e-6: intervals without a correction", table)


def gap_of(folder: Path) -> pd.Series:
    """Accuracy on training prompts minus held-out ones of each run of `words`, mean of families.

    The base's gap, which memory subtracts, is the same for all arms of a draw.
    """
    families = ends(folder, "families.csv").query("world == 'words'")
    gaps = families.assign(memory=families.train - families.mean_at_8)
    return gaps.groupby(["arm", "draw"]).memory.mean()


def noise() -> None:
    """What Rollout-GDRO's counts do to the noise on word problems, a row a run.

    WSE (33) and the variance proxy, each over that of four rollouts for every bin, from the batches
    after the first epoch: the proxy (28), where every prompt counts once, and as shipped, where
    every rollout does.
    """
    runs = {}
    for folder in ("smol", "smol-rollout"):
        for file in sorted((HERE / folder / "logs/words").glob("rollout@*.json")):
            record = json.loads(file.read_text())["record"][12:]
            sigma, q, n = (
                pd.DataFrame([step[name] for step in record], dtype=float).fillna(0)
                for name in ("deviation", "share", "rollouts")
            )
            n = n.mask(n == 0, 4)  # a bin without prompts in the batch
            even = variance_proxy(sigma**2, q, 4).sum()
            wse = weighted_standard_error(sigma, q, n).sum()
            runs[file.stem] = {
                "WSE": wse / weighted_standard_error(sigma, q, 4).sum(),
                "proxy, averaging by prompt": variance_proxy(sigma**2, q, n).sum() / even,
                "proxy, averaging by rollout": (q * n * sigma**2 / 4**2).to_numpy().sum() / even,
            }
    table = pd.DataFrame(runs).T.reset_index()
    show("Noise of Rollout-GDRO over that of even rollouts, word problems", table)
