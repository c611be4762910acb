"""What Study A plays beside the registered methods."""

import runpy
from pathlib import Path

import numpy as np

from gdro import options, register
from gdro.methods.rollout_prompts import RolloutPrompts

runpy.run_path(str(Path(__file__).parents[3] / "examples/peers.py"))  # registers further peers


@register("rollout_prompts_flat")
@options
class FlatPrior(RolloutPrompts):
    """Rollouts prompt by prompt with the prior Beta(1, 1) for all."""

    def prior_mean(self) -> np.ndarray:
        return np.full(len(self.rates_G), 0.5)
