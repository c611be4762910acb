"""Every number that the results quote, from the stored rows alone; nothing is trained.

    python data/measured/recompute.py            # all parts
    python data/measured/recompute.py games peers    # some of them

Differences are paired by draw, with 95% intervals by Student's t. "holm" is over everything in the
folder's table, unless the part says otherwise. Runs are compared at the end of training.
"""

import json
import sys
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import stats

from gdro_lab import experiments
from gdro_lab.experiments.intervals import holm, paired_t
from gdro_lab.experiments.table import METRICS, at_best_rate, compare, rollouts_to_reach

HERE = Path(__file__).parent
FAIR = HERE / "arena-fair"
FOUR = list(METRICS)
LEARNING_RATES = (1e-4, 2e-4)
PRIMARY = ["training_mix_mean", "pass_at_8"]  # of the plans in smol/ and replay/
THREE = ["mean_at_8", *PRIMARY]


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


def all_paired(rows: pd.DataFrame, baseline: str, values: list[str] = FOUR) -> pd.DataFrame:
    """`paired` of every trained arm but the baseline."""
    trained = rows.loc[rows.method != "base", "arm"]
    arms = [arm for arm in trained.unique() if arm != baseline]
    return pd.concat([paired(rows, arm, baseline, values) for arm in arms], ignore_index=True)


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


def show(title: str, table: pd.DataFrame) -> None:
    print(f"\n## {title}\n\n{table.to_markdown(index=False, floatfmt='.4g')}")


def tables() -> None:
    """The arena's tables: GRPO's scores, and differences with ± and a star where holm < .05."""
    folders = ["arena/rare-hard", "arena-fair/rare-hard", "arena-fair/shapes", "arena-fair/worlds"]
    folders += ["arena-fair/ceilings", "arena-fair/eight", "arena-transfer"]
    for folder in [*folders, "arena-transfer/pivotal-1e-4", "pivotal-tasks", "bank/fresh"]:
        table = compare(pd.read_csv(HERE / folder / "scores.csv"))
        half = (table.high - table.low) / 2
        cell = table.difference.map("{:+.3f} ±".format) + half.map("{:.3f}".format)
        cell += np.where(table.p_holm < 0.05, "*", "")
        cell = cell.where(table.method != "grpo", table.score.map("{:.3f}".format))
        cell = cell.str.replace("0.", ".").str.replace("-", "−")
        keys = ["world", "method", "learning_rate", "draws"]
        wide = table.assign(cell=cell).pivot(index=keys, columns="metric", values="cell")[FOUR]
        show(folder, wide.reset_index())
        p_holm = table.pivot(index=keys, columns="metric", values="p_holm")[FOUR].dropna()
        show(f"{folder}: p by Holm", p_holm.reset_index())
    # compare() returns each method at its best rate; the family holds all rates
    rows = ends(FAIR / "rare-hard")
    arms = [arm for arm in rows.arm.unique() if arm != "grpo@2e-4"]
    table = pd.concat([paired(rows, arm, "grpo@2e-4") for arm in arms], ignore_index=True)
    show("arena-fair/rare-hard, all rates", table.assign(holm=holm(table.p)))
    pair = paired(rows, "pivotal@2e-4", "pivotal:prompts=64@2e-4")
    show("arena-fair/rare-hard, shipped (32 × 4) minus frozen (64 × 2)", pair)
    rows = ends(HERE / "arena-transfer").query("world == 'rare-hard'")
    pair = paired(rows, "pivotal@2e-4", "pivotal:k=8@2e-4")
    show("arena-transfer, rare-hard: k that follows progress minus k = 8", pair)
    rows = ends(HERE / "bank/fresh").query("world == 'gym-weak'")
    show("bank/fresh, gym-weak: pivotal minus PKPO", paired(rows, "pivotal@1e-4", "pkpo@2e-4"))


def peers() -> None:
    """Pivotal against each peer, with Holm over each of the two tables of differences."""
    rows = ends(FAIR / "rare-hard")
    for ours in ("pivotal:prompts=64@2e-4", "pivotal@2e-4"):
        others = [arm for arm in rows.arm.unique() if arm != ours]
        table = pd.concat([paired(rows, ours, arm) for arm in others], ignore_index=True)
        show(f"{ours} minus each", table.assign(holm=holm(table.p)))


