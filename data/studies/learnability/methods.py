"""Learnability as a draw, DAPO's filter behind it, and an even share for every bin."""

import numpy as np

from gdro.checks import options
from gdro.draws import mostly_in_proportion
from gdro.method import Method, Prompts
from gdro.peers.rounds import DAPO
from gdro.registry import register

EVEN_SHARE = 0.1
"""Of the draw: a prompt with a pass rate of 0 or 1 must be able to come back."""


@register("learnability")
@options
class Learnability(Method):
    """GRPO on prompts that are drawn in proportion to p̂ (1 − p̂)."""

    by_bin: bool = False
    """Whether each difficulty bin gets the same share of the draw."""

    def draw(self, pool: Prompts, size: int, rng: np.random.Generator) -> np.ndarray:
        values_D = pool.rate_P * (1 - pool.rate_P)
        if self.by_bin:
            bins_D = pool.bins_P + 1  # prompts without a bin are one more
            values_D = values_D / np.bincount(bins_D, values_D)[bins_D]
        return mostly_in_proportion(values_D, EVEN_SHARE, size, rng)


@register("learnability_dapo")
@options
class LearnabilityDAPO(Learnability, DAPO):
    """The same, and a step waits for a batch of groups that teach."""
