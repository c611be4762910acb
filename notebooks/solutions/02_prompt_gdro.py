"""One way to solve the exercises of notebook 02."""

import numpy as np


def soft_worst_case(losses, eta):
    largest = losses.max()
    odds = np.exp(eta * (losses - largest))
    return largest + np.log(odds.sum()) / eta, odds / odds.sum()


def debiased_scores(scores, visits, ema):
    fair = np.zeros(len(scores))
    seen = visits > 0
    fair[seen] = scores[seen] / (1 - (1 - ema) ** visits[seen])
    fair[~seen] = fair[seen].mean()
    return fair


def prompt_gdro(bins, losses, num_bins, eta, ema, max_weight):
    scores = np.zeros(num_bins)
    visits = np.zeros(num_bins, int)
    for bins_P, losses_P in zip(bins, losses, strict=True):
        for b in np.unique(bins_P):
            scores[b] += ema * (losses_P[bins_P == b].mean() - scores[b])
            visits[b] += 1
    fair = np.clip(debiased_scores(scores, visits, ema), -5, 5)
    return np.minimum(np.exp(eta * fair), max_weight)


def worst_share(losses, shares, alpha):
    # the hardest bins are filled to their bound until q sums to 1
    q = np.zeros(len(losses))
    left = 1.0
    for b in losses.argsort()[::-1]:
        q[b] = min(shares[b] / alpha, left)
        left -= q[b]
    return q @ losses, q


def effective_groups(etas, steps, seeds, skills=35):
    """Exercise 5: effective groups of the EMA at some steps, (etas, steps), in section 4's worlds.

    A large enough η makes q as narrow as one likes while the losses differ. But a running mean
    forgets: once the groups are learned, every η is back at nearly all of them.
    """
    from gdro import metrics
    from gdro_lab.toy import Game, World, play

    world = World(skills, prompts=5 * skills, tail=1.0, spread=1.5, rare="mixed")
    options = {"batch": skills, "step_size": 16.0, "grouping": "skill", "max_weight": 1e9}
    games = [Game(world=world, method="resample", eta=eta, **options) for eta in etas]
    played = play(games, range(seeds), steps)
    return metrics.effective_number(played.probability).mean(axis=1)


def _shares(rng):
    return rng.dirichlet(np.ones(4))


# The arguments that `check` draws, such that a wrong function differs in some case.
CASES = {
    "soft_worst_case": lambda rng: (rng.normal(size=4), 10 ** rng.uniform(-1, 4)),
    "debiased_scores": lambda rng: (
        rng.random(4) * [1, 0, 1, 1],
        np.array([3, 0, 1, rng.integers(1, 9)]),
        rng.uniform(0.05, 0.9),
    ),
    "prompt_gdro": lambda rng: (
        rng.integers(0, 3, (3, 4)),
        rng.choice([1, 50]) * rng.random((3, 4)),
        4,
        rng.uniform(0.05, 2),
        rng.uniform(0.05, 0.9),
        4.0,
    ),
    "worst_share": lambda rng: (rng.normal(size=4), _shares(rng), min(1, rng.uniform(0.05, 1.2))),
}
