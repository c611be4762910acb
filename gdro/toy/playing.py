"""Games with seeds, as arrays where the engine can, one at a time otherwise. Axes: as in `gdro.toy`."""

import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np

from gdro.checks import check_int
from gdro.toy.engine import Table
from gdro.toy.games import METHODS, Game, Results, World
from gdro.toy.plain import PlainGame

COLUMNS = 1024  # games in one block of arrays: enough to hide numpy's overhead, few enough for the cache


def play(
    games: Game | Iterable[Game], seeds: Iterable[int], checkpoints: Iterable[int], threads: int | None = None
) -> Results:
    """Play every game with every seed and measure at the given steps.

    Args:
        games: they may differ in anything but the number of skills. Those that differ only in `step_size` or
            the numbers of their worlds are fastest; methods that are not in `METHODS` are slow.
        seeds: integers ≥ 0.
        checkpoints: increasing steps ≥ 0, the last is the length of the games.
        threads: by default one for each processor; results do not depend on it.
    """
    games = [games] if isinstance(games, Game) else list(games)
    seeds, checkpoints = [check_int("seed", seed, 0) for seed in seeds], list(checkpoints)
    if not games or not seeds or not checkpoints:
        raise ValueError(
            f"nothing to play: {len(games)} games, {len(seeds)} seeds, {len(checkpoints)} checkpoints; "
            "give at least one of each"
        )
    if sorted(set(checkpoints)) != checkpoints or checkpoints[0] < 0:
        raise ValueError(f"checkpoints must be increasing steps ≥ 0, got {checkpoints}; sort them")
    if len({game.world.skills for game in games}) > 1:
        raise ValueError("games must have worlds with one number of skills; play others in another call")
    shape, skills = (len(games), len(seeds), len(checkpoints)), games[0].world.skills
    widths = (skills, skills, max(skills, *(game.num_bins for game in games)))
    measured = [np.full((*shape, width), np.nan) for width in widths]

    def play_block(block: tuple[list[int], list[int]]) -> None:
        members, own = block
        of_block = [games[g] for g in members], [seeds[s] for s in own]
        as_arrays = of_block[0][0].method in METHODS
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
    return Results._make([*measured, counts_GK / counts_GK.sum(axis=1, keepdims=True)])


def _blocks(games, seeds):
    """(positions of games, positions of seeds) to play together."""
    similar: dict[Game, list[int]] = {}
    for g, game in enumerate(games):
        if game.method not in METHODS:
            yield from (([g], [s]) for s in range(len(seeds)))
            continue
        world = game.world
        sizes = World(world.skills, world.prompts, capacity=world.capacity, answers=world.answers)
        similar.setdefault(replace(game, step_size=1.0, world=sizes), []).append(g)
    for members in similar.values():
        parts = min(-(-len(members) * len(seeds) // COLUMNS), len(seeds))
        yield from ((members, own.tolist()) for own in np.array_split(np.arange(len(seeds)), parts))
