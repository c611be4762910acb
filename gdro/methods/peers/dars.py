"""DARS (arXiv 2508.13755): after a pilot, more rollouts for hard prompts, until their advantages catch up.

Advantages are Dr. GRPO's, r_ij − μ_i: those of n rollouts at accuracy a sum to S = Σ|A| = 2 n a (1 − a). A
pilot of n rollouts measures a; where a < ½, rollouts are added until S reaches

    "equal":    that of a prompt at a = ½, n/2, so that Δ = ⌈n (1/(4 a (1 − a)) − 1)⌉;
    "hardness": 2 (1 − a) times as much, so that Δ = ⌈n (1/(2a) − 1)⌉;

as many as n_max allows where a = 0, none where a ≥ ½. Source: the paper, and its public scripts
(`grpo_use_std=False`, pilot 8, n_max 32; they set a = 0 to 1/(2n), which reaches n_max there).

The step's whole budget is spent. Where the Δ ask for more than the pilot left, they are scaled down, since
the paper adds them on top; where they ask for less, the rest goes to all prompts evenly, as a larger pilot
would. A small pilot with more prompts leaves more to the Δ: `dars:prompts=48` in the arena. Left out: large
batches in full-batch epochs (its "breadth"), two updates a batch, and dropping groups without a signal.
"""

from dataclasses import dataclass

import numpy as np

from gdro.core.checks import check_choice, option
from gdro.methods.base import Batch, register
from gdro.methods.peers.rounds import Pilot, spread_evenly


@register("dars")
@dataclass(eq=False)
class DARS(Pilot):
    """Rollouts in two rounds; advantages by centring alone."""

    schedule: str = option("equal", check_choice, ("equal", "hardness"))

    def extend(self, batch: Batch, left: int, rng: np.random.Generator) -> np.ndarray | None:
        accuracy_P, room = batch.hits_P / batch.trials_P, self.run.n_max - self.pilot
        known_P = np.clip(accuracy_P, 1e-9, 0.5)  # a = 0 asks without bound, and is held to n_max below
        factor_P = 1 / (2 * known_P) if self.schedule == "hardness" else 1 / (4 * known_P * (1 - known_P))
        wanted_P = np.minimum(np.ceil(batch.trials_P * (factor_P - 1) - 1e-9), room).astype(int)
        if wanted_P.sum() >= left or batch.memo.get("extended"):
            return self.rest(batch, wanted_P, left, rng)
        batch.memo["extended"] = True
        most_P = np.full(len(batch), room)
        return spread_evenly(wanted_P, left - int(wanted_P.sum()), most_P, rng)

    def advantages(self, batch: Batch) -> np.ndarray:
        return batch.centred_R
