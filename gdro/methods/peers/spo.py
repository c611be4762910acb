"""SPO, single-stream policy optimization (arXiv 2509.13232): a tracked baseline in place of the group's.

The value of a prompt is its Beta posterior mean v̂_i before the visit. A_ij = r_ij − v̂_i, less its mean and
over its standard deviation in the batch; prompts are drawn with P_i ∝ √(v̂_i (1 − v̂_i)) + epsilon. Source:
the paper and its public recipe in verl (epsilon .05, one rollout a prompt, batches eight times GRPO's).

It is published with one rollout a prompt: `spo:prompts=128` in the arena spends what 32 × 4 do. Rewards count
as correct or not.

Left out: forgetting by the policy's movement. The recipe multiplies a prompt's counts by ρ = 2^(−D/.06), held
to [.875, .96], D the mean |Δ log π| on the tokens of the prompt's last rollout since then. A method is given
no log-probabilities of earlier texts, so ρ is fixed at 1 − 1/H: .95 by default, within these limits
(`bins={"history": 8}` is .875). Left out too: values from rollouts of the initial model; a new prompt has v̂
= ½, as in the recipe without them.
"""

from dataclasses import dataclass

import numpy as np

from gdro.core.checks import check_number, option
from gdro.methods.base import Batch, Method, Prompts, register
from gdro.methods.draws import in_proportion


@register("spo")
@dataclass(eq=False)
class SPO(Method):
    """Draws by the tracked standard deviation; advantages against the tracked mean."""

    n_min = 1
    # weight of the draw that every prompt keeps
    epsilon: float = option(0.05, check_number, 0, open_low=True)  # 0 would lose solved prompts

    def draw(self, pool: Prompts, size: int, rng: np.random.Generator) -> np.ndarray:
        return in_proportion(np.log(np.sqrt(pool.rate_P * (1 - pool.rate_P)) + self.epsilon), size, rng)

    def advantages(self, batch: Batch) -> np.ndarray:
        surprise_R = batch.correct_R - batch.rate_P[batch.group_ids_R]
        sigma = surprise_R.std(ddof=1) if len(surprise_R) > 1 else 0.0
        return (surprise_R - surprise_R.mean()) / (sigma + 1e-8)
