"""When does it help? Toy games compared with GRPO at its own best step size (notebook 04).

Axes: Y worlds, X step sizes, M methods, S seeds, C checkpoints. A seed's random world is seed mod
`gdro.toy.WORLDS`; differences are paired by seed, and their intervals treat the random worlds, not the
seeds, as the sample (seeds of one world share its directions).
"""

import csv
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.stats import t as student

from gdro.metrics import pass_at_k, worst_group
from gdro.records import read_table
from gdro.toy.engine import play
from gdro.toy.games import WORLDS, Game, Results

MEASURES = {
    "pass_at_8": ("pass@8, mean over skills", Results.mean_pass_at_8),
    "worst_skill": ("accuracy of the worst skill", Results.worst_skill),
    "typical": ("accuracy on the training mix", Results.typical_accuracy),
}
# what the shipped tables of real trainings call the measures that both have
SCORES = {"pass_at_8": "pass@8", "worst_skill": "worst-family pass@1"}
# variants of profiles/study.yaml and the same in the toy; the others have no counterpart there
REAL_VARIANTS: dict[str, dict] = {
    "prompt": {"method": "prompt"},
    "prompt-strong": {"method": "prompt", "eta": 3.0},
    "prompt-resample": {"method": "resample"},
    "prompt-resample-pass1": {"method": "resample", "k": 1},
    "rollout": {"method": "rollout"},
    "rollout-pass1": {"method": "rollout", "k": 1},
    "both": {"method": "both"},
}
MEASURED = Path(__file__).parents[2] / "data" / "measured"


class Gain(NamedTuple):
    """Differences from GRPO: mean and half-width of its 95% interval, and the seeds' own, (..., S)."""

    mean: np.ndarray
    half: np.ndarray
    by_seed: np.ndarray

    def verdict(self):
        """+1 where the interval lies above 0, −1 below, 0 where the seeds do not agree."""
        return np.where(self.mean - self.half > 0, 1, np.where(self.mean + self.half < 0, -1, 0))


def paired_gain(values_S, baseline_S, seeds) -> Gain:
    """Gain over the baseline, both (..., S), paired by seed, the interval from the random worlds."""
    by_seed = np.asarray(values_S) - np.asarray(baseline_S)
    numbers = np.asarray(seeds) % WORLDS
    by_world = np.stack([by_seed[..., numbers == number].mean(axis=-1) for number in np.unique(numbers)], -1)
    count = by_world.shape[-1]
    if count < 2:
        raise ValueError(
            f"seeds {list(seeds)} fall into one random world; take at least two, better {2 * WORLDS}"
        )
    half = student.ppf(0.975, count - 1) * by_world.std(axis=-1, ddof=1) / np.sqrt(count)
    return Gain(by_world.mean(axis=-1), half, by_seed)


def best_step_sizes(worlds, step_sizes, seeds, checkpoints, method="grpo", **options):
    """The step size that serves a method best, by measure: {measure: indices (Y, C)}, and its results.

    Returns also {measure: means (Y, X, C)}, to see whether the best lies inside the range.
    """
    games = [Game(world, method, step_size=x, **options) for world in worlds for x in step_sizes]
    results = play(games, seeds, checkpoints)
    means = {
        name: measure(results).mean(axis=1).reshape(len(worlds), len(step_sizes), -1)
        for name, (_, measure) in MEASURES.items()
    }
    return {name: values.argmax(axis=1) for name, values in means.items()}, means


def gain_map(
    worlds, methods, step_sizes, choosing_seeds, seeds, checkpoints, measures=("pass_at_8", "worst_skill")
):
    """Gain of each method over GRPO, both at GRPO's best step size for that measure and budget.

    The step size is chosen on `choosing_seeds` and judged on `seeds`, which must not overlap, so that luck in
    the choice favours nobody. Returns ({measure: Gain of (M, Y, C)}, {measure: step sizes (Y, C)}).
    """
    if set(choosing_seeds) & set(seeds):
        raise ValueError(
            "choosing_seeds and seeds overlap; choose step sizes on seeds that are not judged on"
        )
    worlds, methods, checkpoints = list(worlds), list(methods), list(checkpoints)
    best, _ = best_step_sizes(worlds, step_sizes, choosing_seeds, checkpoints)
    wanted = sorted({(y, int(x)) for m in measures for y in range(len(worlds)) for x in best[m][y]})
    games = [Game(worlds[y], name, step_size=step_sizes[x]) for name in ("grpo", *methods) for y, x in wanted]
    results = play(games, seeds, checkpoints)
    place = {pair: i for i, pair in enumerate(wanted)}
    gains, chosen = {}, {}
    for measure in measures:
        values = MEASURES[measure][1](results).reshape(1 + len(methods), len(wanted), len(seeds), -1)
        picked = np.stack(  # (1 + M, Y, C, S)
            [
                np.stack([values[:, place[y, int(x)], :, c] for c, x in enumerate(best[measure][y])], axis=1)
                for y in range(len(worlds))
            ],
            axis=1,
        )
        gains[measure] = paired_gain(picked[1:], picked[:1], seeds)
        chosen[measure] = np.asarray(step_sizes)[best[measure]]
    return gains, chosen


