"""Reinforce-Ada (arXiv 2510.04996): sample a prompt in rounds until it has enough rollouts of both signs.

Each round gives `pilot` more rollouts to every prompt that is not done, up to n_max, while the budget lasts;
when it does not last for all of them, prompts in random order get theirs. A prompt is done

    "balanced": with keep/2 correct and keep/2 wrong rollouts;
    "positive": with a correct one.

Of each prompt the first `keep` rollouts are trained on, half of each sign as far as there are any; the others
have advantage 0. A_ij = r_ij − μ_i, μ_i the mean of all rollouts of the prompt, without division by σ.
Source: the paper's algorithm 1 and its public script (`balanced`, `global_stat_est=True`,
`norm_adv_by_std_in_grpo=False`, rounds of 8, at most 4 rounds, keep 4).

All rollouts count as spent, so at mean_rollouts = keep no prompt is done early and this is Dr. GRPO: give
fewer prompts more rollouts, as `reinforce_ada:prompts=16` does in the arena. Left out: nothing of the rule.
"""

from dataclasses import dataclass

import numpy as np

from gdro.core.checks import check_choice, check_int, option
from gdro.methods.base import Batch, register
from gdro.methods.peers.rounds import Pilot


@register("reinforce_ada")
@dataclass(eq=False)
class ReinforceAda(Pilot):
    """Rollouts in rounds of `pilot` a prompt."""

    keep: int = option(4, check_int, 2)  # rollouts of each prompt that are trained on
    exit: str = option("balanced", check_choice, ("balanced", "positive"))

    def extend(self, batch: Batch, left: int, rng: np.random.Generator) -> np.ndarray | None:
        done_P = batch.hits_P >= 1
        if self.exit == "balanced":
            half, wrong_P = self.keep // 2, batch.trials_P - batch.hits_P
            done_P = (batch.hits_P >= half) & (wrong_P >= self.keep - half)
        wanted_P = np.where(done_P, 0, np.clip(self.run.n_max - batch.rollouts_P, 0, self.pilot))
        if not wanted_P.any():
            return None
        order_P = rng.permutation(len(batch))
        reached_P = np.minimum(wanted_P[order_P].cumsum(), left)  # spent when each prompt had its turn
        further_P = np.zeros(len(batch), np.int64)
        further_P[order_P] = np.diff(reached_P, prepend=0)
        return further_P

    def advantages(self, batch: Batch) -> np.ndarray:
        wrong_P = batch.trials_P - batch.hits_P
        few_P = np.minimum(wrong_P, self.keep - np.minimum(batch.hits_P, self.keep // 2))
        quota_R = np.where(batch.correct_R, (self.keep - few_P)[batch.group_ids_R], few_P[batch.group_ids_R])
        kind_R = 2 * batch.group_ids_R + batch.correct_R  # prompt and sign
        order_R = kind_R.argsort(kind="stable")
        sorted_R, turn_R = kind_R[order_R], np.empty(len(kind_R), int)
        turn_R[order_R] = np.arange(len(kind_R)) - np.searchsorted(sorted_R, sorted_R)
        return np.where(turn_R < quota_R, batch.centred_R, 0.0)
