"""What is planned, and what came back: values that the controller gives out and takes in.

Axes: P prompts of a plan, K those of them that came back, R rollouts.
"""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from gdro.bins import DifficultyBins
from gdro.checks import LARGEST, check_array, short
from gdro.method import Batch, Prompts, Run
from gdro.metrics import is_correct


@dataclass(frozen=True, eq=False)
class Plan:
    """Rollouts of each prompt of a batch. Several plans can be in flight.

    The controller keeps its own copy: what a caller writes into `rollouts` has no effect on it.
    """

    uids: ArrayLike
    """As given to `GDROController.plan`."""
    rollouts: np.ndarray
    """(P,) integers, in the order of the uids."""
    number: int
    """Place among its controller's plans, from 0."""
    controller: str = field(repr=False)
    """Identity of the controller that made it; loading a state gives the controller a new one."""
    prompts: Prompts = field(repr=False)
    """What was known of the prompts, sorted by uid."""
    order_P: np.ndarray = field(repr=False)
    """prompts.uids_P = uids[order_P]."""

    def __len__(self) -> int:
        return len(self.rollouts)

    def numbered(self, group_ids_R: np.ndarray) -> np.ndarray:
        """Numbers of rollout groups that no other plan of the same size has, (R,)."""
        return self.number * len(self) + group_ids_R


class Observed(NamedTuple):
    """What `GDROController.observe` returns."""

    weights: np.ndarray
    """(P,) factor on each prompt's advantages; 1 where no rollout came back."""
    advantages: np.ndarray
    """(R,) in the order of the rewards, weighted; they multiply the policy gradient."""
    row: dict[str, Any]
    """One row of the run's record, plain JSON values."""
    ready: bool
    """False where the method wants these rollouts kept for the next optimizer step."""


def check_correct(correct: ArrayLike, count: int) -> np.ndarray:
    """Return `correct` as `count` booleans; ValueError for anything but True, False, 1 and 0."""
    correct_R = check_array("correct", correct, (count,), 0, 1)
    if not np.isin(correct_R, (0, 1)).all():
        raise ValueError(f"correct must be True or False for each rollout, got {short(correct)}")
    return correct_R.astype(bool)


class Given(NamedTuple):
    """Rollouts of a plan as the trainer gave them, checked."""

    group_R: np.ndarray
    rewards_R: np.ndarray
    correct_R: np.ndarray
    losses_R: np.ndarray | None


def check_rollouts(
    planned_P: np.ndarray,
    group_ids: ArrayLike,
    rewards: ArrayLike,
    correct: ArrayLike | None,
    losses: ArrayLike | None,
    success_threshold: float,
) -> Given:
    """Check what a trainer gives for a plan; ValueError for what cannot be.

    `planned_P` are the rollouts that each prompt may bring, with extensions, by `plan.uids`; the
    others are as for `GDROController.observe`.
    """
    group_R = check_array("group_ids", group_ids, None, 0, len(planned_P) - 1, whole=True)
    if group_R.ndim != 1:
        raise ValueError(f"group_ids must have one axis, got the shape {group_R.shape}")
    if not len(group_R):
        raise ValueError(
            "group_ids must have at least one rollout, got the shape (0,); "
            "cancel a plan for which nothing came back"
        )
    count = len(group_R)
    rewards_R = check_array("rewards", rewards, (count,), -LARGEST, LARGEST)
    if correct is None:
        correct_R = is_correct(rewards_R, success_threshold)
    else:
        correct_R = check_correct(correct, count)
    losses_R = None
    if losses is not None:
        losses_R = check_array("losses", losses, (count,), -LARGEST, LARGEST)
    # fewer rollouts than planned are fine, as an engine may drop some; more exceed the budget
    trials_P = np.bincount(group_R, minlength=len(planned_P))
    if (trials_P > planned_P).any():
        p = int((trials_P > planned_P).argmax())
        raise ValueError(
            f"group_ids must hold at most the {planned_P[p]} rollouts planned for prompt {p}, "
            f"got {trials_P[p]}"
        )
    return Given(group_R, rewards_R, correct_R, losses_R)


def make_batch(
    plan: Plan,
    planned_P: np.ndarray,
    given: Given,
    bins: DifficultyBins,
    run: Run,
    is_visit: bool,
) -> tuple[Batch, np.ndarray, np.ndarray]:
    """Make what a method is told of the prompts that came back; in a visit, the bins learn first.

    Returns:
        The batch; position in `plan.uids` of its prompts, (K,); and position of each of its
        rollouts among those that the trainer gave, (R,).
    """
    # the inverse of order_P: from positions in plan.uids to places by uid; a stable sort keeps the
    # order of a prompt's own rollouts
    place_P = plan.order_P.argsort()
    order_R = place_P[given.group_R].argsort(kind="stable")
    trials_P = np.bincount(given.group_R, minlength=len(plan))
    places_K = np.flatnonzero(trials_P[plan.order_P])
    positions_K = plan.order_P[places_K]
    trials_K = trials_P[positions_K]
    group_ids_R = np.repeat(np.arange(len(places_K)), trials_K)
    correct_R = given.correct_R[order_R]
    hits_K = np.bincount(group_ids_R[correct_R], minlength=len(places_K))
    prompts = plan.prompts
    rows_K = prompts.rows_P[places_K]
    # before this visit; other plans may have been observed since this one was made
    successes_K, failures_K = bins.beliefs.counts(rows_K)
    measured_K = bins.measured_D[rows_K]
    planned_bins_K = prompts.bins_P[places_K]
    bins_K = planned_bins_K
    if is_visit:
        bins.visit(rows_K, hits_K, trials_K)
        bins_K = bins.of_rows(rows_K)
    had_no_bin_K = planned_bins_K < 0
    batch = Batch(
        uids_P=prompts.uids_P[places_K],
        rows_P=rows_K,
        # A prompt counts in the bin in which it was planned, or its own outcome would choose where
        # it counts; where it had none, the one that this visit gave it is taken.
        bins_P=np.where(had_no_bin_K, bins_K, planned_bins_K),
        successes_P=successes_K,
        failures_P=failures_K,
        measured_P=measured_K,
        memo=prompts.memo,
        rollouts_P=planned_P[positions_K],
        trials_P=trials_K,
        hits_P=hits_K,
        bins_after_P=bins_K,
        had_no_bin_P=had_no_bin_K,
        group_ids_R=group_ids_R,
        rewards_R=given.rewards_R[order_R],
        correct_R=correct_R,
        given_losses_R=None if given.losses_R is None else given.losses_R[order_R],
        run=run,
    )
    return batch, positions_K, order_R
