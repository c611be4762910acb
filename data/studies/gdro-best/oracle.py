"""rollout_oracle: rollouts by the square-root law (22) with true pass rates and no bins."""

from collections.abc import Callable

import numpy as np

from gdro.checks import options
from gdro.method import Method, Prompts
from gdro.registry import register
from gdro_lab.experiments.oracles import ORACLES

ORACLES["rollout_oracle"] = "rates"


@register("rollout_oracle")
@options
class RolloutOracle(Method):
    """Rollouts ∝ σ = √(p (1 − p)), which minimizes Σ σ²/n, the variance proxy of Rollout-GDRO."""

    rates: Callable[[np.ndarray], np.ndarray] | None = None

    def allocate(self, prompts: Prompts, budget: int, rng: np.random.Generator) -> np.ndarray:
        assert self.rates is not None, "set rates, a function of the uids"
        p_P = self.rates(prompts.uids_P)
        return np.sqrt(p_P * (1 - p_P)) + 1e-6
