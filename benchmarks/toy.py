"""What the map of notebook 04 takes: seconds of a game's step, and of the map, on one core.

    python benchmarks/toy.py

A few games of each method are timed. The map has so many games: GRPO at every step size, on the
seeds that choose it, then every method at GRPO's best sizes. data/studies keeps the map, so that
nobody has to wait for it. A faster engine, games as arrays, was removed as the map takes less than
an hour without it.
"""

import argparse
import json
import time
from pathlib import Path

from gdro_lab import numerics

numerics.fix()  # before torch and numpy are imported

from gdro_lab.toy import TOY_METHODS, Game, World, play

MAP = Path(__file__).parents[1] / "data/studies/toy/map.json"


def steps_of(record: dict) -> dict[str, int]:
    """Steps of each method's games in a map, no game counted twice."""
    worlds, methods, sizes, choosing_seeds, seeds, checkpoints = record["settings"]
    best = {
        (place, size)
        for chosen in record["step_sizes"].values()
        for place, of_world in enumerate(chosen)
        for size in of_world
    }
    steps = dict.fromkeys(("grpo", *methods), len(best) * len(seeds) * checkpoints[-1])
    steps["grpo"] += len(worlds) * len(sizes) * len(choosing_seeds) * checkpoints[-1]
    return steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=2, help="games of each world and method")
    args = parser.parse_args()
    record = json.loads(MAP.read_text(encoding="utf-8"))
    worlds = [World(**world) for world in record["settings"][0][::5]]
    counts = steps_of(record)
    print("| method | µs a step | steps of the map | minutes |")
    print("|---|--:|--:|--:|")
    total = 0.0
    for method, label in TOY_METHODS.items():
        games = [Game(world, method, step_size=16.0) for world in worlds]
        began = time.process_time()
        play(games, range(args.seeds), [100])
        step = (time.process_time() - began) / (len(games) * args.seeds * 100)
        minutes = step * counts[method] / 60
        total += minutes
        print(f"| {label} | {1e6 * step:.0f} | {counts[method]:,} | {minutes:.1f} |")
    print(f"\nThe whole map: {total:.0f} minutes of one core")


if __name__ == "__main__":
    main()
