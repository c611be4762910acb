"""DOTS (arXiv 2506.05316): a softmax draw of prompts whose predicted pass rate is near a target.

P_i ∝ exp(−|p̂_i − target| / temperature), without replacement. Left out: the predictor of p̂, which attends
from a prompt's embedding to a few prompts with fresh rollouts (here the posterior mean), and rollout replay.
"""

from dataclasses import dataclass

import numpy as np

from gdro.core.checks import check_number, option
from gdro.methods.base import Method, Prompts, register
from gdro.methods.draws import in_proportion


@register("dots")
@dataclass(eq=False)
class DOTS(Method):
    """Draws by the distance of the posterior mean from a target."""

    target: float = option(0.5, check_number, 0, 1)  # the pass rate to train at
    # of the softmax. The default is ours and soft: posterior means of prompts that are not drawn stand still,
    # so a draw close to greedy would never see them again
    temperature: float = option(0.1, check_number, 0, open_low=True)

    def draw(self, pool: Prompts, size: int, rng: np.random.Generator) -> np.ndarray:
        return in_proportion(-np.abs(pool.rate_P - self.target) / self.temperature, size, rng)
