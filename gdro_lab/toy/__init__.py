"""Learners small enough to play thousands of games at once.

A prompt has a few possible answers, one of them correct, and the policy is a softmax over them:

    z_correct = offset + √c · strength(skill) + √(1−c) · ⟨ε_correct, θ⟩,      z_wrong = √(1−c) ·
    ⟨ε_wrong, θ⟩

The strength of a skill carries over to prompts never trained on (`transfer` c is the part of an
update that does); θ is a memory of `capacity` numbers in which prompts interfere, because the
random directions ε overlap. Every sampled answer also adds gradient noise: its advantage moves θ in
a random direction of norm `noise`. The noise averages out over many rollouts, so a large step and a
small n are costly. Skills differ in how frequent they are (`tail`) and how hard they are at first
(`spread`).

`play` plays the methods in `ARRAY_METHODS` as arrays, thousands of games at once on the pure
functions of `gdro.arms` and `gdro.method`, and any other `gdro.Method` one at a time with a
`GDROController`. All games of one seed see the same random numbers whatever their method, so
differences are paired.

Axes: M games, S seeds, G columns (every game with every seed; in results G is games), C
checkpoints, K skills, D prompts of the data set, P prompts of a batch, A answers (0 is correct), F
memory, E held-out prompts, B bins, N arms.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np

from gdro.checks import check
from gdro_lab.toy.engine import Table
from gdro_lab.toy.games import ARRAY_METHODS, Game, Results, World
from gdro_lab.toy.plain import PlainGame

__all__ = ["ARRAY_METHODS", "Game", "Results", "World", "play"]

GAMES_PER_BLOCK = 1024  # enough to hide numpy's overhead, few enough for the processor's cache


def play(
    games: Game | Iterable[Game],
    seeds: Iterable[int],
    checkpoints: Iterable[int],
    threads: int | None = None,
) -> Results:
    """Play every game with every seed, equal games once, and measure at the given steps.

    Args:
        games: they may differ in anything but the number of skills. Those that differ only in
        `step_size` or
            the numbers of their worlds are fastest; methods that are not in `ARRAY_METHODS` are
            slow.
        seeds: integers ≥ 0.
        checkpoints: increasing steps ≥ 0, the last is the length of the games.
        threads: by default one for each processor; results do not depend on it.
    """
    games = [games] if isinstance(games, Game) else list(games)
    seeds = [check("seed", seed, int, ge=0) for seed in seeds]
    checkpoints = [check("checkpoint", step, int, ge=0) for step in checkpoints]
    if not games or not seeds or not checkpoints:
        raise ValueError(
            f"nothing to play: {len(games)} games, {len(seeds)} seeds, {len(checkpoints)} steps; "
            "give at least one of each"
        )
    if sorted(set(checkpoints)) != checkpoints:
        raise ValueError(f"checkpoints must be increasing steps ≥ 0, got {checkpoints}; sort them")
    if len({game.world.skills for game in games}) > 1:
        raise ValueError(
            "games must have worlds with one number of skills; play others in another call"
        )
    number = {game: i for i, game in enumerate(dict.fromkeys(games))}
    place_G, games = [number[game] for game in games], list(number)
    shape, skills = (len(games), len(seeds), len(checkpoints)), games[0].world.skills
    widths = (skills, skills, max(skills, *(game.num_bins for game in games)))
    measured = [np.full((*shape, width), np.nan) for width in widths]

    def play_block(block: tuple[list[int], list[int]]) -> None:
        members, own = block
        of_block = [games[g] for g in members], [seeds[s] for s in own]
        as_arrays = of_block[0][0].method in ARRAY_METHODS
        table = Table(*of_block) if as_arrays else PlainGame(of_block[0][0], of_block[1][0])
        for c, checkpoint in enumerate(checkpoints):
            while table.steps_played < checkpoint:
                table.step()
            for result, values_GX in zip(measured, table.measure(), strict=True):
                values_MSX = values_GX.reshape(len(own), len(members), -1).swapaxes(0, 1)
                place = np.ix_(members, own, [c], range(values_MSX.shape[-1]))
                result[place] = values_MSX[:, :, None]

    with ThreadPoolExecutor(threads or os.cpu_count()) as pool:
        list(pool.map(play_block, _blocks(games, seeds)))
    counts_GK = np.array([np.bincount(game.world.skill_D) for game in games])
    shares_GK = counts_GK / counts_GK.sum(axis=1, keepdims=True)
    return Results._make(values[place_G] for values in (*measured, shares_GK))


def _blocks(games: Sequence[Game], seeds: Sequence[int]) -> Iterator[tuple[list[int], list[int]]]:
    """(positions of games, positions of seeds) to play together."""
    similar: dict[Game, list[int]] = {}
    for g, game in enumerate(games):
        if game.method not in ARRAY_METHODS:
            yield from (([g], [s]) for s in range(len(seeds)))
            continue
        # games that are equal but for these numbers can share their arrays
        world = replace(game.world, tail=0, spread=0, mean_logit=0, jitter=0, rare="hard")
        similar.setdefault(replace(game, step_size=1, world=world), []).append(g)
    for members in similar.values():
        parts = min(-(-len(members) * len(seeds) // GAMES_PER_BLOCK), len(seeds))
        yield from ((members, own.tolist()) for own in np.array_split(np.arange(len(seeds)), parts))
