"""Methods: which prompts are drawn, how many rollouts each gets, what is learned from them.

A method overrides what it is about; all defaults of `Method` together are GRPO. Three examples
(`highest` is in `gdro.draws`):

    @register("even_odds")                       # draws the prompts solved about half the time
    class EvenOdds(Method):
        def draw(self, pool, size, rng):
            return highest(pool.rate_P * (1 - pool.rate_P), size, rng)

    @register("failures")                        # rollouts in proportion to the failure rate
    class Failures(Method):
        def allocate(self, prompts, budget, rng):
            return 1.1 - prompts.rate_P          # the controller scales and rounds

    @register("centre")                          # advantages without the division by σ
    class Centre(Method):
        def advantages(self, batch):
            return batch.centred_R

They compose by name: GDROController("composed", draw="even_odds", rollouts="failures"), with
`gdro.peers.composed`. Axes: P prompts, R rollouts, B bins, D prompts of the data set.
"""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from gdro.advantages import group_advantages
from gdro.checks import LARGEST, Count, Float, Index, check, options
from gdro.estimators import FadingCounts, resize
from gdro.state import Saved


@options
class Run:
    """What a method may know of the run: sizes, budget, and how (3) is computed."""

    num_bins: Count
    mean_rollouts: Annotated[Float, Field(ge=1)]  # n̄, rollouts per prompt over a batch
    n_min: Count  # bounds on a prompt's rollouts
    n_max: Count
    seed: Index = 0
    advantage_std: Literal["population", "sample"] = "population"
    scale_rewards: Literal["group", "batch", "none"] = "group"
    advantage_clip: Annotated[Float, Field(gt=0, le=LARGEST)] | None = None

    def __post_init__(self) -> None:
        check("n_max", self.n_max, int, ge=self.n_min)
        check("mean_rollouts", self.mean_rollouts, ge=self.n_min, le=self.n_max)

    def advantages(
        self, rewards_R: np.ndarray, group_ids_R: np.ndarray, num_groups: int
    ) -> np.ndarray:
        """(3) by the rule of this run, (R,)."""
        rule = (self.advantage_std, self.scale_rewards, self.advantage_clip)
        return group_advantages(rewards_R, group_ids_R, num_groups, *rule)


@dataclass(kw_only=True, eq=False)
class Prompts:
    """What is known of P prompts before they are sampled."""

    uids_P: np.ndarray  # in increasing order
    rows_P: np.ndarray  # a number that never changes, to index a method's own arrays
    bins_P: np.ndarray  # −1: not seen yet
    successes_P: np.ndarray  # counts that fade with the visits
    failures_P: np.ndarray
    # from `allocate` to the batch of the same plan
    memo: dict[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.uids_P)

    @cached_property
    def alpha_P(self) -> np.ndarray:
        """First parameter of the Beta posterior of the pass rates."""
        return self.successes_P + FadingCounts.prior

    @cached_property
    def beta_P(self) -> np.ndarray:
        """Second parameter of the Beta posterior of the pass rates."""
        return self.failures_P + FadingCounts.prior

    @cached_property
    def rate_P(self) -> np.ndarray:
        """Posterior mean pass rates; ½ for a prompt without data."""
        return self.alpha_P / (self.alpha_P + self.beta_P)

    @cached_property
    def seen_P(self) -> np.ndarray:
        """Which prompts have a bin; in a batch, those of a first visit too."""
        return self.bins_P >= 0


