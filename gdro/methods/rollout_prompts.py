"""Rollout-GDRO with prompts for bins: rollouts by the pass rate of each prompt.

The compute game (19) spends a budget of rollouts where it lowers the variance of the gradient most.
By Theorem 4.2 a unit of reward variance v gets n = √(v/μ) rollouts (31), and the shadow price μ is
the one at which the units together want the budget. The paper's units are difficulty bins. Here
they are prompts: v_i = E[p_i (1 − p_i)] under the posterior of the pass rate p_i,

    p_i ~ Beta(s_i + w m, f_i + w (1 − m)),

with s_i successes and f_i failures so far. The prior is worth w rollouts. Its mean m is the recent
pass rate of the prompt's group where the data name groups, and else of all prompts.

The theorem is about prompts that count equally, so a prompt's advantages are weighted by n̄/n_i.

Axes: P prompts, G groups.
"""

from typing import Any, ClassVar

import numpy as np

from gdro import theory
from gdro.checks import Positive, options
from gdro.method import Batch, Prompts, Run
from gdro.methods.averaging import AveragingMethod
from gdro.registry import register

KEPT = 0.9  # part of the sums that a batch leaves to the next


@register("rollout_prompts")
@options
class RolloutPrompts(AveragingMethod):
    """Rollouts by the root of each prompt's reward variance, (31) with prompts for bins.

    Use it with `group_column`, or `StaticGroups`, where the data name groups that differ in
    difficulty.
    """

    weight: Positive = 2.0
    """w, rollouts that the prior is worth."""

    state: ClassVar[tuple[str, ...]] = ("rates_G", "prompts_G")

    def start(self, run: Run) -> None:
        groups = run.num_bins if run.has_groups else 1
        # fading sums over prompts that came back
        self.rates_G = np.zeros(groups)  # of their pass rates
        self.prompts_G = np.zeros(groups)
        self._price: float | None = None

    def _groups(self, prompts: Prompts) -> np.ndarray:
        """Group of each prompt, (P,); all are in group 0 where the data name none."""
        return prompts.bins_P if self.run.has_groups else np.zeros(len(prompts), np.int64)

    def prior_mean(self) -> np.ndarray:
        """m of each group, (G,); ½ before the first batch."""
        overall = (self.rates_G.sum() + 0.5) / (self.prompts_G.sum() + 1)
        # a group that was hardly seen is like all others: its mean counts as one more prompt
        return (self.rates_G + overall) / (self.prompts_G + 1)

    def reward_variance(self, prompts: Prompts) -> np.ndarray:
        """v_i = E[p (1 − p)] under each prompt's posterior, (P,)."""
        mean_P = self.prior_mean()[self._groups(prompts)]
        alpha_P = prompts.successes_P + self.weight * mean_P
        beta_P = prompts.failures_P + self.weight * (1 - mean_P)
        total_P = alpha_P + beta_P
        return alpha_P * beta_P / (total_P * (total_P + 1))

    def allocate(self, prompts: Prompts, budget: int, rng: np.random.Generator) -> np.ndarray:
        variance_P = self.reward_variance(prompts)
        share_P = np.full(len(prompts), 1 / len(prompts))
        price = theory.shadow_price(variance_P, share_P, budget / len(prompts))
        self._price = float(price)
        return theory.demand_at_price(variance_P, price)

    def update(self, batch: Batch) -> None:
        groups_P = self._groups(batch)
        groups = len(self.rates_G)
        rates_P = batch.hits_P / batch.trials_P
        self.rates_G = KEPT * self.rates_G + np.bincount(groups_P, rates_P, groups)
        self.prompts_G = KEPT * self.prompts_G + np.bincount(groups_P, minlength=groups)

    def report(self) -> dict[str, Any]:
        return {"price": self._price}
