"""What the maps of notebook 04 take: seconds of a game's step, and of the maps, on one core.

    python benchmarks/toy.py

A few games of each method are timed. The maps have so many games: GRPO at every step size, on the
seeds that choose it, then every method at GRPO's best sizes. data/studies keeps both maps, so that
nobody has to wait for them. A faster engine, games as arrays, was removed as the maps take less
than an hour without it.
"""

import argparse
import json
import time
from pathlib import Path

from gdro_lab import numerics

numerics.fix()  # before torch and numpy are imported

from gdro_lab.toy import TOY_METHODS, Game, World, play

MEASURED = Path(__file__).parents[1] / "data" / "studies" / "toy"
MAPS = ("map.json", "map_own_best.json")


def steps_of(record: dict) -> dict[str, int]:
    """Steps of each method's games in a map, no game counted twice; at most so many.

    Where methods have step sizes of their own, only GRPO's are known: two of each world, one for
    each measure, is the most there can be.
    """
    worlds, methods, sizes, choosing_seeds, seeds, checkpoints, own_best = record["settings"]
    choosing = len(worlds) * len(sizes) * len(choosing_seeds)
    best = {
        (place, size)
        for chosen in record["step_sizes"].values()
        for place, of_world in enumerate(chosen)
        for size in of_world
    }
    games = 2 * len(worlds) * len(checkpoints) if own_best else len(best)
    steps = {}
    for method in ("grpo", *methods):
        chooses = own_best or method == "grpo"
        steps[method] = (games * len(seeds) + chooses * choosing) * checkpoints[-1]
    return steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=2, help="games of each world and method")
    args = parser.parse_args()
    records = [json.loads((MEASURED / name).read_text(encoding="utf-8")) for name in MAPS]
    worlds = [World(**world) for world in records[0]["settings"][0][::5]]
    counts = [steps_of(record) for record in records]
    print(f"| method | µs a step | {' | '.join(f'steps of {name}' for name in MAPS)} | minutes |")
    print("|---|--:|--:|--:|--:|")
    total = 0.0
    for method, label in TOY_METHODS.items():
        games = [Game(world, method, step_size=16.0) for world in worlds]
        began = time.process_time()
        play(games, range(args.seeds), [100])
        step = (time.process_time() - began) / (len(games) * args.seeds * 100)
        steps = [count.get(method, 0) for count in counts]
        minutes = step * sum(steps) / 60
        total += minutes
        cells = [f"{1e6 * step:.0f}", *(f"{n:,}" for n in steps), f"{minutes:.1f}"]
        print(f"| {label} | {' | '.join(cells)} |")
    print(f"\nAll of both maps: {total:.0f} minutes of one core")


if __name__ == "__main__":
    main()
