"""How hard prompts are, from few rollouts each: the distribution of pass rates, deconvolved.

Four rollouts show five shares of correct ones, whatever the pass rates are. What they say of the
distribution of pass rates is fitted by maximum likelihood: of all distributions on a grid, the one
under which the counts are most probable (NPMLE), by EM. From it follow pass@k and the share of
mixed groups at other n.

EM starts from the arcsine distribution and ends after a fixed number of rounds. Where the counts
cannot tell two distributions apart, as a pass rate of 0 from one of .01 by four rollouts, it stays
near its start, which is smooth.

Axes: G groups, K distinct pairs of rollouts and correct ones, B bootstrap samples, M points of the
grid, F functions of a pass rate.
"""

from collections.abc import Callable

import numpy as np
from scipy.special import gammaln, ndtri, xlog1py, xlogy

POINTS = 101  # of the grid
ROUNDS = 400  # of EM
SAMPLES = 100  # of the bootstrap
CONFIDENCE = 0.95
Probability = Callable[[np.ndarray, np.ndarray], np.ndarray]  # of pass rates and rollouts
EDGES = (0.0, 0.02, 0.3, 0.9, 1.0)  # of the classes of pass rates in a report


def pass_rate_grid() -> np.ndarray:
    """Pass rates from 0 to 1, close together near both, (M,)."""
    return np.sin(np.linspace(0, np.pi / 2, POINTS)) ** 2


