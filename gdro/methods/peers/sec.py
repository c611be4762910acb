"""SEC, self-evolving curriculum (arXiv 2505.14970): a bandit over categories, rewarded by mean |A|.

Q_c ← (1 − step) Q_c + step · mean |A_ij| over the rollouts of category c, and categories are drawn by
softmax(Q / temperature), their prompts evenly. For 0/1 rewards E|A| is 2√(p(1 − p)), so the bandit looks for
pass rates of ½. Categories are the bins (give `StaticGroups` for the paper's fixed ones); prompts without a
bin are a category of their own. Left out: separate bandits for several kinds of problems. A category can run
out of prompts, as none is drawn twice in a batch; the others then fill it.
"""

from dataclasses import dataclass

import numpy as np

from gdro.core.checks import check_number, option
from gdro.methods.base import Batch, Method, Prompts, Run, register
from gdro.methods.bin_game import bin_means, ema_scores
from gdro.methods.draws import in_proportion


@register("sec")
@dataclass(eq=False)
class SEC(Method):
    """Draws bins by their mean absolute advantage. N arms: no bin yet, then the bins."""

    step: float = option(0.5, check_number, 0, 1, open_low=True)  # of the moving average
    temperature: float = option(0.2, check_number, 0, open_low=True)  # of the softmax; Q is in about [0, 1]

    state = ("values_N",)

    def start(self, run: Run) -> None:
        self.values_N = np.zeros(run.num_bins + 1)

    def draw(self, pool: Prompts, size: int, rng: np.random.Generator) -> np.ndarray:
        arms_D = pool.bins_P + 1
        counts_N = np.maximum(np.bincount(arms_D, minlength=len(self.values_N)), 1)
        return in_proportion((self.values_N / self.temperature - np.log(counts_N))[arms_D], size, rng)

    def update(self, batch: Batch) -> None:
        arms_P = np.where(batch.first_visit_P, 0, batch.bins_P + 1)
        sizes_P = batch.sums(np.abs(batch.group_advantages_R)) / batch.trials_P
        means_N, _ = bin_means(arms_P, sizes_P, len(self.values_N), batch.trials_P)
        self.values_N = ema_scores(self.values_N, means_N, self.step)
