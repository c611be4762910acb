"""VIP (arXiv 2602.01601): rollouts that minimize the variance of the batch's gradient.

min Σ a_i (n_i − 1)/n_i², a_i = 4 p_i (1 − p_i), subject to Σ n_i = budget and n_i ≥ 3, from where on each
further rollout saves less than the one before: taking the largest savings one by one is optimal. This is the
paper's variance under mean-subtracted advantages (Dr. GRPO). Left out: the Gaussian process that predicts p
from embeddings (here the posterior mean), norms of the prompts' gradients (equal here), and the variance
under RLOO.
"""

import numpy as np

from gdro.methods.base import Method, Prompts, register
from gdro.methods.peers.knapsack import best_rollouts


@register("vip")
class VIP(Method):
    """Rollouts by predicted variance; no options."""

    n_min = 3

    def allocate(self, prompts: Prompts, budget: int, rng: np.random.Generator) -> np.ndarray:
        low = max(self.run.n_min, self.n_min)
        n_N = np.arange(low, self.run.n_max)
        saving_N = (n_N - 1) / n_N**2 - n_N / (n_N + 1) ** 2
        spread_P = 4 * prompts.rate_P * (1 - prompts.rate_P)
        return best_rollouts(spread_P[:, None] * saving_N, low, budget, rng)
