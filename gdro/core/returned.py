"""What came back for a plan, checked and sorted.

Nothing may depend on the order of a batch or on the order in which rollouts come back. So everything behind
the controller is in the order of the uid keys, and three orders meet here. The trainer counts prompts by
their position in its batch. The plan keeps them by key: `order_P[i]` is the position of the prompt with the
i-th key. Prompts of which nothing came back are left out, which leaves K of the P; a group id, which is a
position, becomes a place among those K. Rollouts are then sorted by that place, those of one prompt in the
order in which they were given.

Axes: P prompts of a plan in the trainer's order, K those of them that came back in the order of their keys,
R rollouts.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from gdro.core.checks import check_array
from gdro.core.limits import LARGEST


class Returned(NamedTuple):
    """Rollouts by prompt."""

    present_K: np.ndarray  # place of each prompt that came back among all of the plan, by key
    position_K: np.ndarray  # its position in the trainer's batch
    trials_K: np.ndarray  # its rollouts
    order_R: np.ndarray  # place of each rollout below among those given
    group_ids_R: np.ndarray  # place of its prompt among the K, increasing
    rewards_R: np.ndarray
    losses_R: np.ndarray | None


def sorted_returns(
    order_P: np.ndarray,
    planned_P: np.ndarray,
    group_ids: ArrayLike,
    rewards: ArrayLike,
    losses: ArrayLike | None = None,
) -> Returned:
    """Rollouts as a trainer gives them, (R,) each, in the order of their prompts' keys.

    ValueError if they do not fit the plan: `planned_P` rollouts at most of each prompt, by position.
    """
    remedy = "scale them, and leave out what is not finite"
    rewards_R = check_array("rewards", rewards, low=-LARGEST, high=LARGEST, remedy=remedy)
    size, prompts = rewards_R.shape, len(order_P)
    if len(size) != 1 or not rewards_R.size:
        raise ValueError(
            f"rewards must be one per rollout, at least one, got shape {size}; a plan that brought "
            "nothing need not be observed"
        )
    where = "give each rollout the position of its prompt in plan.uids"
    group_ids_R = check_array("group_ids", group_ids, size, 0, prompts - 1, whole=True, remedy=where)
    losses_R = None
    if losses is not None:
        losses_R = check_array("losses", losses, size, -LARGEST, LARGEST, remedy=remedy)
    trials_P = np.bincount(group_ids_R, minlength=prompts)
    if (trials_P > planned_P).any():
        p = int((trials_P > planned_P).argmax())
        raise ValueError(
            f"group_ids must hold at most the planned rollouts of each prompt, got {trials_P[p]} for "
            f"prompt {p}, planned {planned_P[p]}; observe each rollout once, with its own plan"
        )
    present_K = np.flatnonzero(trials_P[order_P])
    position_K = order_P[present_K]
    place_P = np.zeros(prompts, np.int64)
    place_P[position_K] = np.arange(len(position_K))
    group_ids_R = place_P[group_ids_R]
    # numpy sorts 16-bit integers by radix, several times as fast as longer ones
    order_R = group_ids_R.astype(np.min_scalar_type(prompts)).argsort(kind="stable")
    return Returned(
        present_K,
        position_K,
        trials_P[position_K],
        order_R,
        group_ids_R[order_R],
        rewards_R[order_R],
        None if losses_R is None else losses_R[order_R],
    )
