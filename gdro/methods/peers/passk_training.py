"""Pass@k Training (arXiv 2508.10751): GRPO whose groups are all subsets of k rollouts, rewarded by the best.

With c of n rollouts correct, a subset's reward has the mean ρ = 1 − C(n − c, k)/C(n, k) and the standard
deviation σ = √(ρ(1 − ρ)). The mean normalized reward of the subsets that hold a rollout is its advantage,

    A = (1 − ρ)/σ for a correct rollout, (1 − ρ − C(n − c − 1, k − 1)/C(n − 1, k − 1))/σ for a wrong one,

and 0 where σ = 0. Source: the paper's analytical derivation and its public code (`passk_adv.py`), which
divides by σ + 1e-6. Rewards count as correct or not; k is held to n where a group is smaller. Left out: its
mixtures with pass@1 training and with a schedule of k.
"""

from dataclasses import dataclass

import numpy as np

from gdro.core.checks import check_int, option
from gdro.core.metrics import all_wrong_probability
from gdro.methods.base import Batch, Method, register


@register("passk_training")
@dataclass(eq=False)
class PasskTraining(Method):
    """Advantages of rollouts as members of subsets."""

    k: int = option(2, check_int, 1)

    def advantages(self, batch: Batch) -> np.ndarray:
        n_P, c_P = batch.trials_P, batch.hits_P
        failed_P, other_P = np.ones(len(batch)), np.ones(len(batch))  # of all subsets; of a wrong rollout's
        for k in np.unique(k_P := np.minimum(self.k, n_P)):
            at = k_P == k
            failed_P[at] = all_wrong_probability(c_P[at], n_P[at], k)
            other_P[at] = all_wrong_probability(c_P[at], n_P[at] - 1, k - 1)
        sigma_P = np.sqrt(failed_P * (1 - failed_P))
        sigma_P[sigma_P == 0] = np.inf
        correct_P, wrong_P = failed_P / sigma_P, (failed_P - other_P) / sigma_P
        return np.where(batch.correct_R, correct_P[batch.group_ids_R], wrong_P[batch.group_ids_R])
