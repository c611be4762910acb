"""Advantages that count a prompt's past in the baseline, to take pivotal apart. For comparison only.

With p̂_i the posterior mean before the visit and m_i = min(past, counts so far),

    b_ij = (K_i − r_ij + m_i p̂_i)/(n_i − 1 + m_i),   q_i = (K_i + m_i p̂_i)/(n_i + m_i),
    A_ij = (r_ij − b_ij)/√(q_i (1 − q_i) + .01).

b leaves rollout j out, so it is unbiased. Groups without a success have advantages of 0, unless mute is
False. These are the advantages of the pivotal method of data/measured/.
"""

from dataclasses import dataclass

import numpy as np

from gdro.core.checks import check_choice, check_number, option
from gdro.methods.base import Batch, Method, register


@register("pooled")
@dataclass(eq=False)
class Pooled(Method):
    """Advantages against this visit and the past together."""

    past: float = option(4.0, check_number, 0)  # most earlier rollouts that count
    mute: bool = option(True, check_choice, (True, False))  # whether groups without a success teach nothing

    def advantages(self, batch: Batch) -> np.ndarray:
        groups_R = batch.group_ids_R
        past_P = np.minimum(self.past, batch.successes_P + batch.failures_P)
        known_P, others_P = batch.hits_P + past_P * batch.rate_P, batch.trials_P - 1 + past_P
        rate_P = known_P / (batch.trials_P + past_P)
        baseline_R = (known_P[groups_R] - batch.correct_R) / np.maximum(others_P, 1e-9)[groups_R]
        advantages_R = (batch.correct_R - baseline_R) / np.sqrt(rate_P * (1 - rate_P) + 0.01)[groups_R]
        # a single rollout without a past has no baseline: it teaches nothing
        teaches_P = (others_P > 0) & ((batch.hits_P > 0) | (not self.mute))
        return np.where(teaches_P[groups_R], advantages_R, 0.0)
