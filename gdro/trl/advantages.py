"""From rewards to advantages: the controller is told what came back for a plan, and answers.

Axes: P prompts of a plan, R its rollouts, of all processes, in TRL's order; T tokens.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gdro.controller import GDROController, Plan
from gdro.rounds import Samples
from gdro.trl.values import LossInputs, Signal, has_spread, learned_mask


def observe(
    controller: GDROController, plan: Plan, samples: Samples, losses_R: np.ndarray | None = None
) -> tuple[Signal, Mapping[str, Any] | None]:
    """Tell the controller what came back for a plan.

    Args:
        controller: that made the plan.
        plan: in flight.
        samples: all rollouts of the plan.
        losses_R: surrogate losses of all rollouts; None where the controller takes −A.

    Returns:
        What is trained on, and the controller's row of the record; None without any reward.
    """
    is_scored_R = samples.is_scored_R
    advantages_R = np.zeros(len(is_scored_R))
    is_flat_R = np.ones(len(is_scored_R), bool)
    if not is_scored_R.any():  # nothing to observe, and a method that waits goes on waiting
        controller.cancel(plan)
        return Signal(advantages_R, is_flat_R, ready=not controller.method.waits), None
    scored = samples.scored()
    observed = controller.observe(
        plan,
        scored.group_ids_R,
        scored.rewards_R,
        correct=scored.correct_R,
        losses=None if losses_R is None else losses_R[is_scored_R],
    )
    advantages_R[is_scored_R] = observed.advantages
    is_flat_R[is_scored_R] = ~has_spread(scored.rewards_R, scored.group_ids_R)
    return Signal(advantages_R, is_flat_R, observed.ready), observed.row


def put_advantages(output: LossInputs, local_rows: slice, signal: Signal) -> None:
    """Replace TRL's advantages, in what its loss takes, by those of this process's rollouts."""
    advantages_R = torch.as_tensor(signal.advantages_R).to(output["advantages"])
    output["advantages"] = advantages_R[local_rows]


def divergences(output: LossInputs, logps_RT: Tensor) -> Tensor:
    """KL(π_θ ‖ π_ref) of each local rollout by TRL's estimator, averaged over its tokens, (R,).

    Args:
        output: what TRL's loss takes.
        logps_RT: log-probabilities of the completions at the policy.
    """
    mask_RT = learned_mask(output)
    gap_RT = output["ref_per_token_logps"] - logps_RT
    # Unsloth packs rows to the left, with the most prompt padding as further columns: a completion
    # starts later by the padding that its row lacks. TRL's all start at 0, where `excess_R` is
    # negative
    padding_R = (output["prompt_mask"] == 0).sum(dim=1)
    excess_R = gap_RT.size(1) - mask_RT.size(1) - padding_R
    columns_T = torch.arange(mask_RT.size(1), device=mask_RT.device)
    gap_RT = gap_RT.gather(1, excess_R.clamp(min=0)[:, None] + columns_T)
    kl_RT = (gap_RT.exp() - gap_RT - 1) * mask_RT
    return kl_RT.sum(dim=1) / mask_RT.sum(dim=1).clamp(min=1)


def surrogate_losses(
    controller: GDROController, samples: Samples, penalties_R: np.ndarray, num_prompts: int
) -> np.ndarray:
    """ℓ_ij of (6) for all rollouts at the sampling policy, where ρ is 1: β KL − A_ij, (R,)."""
    losses_R = penalties_R.copy()
    scored = samples.scored()
    losses_R[samples.is_scored_R] -= controller.run.advantages(
        scored.rewards_R, scored.group_ids_R, num_prompts
    )
    return losses_R


@torch.no_grad()
def policy_logps(
    score: Callable[..., tuple], output: LossInputs, batch_size: int, rows: slice = slice(None)
) -> Tensor:
    """Log-probabilities of the completions of some rows at the policy as it is, (R, T).

    Args:
        score: TRL's `_get_per_token_logps_and_entropies` of the model.
        output: what TRL's loss takes.
        batch_size: rows that are scored at once.
        rows: which.
    """
    sides = ("prompt", "completion")
    logps_RT, *_ = score(
        torch.cat([output[f"{side}_ids"][rows] for side in sides], dim=1),
        torch.cat([output[f"{side}_mask"][rows] for side in sides], dim=1),
        output["completion_ids"].size(1),
        batch_size=batch_size,
    )
    return logps_RT
