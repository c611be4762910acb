"""One way to solve the exercises of notebook 02."""

import numpy as np


def soft_worst_case(losses, eta):
    largest = losses.max()
    odds = np.exp(eta * (losses - largest))
    return largest + np.log(odds.sum()) / eta, odds / odds.sum()


def debiased_scores(scores, visits, ema):
    fair, seen = np.zeros(len(scores)), visits > 0
    fair[seen] = scores[seen] / (1 - (1 - ema) ** visits[seen])
    fair[~seen] = fair[seen].mean()
    return fair


def prompt_gdro(bins, losses, num_bins, eta, ema, max_weight):
    scores, visits = np.zeros(num_bins), np.zeros(num_bins, int)
    for bins_P, losses_P in zip(bins, losses, strict=True):
        for b in np.unique(bins_P):
            scores[b] += ema * (losses_P[bins_P == b].mean() - scores[b])
            visits[b] += 1
    fair = np.clip(debiased_scores(scores, visits, ema), -5, 5)
    return np.minimum(np.exp(eta * fair), max_weight)


def worst_share(losses, shares, alpha):
    # the hardest bins are filled to their bound until q sums to 1
    q, left = np.zeros(len(losses)), 1.0
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
