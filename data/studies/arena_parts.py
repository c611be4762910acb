"""Parts of `recompute.py` on the loop's and the trainer's earlier studies."""

from pathlib import Path

import numpy as np
import pandas as pd
from paired_rows import (
    FOUR,
    HERE,
    all_paired,
    differences,
    each_paired,
    ends,
    paired,
    show,
)
from scipy import stats

from gdro_lab import experiments
from gdro_lab.experiments.intervals import holm
from gdro_lab.experiments.table import at_best_rate, compare, rollouts_to_reach

FAIR = HERE / "arena-fair"
LEARNING_RATES = (1e-4, 2e-4)


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
    table = each_paired(rows, arms, "grpo@2e-4")
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
    best = each_paired(rows, arms, "grpo@2e-4")
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
        table = each_paired(part, arms, "grpo@2e-4")
        show(f"TRL, {name}", table.assign(holm=holm(table.p)))


def study() -> None:
    """The studies in TRL on one task, of several seeds: gains over GRPO as bootstrapped then."""
    for folder in ("study", "tiny"):
        rows = pd.read_csv(HERE / folder / "scores.csv").dropna(subset="gain")
        columns = ["variant", "score", "value", "gain", "gain_low", "gain_high"]
        show(f"{folder}: minus GRPO on one task, over seeds", rows[columns])


def tokens() -> None:
    """Tokens and rollouts over GRPO's on the same draw: the arms that differ most, by folder.

    GRPO's are the mean over its learning rates.
    """
    spent = ["rollouts", "tokens"]
    for file in sorted(HERE.rglob("scores.csv")):
        if not {"world", "tokens"} <= set(pd.read_csv(file, nrows=0)):
            continue
        rows = ends(file.parent).set_index(["world", "draw", "arm"])
        grpo = rows[rows.method == "grpo"].groupby(["world", "draw"])[spent].mean()
        others = rows.loc[~rows.method.isin(["base", "grpo"]), spent]
        over = (others / grpo - 1).dropna()
        if over.empty:
            continue
        means = over.groupby(["world", "arm"]).mean()
        furthest = means.tokens.abs().groupby("world").idxmax()
        table = means.loc[furthest].assign(fewest_rollouts=means.rollouts.groupby("world").min())
        show(f"{file.parent.relative_to(HERE)}: share above GRPO's", table.reset_index())


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
    table = each_paired(rows, ours, base)
    table["holm_of_value"] = table.groupby("value").p.transform(holm)
    show("games minus GRPO, stored draws 216 to 223 and 900 to 903", table)
    tuned = ends(HERE / "games-confirmed/tuning")
    rows = pd.concat([rows, tuned])
    for rate in ("1e-4", "2e-4"):
        arms = [f"{method}@{rate}" for method in ("prompt", "rollout", "both")]
        equal = each_paired(rows, arms, f"grpo@{rate}")
        show(f"the same at {rate}, with the tuning draws 2000 to 2003", equal)
    k5 = ends(HERE / "arena-k5/rare-hard")  # has no run of both
    table = each_paired(k5, ours[:2], base)
    show("games minus GRPO, draws 200 to 207 of arena-k5", table)
    twenty = pd.concat([rows[~rows.draw.isin(tuned.draw)], k5])
    table = each_paired(twenty, ours[:2], base)
    show("the same with draws 216 to 223 and 900 to 903", table)
    transfer = ends(HERE / "arena-transfer").query("world == 'rare-hard'")
    rows = pd.concat([eight, ends(FAIR / "rare-hard"), tuned, transfer])
    pair = paired(rows, "grpo@1e-4", base)
    show("what half the rate costs GRPO, without the draws of development", pair)

    arms = [arm for arm in eight.arm.unique() if arm != base]
    survey = each_paired(eight, arms, base)
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
