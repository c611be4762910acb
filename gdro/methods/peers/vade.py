"""VADE (arXiv 2511.18902): Thompson sampling by the information that a prompt is expected to give.

θ_i ~ Beta(α_i, β_i); train on the prompts with the largest θ_i (1 − θ_i)², whose maximum is at θ = 1/3.
Left out: the two-scale decay of the prior (counts fade at one rate, by visit) and the estimate of all
prompts before the first step; a prompt without data has Beta(½, ½).
"""

import numpy as np

from gdro.methods.base import Method, Prompts, register
from gdro.methods.draws import highest


@register("vade")
class VADE(Method):
    """Draws by one posterior sample a prompt; no options."""

    def draw(self, pool: Prompts, size: int, rng: np.random.Generator) -> np.ndarray:
        theta_D = rng.beta(pool.alpha_P, pool.beta_P)
        return highest(theta_D * (1 - theta_D) ** 2, size, rng)
