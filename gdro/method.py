"""Methods: which prompts are drawn, how many rollouts each gets, what is learned from them.

A method overrides what it changes; all defaults of `Method` together are GRPO. So

    @register("failures")                        # rollouts in proportion to the failure rate
    class Failures(Method):
        def allocate(self, prompts, budget, rng):
            return 1.1 - prompts.rate_P          # the controller scales and rounds

Axes: P prompts, R rollouts, B bins, D prompts of the data set.
"""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike
from pydantic import Field

from gdro.advantages import group_advantages
from gdro.checks import LARGEST, Float, Length, Seed, check, options
from gdro.estimators import FadingCounts, resize
from gdro.state import Stateful


@options
class Run:
    """What a method may know of the run: sizes, budget, and how (3) is computed."""

    num_bins: Length
    """B, difficulty bins or groups."""
    mean_rollouts: Annotated[Float, Field(ge=1)]
    """n̄, rollouts per prompt over a batch."""
    n_min: Length
    """Least rollouts of a prompt."""
    n_max: Length
    """Most rollouts of a prompt."""
    seed: Seed = 0
    """Seed of everything random."""
    has_groups: bool = False
    """Whether the bins are groups that the data name (`gdro.groups.StaticGroups`)."""
    bin_names: list[str] = field(default_factory=list)
    """Names of these groups, or the ranges of the bins."""
    advantage_std: Literal["population", "sample"] = "population"
    """σ of (3): "population" as printed, "sample" as TRL has it, which is `GDROTrainer`'s default.
    This and the next two are passed to `gdro.advantages.group_advantages`."""
    scale_rewards: Literal["group", "batch", "none"] = "group"
    """What (3) divides by: σ of the group, σ of the batch, or nothing."""
    advantage_clip: Annotated[Float, Field(gt=0, le=LARGEST)] | None = None
    """Bound on |A|; None for none."""

    def __post_init__(self) -> None:
        check("n_max", self.n_max, int, ge=self.n_min)
        check("mean_rollouts", self.mean_rollouts, ge=self.n_min, le=self.n_max)

    def advantages(
        self, rewards_R: np.ndarray, group_ids_R: np.ndarray, num_groups: int
    ) -> np.ndarray:
        """(3) by the rule of this run, (R,), in any order; some prompts may have no rollout."""
        return group_advantages(
            rewards_R,
            group_ids_R,
            num_groups,
            std=self.advantage_std,
            scale=self.scale_rewards,
            clip=self.advantage_clip,
        )


@dataclass(kw_only=True, eq=False)
class Prompts:
    """What is known of P prompts before they are sampled."""

    uids_P: np.ndarray
    """Uids of the prompts, in increasing order."""
    rows_P: np.ndarray
    """A number of each prompt that never changes, to index a method's own arrays."""
    bins_P: np.ndarray
    """Difficulty bin; −1: none yet."""
    successes_P: np.ndarray
    """Correct rollouts so far, in counts that fade with the visits."""
    failures_P: np.ndarray
    """Wrong rollouts so far, likewise."""
    measured_P: ArrayLike = False
    """Whether these counts are only those of a pass rate that was measured before this run."""
    memo: dict[str, Any] = field(default_factory=dict)
    """The method's own: what `allocate` or `extend` puts here comes back with later batches of the
    same plan."""

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
        """Posterior mean pass rates; the prior's, ½, for a prompt without data."""
        return self.alpha_P / (self.alpha_P + self.beta_P)

    @cached_property
    def has_bin_P(self) -> np.ndarray:
        """Which prompts have a bin; in a batch, those too that this visit gave one.

        `StaticGroups` and measured pass rates give a prompt its bin before any visit; with the
        paper's `any_of_k` it takes k rollouts, which may be several visits.
        """
        return self.bins_P >= 0

    @cached_property
    def visited_P(self) -> np.ndarray:
        """Which prompts were sampled before, in this run."""
        return (self.successes_P + self.failures_P > 0) & np.logical_not(self.measured_P)


@dataclass(kw_only=True, eq=False)
class Batch(Prompts):
    """What came back for the prompts of a plan; prompts without rollouts are left out.

    Counts and rates are those before this visit, and so is `bins_P`; a prompt that had no bin when
    it was planned has the one that this visit gave it, or still −1. In `extend` bins have not moved
    yet: `bins_after_P` equals `bins_P`.
    """

    rollouts_P: np.ndarray
    """Rollouts as planned, with extensions."""
    trials_P: np.ndarray
    """Rollouts that came back, at least 1."""
    hits_P: np.ndarray
    """Correct ones among them."""
    bins_after_P: np.ndarray
    """Bins with this visit."""
    had_no_bin_P: np.ndarray
    """Whether a prompt had no bin when it was planned."""
    group_ids_R: np.ndarray
    """Place of each rollout's prompt in the arrays above, increasing."""
    rewards_R: np.ndarray
    """As the trainer gave them."""
    correct_R: np.ndarray
    """As the trainer gave it, else whether the reward is above success_threshold."""
    given_losses_R: np.ndarray | None
    """Surrogate losses (6), where the trainer has them."""
    run: Run
    """The controller's, for its budget and its rule of advantages."""

    def sums(self, values_R: np.ndarray) -> np.ndarray:
        """Sum over each prompt's rollouts, (P,)."""
        return np.bincount(self.group_ids_R, values_R, len(self))

    @cached_property
    def centred_R(self) -> np.ndarray:
        """Rewards minus the mean of their rollout group."""
        return group_advantages(self.rewards_R, self.group_ids_R, len(self), scale="none")

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


