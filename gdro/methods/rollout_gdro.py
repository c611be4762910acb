"""Rollout-GDRO, the compute adversary (section 3.3): bins buy rollouts at a shadow price.

`RolloutAdversary` holds the scores of one run, `RolloutGDRO` is the method. Axes: P prompts, B
bins, N arms.
"""

from collections.abc import Mapping
from dataclasses import field
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike

from gdro import arms, checks
from gdro.budget import as_whole
from gdro.method import Batch, Prompts, Run
from gdro.methods.averaging import AveragingMethod
from gdro.registry import register
from gdro.scores import bin_means, debias, ema_scores
from gdro.state import Stateful

PRINTED = {  # the choices with which the game is as in the paper
    "utility": "loss",
    "selection": "argmax",
    "joint": "bins",
    "price_driver": "realized",
    "debias": False,
}


@checks.options
class RolloutAdversary(Stateful):
    """EXP3.P over rollout counts in each bin, joined by an exact budget and a shadow price.

    utility "variance" is −v_b/n, (28), with v_b the variance of the bin's rewards. One estimate of
    v_b gives it for every arm, so none has to be explored. It is taken relative to the average bin,
    v_b/v̄ · n̄²/n, so that the price at balance is about 1 whatever the scale of the rewards.
    "loss" is Ĵ_b(n) of (17)–(18), as printed: only the arm that was played is seen, and its loss is
    divided by the probability of playing it.

    selection "argmax" takes the most probable joint choice that meets the budget, "sample" draws
    from the product of the strategies, given the budget. None is "argmax" for "variance" and
    "sample" for "loss": a bandit that never samples learns nothing of the arms it does not play.
    """

    num_bins: checks.Length = 10
    n_min: checks.Length = 2
    """Smallest arm."""
    n_max: checks.Length = 12
    """Largest arm."""
    mean_rollouts: checks.Positive = 4
    """n̄, the budget per prompt, in [n_min, n_max]."""
    eta: checks.StepSize = 0.65
    """Step size of the strategies; 0 switches the adversary off."""
    gamma: checks.Share = 0.01
    """The uniform share of the strategies."""
    ema: checks.PositiveShare = 0.4
    """Weight of the newest arm loss."""
    price_lr: checks.StepSize = 0.05
    """α_μ of (21)."""
    utility: Literal["variance", "loss"] = "variance"
    """What an arm is worth, see above."""
    selection: Literal["argmax", "sample"] | None = None
    """How a joint choice is made, see above."""
    joint: Literal["prompts", "bins"] = "prompts"
    """How often a bin's log-probability counts in the joint choice: once for each of its prompts
    (under "variance", argmax then is the minimizer (30) of (28), but for the floor of gamma), or
    once for each bin, as printed."""
    price_driver: Literal["demand", "realized"] = "demand"
    """What moves the price: what the strategies would spend before the budget is imposed, or what
    was planned, as printed; since every plan meets the budget, that price never moves."""
    bonus: checks.StepSize = 0.01
    """Optimism of EXP3.P, for utility "loss"."""
    debias: bool = True
    """As in `PromptAdversary`."""
    seed: checks.Seed = 0
    """Seed of what is drawn when `allocate` is given no generator."""

    state = ("price", "step", "ema_BN", "visits_BN", "played_BN")

    def __post_init__(self) -> None:
        checks.check("n_max", self.n_max, int, ge=self.n_min)
        checks.check("mean_rollouts", self.mean_rollouts, ge=self.n_min, le=self.n_max)
        self.selection = self.selection or ("argmax" if self.utility == "variance" else "sample")
        self.arms = np.arange(self.n_min, self.n_max + 1)
        self.price = 0.0
        self.step = 0
        self.ema_BN = np.zeros((self.num_bins, len(self.arms)))
        self.visits_BN = np.zeros(self.ema_BN.shape, np.uint32)
        # with which probability `allocate` last played each arm
        self.played_BN = self.probabilities()

    def losses(self) -> np.ndarray:
        """Arm losses L_b(n) = −Ĵ_b(n) + μ n, (20), at the present price, (B, N)."""
        scores_BN = debias(self.ema_BN, self.visits_BN, self.ema) if self.debias else self.ema_BN
        if self.utility == "variance":
            variances_B = scores_BN[:, 0] * self.arms[0]  # v_b, from v_b/n at the first arm
            if not variances_B.any():  # nothing tells the bins apart, so each is average
                variances_B = np.ones(self.num_bins)
            relative_B = variances_B / variances_B.mean()
            scores_BN = relative_B[:, None] * self.mean_rollouts**2 / self.arms
        return scores_BN + self.price * self.arms

    def probabilities(self) -> np.ndarray:
        """Strategies p_b(n) before the budget is imposed, (B, N); each row sums to one."""
        return np.exp(arms.arm_log_probabilities(self.losses(), self.eta, self.gamma))

    def allocate(
        self,
        bin_counts: ArrayLike,
        budget: int | None = None,
        rng: np.random.Generator | None = None,
    ) -> np.ndarray:
        """Rollouts for each prompt of each bin, (B,) integers, 0 for a bin without prompts.

        The budget is spent exactly, Σ_b c_b n_b = budget, wherever some choice of arms does so.
        Where none does, the largest amount below it is spent. With which probability each arm was
        played is kept in `played_BN`.

        Args:
            bin_counts: (B,) prompts of the batch.
            budget: rollouts in all, n̄ × prompts by default.
            rng: for sampling and ties; by default from the seed.
        """
        counts_B = self._counts(bin_counts)
        prompts = int(counts_B.sum())
        total = self.mean_rollouts * prompts if budget is None else budget
        budget = as_whole("budget", total, self.n_min * prompts, self.n_max * prompts)
        rng = rng or np.random.default_rng((self.seed, self.step))
        # shuffled, so that between bins of equal counts and values their index has no effect
        shuffled = rng.permutation(np.flatnonzero(counts_B))
        counts = counts_B[shuffled]
        log_p = arms.arm_log_probabilities(self.losses(), self.eta, self.gamma)[shuffled]
        if self.selection == "argmax":
            values = log_p * counts[:, None] if self.joint == "prompts" else log_p
            chosen, _ = arms.best_joint_arms(values, counts, self.arms, budget)
            probabilities = np.exp(log_p)
        else:
            chosen, probabilities = arms.sample_joint_arms(log_p, counts, self.arms, budget, rng)
        self.played_BN = np.zeros_like(self.ema_BN)
        self.played_BN[shuffled] = probabilities
        rollouts_B = np.zeros(self.num_bins, np.int64)
        rollouts_B[shuffled] = chosen
        return rollouts_B

    def update(
        self,
        bin_counts: ArrayLike,
        rollouts: ArrayLike,
        observed: ArrayLike,
        played: np.ndarray | None = None,
    ) -> float:
        """Learn from a step, then move the price.

        Args:
            bin_counts: (B,) prompts of the step.
            rollouts: (B,) as `allocate` gave them, 0 where none were played.
            observed: (B,), NaN where there is none: the variance of the bin's rewards under utility
                "variance", the mean loss −Ĵ_b(n_b) of (18) under "loss".
            played: (B, N), with which probability each arm was played when these rollouts were
                allocated; by default at the last `allocate`.

        Returns:
            The demand: mean rollouts of a prompt if every bin played its own strategy. Without
            prompts it is 0, and nothing is learned.
        """
        counts_B = self._counts(bin_counts)
        rollouts_B = checks.check_array("rollouts", rollouts, counts_B.shape, whole=True)
        observed_B = checks.check_array(
            "observed", observed, counts_B.shape, -checks.LARGEST, checks.LARGEST, missing=True
        )
        if not counts_B.any():  # no mean over prompts, by which the price could move
            return 0.0
        # before the scores move, so of the strategies that made the plan, if it was the last one
        demand = float(counts_B @ (self.probabilities() @ self.arms) / counts_B.sum())
        if self.utility == "variance":
            new_BN = observed_B[:, None] / self.arms
        else:
            observed_B = np.where(rollouts_B > 0, observed_B, np.nan)
            arms_B = rollouts_B - self.n_min
            played_BN = self.played_BN if played is None else played
            new_BN = arms.exp3p_losses(observed_B, arms_B, played_BN, self.bonus)
        self.ema_BN = ema_scores(self.ema_BN, new_BN, self.ema)
        self.visits_BN += ~np.isnan(new_BN)
        if self.price_driver == "demand":
            # (21), without a floor at 0: a budget that must be met exactly may have a negative
            # price. Rollouts that were "realized" meet it, so that they would never move the price
            self.price += self.price_lr * (demand - self.mean_rollouts)
        self.step += 1
        return demand

    def _counts(self, bin_counts: ArrayLike) -> np.ndarray:
        return checks.check_array("bin_counts", bin_counts, (self.num_bins,), 0, whole=True)


