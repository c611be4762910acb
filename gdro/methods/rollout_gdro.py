"""The compute adversary (section 3.3): from bins and a budget to rollouts, at a shadow price.

`RolloutGDRO` holds the arm scores and the price of one run, `RolloutMethod` plays it as a method. **Rollout
counts are decided in `RolloutGDRO.allocate`.** The pure functions, (20)–(21) and the exact joint choice
of arms, are in `gdro.methods.arms`. Axes: B bins, N arms (the rollout counts n_min … n_max), P prompts.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from gdro.core.budget import as_whole
from gdro.core.checks import build, check_array, check_choice, check_int, check_number, option
from gdro.core.limits import LARGEST_ETA, MOST_BINS, MOST_ROLLOUTS
from gdro.core.saved import Saved
from gdro.methods.arms import arm_log_probabilities, best_joint_arms, price_step
from gdro.methods.bandit import exp3p_losses, sample_joint_arms
from gdro.methods.base import Batch, Prompts, Run, register
from gdro.methods.bin_game import BinGame, bin_means, debiased, ema_scores

PRINTED = {  # the choices with which the game is as in the paper
    "utility": "loss",
    "selection": "argmax",
    "joint": "bins",
    "price_driver": "realized",
    "debias": False,
}


@dataclass(eq=False)
class RolloutGDRO(Saved):
    """EXP3.P over rollout counts in each bin, joined by an exact budget and a shadow price.

    utility "variance" is −v_b/n, (28), with v_b the variance of the bin's rewards. One estimate of v_b gives
    it for every arm, so all arms learn from each step and none has to be explored. It is taken relative to
    the average bin, v_b/v̄ · n̄²/n, so that the price at balance is about 1 whatever the scale of the
    rewards; the allocation does not depend on that. "loss" is Ĵ_b(n) of (17)–(18), as printed: only the arm
    that was played is seen, and its loss is divided by the probability of playing it.

    selection "argmax" takes the joint choice of greatest probability among those that meet the budget,
    "sample" draws from the product of the strategies, given that the budget is met. None is "argmax" for
    "variance" and "sample" for "loss": a bandit that never samples learns nothing of the arms it does not
    play.
    """

    num_bins: int = option(10, check_int, 1, MOST_BINS, remedy="give len(edges) + 1")
    n_min: int = option(2, check_int, 1)  # smallest arm
    n_max: int = option(12, check_int, 1, MOST_ROLLOUTS)  # largest arm
    mean_rollouts: float = 4  # n̄, the budget per prompt, in [n_min, n_max]
    # step size
    eta: float = option(0.65, check_number, 0, LARGEST_ETA, remedy="0 switches the adversary off")
    gamma: float = option(0.01, check_number, 0, 1)  # the uniform share
    # weight of the newest arm loss
    ema: float = option(0.4, check_number, 0, 1, open_low=True, remedy="1 looks at the last batch alone")
    price_lr: float = option(0.05, check_number, 0, LARGEST_ETA, remedy="0 switches it off")  # α_μ of (21)
    utility: str = option("variance", check_choice, ("variance", "loss"))
    selection: str | None = option(None, check_choice, (None, "argmax", "sample"))
    # How often a bin's log-probability counts in the joint choice. "prompts": once for each of its prompts.
    # Under "variance", argmax then is the minimizer (30) of (28), but for the floor that gamma puts under
    # improbable arms. "bins": once for each bin, as printed.
    joint: str = option("prompts", check_choice, ("prompts", "bins"))
    # What moves the price. "demand": what the strategies would spend before the budget is imposed.
    # "realized": what was planned, as printed; since every plan meets the budget, that price never moves.
    price_driver: str = option("demand", check_choice, ("demand", "realized"))
    # optimism of EXP3.P for utility "loss"
    bonus: float = option(0.01, check_number, 0, LARGEST_ETA, remedy="0 switches it off")
    debias: bool = option(True, check_choice, (True, False))  # as in `PromptGDRO`
    seed: int = 0  # of what is drawn when `allocate` is given no generator

    state = ("price", "step", "ema_BN", "visits_BN", "played_BN")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_int("RolloutGDRO(n_max=…)", self.n_max, self.n_min, remedy="raise it, or lower n_min")
        name, remedy = "RolloutGDRO(mean_rollouts=…)", "change it, n_min or n_max"
        check_number(name, self.mean_rollouts, self.n_min, self.n_max, remedy=remedy)
        self.selection = self.selection or ("argmax" if self.utility == "variance" else "sample")
        self.arms = np.arange(self.n_min, self.n_max + 1)
        self.price, self.step = 0.0, 0
        self.ema_BN = np.zeros((self.num_bins, len(self.arms)))
        self.visits_BN = np.zeros(self.ema_BN.shape, np.uint32)
        self.played_BN = self.probabilities()  # with which probability `allocate` last played each arm

    def losses(self) -> np.ndarray:
        """Arm losses L_b(n) = −Ĵ_b(n) + μ n, (20), at the present price, (B, N)."""
        scores_BN = debiased(self.ema_BN, self.visits_BN, self.ema) if self.debias else self.ema_BN
        if self.utility == "variance":
            average = (scores_BN[:, 0] * self.arms[0]).mean()  # v̄, from v_b/n at the first arm
            scores_BN = scores_BN * (self.mean_rollouts**2 / average if average > 0 else 0.0)
        return scores_BN + self.price * self.arms

    def probabilities(self) -> np.ndarray:
        """Strategies p_b(n) before the budget is imposed, (B, N); each row sums to one."""
        return np.exp(arm_log_probabilities(self.losses(), self.eta, self.gamma))

    def allocate(
        self, bin_counts: ArrayLike, budget: int | None = None, rng: np.random.Generator | None = None
    ) -> np.ndarray:
        """Rollouts for each prompt of each bin, (B,) integers, 0 for a bin without prompts.

        The budget is spent exactly, Σ_b c_b n_b = budget, wherever some choice of arms does so. Where none
        does, the largest amount below it is spent, and the caller gives the rest to single prompts (as
        `GDROController.plan` does).

        Args:
            bin_counts: (B,) prompts of the batch.
            budget: rollouts in all, n̄ × prompts by default.
            rng: for sampling and ties; by default from the seed.
        """
        counts_B = self._checked_counts(bin_counts)
        prompts = int(counts_B.sum())
        wanted = self.mean_rollouts * prompts if budget is None else budget
        budget = as_whole(wanted)
        if budget is None or not self.n_min * prompts <= budget <= self.n_max * prompts:
            raise ValueError(
                f"budget must be a whole number of rollouts between n_min and n_max for each of "
                f"{prompts} prompts, got {wanted}; change mean_rollouts or the batch size"
            )
        rng = rng or np.random.default_rng((self.seed, self.step))
        # bins that are equal in everything are ordered at random, so that their number has no effect
        shuffled = rng.permutation(np.flatnonzero(counts_B))
        counts = counts_B[shuffled]
        log_p = arm_log_probabilities(self.losses(), self.eta, self.gamma)[shuffled]
        if self.selection == "argmax":
            values = log_p * counts[:, None] if self.joint == "prompts" else log_p
            chosen, _ = best_joint_arms(values, counts, self.arms, budget)
            probabilities = np.exp(log_p)
        else:
            chosen, _, probabilities = sample_joint_arms(log_p, counts, self.arms, budget, rng)
        self.played_BN = np.zeros_like(self.ema_BN)
        self.played_BN[shuffled] = probabilities
        rollouts_B = np.zeros(self.num_bins, np.int64)
        rollouts_B[shuffled] = chosen
        return rollouts_B

    def update(
        self, bin_counts: ArrayLike, rollouts: ArrayLike, observed: ArrayLike, spent: float | None = None
    ) -> float:
        """Learn from a step, then move the price.

        Args:
            bin_counts: (B,) prompts of the step.
            rollouts: (B,) as `allocate` gave them, 0 where none were played.
            observed: (B,), NaN where there is none: the variance of the bin's rewards under utility
                "variance", the mean loss −Ĵ_b(n_b) of (18) under "loss".
            spent: rollouts per prompt in all, where single prompts got others than their bin's. Matters for
                price_driver "realized" only.

        Returns:
            The demand: mean rollouts of a prompt if every bin played its own strategy, before it learned.
        """
        counts_B, size = self._checked_counts(bin_counts), (self.num_bins,)
        least, remedy = 0 if self.utility == "variance" else -np.inf, "give one per bin, as planned"
        rollouts_B = check_array("rollouts", rollouts, size, 0, self.n_max, whole=True, remedy=remedy)
        observed_B = check_array("observed", observed, size, least, nan=True, remedy="give NaN for none")
        if spent is not None:
            check_number("spent", spent, 0, remedy="give rollouts per prompt")
        demand = float(counts_B @ (self.probabilities() @ self.arms) / counts_B.sum())
        if self.utility == "variance":
            new_BN = observed_B[:, None] / self.arms
        else:
            observed_B, arms_B = np.where(rollouts_B > 0, observed_B, np.nan), rollouts_B - self.n_min
            new_BN = exp3p_losses(observed_B, arms_B, self.played_BN, self.bonus)
        self.ema_BN = ema_scores(self.ema_BN, new_BN, self.ema)
        self.visits_BN += ~np.isnan(new_BN)
        if self.price_driver == "demand":
            driver = demand
        else:
            driver = counts_B @ rollouts_B / counts_B.sum() if spent is None else spent
        self.price = price_step(self.price, float(driver), self.mean_rollouts, self.price_lr)
        self.step += 1
        return demand

    def _checked_counts(self, bin_counts: ArrayLike) -> np.ndarray:
        remedy = "count the prompts of each bin with numpy.bincount(bin_ids, minlength=num_bins)"
        counts_B = check_array("bin_counts", bin_counts, (self.num_bins,), 0, whole=True, remedy=remedy)
        if not counts_B.any():
            raise ValueError(f"bin_counts must not be all zero, got {counts_B}; {remedy}")
        return counts_B


@register("rollout")
@dataclass(eq=False)
class RolloutMethod(BinGame):
    """Rollout-GDRO as a method. Its scores are in `rollout_gdro` once the controller has started it."""

    # arguments of `RolloutGDRO`, but for those that the controller has
    rollout: Mapping[str, Any] = field(default_factory=dict)

    presets: ClassVar = {"paper": {"rollout": PRINTED, "averaging": "prompt"}}
    state: ClassVar[tuple[str, ...]] = ("rollout_gdro",)

    def start(self, run: Run) -> None:
        super().start(run)
        given = {name: getattr(run, name) for name in ("num_bins", "n_min", "n_max", "mean_rollouts", "seed")}
        self.rollout_gdro: RolloutGDRO = build("rollout", RolloutGDRO, self.rollout, **given)
        if self.rollout_gdro.utility == "variance":  # a bin that played arm 1 would never be seen again
            check_int("n_min", run.n_min, 2, remedy="raise it: a single rollout shows no variance")
        self._demand: float | None = None

    @property
    def needs_losses(self) -> bool:
        return self.rollout_gdro.utility == "loss"

    def allocate(self, prompts: Prompts, budget: int, rng: np.random.Generator) -> np.ndarray:
        """The rollouts of each prompt's bin; n̄ where a prompt has none."""
        mean, seen_P = budget / len(prompts), prompts.seen_P
        wanted_P = np.full(len(prompts), mean)
        if seen_P.any():
            counts_B = np.bincount(prompts.bins_P[seen_P], minlength=self.run.num_bins)
            seen_budget = mean * int(counts_B.sum())
            rollouts_B = self.rollout_gdro.allocate(counts_B, int(seen_budget + 1e-9), rng)  # 3.9999… is 4
            # what no choice of arms can spend goes to all in equal parts, rounded at random
            left_over = (seen_budget - counts_B @ rollouts_B) / counts_B.sum()
            wanted_P[seen_P] = rollouts_B[prompts.bins_P[seen_P]] + left_over
            prompts.memo.update(rollouts_B=rollouts_B, played_BN=self.rollout_gdro.played_BN)
        return wanted_P

    def update(self, batch: Batch) -> None:
        self._demand = None
        counts_B = np.bincount(batch.bins_P[batch.seen_P], minlength=self.run.num_bins)
        if not counts_B.any():
            return
        if self.rollout_gdro.utility == "variance":
            utility_P = batch.variance_P
        else:  # the loss of an arm is that of prompts which played it; a first visit played none
            utility_P = np.where(batch.first_visit_P, np.nan, batch.losses_P)
        utility_B, _ = bin_means(batch.bins_P, utility_P, self.run.num_bins, self.counts(batch))
        planned_B = np.zeros(self.run.num_bins, np.int64)  # without a plan for the bins no arm was played
        if "rollouts_B" in batch.memo:
            # of this batch's own plan: another may have been made since, so `played_BN` could be that one's
            planned_B = batch.memo["rollouts_B"] * (counts_B > 0)
            self.rollout_gdro.played_BN = batch.memo["played_BN"]
        # the controller's plans spend n̄ exactly, so "realized" never moves the price here
        self._demand = self.rollout_gdro.update(counts_B, planned_B, utility_B, spent=self.run.mean_rollouts)

    def report(self) -> dict[str, Any]:
        return {"price": self.rollout_gdro.price, "demand": self._demand}