def families() -> None:
    """Each family in rare-hard, with Holm over the six families of an arm."""
    rows = ends(FAIR / "rare-hard", "families.csv")
    wide = rows.pivot(index=["arm", "draw"], columns="family", values="mean_at_8").reset_index()
    names = rows.groupby("family").share.first().sort_values(ascending=False)
    found = [f"{arm}@2e-4" for arm in ("pivotal", "pivotal:prompts=64", "dars:prompts=48")]
    found += ["pkpo:prompts=64@2e-4", "pkpo@1e-4"]
    table = pd.concat([paired(wide, arm, "grpo@2e-4", [*names.index]) for arm in found])
    table = table.assign(share=table.value.map(names)).reset_index(drop=True)
    table["of_mean@8"] = table.difference / table.groupby("arm").difference.transform("sum")
    show("families", table.assign(holm=table.groupby("arm").p.transform(holm)))


def rollouts() -> None:
    """Part of GRPO's rollouts until its best scores are reached, bootstrapped over draws."""
    scores = pd.read_csv(FAIR / "rare-hard/scores.csv")
    rng = np.random.default_rng(0)
    pair = ["mean_at_8", "pass_at_8"]

    def curves(method: str, rate: float) -> np.ndarray:
        """(draws, checkpoints, metrics)"""
        own = scores[(scores.method == method) & (scores.learning_rate == rate)]
        return own.sort_values(["draw", "step"])[pair].to_numpy().reshape(own.draw.nunique(), -1, 2)

    grpo_TDM = np.stack([curves("grpo", rate)[:, -1] for rate in LEARNING_RATES])
    spent = np.linspace(0.2, 1, 1001)
    for method in ("pivotal", "pivotal:prompts=64"):
        own = curves(method, 2e-4)  # its better rate
        parts = []
        for pick in [np.arange(len(own)), *rng.integers(len(own), size=(10_000, len(own)))]:
            best_M = grpo_TDM[:, pick].mean(1).max(0)
            mean = own[pick].mean(0)
            at = np.linspace(0.2, 1, len(mean))
            held = np.all([np.interp(spent, at, mean[:, m]) >= best_M[m] for m in (0, 1)], axis=0)
            held = np.logical_and.accumulate(held[::-1])[::-1]
            parts.append(spent[held.argmax()] if held.any() else np.nan)
        expected = rollouts_to_reach(scores).set_index("method").part[method]
        np.testing.assert_allclose(parts[0], expected)
        low, high = np.nanpercentile(parts[1:], [2.5, 97.5])
        missed = np.isnan(parts[1:]).mean()
        print(f"\n{method}: {parts[0]:.3f} ({low:.3f} to {high:.3f}), not reached in {missed:.1%}")


def games() -> None:
    """The paper's games in rare-hard, against GRPO at its best and at the same rate (post hoc)."""
    rows = ends(HERE / "arena/rare-hard")
    ours = ["prompt", "rollout", "both"]
    arms = rows.loc[rows.arm != "grpo@2e-4", "arm"].unique()
    best = pd.concat([paired(rows, arm, "grpo@2e-4") for arm in arms], ignore_index=True)
    of = rows.groupby(["learning_rate", "draw", "method"])[FOUR].mean()
    over = of - of.xs("grpo", level="method").reindex(of.index.droplevel("method")).to_numpy()
    over = over.drop("grpo", level="method")
    equal = [
        differences(part).assign(arm=f"{method}@{rate:g}")
        for (rate, method), part in over.groupby(["learning_rate", "method"])
    ]
    equal = pd.concat(equal, ignore_index=True)
    mean = over.groupby(["method", "draw"]).mean().groupby("method")
    mean = pd.concat(
        [differences(p).assign(arm=m) for m, p in mean if m in ours], ignore_index=True
    )
    for title, table in {"GRPO at 2e-4": best, "GRPO at the same rate": equal}.items():
        table["holm_folder"] = holm(table.p)
        few = table[table.arm.str.split("@").str[0].isin(ours)]
        show(f"minus {title}, {len(few)} of {len(table)} tests", few.assign(holm_few=holm(few.p)))
    show("minus GRPO at the same rate, mean of both rates", mean.assign(holm=holm(mean.p)))
    knapsack = best[best.arm.str.startswith("knapsack")]
    show("Knapsack at n_max 12, minus GRPO at 2e-4", knapsack)


