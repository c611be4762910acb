"""LILO (arXiv 2502.12272): train on the prompts of highest learnability p̂ (1 − p̂). Like VCRL (2509.19803).

The `size` prompts with the largest p̂_i (1 − p̂_i), ties at random. Left out: the rollouts spent on candidate
prompts to measure p̂ before each step. Here it is the posterior mean, which is ½ for a prompt without data:
all are visited once, then only those that look learnable. VCRL's memory bank of groups is left out too.
"""

import numpy as np

from gdro.methods.base import Method, Prompts, register
from gdro.methods.draws import highest


@register("lilo")
class LILO(Method):
    """Draws greedily by the variance of the outcome; no options."""

    def draw(self, pool: Prompts, size: int, rng: np.random.Generator) -> np.ndarray:
        return highest(pool.rate_P * (1 - pool.rate_P), size, rng)
