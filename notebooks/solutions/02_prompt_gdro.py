"""One way to solve the exercises of notebook 02; `tests/teaching` holds each against `check`."""

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