def tuning() -> None:
    """Arms that are other arms bit for bit; screening's ranks and their standard error."""
    rows = pd.read_csv(FAIR / "tuning/scores.csv")
    rows = rows[rows.world == "rare-hard"].set_index(["method", "learning_rate", "draw", "step"])
    columns = ["tokens", *FOUR]
    twins = [("maxrl:prompts=64", "grpo:prompts=64")]
    twins.append(("dars:schedule=hardness:prompts=48", "dars:prompts=48"))
    for one, other in twins:
        of, of_other = rows.loc[one][columns].align(rows.loc[other][columns], join="inner", axis=0)
        same = (of == of_other).all(axis=1)
        print(f"\n{one} equals {other} in {same.sum()} of {len(same)} rows")
    arms = rows.reset_index()[["method", "learning_rate"]].drop_duplicates()
    print(arms.assign(method=arms.method.str.split(":").str[0]).value_counts("method").to_string())
    last = ends(FAIR / "screening").assign(merit=lambda r: r.mean_at_8 + r.pass_at_8)
    wide = last.pivot(index="draw", columns="arm", values="merit")
    wide = wide.sub(wide["grpo@2e-4"], axis=0)
    best = wide.mean().groupby(lambda arm: arm.split("@")[0]).idxmax()
    merit = wide[best].mean().sort_values(ascending=False)
    error = np.sqrt((wide[best].drop(columns="grpo@2e-4").var() / 2).mean())
    print(
        f"\nscreening, mean@8 + pass@8 over GRPO; standard error of a difference {error:.3f}, "
        f"of an arm {error / 2**0.5:.3f}"
    )
    print(merit.to_string())


def trl() -> None:
    """The eight tasks in TRL; the four that were fresh apart, uncorrected."""
    rows = ends(HERE / "pivotal-tasks")
    for name, part in {"eight": rows, "fresh four": rows[rows.draw >= 314]}.items():
        arms = ["pivotal@2e-4", "pivotal:prompts=64@2e-4"]
        table = pd.concat([paired(part, arm, "grpo@2e-4") for arm in arms], ignore_index=True)
        show(f"TRL, {name}", table.assign(holm=holm(table.p)))


def oracles() -> None:
    """gym-weak with true pass rates known, on the two tuning draws; no correction."""
    rows = ends(FAIR / "tuning")
    rows = rows[(rows.world == "gym-weak") & (rows.learning_rate == 1e-4)]
    even = "composed:draw=family_even:advantages.pkpo.k=2@1e-4"
    drawn = [f"composed:draw.oracle.k={k}:advantages.pkpo.k=2@1e-4" for k in (3, 8)]
    for base in ("grpo@1e-4", "pivotal@1e-4", "pkpo@1e-4"):
        table = pd.concat([paired(rows, arm, base) for arm in [*drawn, even]])
        show(f"gym-weak, oracles minus {base}", table)


def bank() -> None:
    """The bank of successes: differences to each other arm, and what is learned by heart."""
    ours = "pivotal_replay:most=4@2e-4"
    long = ("long", "long-worlds", "long-linear", "long-stream")
    for folder in ("fresh", *long, "equal-tokens", "peers"):
        for world, rows in ends(HERE / "bank" / folder).groupby("world"):
            rows = rows.assign(heart=rows.train_mean - rows.training_mix_mean)
            costs = ["draw", "mean_at_8", "pass_at_8", "training_mix_mean", "heart"]
            costs += ["rollouts", "tokens", "trained_tokens", "seconds"]
            means = rows.groupby("arm")[costs].mean().assign(draws=rows.groupby("arm").draw.size())
            show(f"bank/{folder}, {world}: means", means.drop(columns="draw").reset_index())
            played = means.index[(means.draws > 1) & ~means.index.isin([ours, "base@0e+0"])]
            pairs = rows.groupby("draw").arm.nunique().max() > 1 and rows.draw.nunique() > 1
            if ours in set(rows.arm) and pairs:
                table = [paired(rows, ours, arm, [*FOUR, "heart"]) for arm in played]
                show(f"bank/{folder}, {world}: {ours} minus each", pd.concat(table))

    families = ends(HERE / "bank/fresh", "families.csv").query("world == 'gym-weak'")
    of = families.groupby(["arm", "family"])[["mean_at_8", "pass_at_8", "share"]].mean()
    gain = (of.loc[ours] - of.loc["grpo@1e-4"])[["mean_at_8", "pass_at_8"]]
    mix = gain.mean_at_8 * of.loc[ours].share
    gain["part of mean@8"] = gain.mean_at_8 / gain.mean_at_8.sum()
    gain["part of the mix"] = mix / mix.sum()
    show("bank/fresh, gym-weak: gains over GRPO by family", gain.reset_index())

    control = ends(HERE / "bank/equal-tokens").query("method == 'grpo'")
    rows = pd.concat([ends(HERE / "bank/peers"), control.assign(arm="grpo, 345 batches")])
    show("bank, equal trained tokens", paired(rows, ours, "grpo, 345 batches"))


