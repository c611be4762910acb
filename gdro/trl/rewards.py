"""Rewards: what TRL was given for each rollout, and what is correct.

Axes: R rollouts of all processes, F reward functions.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor
from trl import GRPOTrainer

from gdro.metrics import is_correct
from gdro.rounds import Samples
from gdro.trl.values import replaced


@contextmanager
def kept_rewards(trainer: GRPOTrainer) -> Iterator[list[Tensor]]:
    """What `_calculate_rewards`, or a subclass's that shapes them, returns in this block, (R, F).

    TRL logs the rewards, but by name: where two functions have one name, only the last is there.
    """
    calculate = trainer._calculate_rewards
    kept: list[Tensor] = []

    def keep(*given: object, **named: object) -> Tensor:
        kept.append(calculate(*given, **named))
        return kept[-1]

    with replaced(trainer, _calculate_rewards=keep):
        yield kept


def judge(
    rewards_RF: Tensor,
    group_ids_R: np.ndarray,
    weights_F: Tensor,
    success: int | None,
    threshold: float,
) -> Samples:
    """Rollouts with the weighted sum of their rewards, and which of them are correct.

    One whose sum, or whose value of `success`, is not finite has no reward.

    Args:
        rewards_RF: NaN where a function gave none.
        group_ids_R: position of each rollout's prompt.
        weights_F: of the functions.
        success: place of the function that says what is correct; None for the sum.
        threshold: above which a rollout is correct.
    """
    rewards_RF = rewards_RF.cpu()
    rewards_R = (rewards_RF * weights_F.cpu()).nansum(dim=1)
    rewards_R[rewards_RF.isnan().all(dim=1)] = torch.nan
    successes_R = rewards_R
    if success is not None:
        named_R = rewards_RF[:, success]
        # where it gives None, as for rows of another task, the others judge
        successes_R = torch.where(named_R.isnan(), rewards_R, named_R)
    is_scored_R = rewards_R.isfinite() & successes_R.isfinite()
    correct_R = is_correct(successes_R.numpy(), threshold)
    correct_R &= is_scored_R.numpy()
    rewards_R[~is_scored_R] = torch.nan
    return Samples(group_ids_R, rewards_R.numpy(), correct_R)
