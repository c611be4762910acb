"""The arm of this study that no one else needs: what weighting alone does."""

import numpy as np

from gdro.checks import options
from gdro.method import Batch, Prompts
from gdro.methods.rollout_gdro import RolloutGDRO
from gdro.registry import register


@register("rollout_weights")
@options
class RolloutWeights(RolloutGDRO):
    """Even rollouts, weighted by n_b/n̄, where n_b is what `rollout` would have given the bin."""

    def allocate(self, prompts: Prompts, budget: int, rng: np.random.Generator) -> np.ndarray:
        prompts.memo["wanted_P"] = super().allocate(prompts, budget, rng)
        return np.full(len(prompts), budget / len(prompts))

    def weights(self, batch: Batch) -> np.ndarray:
        return batch.memo["wanted_P"] / self.run.mean_rollouts
