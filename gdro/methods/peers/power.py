"""Draws by powers of the pass rate and of the failure rate. For comparison only, to take pivotal apart.

P_i ∝ E[p^a (1 − p)^b] = B(α_i + a, β_i + b)/B(α_i, β_i) under the posterior, but for a share epsilon that is
even, without replacement. a = 1, b = k − 1 is pivotal's; a = b = 1 the variance of the outcome; a = 0, b = k
− 1 the slope of pass@k.
"""

from dataclasses import dataclass

import numpy as np
from scipy.special import betaln

from gdro.core.checks import check_number, option
from gdro.methods.base import Method, Prompts, register
from gdro.methods.draws import mostly_in_proportion


@register("power")
@dataclass(eq=False)
class Power(Method):
    """Draws in proportion to p^a (1 − p)^b."""

    a: float = option(1.0, check_number, 0)
    b: float = option(1.0, check_number, 0)
    # share of the draw that is even over the data
    epsilon: float = option(0.1, check_number, 0, 1, open_low=True, remedy="1 draws evenly")

    def values(self, pool: Prompts) -> np.ndarray:
        """Posterior mean of p^a (1 − p)^b of each prompt, (P,)."""
        alpha_P, beta_P = pool.alpha_P, pool.beta_P
        return np.exp(betaln(alpha_P + self.a, beta_P + self.b) - betaln(alpha_P, beta_P))

    def draw(self, pool: Prompts, size: int, rng: np.random.Generator) -> np.ndarray:
        return mostly_in_proportion(self.values(pool), self.epsilon, size, rng)