@dataclass(kw_only=True, eq=False)
class Batch(Prompts):
    """What came back for the prompts of a plan; prompts without rollouts are left out.

    Counts and rates are those before this visit, and so is `bins_P`, but for the first visit, where
    it is the bin just reached. In `extend` bins have not moved yet: `bins_after_P` equals `bins_P`,
    −1 on a first visit.
    """

    rollouts_P: np.ndarray  # as planned, with extensions
    trials_P: np.ndarray  # as observed
    hits_P: np.ndarray  # correct rollouts of this visit
    bins_after_P: np.ndarray  # bins with this visit
    first_visit_P: np.ndarray  # whether a prompt had no bin when it was planned
    group_ids_R: np.ndarray  # place of each rollout's prompt in the arrays above, increasing
    rewards_R: np.ndarray
    correct_R: np.ndarray  # as given, else whether the reward is above success_threshold
    given_losses_R: np.ndarray | None  # surrogate losses (6), where the trainer has them
    run: Run

    def sums(self, values_R: np.ndarray) -> np.ndarray:
        """Sum over each prompt's rollouts, (P,)."""
        return np.bincount(self.group_ids_R, values_R, len(self))

    @cached_property
    def centred_R(self) -> np.ndarray:
        """Rewards less the mean of their rollout group."""
        return self.rewards_R - (self.sums(self.rewards_R) / self.trials_P)[self.group_ids_R]

    @cached_property
    def variance_P(self) -> np.ndarray:
        """Unbiased variance of each prompt's rewards; NaN for a single rollout."""
        others_P = np.where(self.trials_P > 1, self.trials_P - 1.0, np.nan)
        return self.sums(self.centred_R**2) / others_P

    @cached_property
    def group_advantages_R(self) -> np.ndarray:
        """(3) within each rollout group, unweighted."""
        return self.run.advantages(self.rewards_R, self.group_ids_R, len(self))

    @cached_property
    def losses_P(self) -> np.ndarray:
        """(7): mean of ℓ_ij (6) over each prompt's rollouts; without given losses ℓ_ij = −A_ij."""
        losses_R = -self.group_advantages_R if self.given_losses_R is None else self.given_losses_R
        return self.sums(losses_R) / self.trials_P


class Method(Saved):
    """A rule for using rollouts. Every function has a neutral default, which together are GRPO.

    A method must not write into what it is given. What it learns is kept in attributes that `start`
    makes and `state` names. Options are the fields of a dataclass (see `gdro.checks.options`).
    """

    name: ClassVar[str] = ""  # as registered
    run: Run  # of the controller that the method serves, set before `start`
    n_min: int | None = None  # replaces the controller's default bound on a prompt's rollouts
    kept_texts: int = 4  # successes that are kept for a prompt, where the method replays them
    rounds: bool = False  # whether `allocate` may leave budget for `extend`
    presets: ClassVar[dict[str, dict[str, Any]]] = {}  # options by the name of a preset

    def start(self, run: Run) -> None:
        """Called once by the controller, before anything else; makes the state."""

    @property
    def draws(self) -> bool:
        """Whether the method chooses the prompts."""
        return type(self).draw is not Method.draw

    @property
    def moves_rollouts(self) -> bool:
        """Whether prompts may get unequal numbers of rollouts."""
        return type(self).allocate is not Method.allocate

    @property
    def replays(self) -> bool:
        """Whether successes must be kept in a `gdro.methods.bank.Bank`."""
        return type(self).replay is not Method.replay

    @property
    def needs_losses(self) -> bool:
        """Whether `observe` should be given the surrogate losses (6), in place of −A_ij."""
        return False

    def draw(self, pool: Prompts, size: int, rng: np.random.Generator) -> np.ndarray | None:
        """Positions in `pool` of the next prompts, (size,); None leaves them to the trainer."""
        return None

    def allocate(self, prompts: Prompts, budget: int, rng: np.random.Generator) -> np.ndarray:
        """Rollouts of each prompt, (P,) numbers ≥ 0, which the controller fits to the budget."""
        return np.full(len(prompts), budget / len(prompts))

    def extend(self, batch: Batch, left: int, rng: np.random.Generator) -> np.ndarray | None:
        """Further rollouts within the step, (P,) integers with a sum from 1 to `left`; None: no."""
        return None

    def replay(
        self, banked: Prompts, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray] | None:
        """Positions in `banked` of prompts to train on again, and the weight their texts share."""
        return None

    def weights(self, batch: Batch) -> np.ndarray:
        """Factor on each prompt's advantages, (P,)."""
        return np.ones(len(batch))

    def advantages(self, batch: Batch) -> np.ndarray:
        """Advantage of each rollout before it is weighted, (R,)."""
        return batch.group_advantages_R

    def ready(self, batch: Batch) -> bool:
        """Whether to take the optimizer step now, or with the next batch's rollouts too."""
        return True

    def update(self, batch: Batch) -> None:
        """Learn from what came back."""

    def report(self) -> dict[str, Any]:
        """Entries for the record's row (`gdro.record`): plain JSON values."""
        return {}

    def at_least(self, array: np.ndarray, rows_P: np.ndarray) -> np.ndarray:
        """`array` with zeros added up to the largest of the rows, so that these can index it."""
        missing = int(rows_P.max(initial=-1)) + 1 - len(array)
        return array if missing <= 0 else resize(array, len(array) + max(missing, len(array) // 2))