def best() -> None:
    """The games at their own best in rare-hard; GRPO with more rollouts a prompt, uncorrected."""
    rows = ends(HERE / "gdro-best/rare-hard")
    base = "grpo@2e-4"
    table = all_paired(rows, base)
    show("gdro-best/rare-hard minus GRPO", table.assign(holm=holm(table.p)))
    for rollouts in (5, 10):
        more = ends(HERE / f"gdro-best/rollouts-{rollouts}").query("method == 'grpo'")
        pair = pd.concat([rows[rows.arm == base], more.assign(arm=f"grpo, {rollouts}")])
        show(f"GRPO with {rollouts} rollouts", paired(pair, f"grpo, {rollouts}", base))


def power_of(gain: float, error: float, draws: int, tests: int) -> float:
    """The chance that a paired t test finds a gain in the first step of Holm over `tests`."""
    freedom = draws - 1
    bound = stats.t.ppf(1 - 0.05 / tests / 2, freedom)
    shift = gain / error
    return stats.nct.sf(bound, freedom, shift) + stats.nct.cdf(-bound, freedom, shift)


def pooled() -> None:
    """The games at 2e-4 over several stored draws (post hoc), and what eight could find."""
    eight = ends(HERE / "arena/rare-hard")
    base = "grpo@2e-4"
    ours = ["prompt@2e-4", "rollout@2e-4", "both@2e-4"]
    rows = pd.concat([eight, ends(HERE / "gdro-best/rare-hard")])
    table = pd.concat([paired(rows, arm, base) for arm in ours], ignore_index=True)
    table["holm_of_value"] = table.groupby("value").p.transform(holm)
    show("games minus GRPO, stored draws 216 to 223 and 900 to 903", table)
    tuned = ends(HERE / "games-confirmed/tuning")
    rows = pd.concat([rows, tuned])
    for rate in ("1e-4", "2e-4"):
        arms = [f"{method}@{rate}" for method in ("prompt", "rollout", "both")]
        equal = pd.concat([paired(rows, arm, f"grpo@{rate}") for arm in arms], ignore_index=True)
        show(f"the same at {rate}, with the tuning draws 2000 to 2003", equal)
    k5 = ends(HERE / "arena-k5/rare-hard")  # has no run of both
    table = pd.concat([paired(k5, arm, base) for arm in ours[:2]], ignore_index=True)
    show("games minus GRPO, draws 200 to 207 of arena-k5", table)
    twenty = pd.concat([rows[~rows.draw.isin(tuned.draw)], k5])
    table = pd.concat([paired(twenty, arm, base) for arm in ours[:2]], ignore_index=True)
    show("the same with draws 216 to 223 and 900 to 903", table)
    transfer = ends(HERE / "arena-transfer").query("world == 'rare-hard'")
    rows = pd.concat([eight, ends(FAIR / "rare-hard"), tuned, transfer])
    pair = paired(rows, "grpo@1e-4", base)
    show("what half the rate costs GRPO, without the draws of development", pair)

    arms = [arm for arm in eight.arm.unique() if arm != base]
    survey = pd.concat([paired(eight, arm, base) for arm in arms], ignore_index=True)
    survey["holm_folder"] = holm(survey.p)
    gains = np.linspace(0.001, 0.2, 200)
    power = []
    for row in survey[survey.arm.isin(ours) & survey.value.isin(FOUR[:2])].itertuples():
        error = row.half / stats.t.ppf(0.975, row.draws - 1)
        chances = np.array([power_of(gain, error, row.draws, len(survey)) for gain in gains])
        found = power_of(0.022, error, row.draws, len(survey))
        least = gains[(chances > 0.8).argmax()]
        power.append({"arm": row.arm, "value": row.value, "finds +.022": found, "80% from": least})
    show(f"power of eight draws and {len(survey)} tests", pd.DataFrame(power))

    controls = survey.arm.str.startswith(("pivotal", "pkpo")) & survey.value.isin(FOUR[:2])
    show("positive controls in the same table", survey[controls])
    reported = pd.read_csv(Path(experiments.__file__).parent / "paper/results.csv")
    reported = reported.pivot(index="model", columns="method", values="pass@8")
    over = reported.div(reported["GRPO"], axis=0).drop(columns="GRPO") - 1
    here = eight.loc[eight.arm == base, "pass_at_8"].mean()
    show("pass@8, gains that the paper reports, relative", over.reset_index())
    show(f"the same, times {here:.3f} of GRPO here", (over * here).reset_index())


