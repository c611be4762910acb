"""When does it help? Toy games compared with GRPO at its own best step size (notebook 04).

Axes: Y worlds, M methods or games, S seeds, C checkpoints. Each seed is a random world of its own,
so intervals of differences paired by seed cover a new world.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np

from gdro.checks import check
from gdro.files import plain, replace_text
from gdro_lab.intervals import paired_t
from gdro_lab.toy import Game, Results, World, play

# title, and (G, S, C) of the results
MEASURES: dict[str, tuple[str, Callable[[Results], np.ndarray]]] = {
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
        """+1 where the interval is above 0, −1 where below, 0 where it contains 0."""
        return np.where(np.abs(self.mean) > self.half, np.sign(self.mean), 0).astype(int)


def paired_gain(values_S: np.ndarray, baseline_S: np.ndarray) -> Gain:
    """Gain over the baseline, both (..., S), paired by seed, with Student's interval."""
    gain_S = np.asarray(values_S) - np.asarray(baseline_S)
    check("number of seeds", gain_S.shape[-1], int, ge=2)
    interval = paired_t(gain_S)
    return Gain(interval.mean, np.nan_to_num(interval.half))


def best_step_sizes(
    worlds: Sequence[World],
    step_sizes: Sequence[float],
    seeds: Sequence[int],
    checkpoints: Sequence[int],
) -> dict[str, np.ndarray]:
    """The step size that serves GRPO best, by measure: {measure: indices (Y, C)}."""
    results = play([Game(w, step_size=x) for w in worlds for x in step_sizes], seeds, checkpoints)
    shape = (len(worlds), len(step_sizes), -1)
    means = {name: of(results).mean(axis=1).reshape(shape) for name, (_, of) in MEASURES.items()}
    return {name: mean.argmax(axis=1) for name, mean in means.items()}


def recorded_gain_map(
    record: Path | None,
    worlds: Sequence[World],
    methods: Sequence[str],
    step_sizes: Sequence[float],
    choosing_seeds: Sequence[int],
    seeds: Sequence[int],
    checkpoints: Sequence[int],
) -> tuple[dict[str, Gain], dict[str, np.ndarray]]:
    """Gain over GRPO in pass@8 and the worst skill, at GRPO's best step size for each.

    Args:
        record: a file with the result, read if it has the same arguments, written if it is absent.
        choosing_seeds: on which the step size is chosen; they must not overlap with `seeds`.

    Returns:
        {measure: Gain of (M, Y, C)} and GRPO's {measure: step sizes (Y, C)}.
    """
    settings = [[asdict(world) for world in worlds], list(methods)]
    settings += [step_sizes, choosing_seeds, seeds, checkpoints]
    # through JSON and back, so that ranges and tuples compare equal to the lists of the file
    settings = json.loads(json.dumps(settings, default=list))
    played = {}
    if record is not None and record.exists():
        played = json.loads(record.read_text("utf-8"))
    if played.get("settings") != settings:
        shared = set(choosing_seeds) & set(seeds)
        if shared:
            raise ValueError(f"choosing_seeds and seeds must not overlap, got {shared} in both")
        gains, best = _play_map(
            worlds, ["grpo", *methods], step_sizes, choosing_seeds, seeds, checkpoints
        )
        played = {"settings": settings, "gains": gains, "step_sizes": best}
        if record is not None and not record.exists():
            replace_text(record, json.dumps(played, default=plain) + "\n")
    gains = {measure: Gain(*map(np.array, gain)) for measure, gain in played["gains"].items()}
    return gains, {measure: np.array(sizes) for measure, sizes in played["step_sizes"].items()}


def _play_map(
    worlds: Sequence[World],
    names: Sequence[str],
    step_sizes: Sequence[float],
    choosing_seeds: Sequence[int],
    seeds: Sequence[int],
    checkpoints: Sequence[int],
) -> tuple[dict[str, Gain], dict[str, np.ndarray]]:
    """`recorded_gain_map` of GRPO, the first of the names, and others."""
    measures = ("pass_at_8", "worst_skill")
    sizes = best_step_sizes(worlds, step_sizes, choosing_seeds, checkpoints)
    # one call plays all cells, each a game at its best step size: equal games are played once
    cells = [
        (measure, checkpoint, Game(worlds[world], name, step_size=step_sizes[size]))
        for measure, name in product(measures, names)
        for (world, checkpoint), size in np.ndenumerate(sizes[measure])
    ]
    results = play([game for _, _, game in cells], seeds, checkpoints)
    values = {measure: MEASURES[measure][1](results) for measure in measures}
    # the order in which the cells were listed
    shape = (len(measures), len(names), len(worlds), len(checkpoints), len(seeds))
    # of each game the one checkpoint for which its step size is the best
    picked = [values[measure][i, :, c] for i, (measure, c, _) in enumerate(cells)]
    of_measure = zip(measures, np.reshape(picked, shape), strict=True)
    gains = {measure: paired_gain(v[1:], v[:1]) for measure, v in of_measure}
    best = {measure: np.asarray(step_sizes)[sizes[measure]] for measure in measures}
    return gains, best
