"""The toy engine beside the same games one at a time, in one run.

    python benchmarks/toy.py

For each method: processor time per game step of the engine (thousands of games as arrays, one
thread) and of `gdro_lab.toy.plain` (one game around a `GDROController`), and their ratio. That both
play the same games is shown by tests/toy/test_toy.py.
"""

import argparse
import time

import numpy as np

from gdro_lab.toy import ARRAY_METHODS, Game, World, play
from gdro_lab.toy.plain import PlainGame

WORLDS_PLAYED = [
    World(tail=t, spread=s) for t in (0.0, 0.5, 1.0, 1.5) for s in (0.0, 1.0, 2.0, 3.0)
]


def seconds(work, repeats):
    """Processor seconds of a call, the best of some."""
    spent = []
    for _ in range(repeats):
        start = time.process_time()
        work()
        spent.append(time.process_time() - start)
    return min(spent)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=128, help="seeds of each of the 16 worlds")
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--repeats", type=int, default=9)
    options = parser.parse_args()
    print(f"{'method':26}{'engine µs':>12}{'plain µs':>12}{'ratio':>8}")
    total = np.zeros(2)
    for method, label in ARRAY_METHODS.items():
        if method == "oracle":  # which no controller plays
            continue
        games, seeds = [Game(world, method) for world in WORLDS_PLAYED], range(options.seeds)
        play(games, seeds, [1])  # draws the worlds
        engine = seconds(lambda g=games, s=seeds: play(g, s, [options.steps], 1), options.repeats)
        game = PlainGame(Game(method=method), seed=3)
        plain = seconds(lambda g=game: [g.step() for _ in range(options.steps)], options.repeats)
        cost = np.array([engine / (len(games) * options.seeds), plain]) / options.steps * 1e6
        total += cost
        print(f"{label:26}{cost[0]:12.1f}{cost[1]:12.0f}{cost[1] / cost[0]:8.0f}")
    print(f"{'all methods, one of each':26}{'':24}{total[1] / total[0]:8.0f}")


if __name__ == "__main__":
    main()