def long() -> None:
    """Long runs by checkpoint, their costs, the family gcd of gym-shares, the bank's tuning."""
    ours = "pivotal_replay:most=4"
    keys = ["world", "method", "learning_rate"]
    for folder in ("long", "long-worlds", "long-linear"):
        rows = pd.read_csv(HERE / "bank" / folder / "scores.csv").query("method != 'base'")
        wide = rows.pivot_table(index=keys, columns="step", values="mean_at_8")
        show(f"bank/{folder}: mean@8 by checkpoint", wide.reset_index())
        last = rows[rows.step >= 900].groupby(keys)[FOUR].mean()
        show(f"bank/{folder}: mean of the last three checkpoints", last.reset_index())
        at_end = rows[rows.step == 1500]
        best = at_best_rate(at_end)
        spent = best.groupby(["world", "method"]).trained_tokens.mean().unstack()
        times = (spent[ours] / spent["grpo"]).rename("times")
        show(f"bank/{folder}: trained tokens to GRPO's at its better rate", times.reset_index())

    families = ends(HERE / "bank/long-worlds", "families.csv")
    gcd = families[(families.world == "gym-shares") & (families.family == "gcd")].copy()
    over = gcd.mean_at_8 - gcd.loc[gcd.method == "grpo", "mean_at_8"].item()
    gcd["part of the mix over GRPO"] = over * gcd.share
    show("gym-shares, draw 900: family gcd", gcd.drop(columns=["world", "step", "family"]))

    tuning = ends(HERE / "bank/tuning").groupby(["world", "arm"])[FOUR].mean()
    show("bank/tuning, two draws", tuning.reset_index())
    for folder in ("fresh", "peers"):
        rows = ends(HERE / "bank" / folder)
        same = rows[(rows.world == "gym-weak") & rows.draw.isin([900, 901])]
        same = same.pivot_table(index="arm", columns="draw", values="mean_at_8")
        show(f"bank/{folder}, gym-weak: mean@8 by draw", same.reset_index())


def confirmed() -> None:
    """The plan of games-confirmed: rates by the tuning draws, then the fresh draws of a world."""
    for world in ("rare-hard", "all-hard", "out-of-reach", "gym-weak"):
        suffix = "" if world == "rare-hard" else f"-{world}"
        folder = HERE / f"games-confirmed/tuning{suffix}"
        if not folder.is_dir():  # not played
            continue
        tuned = ends(folder).query("method != 'base'")
        show(f"{world}, tuning draws: means", tuned.groupby("arm")[FOUR].mean().reset_index())
        by_rate = totals(tuned, FOUR[:2])
        show(f"{world}, tuning draws: mean@8 + pass@8", by_rate.reset_index())
        over = by_rate.drop(columns="rate").sub(by_rate.drop(columns="rate").loc["grpo"])
        show(
            "the same over GRPO, mean of all rates", over.mean(axis=1).rename("over").reset_index()
        )
        fresh = HERE / "games-confirmed" / world
        if not fresh.is_dir():
            continue
        rows = ends(fresh)
        base = rows.loc[rows.method == "grpo", "arm"].iloc[0]
        table = all_paired(rows, base)
        is_primary = table.arm.isin(["both@1e-4", "prompt@1e-4"]) & table.value.isin(FOUR[:2])
        if world == "rare-hard":
            primary = table[is_primary]
            show("rare-hard, primary tests", primary.assign(holm=holm(primary.p)))
            table = table[~is_primary]
        show(f"{world}, fresh draws minus {base}: intervals without a correction", table)
        show(f"{world}, fresh draws: means", rows.groupby("arm")[FOUR].mean().reset_index())
        by_family = ends(fresh, "families.csv").pivot_table(
            index=["arm", "draw"], columns="family", values="mean_at_8"
        )
        means = by_family.groupby("arm").mean().reset_index()
        show(f"{world}, fresh draws: mean@8 by family", means)
        families = by_family.columns.tolist()
        table = all_paired(rows.join(by_family, on=["arm", "draw"]), base, families)
        show(f"{world}, the same minus {base}: intervals without a correction", table)


