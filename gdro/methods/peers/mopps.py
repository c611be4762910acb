"""MoPPS (arXiv 2507.04632): Thompson sampling of the prompts that are solved about half the time.

θ_i ~ Beta(α_i, β_i) for each prompt of a random subset, the posterior on counts that fade; train on those
with the smallest |θ_i − target|. Source: the paper and its public code: target ½, 8 or 16 candidates for each
prompt of a batch, and counts that keep .5 at a visit or all (`bins={"history": 2}` is the former; the default
here keeps .95). Left out: the prior from a pilot run; a new prompt has Beta(½, ½), there Beta(1, 1).
"""

from dataclasses import dataclass

import numpy as np

from gdro.core.checks import check_int, check_number, option
from gdro.methods.base import Method, Prompts, register
from gdro.methods.draws import highest


@register("mopps")
@dataclass(eq=False)
class MoPPS(Method):
    """Draws by one posterior sample a prompt."""

    target: float = option(0.5, check_number, 0, 1)  # the pass rate to train at
    candidates: int = option(16, check_int, 1)  # for each prompt of a batch

    def draw(self, pool: Prompts, size: int, rng: np.random.Generator) -> np.ndarray:
        chosen = rng.permutation(len(pool))[: self.candidates * size]
        theta = rng.beta(pool.alpha_P[chosen], pool.beta_P[chosen])
        return chosen[highest(-np.abs(theta - self.target), size, rng)]
