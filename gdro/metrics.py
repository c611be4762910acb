"""What a run is judged by: pass@k, mean@k, worst bin, mass, lead–lag, WSE, intervals.

Axes: P prompts, B bins (0 hardest), T steps, S seeds. All functions are pure.
"""

import numpy as np
from scipy.special import entr


def pass_at_k(successes, trials, k):
    """Unbiased pass@k from c successes in n trials, 1 − C(n−c, k)/C(n, k).

    successes, trials: integers of one shape, 0 ≤ c ≤ n and n ≥ k ≥ 1. Returns that shape.
    Chance that at least one of k rollouts drawn without replacement from the n is right
    (Chen et al. 2021). Raises ValueError where fewer than k trials were made.
    """
    successes, trials = checked_counts(successes, trials)
    if not (isinstance(k, int | np.integer) and k >= 1):
        raise ValueError(f"k must be an integer of at least 1, got {k!r}")
    if (trials < k).any():
        raise ValueError(
            f"pass@{k} needs at least {k} trials a prompt, got {trials.min()}; "
            "sample more completions or ask for a smaller k"
        )
    return 1.0 - all_wrong_chance(successes, trials, k)


def all_wrong_chance(successes, trials, k):
    """C(n−c, k)/C(n, k) as the product of k ratios, exact at 0 and 1; no argument checks."""
    wrong = np.asarray(trials, float) - successes
    chance = np.ones(np.broadcast(successes, trials).shape)
    for i in range(k):
        chance = chance * np.maximum(wrong - i, 0.0) / (np.asarray(trials, float) - i)
    return chance


def mean_at_k(successes, trials):
    """Mean accuracy of a prompt's k samples, c/n. Same shapes as `pass_at_k`, n ≥ 1."""
    successes, trials = checked_counts(successes, trials)
    if (trials < 1).any():
        raise ValueError("mean@k needs at least one trial a prompt, got 0; leave that prompt out")
    return successes / trials


def worst_group(values, groups):
    """(name, mean) of the group whose mean value is lowest; ties go to the name that sorts first.

    values: (P,). groups: (P,) of any sortable labels, such as skill families or bins.
    """
    values, groups = np.asarray(values, float), np.asarray(groups)
    if values.shape != groups.shape or values.size == 0:
        raise ValueError(
            f"values and groups must be one per prompt, got shapes {values.shape} and {groups.shape}"
        )
    names, inverse = np.unique(groups, return_inverse=True)
    means = np.bincount(inverse, values) / np.bincount(inverse)
    worst = int(means.argmin())
    return names[worst].item(), float(means[worst])


def mean_bin_index(shares):
    """Σ_b b·share_b, the y-axis of the paper's figures 4 and 8. shares (..., B) → (...)."""
    shares = np.asarray(shares, float)
    return shares @ np.arange(shares.shape[-1])


def mass_from_bin(shares, first_bin):
    """Share of prompts in bins ≥ first_bin (the easier ones). (..., B) → (...)."""
    return np.asarray(shares, float)[..., first_bin:].sum(axis=-1)


def entropy(probabilities):
    """Shannon entropy in nats along the last axis; 0·log 0 = 0."""
    return entr(np.asarray(probabilities, float)).sum(axis=-1)


def effective_number(probabilities):
    """exp(entropy): how many bins an even distribution of the same entropy would have."""
    return np.exp(entropy(probabilities))


def lead_lag(weights, shares):
    """Δμ(t) = Σ_b b·ŵ_t(b) − Σ_b b·q_t(b), (32).

    weights, shares: (..., B) with weights ≥ 0. ŵ are the weights normalized over the bins.
    Negative: the adversary looks at harder bins than the data does. Returns (...).
    """
    weights = np.asarray(weights, float)
    normalized = weights / weights.sum(axis=-1, keepdims=True)
    return mean_bin_index(normalized) - mean_bin_index(shares)


def weighted_standard_error(deviations, shares, rollouts):
    """WSE(t) = Σ_b q_t(b) σ̂_b / √n_b(t), (33). Bins without a share do not count.

    deviations σ̂ (reward standard deviations), shares, rollouts: (..., B). Returns (...).
    """
    shares, deviations, rollouts = np.broadcast_arrays(
        np.asarray(shares, float), np.asarray(deviations, float), np.asarray(rollouts, float)
    )
    present = shares > 0
    if (rollouts[present] <= 0).any() or np.isnan(deviations[present]).any():
        raise ValueError(
            "rollouts must be positive and deviations known in every bin with a share; "
            f"got rollouts {rollouts[present]} and deviations {deviations[present]}"
        )
    terms = np.zeros(shares.shape)
    terms[present] = (shares * deviations)[present] / np.sqrt(rollouts[present])
    return terms.sum(axis=-1)


def bootstrap_interval(values_SP, rng, level=0.95, resamples=2000):
    """Percentile bootstrap interval of the mean over seeds and prompts, both redrawn.

    values_SP: (S, P), one row a seed; every seed is evaluated on the same prompts. rng: a numpy
    Generator. Seeds and prompts are redrawn independently (two-way, or pigeonhole, bootstrap), so the
    interval covers a new seed and a new prompt alike. Redrawing S seeds shows 1 − 1/S of their variance,
    so the seeds' means are first spread by √(S/(S−1)); with two seeds the interval is still on the
    narrow side, and with one it knows of prompts alone. Returns (low, high).
    Raises ValueError for an empty table or NaN.
    """
    values_SP = np.atleast_2d(np.asarray(values_SP, float))
    if values_SP.size == 0 or np.isnan(values_SP).any():
        raise ValueError(
            f"values_SP must be a full table of seeds × prompts, got {values_SP!r}; fill its gaps"
        )
    num_seeds, num_prompts = values_SP.shape
    if num_seeds > 1:
        deviation_S = values_SP.mean(axis=1) - values_SP.mean()
        spread = np.sqrt(num_seeds / (num_seeds - 1)) - 1
        values_SP = values_SP + (spread * deviation_S)[:, None]
    seed_weights = _draw_shares(rng.integers(num_seeds, size=(resamples, num_seeds)), num_seeds)
    prompt_weights = _draw_shares(rng.integers(num_prompts, size=(resamples, num_prompts)), num_prompts)
    means = ((seed_weights @ values_SP) * prompt_weights).sum(axis=1)
    tail = (1 - level) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    return float(low), float(high)


def _draw_shares(draws_RK, size):
    """Fraction of each resample's draws that fell on each of `size` items, (R, size)."""
    rows = np.arange(len(draws_RK))[:, None]
    counts = np.zeros((len(draws_RK), size))
    np.add.at(counts, (rows, draws_RK), 1.0)
    return counts / draws_RK.shape[1]


def checked_counts(successes, trials):
    """Integer arrays of one shape with 0 ≤ successes ≤ trials, or a ValueError."""
    successes, trials = np.asarray(successes), np.asarray(trials)
    for name, values in (("successes", successes), ("trials", trials)):
        if values.dtype.kind not in "iu" and values.size:
            raise ValueError(f"{name} must be integer counts, got dtype {values.dtype}; give whole counts")
    if successes.shape != trials.shape:
        raise ValueError(
            f"successes and trials must have one shape, got {successes.shape} and {trials.shape}"
        )
    if (successes < 0).any() or (successes > trials).any():
        raise ValueError(
            "successes must lie between 0 and trials, "
            f"got {successes[(successes < 0) | (successes > trials)]}"
        )
    return successes, trials