def equal_rates() -> None:
    """The games at GRPO's rate, by the second plan of games-confirmed."""
    folder = HERE / "games-confirmed/equal-rates"
    if not folder.is_dir():  # not played
        return
    rows = ends(folder)
    table = all_paired(rows, "grpo@2e-4")
    is_primary = table.arm.eq("both@2e-4") & table.value.isin(FOUR[:2])
    primary = table[is_primary]
    show("at equal rates, primary tests", primary.assign(holm=holm(primary.p)))
    show("at equal rates: intervals without a correction", table[~is_primary])
    show("at equal rates: means", rows.groupby("arm")[FOUR].mean().reset_index())


def replay() -> None:
    """The first part of the plan of replay: the ways to replay, each at its rate."""
    folder = HERE / "replay/tuning"
    if not folder.is_dir():  # not played
        return
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
    """The second part of the plan of replay: rates, then the main effects of bank and draw."""
    if (HERE / "replay/rates").is_dir():
        tuned = ends(HERE / "replay/rates").query("method != 'base'")
        show("replay, rates: sum of three, mean of worlds", totals(tuned, THREE).reset_index())
    folder = HERE / "replay/fresh"
    if not folder.is_dir():  # not played
        return
    rows = ends(folder).join(memory_of(folder), on=["world", "arm", "draw"])
    methods = rows.groupby(["world", "draw"]).method.transform("nunique")
    rows = rows[methods == rows.method.nunique()]  # draws that all have played
    values = [*FOUR, "memory", "trained_tokens"]
    means = rows.groupby(["world", "method"])[values].mean()
    show("replay, means", means.reset_index())
    over = means[THREE] - means.loc[pd.IndexSlice[:, "pivotal:epsilon=1"], THREE].droplevel(1)
    show("replay, minus the even draw without a bank, by world", over.reset_index())

    of = rows.groupby(["method", "draw"])[values].mean()  # over the worlds
    banks = [name for name in rows.method.unique() if "bank" in name or "replay" in name]
    even_bank, drawn_bank = sorted(banks, key=is_even, reverse=True)
    even = of.loc["pivotal:epsilon=1"]
    drawn = of.loc["pivotal"]
    bank = (of.loc[even_bank] - even + of.loc[drawn_bank] - drawn) / 2
    draw = (drawn - even + of.loc[drawn_bank] - of.loc[even_bank]) / 2
    found = [
        differences(effect[THREE]).assign(of=name)
        for name, effect in (("bank", bank), ("draw", draw))
    ]
    table = pd.concat(found, ignore_index=True)
    primary = table[table.value.isin(PRIMARY)]
    show("replay, primary tests: main effects", primary.assign(holm=holm(primary.p)))
    grpo = of.loc["grpo"]
    for name in (drawn_bank, even_bank, "pivotal", "pivotal:epsilon=1", "raft"):
        table = differences(of.loc[name] - grpo)
        table["relative"] = table.difference / grpo.mean().reindex(table.value).to_numpy()
        show(f"replay, {name} minus grpo: mean of the worlds, without a correction", table)


def is_even(method: str) -> bool:
    """Whether a method of the plan of replay draws its prompts evenly."""
    return (method.startswith("bank_") and "epsilon" not in method) or "epsilon=1" in method


def progress() -> None:
    """The plan of k-progress: a k that follows progress beside k = 8."""
    for folder in sorted(path.parent for path in (HERE / "k-progress").glob("*/scores.csv")):
        rows = ends(folder)
        rows["both"] = (rows.mean_at_8 + rows.pass_at_8) / 2
        fixed, follows = (
            rows.loc[rows.method == method, "arm"].iloc[0] for method in ("pivotal:k=8", "pivotal")
        )
        table = paired(rows, fixed, follows, [*FOUR, "both"])
        show(f"k-progress, {folder.name}: k = 8 minus a k that follows progress", table)


