"""Difficulty estimators put to the test on prompts whose true pass rates are known (notebook 01).

Axes: V visits, P prompts, B bins. All estimators see the same rollouts.
"""

import numpy as np
from scipy.special import expit, logit
from scipy.stats import beta as beta_law
from scipy.stats import spearmanr

from gdro.bins import UNSEEN, move_bins
from gdro.estimators import ESTIMATORS, BetaPosterior
from gdro.rollout_gdro import check_choice

BOUND = "beta_bound"
STUDIED = (*ESTIMATORS, BOUND)


def pass_rates(num_prompts, num_visits, gain, rng, low=0.003, high=0.9):
    """True pass rates (V, P): even in log-odds between `low` and `high`, then `gain` logits better.

    gain: log-odds won from the first visit to the last; 0 is a policy that stands still.
    """
    _check_counts(num_prompts=num_prompts, num_visits=num_visits)
    if not 0 < low < high < 1:
        raise ValueError(
            f"low and high must satisfy 0 < low < high < 1, got {low} and {high}; they are pass rates"
        )
    start_P = rng.uniform(logit(low), logit(high), num_prompts)
    return expit(start_P + gain * np.linspace(0, 1, num_visits)[:, None])


def true_pass_at_k(p, k):
    """1 − (1−p)^k, the chance that one of k independent rollouts is right; p and k may be arrays."""
    if (np.asarray(k) < 1).any():
        raise ValueError(f"k must be at least 1, got {k}; pass@1 is the accuracy")
    return 1.0 - (1.0 - np.asarray(p, float)) ** k


def expected_any_of_n(p, n):
    """What "any of the n allotted is right" estimates whatever k is meant: 1 − (1−p)^n."""
    return true_pass_at_k(p, n)


def bounded_pass_at_k(successes, failures, k, level):
    """pass@k at the `level`-quantile of the Beta posterior of p: a confidence bound, not a mean.

    pass@k grows with p, so its quantile is that of p carried over. level: in (0, 1); 0.2 asks for what
    holds with a chance of 80%, and keeps a prompt in a hard bin until it has proved otherwise.
    """
    if not 0 < level < 1:
        raise ValueError(f"level must lie in (0, 1), got {level}; 0.5 is the median, below it is cautious")
    prior_right, prior_wrong = BetaPosterior.prior
    return true_pass_at_k(beta_law.ppf(level, prior_right + successes, prior_wrong + failures), k)


def run_estimator(name, successes_VP, trials_VP, k=8, history=50, level=0.2):
    """Estimates (V, P) after each visit, NaN while there is nothing to go on.

    name: one of `STUDIED`. successes_VP, trials_VP: the rollouts; every prompt is visited every time.
    """
    check_choice("name", name, STUDIED)
    _check_counts(k=k, history=history)
    successes_VP, trials_VP = np.asarray(successes_VP), np.asarray(trials_VP)
    num_visits, num_prompts = successes_VP.shape
    record = BetaPosterior(k, history) if name == BOUND else ESTIMATORS[name](k, history)
    record.grow(num_prompts)
    rows_P = np.arange(num_prompts)
    estimates_VP = np.empty((num_visits, num_prompts))
    for visit in range(num_visits):
        record.add(rows_P, successes_VP[visit], trials_VP[visit])
        if name == BOUND:
            right, wrong = record.arrays["successes"].astype(float), record.arrays["failures"].astype(float)
            estimates_VP[visit] = bounded_pass_at_k(right, wrong, k, level)
        else:
            estimates_VP[visit] = record.pass_at_k(rows_P)
    return estimates_VP


def binned(estimates_VP, edges, hysteresis):
    """Bins (V, P) that follow the estimates, each step from the last, with the margin δ."""
    bins_VP = np.empty(estimates_VP.shape, np.int64)
    current_P = np.full(estimates_VP.shape[1], UNSEEN)
    for visit, estimate_P in enumerate(estimates_VP):
        current_P = move_bins(current_P, estimate_P, np.asarray(edges), hysteresis)
        bins_VP[visit] = current_P
    return bins_VP


def churn(bins_VP, burn_in=0):
    """Moves per prompt and 100 visits, after the first `burn_in`."""
    moved = np.diff(bins_VP[burn_in:], axis=0) != 0
    return 100.0 * float(moved.mean())


def errors(estimates_VP, truth_VP, from_visit):
    """(bias, standard deviation around it, root mean square error) over visits from `from_visit` on."""
    error = (estimates_VP - truth_VP)[from_visit:]
    error = error[np.isfinite(error)]
    return float(error.mean()), float(error.std()), float(np.sqrt((error**2).mean()))


def bias_and_spread_by_prompt(estimates_VP, truth_VP, from_visit):
    """Mean absolute bias of a prompt's estimate and its mean standard deviation over visits."""
    error_VP = (estimates_VP - truth_VP)[from_visit:]
    return float(np.abs(np.nanmean(error_VP, axis=0)).mean()), float(np.nanstd(error_VP, axis=0).mean())


def mean_track(estimates_VP):
    """Mean estimate after each visit over the prompts that have one, (V,); NaN where none has."""
    known_VP = np.isfinite(estimates_VP)
    count_V = known_VP.sum(axis=1)
    sum_V = np.where(known_VP, estimates_VP, 0.0).sum(axis=1)
    return np.divide(sum_V, count_V, out=np.full(len(count_V), np.nan), where=count_V > 0)


def lag(estimates_VP, truth_VP, longest=60):
    """Visits by which the mean estimate trails the mean truth: the shift that fits best."""
    mean_V, truth_V = mean_track(estimates_VP), truth_VP.mean(axis=1)
    start = longest
    misfit = [
        np.mean((mean_V[start:] - truth_V[start - shift : len(truth_V) - shift]) ** 2)
        for shift in range(longest)
    ]
    return int(np.argmin(misfit))


def rank_correlation(bins_P, truth_P):
    """Spearman's ρ between bin and true difficulty, over the prompts that have a bin."""
    seen_P = np.asarray(bins_P) >= 0
    return float(spearmanr(np.asarray(bins_P)[seen_P], np.asarray(truth_P)[seen_P]).statistic)


def confusion(true_bins_P, bins_P, num_bins):
    """Share of the prompts of each true bin (row) found in each bin (column), (B, B); NaN for no prompts."""
    table = np.zeros((num_bins, num_bins))
    seen_P = bins_P >= 0
    np.add.at(table, (true_bins_P[seen_P], bins_P[seen_P]), 1)
    total = table.sum(axis=1, keepdims=True)
    return np.divide(table, total, out=np.full(table.shape, np.nan), where=total > 0)


def seen_share(num_prompts, batch, num_steps, need):
    """Share of the prompts with at least `need` visits after each step, when batches come by epoch."""
    _check_counts(num_prompts=num_prompts, batch=batch, num_steps=num_steps, need=need)
    visits = np.arange(1, num_steps + 1) * batch / num_prompts
    return np.clip(visits - (need - 1), 0, 1)


def _check_counts(**counts):
    for name, value in counts.items():
        if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < 1:
            raise ValueError(
                f"{name} must be an integer of at least 1, got {value!r}; use a small count such as 4"
            )
