"""One way to solve the exercises of notebook 04; `tests/teaching` holds each against `check`."""

import numpy as np
from scipy.stats import sem, t

from gdro_lab.teaching.exercises import draw_groups
from gdro_lab.toy import Game, World, play


def group_advantages(rewards, group_ids):
    sizes = np.bincount(group_ids)
    centred = rewards - (np.bincount(group_ids, rewards) / sizes)[group_ids]
    return centred / (np.sqrt(np.bincount(group_ids, centred**2) / sizes) + 1e-4)[group_ids]


def oracle_rollouts(variances, arms, budget):
    rollouts = np.full(len(variances), arms[0])
    while rollouts.sum() < budget:
        saved = np.where(rollouts < arms[-1], variances / (rollouts * (rollouts + 1)), -1)
        rollouts[saved.argmax()] += 1
    return rollouts


def paired_gain(values, baseline):
    gains = values - baseline
    return gains.mean(axis=-1), t.ppf(0.975, gains.shape[-1] - 1) * sem(gains, axis=-1)


def holm(p_values):
    # the smallest is multiplied by the number of tests, the next by one less; none gets below the
    # one before
    order = np.argsort(p_values)
    count = len(p_values)
    largest = 0.0
    adjusted = np.zeros(count)
    for rank, place in enumerate(order):
        largest = max(largest, min(1.0, p_values[place] * (count - rank)))
        adjusted[place] = largest
    return adjusted


def who_pays(seeds=32, steps=25):
    """Exercise 5: gain of resampling by skill, most frequent first, where rare skills are easy.

    The frequent skills are the hard ones there and gain; the rare, nearly solved ones pay, and one
    of them becomes the worst.
    """
    world = World(tail=0.75, spread=3.0, rare="easy")
    games = [Game(world, method, step_size=16.0) for method in ("grpo", "resample")]
    accuracy = play(games, range(seeds), [steps]).accuracy
    return 100 * (accuracy[1] - accuracy[0]).mean(axis=(0, 1))


# The arguments that `check` draws, such that a wrong function differs in some case.
CASES = {
    "group_advantages": lambda rng: draw_groups(rng, 2),
    "oracle_rollouts": lambda rng: (rng.random(4), np.arange(2, 6), int(rng.integers(9, 20))),
    "paired_gain": lambda rng: (rng.random((2, 8)), rng.random((2, 8))),
    "holm": lambda rng: (rng.beta(0.5, 2, 6),),
}
