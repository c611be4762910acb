"""What a method is given: the sizes of the run, what is known of prompts, and what came back for them.

Axes: P the prompts of the object at hand (the data set in `draw`, the planned batch in `allocate`, those that
came back in a `Batch`), R rollouts.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gdro.core.advantages import group_advantages
from gdro.core.arrays import derived, read_only
from gdro.core.beliefs import FadingCounts
from gdro.core.checks import check_choice, check_int, check_number, check_options, option
from gdro.core.limits import LARGEST


@dataclass(frozen=True)
class Run:
    """What a method may know of the run: sizes, budget, and how (3) is computed."""

    num_bins: int
    mean_rollouts: float  # n̄, rollouts per prompt over a batch
    n_min: int  # bounds on a prompt's rollouts
    n_max: int
    seed: int = option(0, check_int, 0)
    advantage_std: str = option("population", check_choice, ("population", "sample"))
    scale_rewards: str = option("group", check_choice, ("group", "batch", "none"))
    advantage_clip: float | None = option(
        None, check_number, 0, LARGEST, open_low=True, optional=True, remedy="None clips nothing"
    )

    def __post_init__(self) -> None:
        check_options(self, "GDROController")

    def advantages(self, rewards_R: np.ndarray, group_ids_R: np.ndarray, num_groups: int) -> np.ndarray:
        """(3) by the rule of this run, (R,)."""
        rule = (self.advantage_std, self.scale_rewards, self.advantage_clip)
        return group_advantages(rewards_R, group_ids_R, num_groups, *rule)


@dataclass(kw_only=True, eq=False, frozen=True)
class Prompts:
    """What is known of P prompts before they are sampled. All arrays are read-only."""

    keys_P: np.ndarray  # 64-bit keys of the uids, in increasing order
    rows_P: np.ndarray  # a stable index for each prompt, for a method's own arrays (see `Method.at_least`)
    bins_P: np.ndarray  # −1: not seen yet
    successes_P: np.ndarray  # counts that fade with the visits
    failures_P: np.ndarray
    memo: dict[str, Any] = field(default_factory=dict)  # from `allocate` to the batch of the same plan

    def __post_init__(self) -> None:
        for value in vars(self).values():
            if isinstance(value, np.ndarray):
                read_only(value)

    def __len__(self) -> int:
        return len(self.keys_P)

    @derived
    def alpha_P(self) -> np.ndarray:
        """First parameter of the Beta posterior of the pass rates."""
        return self.successes_P + FadingCounts.prior

    @derived
    def beta_P(self) -> np.ndarray:
        """Second parameter of the Beta posterior of the pass rates."""
        return self.failures_P + FadingCounts.prior

    @derived
    def rate_P(self) -> np.ndarray:
        """Posterior mean pass rates; ½ for a prompt without data."""
        return self.alpha_P / (self.alpha_P + self.beta_P)

    @derived
    def seen_P(self) -> np.ndarray:
        """Which prompts have a bin."""
        return self.bins_P >= 0


@dataclass(kw_only=True, eq=False, frozen=True)
class Batch(Prompts):
    """What came back for the prompts of a plan; prompts without rollouts are left out.

    Counts and rates are those before this visit. `bins_P` is the bin before it too, so that a prompt's own
    outcome does not choose the bin it counts in; on a first visit, the bin that it has just reached. In
    `extend`, where the visit is still going on, bins have not moved: `bins_after_P` equals `bins_P`, and a
    prompt on its first visit has −1 in both.
    """

    rollouts_P: np.ndarray  # as planned
    trials_P: np.ndarray  # as observed
    hits_P: np.ndarray  # correct rollouts of this visit
    bins_after_P: np.ndarray  # bins with this visit
    first_visit_P: np.ndarray  # whether a prompt had no bin when it was planned
    group_ids_R: np.ndarray  # position of each rollout's prompt in the arrays above, in increasing order
    rewards_R: np.ndarray
    correct_R: np.ndarray  # whether the reward is above the controller's success_threshold
    given_losses_R: np.ndarray | None  # surrogate losses (6), where the trainer has them
    run: Run

    def sums(self, values_R: np.ndarray) -> np.ndarray:
        """Sum over each prompt's rollouts, (P,)."""
        return np.bincount(self.group_ids_R, values_R, len(self))

    def hard_hits(self) -> tuple[float, float]:
        """Correct rollouts of hard prompts, and how many are expected from their own past.

        Hard: visited before, with a posterior mean pass rate below ½. If nothing is learned, the second is on
        average no less than the first, since the prior mean ½ is above such rates.
        """
        hard_P = (self.successes_P + self.failures_P > 0) & (self.rate_P < 0.5)
        return float(self.hits_P[hard_P].sum()), float((self.trials_P * self.rate_P)[hard_P].sum())

    @derived
    def centred_R(self) -> np.ndarray:
        """Rewards less the mean of their rollout group."""
        return self.rewards_R - (self.sums(self.rewards_R) / self.trials_P)[self.group_ids_R]

    @derived
    def variance_P(self) -> np.ndarray:
        """Unbiased variance of each prompt's rewards; NaN for a single rollout."""
        return self.sums(self.centred_R**2) / np.where(self.trials_P > 1, self.trials_P - 1.0, np.nan)

    @derived
    def group_advantages_R(self) -> np.ndarray:
        """(3) within each rollout group, unweighted."""
        return self.run.advantages(self.rewards_R, self.group_ids_R, len(self))

    @derived
    def losses_P(self) -> np.ndarray:
        """(7): mean of ℓ_ij (6) over each prompt's rollouts; where no losses were given, ℓ_ij = −A_ij."""
        losses_R = -self.group_advantages_R if self.given_losses_R is None else self.given_losses_R
        return self.sums(losses_R) / self.trials_P
