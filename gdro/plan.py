"""Plans are values: rollouts for the prompts of a batch, and what came back for them.

Several plans can be in flight at once and be observed in any order; prompts and rollouts may be missing.
Axes: P prompts in the order they were given, K those of them with rollouts, in the order of their keys, R
rollouts.
"""

import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from gdro.checks import check_array, check_finite
from gdro.methods.base import Batch, Prompts, Run


@dataclass(frozen=True, eq=False)
class Plan:
    """Rollouts of each prompt of a batch."""

    uids: Any  # as given to `GDROController.plan`
    rollouts: np.ndarray  # (P,) integers
    owner: str = field(repr=False)  # the controller: with the number it identifies a copy too
    number: int = field(repr=False)
    prompts: Prompts = field(repr=False)  # in the order of their keys
    order_P: np.ndarray = field(repr=False)  # prompts.keys_P = keys[order_P]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self.rollouts if dtype is None and not copy else np.array(self.rollouts, dtype)

    def __len__(self) -> int:
        return len(self.rollouts)


class Observed(NamedTuple):
    """What `observe` returns."""

    weights: np.ndarray  # (P,) factor on each prompt's advantages; 1 where no rollout came back
    advantages: np.ndarray  # (R,) in the order of the rewards, weighted: what multiplies the policy gradient
    row: dict[str, Any]  # one row of the run's record, plain JSON values
    ready: bool  # False where the method wants these rollouts kept for the next optimizer step


def returned(
    plan: Plan,
    allowed_P: np.ndarray,
    group_ids: ArrayLike,
    rewards: ArrayLike,
    losses: ArrayLike | None,
    success_threshold: float,
    run: Run,
) -> tuple[Batch, np.ndarray, np.ndarray]:
    """What came back, sorted by uid key, so that nothing later depends on the order of the batch.

    `allowed_P` are the rollouts that each prompt may have brought; `group_ids`, `rewards` and `losses` (R,)
    are as for `GDROController.observe`.

    Returns:
        The batch; the position in the plan of each of its prompts (K,); and the place among the given
        rollouts of each of its rollouts (R,).
    """
    rewards_R = check_finite("rewards", rewards)
    if rewards_R.ndim != 1 or not rewards_R.size:
        raise ValueError(
            f"rewards must be one per rollout, at least one, got shape {rewards_R.shape}; a plan that "
            "brought nothing need not be observed"
        )
    remedy, shape = "give each rollout the position of its prompt in plan.uids", rewards_R.shape
    group_ids_R = check_array("group_ids", group_ids, shape, 0, len(plan) - 1, whole=True, remedy=remedy)
    if losses is not None:
        losses = check_array("losses", check_finite("losses", losses), shape, remedy="give one per rollout")
    trials_P = np.bincount(group_ids_R, minlength=len(plan))
    if (trials_P > allowed_P).any():
        p = int((trials_P > allowed_P).argmax())
        raise ValueError(
            f"group_ids must hold at most the planned rollouts of each prompt, got {trials_P[p]} for prompt "
            f"{p}, planned {allowed_P[p]}; observe each rollout once, with the plan it was made for"
        )
    known, present_K = plan.prompts, np.flatnonzero(trials_P[plan.order_P])
    position_K = plan.order_P[present_K]
    place_P = np.zeros(len(plan), np.int64)
    place_P[position_K] = np.arange(len(position_K))
    order_R = place_P[group_ids_R].argsort(kind="stable")
    group_ids_R, rewards_R = place_P[group_ids_R][order_R], rewards_R[order_R]
    correct_R = rewards_R > success_threshold
    batch = Batch(
        **known.of(present_K),
        rollouts_P=allowed_P[position_K],
        trials_P=trials_P[position_K],
        hits_P=np.bincount(group_ids_R, correct_R, len(position_K)).astype(np.int64),
        bins_after_P=known.bins_P[present_K],
        first_visit_P=~known.seen_P[present_K],
        group_ids_R=group_ids_R,
        rewards_R=rewards_R,
        correct_R=correct_R,
        given_losses_R=None if losses is None else losses[order_R],
        run=run,
    )
    return batch, position_K, order_R


def row_of(batch: Batch, weights_P: np.ndarray, num_bins: int) -> dict[str, Any]:
    """What a record says of any method: plain values, lists by bin with None where a bin has no prompts."""
    size, bins = num_bins + 1, batch.bins_P + 1  # [0]: without a bin
    counts_B = np.bincount(bins, minlength=size)[1:]

    def by_bin(values_P: np.ndarray, sizes_B: np.ndarray) -> list[float | None]:
        sums_B = np.bincount(bins, values_P, size)[1:]
        return [s / n if n else None for s, n in zip(sums_B.tolist(), sizes_B.tolist(), strict=True)]

    known_P = batch.trials_P > 1  # a single rollout has no variance
    known_B = np.bincount(bins, known_P, size)[1:]
    variance_B = by_bin(np.where(known_P, batch.variance_P, 0.0), known_B)
    return {
        "unseen": int((batch.bins_P < 0).sum()),
        "share": (counts_B / len(batch)).tolist(),
        "weight": by_bin(weights_P, counts_B),
        "probability": None,
        "rollouts": by_bin(batch.trials_P, counts_B),
        "success": by_bin(batch.hits_P / batch.trials_P, counts_B),
        "deviation": [None if v is None else math.sqrt(v) for v in variance_B],
        "price": None,
        "demand": None,
        "infeasible_steps": 0,
        "mean_reward": float(batch.rewards_R.mean()),
    }
