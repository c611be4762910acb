"""What is planned, and what came back: values that the controller gives out and takes in.

Axes: P prompts of a plan, K those of them that came back, R rollouts.
"""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from gdro.checks import LARGEST, check_array, check_each, short
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
    """Which controller made it, and since which state was loaded."""
    prompts: Prompts = field(repr=False)
    """What was known of the prompts, sorted by uid."""
    order_P: np.ndarray = field(repr=False)
    """prompts.uids_P = uids[order_P]."""

    def __len__(self) -> int:
        return len(self.rollouts)


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


@dataclass(frozen=True, eq=False, kw_only=True)
class Returned:
    """Rollouts that came back for a plan, checked and sorted by the uid of their prompt.

    Prompts for which none came back are left out; the others are K.
    """

    places_K: np.ndarray
    """Place of each prompt in `plan.prompts`, increasing."""
    positions_K: np.ndarray
    """Position of the same prompts in `plan.uids`."""
    trials_K: np.ndarray
    """Rollouts of each prompt, at least 1."""
    hits_K: np.ndarray
    """Correct ones among them."""
    order_R: np.ndarray
    """Position of each rollout among those that the trainer gave."""
    group_ids_R: np.ndarray
    """Place of each rollout's prompt among the K, increasing."""
    rewards_R: np.ndarray
    correct_R: np.ndarray
    losses_R: np.ndarray | None


def check_correct(correct: ArrayLike, count: int) -> np.ndarray:
    """Return `correct` as `count` booleans; ValueError for anything but True, False, 1 and 0."""
    correct_R = check_each("correct", correct, count, "group_ids", 0, 1)
    if not np.isin(correct_R, (0, 1)).all():
        raise ValueError(f"correct must be True or False for each rollout, got {short(correct)}")
    return correct_R.astype(bool)


def sort_rollouts(
    plan: Plan,
    planned_P: np.ndarray,
    group_ids: ArrayLike,
    rewards: ArrayLike,
    correct: ArrayLike | None,
    losses: ArrayLike | None,
    success_threshold: float,
) -> Returned:
    """Check what a trainer gives for a plan, and sort it; ValueError for what cannot be.

    Args:
        plan: of the prompts.
        planned_P: rollouts that each may bring, in the order of `plan.uids`.
        group_ids, rewards, correct, losses: as for `GDROController.observe`.
        success_threshold: a rollout is correct if its reward is greater, where `correct` is None.
    """
    group_R = check_array("group_ids", group_ids, None, 0, len(plan) - 1, whole=True)
    if group_R.ndim != 1 or not len(group_R):
        raise ValueError(
            f"group_ids must have at least one rollout, got the shape {group_R.shape}; "
            "cancel a plan for which nothing came back"
        )
    count = len(group_R)
    rewards_R = check_each("rewards", rewards, count, "group_ids", -LARGEST, LARGEST)
    if correct is None:
        correct_R = is_correct(rewards_R, success_threshold)
    else:
        correct_R = check_correct(correct, count)
    losses_R = None
    if losses is not None:
        losses_R = check_each("losses", losses, count, "group_ids", -LARGEST, LARGEST)
    # fewer rollouts than planned are fine, as an engine may drop some; more exceed the budget
    trials_P = np.bincount(group_R, minlength=len(plan))
    if (trials_P > planned_P).any():
        p = int((trials_P > planned_P).argmax())
        raise ValueError(
            f"group_ids must hold at most the {planned_P[p]} rollouts planned for prompt {p}, "
            f"got {trials_P[p]}"
        )
    # the inverse of order_P: from positions in plan.uids to places by uid; a stable sort keeps the
    # order of a prompt's own rollouts
    place_P = plan.order_P.argsort()
    order_R = place_P[group_R].argsort(kind="stable")
    places_K = np.flatnonzero(trials_P[plan.order_P])
    positions_K = plan.order_P[places_K]
    trials_K = trials_P[positions_K]
    sorted_ids_R = np.repeat(np.arange(len(places_K)), trials_K)
    sorted_correct_R = correct_R[order_R]
    return Returned(
        places_K=places_K,
        positions_K=positions_K,
        trials_K=trials_K,
        hits_K=np.bincount(sorted_ids_R[sorted_correct_R], minlength=len(places_K)),
        order_R=order_R,
        group_ids_R=sorted_ids_R,
        rewards_R=rewards_R[order_R],
        correct_R=sorted_correct_R,
        losses_R=None if losses_R is None else losses_R[order_R],
    )


def make_batch(
    plan: Plan,
    planned_P: np.ndarray,
    rollouts: Returned,
    counts_K: tuple[np.ndarray, np.ndarray],
    bins_K: np.ndarray,
    run: Run,
) -> Batch:
    """What a method is told of a plan's prompts that came back.

    Args:
        plan: whose prompts have the bins of the time when it was made.
        planned_P: rollouts with extensions, in the order of `plan.uids`.
        rollouts: that came back.
        counts_K: successes and failures before this visit. Other plans may have been observed since
            this one was made, and their visits count as evidence.
        bins_K: bins now.
        run: of the controller.
    """
    planned_bins_K = plan.prompts.bins_P[rollouts.places_K]
    had_no_bin_K = planned_bins_K < 0
    successes_K, failures_K = counts_K
    return Batch(
        uids_P=plan.prompts.uids_P[rollouts.places_K],
        rows_P=plan.prompts.rows_P[rollouts.places_K],
        # A prompt counts in the bin in which it was planned, or its own outcome would choose where
        # it counts; where it had none, the one that this visit gave it is taken.
        bins_P=np.where(had_no_bin_K, bins_K, planned_bins_K),
        successes_P=successes_K,
        failures_P=failures_K,
        prior_alpha_P=_of_places(plan.prompts.prior_alpha_P, rollouts.places_K),
        prior_beta_P=_of_places(plan.prompts.prior_beta_P, rollouts.places_K),
        memo=plan.prompts.memo,
        rollouts_P=planned_P[rollouts.positions_K],
        trials_P=rollouts.trials_K,
        hits_P=rollouts.hits_K,
        bins_after_P=bins_K,
        had_no_bin_P=had_no_bin_K,
        group_ids_R=rollouts.group_ids_R,
        rewards_R=rollouts.rewards_R,
        correct_R=rollouts.correct_R,
        given_losses_R=rollouts.losses_R,
        run=run,
    )


def _of_places(values_P: np.ndarray | float, places_K: np.ndarray) -> np.ndarray | float:
    """Values of some prompts, where each has its own."""
    return values_P[places_K] if isinstance(values_P, np.ndarray) else values_P
