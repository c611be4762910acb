"""CoBA-RL (arXiv 2602.03048): rollouts to pass rates that the model's present capability prefers.

max Σ V(n_i, p_i) subject to Σ n_i = budget, V(n, p) = (1 − exp(−n p (1 − p)/τ)) · Beta(p; α, β) (9). The
shape follows the failure rate of the batches: F̄ is its mean over the last k steps, F̃ = F̄ where that is
above ½ and 1/(1 + exp(−10 (F̄ − ½))) otherwise (6), and α = clip(α_min + λF̃, α_min, α_max), β = κ − α (7):
easy prompts first, hard ones as the model improves. V is concave in n, so the largest marginal values are
taken one by one (algorithm 1). p is the posterior mean.

Source: the paper's section 2 and appendices; κ = 11, 2 to 128 rollouts a prompt (`n_max=128` sets it here).
The text does not give τ, k, λ, α_min and α_max. Ours: τ = 1, k = 10, and α from 1.5 to 9.5, so that its
figures' 7.26, 4.50 and 2.54 lie within. Nothing else is left out but clip-higher, which is the trainer's.
"""

from dataclasses import dataclass

import numpy as np
from scipy.special import expit
from scipy.stats import beta

from gdro.core.checks import check_int, check_number, option
from gdro.methods.base import Batch, Method, Prompts, Run, register
from gdro.methods.peers.knapsack import best_rollouts

ALPHA_RANGE = 1.5, 9.5  # (α_min, α_max); λ is their difference


@register("coba")
@dataclass(eq=False)
class CoBA(Method):
    """Rollouts by marginal value under a preference that follows the run."""

    kappa: float = option(11.0, check_number, ALPHA_RANGE[1], open_low=True, remedy="raise it, as β = κ − α")
    tau: float = option(
        1.0, check_number, 0, open_low=True
    )  # rollouts, times p(1 − p), until value saturates
    window: int = option(10, check_int, 1)  # steps of the moving average

    state = ("steps", "failures_K")

    def start(self, run: Run) -> None:
        self.steps, self.failures_K = 0, np.zeros(self.window)  # failure rates of the last steps, in turn

    @property
    def alpha(self) -> float:
        """First shape of the preference at the next step; at the start as with F̄ = 1."""
        mean = self.failures_K[: self.steps].mean() if self.steps else 1.0
        failing = mean if mean > 0.5 else expit(10 * (mean - 0.5))
        low, high = ALPHA_RANGE
        return float(np.clip(low + (high - low) * failing, low, high))

    def update(self, batch: Batch) -> None:
        self.failures_K[self.steps % self.window] = 1 - np.mean(batch.hits_P / batch.trials_P)
        self.steps += 1

    def allocate(self, prompts: Prompts, budget: int, rng: np.random.Generator) -> np.ndarray:
        low, high = self.run.n_min, self.run.n_max
        speed_P = prompts.rate_P * (1 - prompts.rate_P) / self.tau
        worth_P = beta.pdf(prompts.rate_P, self.alpha, self.kappa - self.alpha)
        gains_PN = np.exp(-speed_P[:, None] * np.arange(low, high)) * (1 - np.exp(-speed_P))[:, None]
        return best_rollouts(gains_PN * worth_P[:, None], low, budget, rng)
