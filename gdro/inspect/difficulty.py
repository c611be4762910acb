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

import numpy as np
from scipy.optimize import linprog
from scipy.special import gammaln, ndtri, xlog1py, xlogy

POINTS = 101  # of the grid
ROUNDS = 400  # of EM
SAMPLES = 100  # of the bootstrap
CONFIDENCE = 0.95
EDGES = (0.0, 0.02, 0.3, 0.9, 1.0)  # of the classes of pass rates in a report


def pass_rate_grid() -> np.ndarray:
    """Pass rates from 0 to 1, close together near both, (M,)."""
    return np.sin(np.linspace(0, np.pi / 2, POINTS)) ** 2


def count_cells(
    trials_G: np.ndarray, hits_G: np.ndarray, prompts_G: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Count groups by their rollouts and correct ones; draw bootstrap samples over the prompts.

    Args:
        trials_G, hits_G: rollouts of each group, and correct ones.
        prompts_G: the prompt of each, an integer ≥ 0; groups of a prompt are drawn together.
        rng: of the bootstrap.

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
    """The distribution of pass rates under which the counts are most probable, by EM, (B, M).

    Args:
        counts_BK: groups in each cell.
        likelihood_KM: of each cell at each pass rate.
    """
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
    """The distribution of pass rates behind some groups.

    Args:
        trials_G, hits_G, prompts_G: as for `count_cells`.
        seed: of the bootstrap.

    Attributes:
        grid_M: pass rates.
        weights_M: the share of groups at each.
    """

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

    def mean_of(self, values_FM: np.ndarray, needed_F: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Means of functions of the pass rate, which lie between 0 and 1.

        Within the rollouts that groups have, intervals are those of the bootstrap. A function that
        needs more is not determined by the log: its interval holds every value that some
        distribution gives which fits the log as well.

        Args:
            values_FM: at each pass rate.
            needed_F: rollouts that a group must have for the log to determine the mean.

        Returns:
            The means, (F,), and the two ends of the 95% confidence interval of each, (F, 2).
        """
        means_BF = (self.weights_BM @ values_FM.T).clip(0, 1)  # rounding may lead outside [0, 1]
        tail = (1 - CONFIDENCE) / 2
        low_F, high_F = np.quantile(means_BF[1:], (tail, 1 - tail), axis=0)
        for f in np.flatnonzero(needed_F > self.sampled):
            low, high = self._reachable(values_FM[f])
            low_F[f] = min(low_F[f], low)
            high_F[f] = max(high_F[f], high)
        value_F = means_BF[0]
        for f in np.flatnonzero(high_F - low_F < 1e-9):  # as where all rollouts are correct
            low_F[f], high_F[f] = wilson(value_F[f], self.prompts)
        ends_F2 = np.stack([np.minimum(low_F, value_F), np.maximum(high_F, value_F)], axis=1)
        return value_F, ends_F2.clip(0, 1)

    def least_ratio(self, above_M: np.ndarray, below_M: np.ndarray) -> float:
        """Lower end of the 95% interval of the ratio of two means."""
        means_B2 = self.weights_BM[1:] @ np.stack([above_M, below_M], axis=1)
        ratio_B = np.divide(*means_B2.T, where=means_B2[:, 1] > 0, out=np.ones(len(means_B2)))
        return float(np.quantile(ratio_B, (1 - CONFIDENCE) / 2))

    def _reachable(self, values_M: np.ndarray) -> tuple[float, float]:
        """Least and largest mean of a function over the distributions that fit the log.

        A distribution fits if the share of each cell, given the cell's number of rollouts, lies in
        the simultaneous confidence band of the log's (F-localization: Ignatiadis and Wager, 2022).
        """
        shares_BK = self.counts_BK / self.counts_BK.sum(axis=1, keepdims=True)
        # given the number of rollouts, since that says nothing about the pass rates
        _, size_K = np.unique(self.trials_K, return_inverse=True)
        sizes_B = np.stack([np.bincount(size_K, row) for row in shares_BK])
        given_BK = np.divide(shares_BK, sizes_B[:, size_K], where=shares_BK > 0, out=0 * shares_BK)
        cells = len(size_K)
        spread_K = given_BK[1:].std(axis=0) * ndtri(1 - (1 - CONFIDENCE) / (2 * cells))
        # of a cell with hardly any groups, the estimate of the spread is poor
        spread_K = np.maximum(spread_K, 3 / self.counts_BK[0].sum())
        middle_K = self.weights_M @ self.likelihood_KM.T
        limits = np.concatenate([middle_K + spread_K, spread_K - middle_K])
        rows = np.concatenate([self.likelihood_KM, -self.likelihood_KM])
        ends = []
        for sign in (1.0, -1.0):
            found = linprog(
                sign * values_M,
                A_ub=rows,
                b_ub=limits,
                A_eq=np.ones((1, len(values_M))),
                b_eq=[1.0],
                bounds=(0, 1),
            )
            ends.append(float(found.fun) * sign if found.success else float("nan"))
        return ends[0], ends[1]