@register("rollout")
@checks.options
class RolloutGDRO(AveragingMethod):
    """Rollout-GDRO (arXiv 2601.19280): a number of rollouts for each bin.

    Every prompt counts once, as in (17) and Theorem 4.2; with `averaging="rollout"` every rollout
    does, as in the released code. Its scores are in `rollout_adversary`.
    """

    rollout: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of `RolloutAdversary`, but for those that the controller has."""

    presets: ClassVar[dict[str, dict[str, Any]]] = {"paper": {"rollout": PRINTED}}
    state: ClassVar[tuple[str, ...]] = ("rollout_adversary",)

    def start(self, run: Run) -> None:
        super().start(run)
        self.rollout_adversary = checks.build(
            "rollout",
            RolloutAdversary,
            self.rollout,
            num_bins=run.num_bins,
            n_min=run.n_min,
            n_max=run.n_max,
            mean_rollouts=run.mean_rollouts,
            seed=run.seed,
        )
        if self.rollout_adversary.utility == "variance":
            # a single rollout has no variance: a bin would learn nothing more once it played arm 1
            checks.check("mean_rollouts", run.mean_rollouts, ge=2)
            checks.check("n_min", run.n_min, int, ge=2)
        self._demand: float | None = None

    @property
    def needs_losses(self) -> bool:
        return self.rollout_adversary.utility == "loss"

    def allocate(self, prompts: Prompts, budget: int, rng: np.random.Generator) -> np.ndarray:
        """The rollouts of each prompt's bin; n̄ where a prompt has none."""
        mean = budget / len(prompts)
        rollouts_P = np.full(len(prompts), mean)
        seen_P = prompts.has_bin_P
        if seen_P.any():
            counts_B = np.bincount(prompts.bins_P[seen_P], minlength=self.run.num_bins)
            seen_budget = mean * int(counts_B.sum())
            whole = int(seen_budget + 1e-9)  # 3.9999… is 4
            rollouts_B = self.rollout_adversary.allocate(counts_B, whole, rng)
            # what no choice of arms can spend goes to all in equal parts, rounded at random
            left_over = (seen_budget - counts_B @ rollouts_B) / counts_B.sum()
            rollouts_P[seen_P] = rollouts_B[prompts.bins_P[seen_P]] + left_over
            # for `update`, as other plans may be made before this one comes back
            prompts.memo["rollouts_B"] = rollouts_B
            prompts.memo["played_BN"] = self.rollout_adversary.played_BN
        return rollouts_P

    def update(self, batch: Batch) -> None:
        self._demand = None
        counts_B = np.bincount(batch.bins_P[batch.has_bin_P], minlength=self.run.num_bins)
        if not counts_B.any():
            return
        is_variance = self.rollout_adversary.utility == "variance"
        observed_P = batch.variance_P if is_variance else batch.losses_P
        # a first visit played no arm, and its bin was chosen by these very rewards
        observed_P = np.where(batch.had_no_bin_P, np.nan, observed_P)
        observed_B, _ = bin_means(batch.bins_P, observed_P, self.run.num_bins, self.counts(batch))
        # where no prompt of the plan had a bin, no arm was played
        none_B = np.zeros(self.run.num_bins, np.int64)
        self._demand = self.rollout_adversary.update(
            counts_B,
            batch.memo.get("rollouts_B", none_B),
            observed_B,
            played=batch.memo.get("played_BN"),
        )

    def report(self) -> dict[str, Any]:
        return {"price": self.rollout_adversary.price, "demand": self._demand}
