"""BBG, Bayesian boundary gating (arXiv 2606.15455): weigh a prompt by what it can still add to pass@k.

With m of n rollouts correct, the expected slope of pass@k under Beta(m + 1, n − m + 1) is

    u(m; n, k) = E[k (1 − p)^(k−1)] = k Π_{j=1}^{k−1} (n − m + j)/(n + 1 + j).

A prompt's advantages (3) are weighted by u(m)/u(1), and by 0 where u(m) < τ (n + 1): what is solved often
enough is not trained on. Described in the abstract, and in public code of others that cites its equations 8
and 9 for u and the threshold; k = 16, τ = .01 and the division by u(1) are theirs. Details not public: the
paper's own k and τ, and its loss for groups without a success, which are said to learn by REINFORCE with
signs; here they have advantages of 0, as in GRPO.
"""

from dataclasses import dataclass

import numpy as np

from gdro.core.checks import check_int, check_number, option
from gdro.methods.base import Batch, Method, register


def pass_at_k_slope(hits: np.ndarray, trials: np.ndarray, k: int) -> np.ndarray:
    """E[k (1 − p)^(k−1)] for p ~ Beta(hits + 1, trials − hits + 1); any shape."""
    slope = np.full(np.shape(trials), float(k))
    for j in range(1, k):
        slope = slope * (trials - hits + j) / (trials + 1 + j)
    return slope


@register("bbg")
@dataclass(eq=False)
class BBG(Method):
    """Weights by the marginal contribution to pass@k."""

    k: int = option(16, check_int, 1)
    threshold: float = option(0.01, check_number, 0, remedy="0 gates nothing")  # τ

    def weights(self, batch: Batch) -> np.ndarray:
        slope_P = pass_at_k_slope(batch.hits_P, batch.trials_P, self.k)
        open_P = slope_P >= self.threshold * (batch.trials_P + 1)
        return np.where(open_P, slope_P / pass_at_k_slope(np.ones(len(batch)), batch.trials_P, self.k), 0.0)