def palindromes() -> None:
    """The plan of palindromes: rates by the tuning draws, then the fresh draws."""
    folder = HERE / "palindromes/tuning"
    if not folder.is_dir():  # not played
        return
    tuned = ends(folder).query("method != 'base'")
    show("palindromes, tuning draws", totals(tuned, FOUR[:2]).reset_index())
    fresh = HERE / "palindromes/fresh"
    if not fresh.is_dir():
        return
    rows = ends(fresh).join(memory_of(fresh), on=["world", "arm", "draw"])
    values = [*FOUR, "any_of_32", "distinct", "memory"]
    show(
        "palindromes, means", rows.groupby("arm")[[*values, "trained_tokens"]].mean().reset_index()
    )
    grpo = rows.loc[rows.method == "grpo", "arm"].iloc[0]
    table = all_paired(rows, grpo, values)
    show(f"palindromes, minus {grpo}: intervals without a correction", table)


def show_earlier(world: str, fresh: pd.DataFrame) -> None:
    """What arms have at 60% of the rollouts, minus GRPO at the end, by draw and on average."""
    keys = ["method", "learning_rate", "draw"]
    rows = pd.read_csv(HERE / "smol/scores.csv")
    early = rows[(rows.world == world) & (rows.step == 36)].set_index(keys)[FOUR]
    if early.empty:  # evaluated at the end alone
        return
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
    costs = ["rollouts", "tokens", "trained_tokens", "seconds", "distinct"]
    show("base, by draw", rows[rows.method == "base"][["world", "draw", *FOUR, "distinct"]])
    trained = rows[rows.method != "base"]
    tuned = trained[trained.world == "words-tuning"]
    show("tuning, draw 0", tuned[["arm", *FOUR, *costs]])
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
        show(f"{world}, fresh draws", fresh[["arm", "draw", *FOUR, *costs]])
        means = fresh.groupby("arm")[[*FOUR, *costs]].mean()
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
    if not (folder / "scores.csv").is_file():  # not played
        return
    first = ends(HERE / "smol").query("world == 'words'")
    second = ends(folder)
    known = first[first.arm.isin(["grpo@2.5e-6", "rollout@5e-6"])]
    rows = pd.concat([known, second[second.method != "base"]])
    further = rows[rows.draw >= 3]
    costs = ["rollouts", "tokens", "trained_tokens", "seconds", "distinct"]
    show("further draws", further[["arm", "draw", *FOUR, *costs]])
    show("means", further.groupby("arm")[[*FOUR, *costs]].mean().reset_index())
    memory = pd.concat([memory_of(HERE / "smol"), memory_of(folder)]).loc["words"]
    for baseline in ("grpo@2.5e-6", "grpo@5e-6"):
        table = paired(further, "rollout@5e-6", baseline, [*FOUR, "trained_tokens"])
        if baseline == "grpo@2.5e-6":
            primary = table[table.value.isin(PRIMARY)]
            show("2 primary tests, Holm over these", primary.assign(holm=holm(primary.p)))
            table = table.drop(primary.index)
        show(f"minus {baseline}: intervals without a correction", table)
        gap = (memory["rollout@5e-6"] - memory[baseline]).dropna()
        gap = gap[gap.index >= 3].rename("memory").to_frame()
        show(f"memory, minus {baseline}: interval without a correction", differences(gap))
    by_rate = paired(further, "grpo@5e-6", "grpo@2.5e-6")
    show("GRPO's rates: intervals without a correction", by_rate)
    pooled = paired(rows, "rollout@5e-6", "grpo@2.5e-6")
    show("all six draws: intervals without a correction", pooled)


if __name__ == "__main__":
    parts = [tables, peers, families, rollouts, games, tuning, trl, oracles, bank, best]
    parts += [pooled, long, confirmed, equal_rates, replay, effects, palindromes, progress, smol]
    parts.append(smol_rollout)
    unknown = set(sys.argv[1:]) - {part.__name__ for part in parts}
    if unknown:
        raise SystemExit(f"no such part: {', '.join(sorted(unknown))}")
    for part in parts:
        if not sys.argv[1:] or part.__name__ in sys.argv[1:]:
            part()
