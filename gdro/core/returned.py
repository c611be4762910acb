"""What came back for a plan, checked and sorted.

A trainer may return rollouts in any order and may leave some out, and no result may depend on that. So
everything behind the controller is sorted by the keys of the uids, and `sorted_returns` changes the order:

1. The trainer names a prompt by its position in its batch, the plan by the place of its key: `order_P[i]` is
   the position of the prompt with the i-th smallest key.
2. Prompts without any rollout are dropped, which leaves K of the P. A group id, which is a position, becomes
   an index into these K.
3. The rollouts are sorted by that index. Those of one prompt keep the order in which they were given.

With uids [30, 10, 20], order_P is [1, 2, 0]. Three rollouts with group ids [2, 0, 2] belong to the prompts
20, 30 and 20. So position_K is [2, 0], order_R = [0, 2, 1] sorts the rollouts, and their new group ids are
[0, 0, 1]. `position_K` and `order_R` also lead back, to the order in which the trainer expects its answers.

Axes: P prompts of a plan in the trainer's order, K those that came back, sorted by key, R rollouts.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from gdro.core.checks import check_array
from gdro.core.limits import LARGEST


class Returned(NamedTuple):
    """Rollouts sorted by the key of their prompt."""

    present_K: np.ndarray  # place of each prompt among all P of the plan, sorted by key
    position_K: np.ndarray  # its position in the trainer's batch
    trials_K: np.ndarray  # number of its rollouts
    order_R: np.ndarray  # where each rollout below was among those given
    group_ids_R: np.ndarray  # index of its prompt among the K, increasing
    rewards_R: np.ndarray
    losses_R: np.ndarray | None


def sorted_returns(
    order_P: np.ndarray,
    planned_P: np.ndarray,
    group_ids: ArrayLike,
    rewards: ArrayLike,
    losses: ArrayLike | None,
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
    # Fewer rollouts than planned are fine: an engine may drop some. More would exceed the budget.
    trials_P = np.bincount(group_ids_R, minlength=prompts)
    if (trials_P > planned_P).any():
        p = int((trials_P > planned_P).argmax())
        raise ValueError(
            f"group_ids must hold at most the planned rollouts of each prompt, got {trials_P[p]} for "
            f"prompt {p}, planned {planned_P[p]}; observe each rollout once, with its own plan"
        )
    # Steps 1 and 2: prompts with rollouts, in the order of their keys, and an index for each position.
    present_K = np.flatnonzero(trials_P[order_P])
    position_K = order_P[present_K]
    place_P = np.zeros(prompts, np.int64)
    place_P[position_K] = np.arange(len(position_K))
    group_ids_R = place_P[group_ids_R]
    # Step 3.
    order_R = group_ids_R.argsort(kind="stable")
    return Returned(
        present_K,
        position_K,
        trials_P[position_K],
        order_R,
        group_ids_R[order_R],
        rewards_R[order_R],
        None if losses_R is None else losses_R[order_R],
    )
