"""MoPPS (arXiv 2507.04632): Thompson sampling of the prompts that are solved about half the time.

θ_i ~ Beta(α_i, β_i) for each prompt, the posterior on counts that fade; train on those with the smallest
|θ_i − target|. Left out: the random candidate subset (here the whole data set competes), the prior from a
pilot run, and the paper's own rate of forgetting (`bins={"history": …}` sets it).
"""

from dataclasses import dataclass

import numpy as np

from gdro.core.checks import check_number, option
from gdro.methods.base import Method, Prompts, register
from gdro.methods.draws import highest


@register("mopps")
@dataclass(eq=False)
class MoPPS(Method):
    """Draws by one posterior sample a prompt."""

    target: float = option(0.5, check_number, 0, 1, remedy="it is the pass rate to train at")

    def draw(self, pool: Prompts, size: int, rng: np.random.Generator) -> np.ndarray:
        return highest(-np.abs(rng.beta(pool.alpha_P, pool.beta_P) - self.target), size, rng)