def own_best_gains(worlds, methods, step_sizes, choosing_seeds, seeds, checkpoint, measure="pass_at_8"):
    """Gain over GRPO when every method, GRPO too, has its own best step size, Gain of (M, Y)."""
    games = []
    for method in ("grpo", *methods):
        best, _ = best_step_sizes(worlds, step_sizes, choosing_seeds, [checkpoint], method)
        games += [
            Game(world, method, step_size=step_sizes[int(x)])
            for world, x in zip(worlds, best[measure][:, 0], strict=True)
        ]
    values = MEASURES[measure][1](play(games, seeds, [checkpoint]))[..., 0].reshape(
        1 + len(methods), len(worlds), -1
    )
    return paired_gain(values[1:], values[:1], seeds)


def ablate(game, changes, seeds, checkpoint):
    """Gain over GRPO (same world and step size) of `game` and of each change of it.

    changes: {label: fields of `Game`}. Returns {label: {measure: Gain}}, first "as it is".
    """
    variants = {"as it is": game} | {label: replace(game, **fields) for label, fields in changes.items()}
    games = [replace(game, method="grpo"), *variants.values()]
    results = play(games, seeds, [checkpoint])
    table: dict[str, dict[str, Gain]] = {label: {} for label in variants}
    for measure, (_, function) in MEASURES.items():
        values = function(results)[..., 0]
        for label, own in zip(variants, values[1:], strict=True):
            table[label][measure] = paired_gain(own, values[0], seeds)
    return table


def shipped_gains(profile="study", measured_dir=MEASURED):
    """Gains over GRPO of the real trainings whose tables are shipped, see data/README.md.

    Returns {variant: {"label": text, measure: (gain, low, high)}}, the measures those of `SCORES`, the
    bounds those of the 95% interval. Raises FileNotFoundError where the tables are not at hand.
    """
    gains: dict[str, dict] = {}
    with (Path(measured_dir) / profile / "scores.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            for measure, score in SCORES.items():
                if row["score"] == score and row["gain"]:
                    values = tuple(float(row[name]) for name in ("gain", "gain_low", "gain_high"))
                    gains.setdefault(row["variant"], {"label": row["label"]})[measure] = values
    return gains


def toy_against_real(world, step_size, seeds, checkpoint, real):
    """What the toy says of each real variant that it can play, beside what was measured.

    real: as `shipped_gains` returns it. Returns {label: {measure: {"toy": (gain, low, high), "real":
    the same}}} for the variants of `REAL_VARIANTS` among them.
    """
    variants = {name: fields for name, fields in REAL_VARIANTS.items() if name in real}
    games = [Game(world, step_size=step_size, **fields) for fields in ({}, *variants.values())]
    results = play(games, seeds, [checkpoint])
    table: dict[str, dict] = {real[name]["label"]: {} for name in variants}
    for measure in SCORES:
        values = MEASURES[measure][1](results)[..., 0]
        gain = paired_gain(values[1:], values[:1], seeds)
        for i, name in enumerate(variants):
            mean, half = float(gain.mean[i]), float(gain.half[i])
            table[real[name]["label"]][measure] = {
                "toy": (mean, mean - half, mean + half),
                "real": real[name][measure],
            }
    return table


def real_gains(runs_dir):
    """Gains of real runs over their GRPO, from records of `gdro.experiment`; None where there are none.

    Reads <runs_dir>/<variant>/seed<number>/evaluation.jsonl. Returns {"seeds": number, "gains": {variant:
    [(mean, lowest, highest) of pass@k, of the worst family's accuracy]}}, k the samples of each prompt.
    """
    tables: dict[str, dict[str, tuple[float, float]]] = {}
    for path in sorted(Path(runs_dir).glob("*/seed*/evaluation.jsonl")):
        rows = read_table(path)
        families = np.array([row["family"] for row in rows])
        right, trials = (np.array([row[name] for row in rows]) for name in ("successes", "trials"))
        names = np.unique(families)
        solved = pass_at_k(right, trials, int(trials.min()))
        mean_pass = float(np.mean([solved[families == name].mean() for name in names]))
        tables.setdefault(path.parts[-3], {})[path.parts[-2]] = (
            mean_pass,
            worst_group(right / trials, families)[1],
        )
    if "grpo" not in tables:
        return None
    baseline = tables.pop("grpo")
    gains = {}
    for variant, runs in tables.items():
        paired = np.array([np.subtract(runs[seed], baseline[seed]) for seed in runs if seed in baseline])
        if len(paired):
            summaries = zip(paired.mean(axis=0), paired.min(axis=0), paired.max(axis=0), strict=True)
            gains[variant] = [tuple(map(float, summary)) for summary in summaries]
    return {"seeds": len(baseline), "gains": gains}