class Method(Stateful):
    """A rule for using rollouts. Every function has a neutral default, which together are GRPO.

    A method must not write into what it is given. What it learns is kept in attributes that `start`
    makes and `state` names. Options are the fields of a dataclass (see `gdro.checks.options`).
    """

    name: ClassVar[str] = ""
    """The name under which the method is registered."""
    presets: ClassVar[dict[str, dict[str, Any]]] = {}
    """Options by the name of a preset."""
    run: Run
    """What is known of the run; the controller sets it before `start`."""
    n_min: int | None = None
    """Replaces the controller's default bound on a prompt's rollouts."""
    kept_texts: int = 4
    """Successes that are kept for a prompt, where the method replays them."""

    # Capabilities: what the controller and every trainer ask before they start. They follow from
    # what a class overrides. Where an option decides, override the capability as well.

    @property
    def draws(self) -> bool:
        """Whether `draw` chooses the prompts; else the trainer's own order does."""
        return self.overrides("draw")

    @property
    def moves_rollouts(self) -> bool:
        """Whether `allocate` may give prompts unequal numbers of rollouts."""
        return self.overrides("allocate")

    @property
    def in_rounds(self) -> bool:
        """Whether `allocate` may leave budget for `extend` (see `gdro.rounds.sample_in_rounds`)."""
        return self.overrides("extend")

    @property
    def waits(self) -> bool:
        """Whether `ready` may ask for another batch before an optimizer step."""
        return self.overrides("ready")

    @property
    def replays(self) -> bool:
        """Whether successes must be kept for `replay`, as in a `gdro_lab.buffer.ReplayBuffer`."""
        return self.overrides("replay")

    @property
    def needs_losses(self) -> bool:
        """Whether `observe` should be given the surrogate losses (6), in place of −A_ij."""
        return False

    @property
    def samples_again(self) -> bool:
        """`in_rounds` or `waits`: whether a trainer may sample more than once a step."""
        return self.in_rounds or self.waits

    def overrides(self, hook: str) -> bool:
        """Whether the method has a hook of its own in place of the neutral default."""
        return getattr(type(self), hook) is not getattr(Method, hook)

    def begin(self, run: Run) -> None:
        """Take `run` and call `start`, as the controller does."""
        self.run = run  # here, so that a method's `start` need not call its base's
        self.start(run)
        self.check_kinds()  # else the first checkpoint would fail, hours later

    # Hooks, in the order in which a step asks them.

    def start(self, run: Run) -> None:
        """Make the state. Called once by the controller, before anything else.

        Args:
            run: what may be known of it; also kept as `self.run`.
        """

    def draw(self, pool: Prompts, size: int, rng: np.random.Generator) -> np.ndarray | None:
        """Choose the prompts of the next batch.

        Args:
            pool: what is known of all D prompts of the data set, in the order of their uids.
            size: prompts wanted, at least 1 and at most D.
            rng: of this step alone.

        Returns:
            Positions in the pool, (size,) integers; None leaves the choice to the trainer.
        """
        return None

    def allocate(self, prompts: Prompts, budget: int, rng: np.random.Generator) -> np.ndarray:
        """Divide the rollouts of a batch.

        Args:
            prompts: what is known of the P prompts of the batch.
            budget: rollouts of the whole batch.
            rng: of this plan alone.

        Returns:
            Rollouts of each prompt, (P,) numbers ≥ 0, not all 0. The controller scales and rounds
            what does not fit the budget or the bounds; a method with `extend` may plan fewer.
        """
        return np.full(len(prompts), budget / len(prompts))

    def extend(self, batch: Batch, left: int, rng: np.random.Generator) -> np.ndarray | None:
        """Ask for further rollouts within the step, after each round.

        Args:
            batch: what came back in all rounds so far.
            left: rollouts of the budget that are not planned yet, at least 1.
            rng: of this round alone.

        Returns:
            Further rollouts, (P,) integers ≥ 0 with a sum from 1 to `left` that stay within n_max;
            None when the step is done.
        """
        return None

    def update(self, batch: Batch) -> None:
        """Learn from what came back for a plan.

        Args:
            batch: its prompts with at least one rollout, sorted by uid.
        """

    def weights(self, batch: Batch) -> np.ndarray:
        """Weigh the prompts; called after `update`.

        Args:
            batch: as for `update`.

        Returns:
            Factor on each prompt's advantages, (P,) numbers ≥ 0.
        """
        return np.ones(len(batch))

    def advantages(self, batch: Batch) -> np.ndarray:
        """Judge the rollouts; called after `update`.

        Args:
            batch: as for `update`.

        Returns:
            Advantage of each rollout before it is weighted, (R,).
        """
        return batch.group_advantages_R

    def report(self) -> dict[str, Any]:
        """Say what the method did, for the record's row.

        Returns:
            Plain JSON values by name, none of them a name of the row in `gdro.record`.
        """
        return {}

    def ready(self, batch: Batch) -> bool:
        """Let the optimizer step, or wait for another batch.

        Args:
            batch: as for `update`.

        Returns:
            True to step now; False to step later, with the next batch's rollouts too.
        """
        return True

    def replay(
        self, banked: Prompts, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray] | None:
        """Choose kept successes to train on again, in a step that is ready.

        Args:
            banked: what is known of the prompts with a kept success.
            rng: of this step alone.

        Returns:
            Positions in `banked` and the weights ≥ 0 that their kept texts share, (N,) each,
            which stand in the loss where a rollout has its advantage. None for no replay.
        """
        return None

    def grow(self, array: np.ndarray, rows_P: np.ndarray) -> np.ndarray:
        """Lengthen an array with zeros, some of them spare, so that the rows can index it."""
        missing = int(rows_P.max(initial=-1)) + 1 - len(array)
        if missing <= 0:
            return array
        return resize(array, len(array) + max(missing, len(array) // 2))
