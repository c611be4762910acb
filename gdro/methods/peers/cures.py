"""CurES (arXiv 2510.01037): prompts are drawn by the bound on what a gradient step on them can gain.

P_i ∝ exp(√(p̂_i (1 − p̂_i)) / temperature), without replacement, p̂ the posterior mean. Left out: rollouts in
proportion to a prompt's gradient variance, and estimates of p̂ from rollouts made for that alone.
"""

from dataclasses import dataclass

import numpy as np

from gdro.core.checks import check_number, option
from gdro.methods.base import Method, Prompts, register
from gdro.methods.draws import in_proportion


@register("cures")
@dataclass(eq=False)
class CurES(Method):
    """Draws by the standard deviation of the outcome."""

    # of the softmax; at 0.1 (ours) a prompt solved half the time is drawn e⁵ times as often as one that is
    # never or always solved
    temperature: float = option(0.1, check_number, 0, open_low=True)

    def draw(self, pool: Prompts, size: int, rng: np.random.Generator) -> np.ndarray:
        return in_proportion(np.sqrt(pool.rate_P * (1 - pool.rate_P)) / self.temperature, size, rng)
