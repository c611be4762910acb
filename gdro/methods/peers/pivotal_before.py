"""Pivotal as it was in 0.2.0, for comparison: the same draw, but k follows success and the baseline the past.

k rises while more than a share s of the rollout groups hold a success, k ← k exp(.1 (share − s)) in [2, 16],
from 5. The advantages are those of `pooled`. In rare-hard it gains as much as `pivotal` at half of GRPO's
learning rate; where hard prompts do not learn, k rises all the same, and the draw goes to them.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from gdro.core.checks import check_int, check_number, option
from gdro.methods.base import Batch, Method, Prompts, Run, register
from gdro.methods.draws import mostly_in_proportion
from gdro.methods.peers.pooled import Pooled
from gdro.methods.pivotal import pivotal_value


@register("pivotal_before")
@dataclass(eq=False)
class PivotalBefore(Method):
    """Draw by pivotal value, with advantages that count a prompt's past."""

    k: int | None = option(None, check_int, 1, optional=True, remedy="None lets it follow the run")
    # share of the draw that is even over the data
    epsilon: float = option(0.1, check_number, 0, 1, open_low=True, remedy="1 draws evenly")
    pool: float = option(4.0, check_number, 0, remedy="0 leaves the advantages of (3)")
    # s, the share of groups that should hold a success; no effect where k is given
    success: float = option(0.55, check_number, 0, 1)

    state = ("strength",)
    strength = 5.0  # k before it is rounded, where it follows the run

    def start(self, run: Run) -> None:
        super().start(run)
        self.strength = 5.0

    @property
    def k_now(self) -> int:
        """k of the next draw."""
        return self.k or round(self.strength)

    def draw(self, pool: Prompts, size: int, rng: np.random.Generator) -> np.ndarray:
        value_D = pivotal_value(pool.alpha_P, pool.beta_P, self.k_now)
        return mostly_in_proportion(value_D, self.epsilon, size, rng)

    def advantages(self, batch: Batch) -> np.ndarray:
        return Pooled(self.pool).advantages(batch) if self.pool else batch.group_advantages_R

    def update(self, batch: Batch) -> None:
        step = 0.1 * (np.mean(batch.hits_P > 0) - self.success)
        self.strength = float(np.clip(self.strength * np.exp(step), 2.0, 16.0))

    def report(self) -> dict[str, Any]:
        return {"k": self.k_now}
