"""The toy engine beside the same games in plain Python, one at a time, in one run.

    python benchmarks/toy.py

For each method: processor time per game step of the engine (thousands of games as arrays, one thread) and
of `gdro.toy.plain` (the same game, the same seed, the controllers' own objects, one thread), and their
ratio. The last column is the ratio of wall times where the engine has as many threads as there are
processors, which is how it plays by default. Before anything is timed, one game is checked to come out the
same both ways.
"""

import argparse
import time

import numpy as np

from gdro.toy import METHODS, Game, World, play
from gdro.toy.plain import PlainGame

WORLDS_PLAYED = [
    World(tail=tail, spread=spread) for tail in (0.0, 0.5, 1.0, 1.5) for spread in (0.0, 1.0, 2.0, 3.0)
]


def timed(work):
    """Processor and wall seconds of a call."""
    processor, wall = time.process_time(), time.perf_counter()
    work()
    return np.array([time.process_time() - processor, time.perf_counter() - wall])


def engine_seconds(method, seeds, steps, repeats):
    """Per game step, the best of some repeats: processor time of one thread, wall time of all."""
    games = [Game(world, method) for world in WORLDS_PLAYED]
    play(games, range(16), [1])  # draws the worlds
    spent = [
        [timed(lambda n=threads: play(games, range(seeds), [steps], n)) for threads in (1, None)]
        for _ in range(repeats)
    ]
    (processor, _), (_, wall) = np.min(spent, axis=0)
    return np.array([processor, wall]) / (len(games) * seeds * steps)


def plain_seconds(method, steps, repeats):
    """Per game step, the best of some repeats."""
    spent = []
    for _ in range(repeats):
        game = PlainGame(Game(World(tail=1.0, spread=2.0), method), seed=3)

        def work(game=game):
            for _ in range(steps):
                game.step()

        spent.append(timed(work))
    return np.min(spent, axis=0) / steps


def check_equal(method):
    """ValueError unless one game comes out the same both ways."""
    game, plain = Game(World(), method), PlainGame(Game(World(), method), seed=5)
    for _ in range(20):
        plain.step()
    engine = play([game] * 8, [5], [20])
    gap = np.abs(engine.accuracy[0, 0, 0] - plain.measure()[0]).max()
    if gap > 1e-9:
        raise ValueError(f"{method}: engine and plain loop differ by {gap}; there is nothing to compare")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=128, help="seeds of each of the 16 worlds")
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--repeats", type=int, default=9)
    options = parser.parse_args()
    print(f"{'method':26}{'engine µs':>12}{'plain µs':>12}{'ratio':>8}{'wall ratio':>12}")
    total = np.zeros((2, 2))
    for method, label in METHODS.items():
        check_equal(method)
        ours = engine_seconds(method, options.seeds, options.steps, options.repeats)
        plain = plain_seconds(method, options.steps, options.repeats)
        total += np.array([ours, plain])
        ratio = plain / ours
        print(f"{label:26}{ours[0] * 1e6:12.1f}{plain[0] * 1e6:12.0f}{ratio[0]:8.0f}{ratio[1]:12.0f}")
    ratio = total[1] / total[0]
    print(f"{'all methods, one of each':26}{'':24}{ratio[0]:8.0f}{ratio[1]:12.0f}")


if __name__ == "__main__":
    main()
