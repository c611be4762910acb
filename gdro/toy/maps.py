"""When does it help? Toy games compared with GRPO at its own best step size (notebook 04).

Axes: Y worlds, M methods or games, S seeds, C checkpoints. A seed's random world is seed mod `WORLDS`;
differences are paired by seed, and their intervals treat the random worlds, not the seeds, as the sample
(seeds of one world share its directions).
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from scipy.stats import t as student

from gdro.toy.games import WORLDS, Game, Results, World
from gdro.toy.playing import play

MEASURES: dict[str, tuple[str, Callable[[Results], np.ndarray]]] = {  # title, and (G, S, C) of the results
    "pass_at_8": ("pass@8, mean over skills", lambda results: results.pass_at_8.mean(axis=-1)),
    "worst_skill": ("accuracy of the worst skill", lambda results: results.accuracy.min(axis=-1)),
    "typical": (
        "accuracy on the training mix",
        lambda results: np.einsum("gsck,gk->gsc", results.accuracy, results.share),
    ),
}


class Gain(NamedTuple):
    """Differences from GRPO: mean and half-width of its 95% interval."""

    mean: np.ndarray
    half: np.ndarray

    def verdict(self) -> np.ndarray:
        """+1 where the interval lies above 0, −1 below; 0 where it contains 0, which is inconclusive."""
        return np.where(self.mean - self.half > 0, 1, np.where(self.mean + self.half < 0, -1, 0))


def paired_gain(values_S: np.ndarray, baseline_S: np.ndarray, seeds: Sequence[int]) -> Gain:
    """Gain over the baseline, both (..., S), paired by seed, with the interval from the random worlds."""
    by_seed, numbers = np.asarray(values_S) - np.asarray(baseline_S), np.asarray(seeds) % WORLDS
    by_world = np.stack([by_seed[..., numbers == number].mean(axis=-1) for number in np.unique(numbers)], -1)
    count = by_world.shape[-1]
    if count < 2:
        raise ValueError(
            f"seeds must fall into at least two random worlds, got {list(seeds)}; take {2 * WORLDS} or more"
        )
    half = student.ppf(0.975, count - 1) * by_world.std(axis=-1, ddof=1) / np.sqrt(count)
    return Gain(by_world.mean(axis=-1), half)


def gains_over_grpo(games: Sequence[Game], seeds: Sequence[int], checkpoint: int) -> dict[str, Gain]:
    """Gains over GRPO in the first game's world and at its step size, {measure: Gain of (M,)}."""
    results = play([replace(games[0], method="grpo"), *games], seeds, [checkpoint])
    values = {measure: of(results)[..., 0] for measure, (_, of) in MEASURES.items()}
    return {measure: paired_gain(v[1:], v[:1], seeds) for measure, v in values.items()}


def best_step_sizes(
    worlds: Sequence[World],
    step_sizes: Sequence[float],
    seeds: Sequence[int],
    checkpoints: Sequence[int],
    method: str = "grpo",
) -> dict[str, np.ndarray]:
    """The step size that serves a method best, by measure: {measure: indices (Y, C)}."""
    results = play([Game(w, method, step_size=x) for w in worlds for x in step_sizes], seeds, checkpoints)
    shape = (len(worlds), len(step_sizes), -1)
    means = {name: of(results).mean(axis=1).reshape(shape) for name, (_, of) in MEASURES.items()}
    return {name: mean.argmax(axis=1) for name, mean in means.items()}


def gain_map(
    worlds: Sequence[World],
    methods: Sequence[str],
    step_sizes: Sequence[float],
    choosing_seeds: Sequence[int],
    seeds: Sequence[int],
    checkpoints: Sequence[int],
    measures: Sequence[str] = ("pass_at_8", "worst_skill"),
    own_best: bool = False,
) -> tuple[dict[str, Gain], dict[str, np.ndarray]]:
    """Gain of each method over GRPO, both at GRPO's best step size for that measure and budget.

    Args:
        choosing_seeds: on which the step size is chosen; they must not overlap with `seeds`.
        own_best: every method at its own best step size instead.

    Returns:
        {measure: Gain of (M, Y, C)} and GRPO's {measure: step sizes (Y, C)}.
    """
    if set(choosing_seeds) & set(seeds):
        raise ValueError(
            "choosing_seeds and seeds must not overlap; choose step sizes on seeds that are not judged on"
        )
    names = ("grpo", *methods)
    best = {
        name: best_step_sizes(worlds, step_sizes, choosing_seeds, checkpoints, name)
        for name in (names if own_best else names[:1])
    }
    best = {name: best.get(name, best["grpo"]) for name in names}
    # each game once, however many measures and checkpoints want it
    wanted = dict.fromkeys(
        (n, y, x) for n in names for m in measures for (y, _), x in np.ndenumerate(best[n][m])
    )
    place = {key: i for i, key in enumerate(wanted)}
    games = [Game(worlds[y], name, step_size=step_sizes[x]) for name, y, x in wanted]
    results, gains = play(games, seeds, checkpoints), {}
    for measure in measures:
        values = MEASURES[measure][1](results)
        picked = [
            [values[place[n, y, x], :, c] for (y, c), x in np.ndenumerate(best[n][measure])] for n in names
        ]
        picked_MYCS = np.reshape(picked, (len(names), len(worlds), len(checkpoints), len(seeds)))
        gains[measure] = paired_gain(picked_MYCS[1:], picked_MYCS[:1], seeds)
    return gains, {measure: np.asarray(step_sizes)[best["grpo"][measure]] for measure in measures}
