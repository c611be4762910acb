"""GRESO (arXiv 2506.02177): skip prompts whose last visits brought no signal, the more of them the likelier.

A prompt is skipped with probability 1 − max(explore^z, floor), z the number of latest visits in a row in
which all rollouts were correct or all wrong. Passes over the data set, each in random order, go on until
the batch is full. Left out: separate rates for too easy and too hard prompts that adapt to a target share,
the discarding of uninformative groups after generation (see `dapo`), and adaptive batch sizes.
"""

from dataclasses import dataclass

import numpy as np

from gdro.core.arrays import merged_visits
from gdro.core.checks import check_number, option
from gdro.methods.base import Batch, Method, Prompts, Run, register
from gdro.methods.draws import highest


@register("greso")
@dataclass(eq=False)
class GRESO(Method):
    """Draws by skipping."""

    # probability of keeping a prompt after one uninformative visit, and the least of all
    explore: float = option(0.5, check_number, 0, 1)
    floor: float = option(0.01, check_number, 0, 1, open_low=True)  # 0 would lose prompts for good

    state = by_prompt = ("streak_D",)

    def start(self, run: Run) -> None:
        self.streak_D = np.zeros(0, np.uint8)  # by row

    def kept(self, prompts: Prompts) -> np.ndarray:
        """Probability of keeping each prompt in one pass, (P,)."""
        self.streak_D = self.at_least(self.streak_D, prompts.rows_P)
        return np.maximum(self.explore ** self.streak_D[prompts.rows_P].astype(float), self.floor)

    def draw(self, pool: Prompts, size: int, rng: np.random.Generator) -> np.ndarray:
        # the pass in which a prompt is first kept is geometric: the earliest fill the batch
        return highest(-rng.geometric(self.kept(pool)), size, rng)

    def update(self, batch: Batch) -> None:
        self.streak_D = self.at_least(self.streak_D, batch.rows_P)
        rows, hits, trials = merged_visits(batch.rows_P, batch.hits_P, batch.trials_P)
        longer = np.minimum(self.streak_D[rows].astype(np.int64) + 1, 255)
        self.streak_D[rows] = np.where((hits == 0) | (hits == trials), longer, 0)