def count_cells(
    trials_G: np.ndarray, hits_G: np.ndarray, prompts_G: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Count groups by their rollouts and correct ones; draw bootstrap samples over the prompts.

    Groups of a prompt are drawn together.

    Returns:
        Rollouts and correct ones of each cell, (K,), and the groups in it, (B, K): [0] of the log,
        the others of bootstrap samples of its prompts.
    """
    width = int(trials_G.max()) + 1
    keys_K, place_G = np.unique(trials_G * width + hits_G, return_inverse=True)
    _, row_G = np.unique(prompts_G, return_inverse=True)
    prompts = int(row_G.max()) + 1
    counts_BK = np.empty((SAMPLES + 1, len(keys_K)))
    counts_BK[0] = np.bincount(place_G)
    for b in range(1, SAMPLES + 1):
        times_P = rng.poisson(1.0, prompts)  # as good as drawing with replacement, and quicker
        counts_BK[b] = np.bincount(place_G, times_P[row_G], len(keys_K))
    # a sample of a log of one or two prompts may be empty: the log itself takes its place
    counts_BK[counts_BK.sum(axis=1) == 0] = counts_BK[0]
    return keys_K // width, keys_K % width, counts_BK


def fit_distributions(counts_BK: np.ndarray, likelihood_KM: np.ndarray) -> np.ndarray:
    """The distribution of pass rates under which the counts are most probable, by EM, (B, M)."""
    shares_BK = counts_BK / counts_BK.sum(axis=1, keepdims=True)
    points = likelihood_KM.shape[1]
    weights_BM = np.full((len(counts_BK), points), 1 / points)
    for _ in range(ROUNDS):
        expected_BK = weights_BM @ likelihood_KM.T
        ratio_BK = np.divide(shares_BK, expected_BK, where=shares_BK > 0, out=0 * shares_BK)
        weights_BM = weights_BM * (ratio_BK @ likelihood_KM)
    return weights_BM / weights_BM.sum(axis=1, keepdims=True)


def mixed_probability(rates: np.ndarray, n: np.ndarray | int) -> np.ndarray:
    """1 − pⁿ − (1 − p)ⁿ, the probability that n rollouts are not all alike."""
    return 1 - rates**n - (1 - rates) ** n


def pass_probability(rates: np.ndarray, k: np.ndarray | int) -> np.ndarray:
    """1 − (1 − p)ᵏ."""
    return 1 - (1 - rates) ** k


def binomial(trials: np.ndarray, hits: np.ndarray, rates: np.ndarray) -> np.ndarray:
    """Probability of `hits` correct rollouts in `trials`; scipy.stats is slow to import."""
    ways = gammaln(trials + 1) - gammaln(hits + 1) - gammaln(trials - hits + 1)
    return np.exp(ways + xlogy(hits, rates) + xlog1py(trials - hits, -rates))


def wilson(share: float, count: float) -> tuple[float, float]:
    """Wilson's 95% interval of a share of `count` observations, which is never of zero width."""
    z = ndtri(1 - (1 - CONFIDENCE) / 2)
    middle = (share + z**2 / (2 * count)) / (1 + z**2 / count)
    half = z / (1 + z**2 / count) * np.sqrt(share * (1 - share) / count + z**2 / (4 * count**2))
    return max(float(middle - half), 0.0), min(float(middle + half), 1.0)


def share_interval(is_G: np.ndarray, prompts_G: np.ndarray) -> tuple[float, float]:
    """95% interval of a share of groups, which are alike where they have the same prompt.

    Wilson's, of as many groups as would have the variance between the prompts.
    """
    share = float(is_G.mean())
    _, row_G = np.unique(prompts_G, return_inverse=True)
    sums_P = np.bincount(row_G, is_G - share)
    prompts = len(sums_P)
    variance = (sums_P**2).sum() / len(is_G) ** 2
    count = float(prompts)
    if variance > 0 and prompts > 1:
        variance *= prompts / (prompts - 1)
        count = min(share * (1 - share) / variance, len(is_G))
    return wilson(share, count)


class PassRates:
    """The distribution of pass rates behind some groups: `weights_M` at the rates in `grid_M`."""

    def __init__(
        self, trials_G: np.ndarray, hits_G: np.ndarray, prompts_G: np.ndarray, seed: int = 0
    ) -> None:
        self.grid_M = pass_rate_grid()
        rng = np.random.default_rng(seed)
        self.trials_K, hits_K, self.counts_BK = count_cells(trials_G, hits_G, prompts_G, rng)
        self.likelihood_KM = binomial(self.trials_K[:, None], hits_K[:, None], self.grid_M)
        self.weights_BM = fit_distributions(self.counts_BK, self.likelihood_KM)
        self.sampled = int(np.median(trials_G))
        self.prompts = len(np.unique(prompts_G))

    @property
    def weights_M(self) -> np.ndarray:
        return self.weights_BM[0]

    def mean_of(self, values_FM: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Means of functions of the pass rate from 0 to 1, (F,), and 95% intervals, (F, 2)."""
        means_BF = (self.weights_BM @ values_FM.T).clip(0, 1)  # rounding may lead outside [0, 1]
        value_F = means_BF[0]
        tail = (1 - CONFIDENCE) / 2
        low_F, high_F = np.quantile(means_BF[1:], (tail, 1 - tail), axis=0)
        for f in np.flatnonzero(high_F - low_F < 1e-9):  # as where all rollouts are correct
            low_F[f], high_F[f] = wilson(value_F[f], self.prompts)
        return value_F, np.stack([np.minimum(low_F, value_F), np.maximum(high_F, value_F)], axis=1)

    def by_number(self, probability: Probability, n_N: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean probability of an event of n rollouts for each n, as by `mean_of`.

        The log does not determine it for more rollouts than its groups have. With n such events
        become more probable, but not more probable per rollout, whatever the pass rates are: so
        the interval goes from the lower end at the log's m rollouts to n / m times the upper one.
        """
        known_N = np.minimum(n_N, self.sampled)
        value_N, _ = self.mean_of(probability(self.grid_M, n_N[:, None]))
        _, ends_N2 = self.mean_of(probability(self.grid_M, known_N[:, None]))
        ends_N2[:, 1] = np.minimum(ends_N2[:, 1] * n_N / known_N, 1)
        return value_N, ends_N2

    def least_ratio(self, above_M: np.ndarray, below_M: np.ndarray) -> float:
        """Lower end of the 95% interval of the ratio of two means."""
        above_B = self.weights_BM[1:] @ above_M
        below_B = self.weights_BM[1:] @ below_M
        ratio_B = np.divide(above_B, below_B, where=below_B > 0, out=np.ones(len(below_B)))
        return float(np.quantile(ratio_B, (1 - CONFIDENCE) / 2))
