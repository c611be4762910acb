"""SPO, single-stream policy optimization (arXiv 2509.13232): a tracked baseline in place of the group's.

The value of a prompt is its Beta posterior mean v̂_i before the visit. A_ij = r_ij − v̂_i, less its mean and
over its standard deviation in the batch; prompts are drawn with P_i ∝ √(v̂_i (1 − v̂_i)) + epsilon. One rollout
a prompt is enough: use mean_rollouts=1 with more prompts. Rewards count as correct or not.

Left out: forgetting by the KL since a prompt's last visit (counts fade by 1 − 1/H a visit; the default .95
lies within the paper's limits) and values from rollouts of the initial policy: a new prompt has v̂ = ½.
"""

from dataclasses import dataclass

import numpy as np

from gdro.core.checks import check_number, option
from gdro.methods.base import EPSILON, Batch, Method, Prompts, register
from gdro.methods.draws import in_proportion


@register("spo")
@dataclass(eq=False)
class SPO(Method):
    """Draws by the tracked standard deviation; advantages against the tracked mean."""

    n_min = 1
    # weight of the draw that every prompt keeps
    epsilon: float = option(0.05, check_number, 0, open_low=True, remedy="0 would lose solved prompts")

    def draw(self, pool: Prompts, size: int, rng: np.random.Generator) -> np.ndarray:
        return in_proportion(np.log(np.sqrt(pool.rate_P * (1 - pool.rate_P)) + self.epsilon), size, rng)

    def advantages(self, batch: Batch) -> np.ndarray:
        surprise_R = batch.correct_R - batch.rate_P[batch.group_ids_R]
        return (surprise_R - surprise_R.mean()) / (surprise_R.std() + EPSILON)
