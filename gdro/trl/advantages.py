"""From rewards to advantages: the controller is told what came back for a plan, and answers.

Axes: P prompts of a plan, R its rollouts, of all processes, in TRL's order; T tokens.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from trl import GRPOTrainer

from gdro.advantages import flat_groups
from gdro.controller import GDROController, Plan
from gdro.rounds import Samples
from gdro.trl.logs import log_advantages
from gdro.trl.values import LossInputs, Signal, learned_mask


def observe(
    controller: GDROController, plan: Plan, samples: Samples, losses_R: np.ndarray | None = None
) -> tuple[Signal, Mapping[str, Any] | None]:
    """Tell the controller what came back for a plan in flight.

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
    is_flat_P = flat_groups(scored.rewards_R, scored.group_ids_R, len(plan))
    is_flat_R[is_scored_R] = is_flat_P[scored.group_ids_R]
    return Signal(advantages_R, is_flat_R, observed.ready), observed.row


def put_advantages(
    trainer: GRPOTrainer, output: LossInputs, local_rows: slice, signal: Signal
) -> None:
    """Replace TRL's advantages, in what its loss takes and in its log."""
    advantages_R = torch.as_tensor(signal.advantages_R).to(output["advantages"])
    output["advantages"] = advantages_R[local_rows]
    log_advantages(trainer._logs, trainer._metrics["train"], signal)


def drop_rounding(
    trainer: GRPOTrainer, output: LossInputs, local_rows: slice, is_flat_R: np.ndarray
) -> None:
    """Put TRL's advantages to 0 where all rewards of the group are equal.

    The mean of eight float32 rewards of .1 is not .1, and TRL's advantages are then 1e-4.
    """
    if trainer.multi_objective_aggregation != "sum_then_normalize":
        return
    local_R = torch.as_tensor(is_flat_R[local_rows])
    output["advantages"][local_R.to(output["advantages"].device)] = 0.0
    logged_R = np.array(trainer._logs["advantages"])  # of this batch alone
    trainer._logs["advantages"].extend(np.where(is_flat_R, 0.0, logged_R).tolist())


def divergences(output: LossInputs, logps_RT: Tensor) -> Tensor:
    """KL(π_θ ‖ π_ref) of each local rollout by TRL's estimator, averaged over its tokens, (R,)."""
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


@torch.no_grad()
def surrogate_losses(
    trainer: GRPOTrainer, output: LossInputs, samples: Samples, num_prompts: int
) -> np.ndarray | None:
    """ℓ_ij of (6) for all rollouts at the sampling policy (ρ = 1), (R,); None where −A_ij."""
    if not trainer.controller.method.needs_losses or trainer.beta == 0.0:
        return None
    logps_RT = output.get("old_per_token_logps")
    if logps_RT is None:  # TRL leaves them out where a batch serves one optimizer step
        sides = ("prompt", "completion")
        logps_RT, *_ = trainer._get_per_token_logps_and_entropies(
            trainer.model,
            torch.cat([output[f"{side}_ids"] for side in sides], dim=1),
            torch.cat([output[f"{side}_mask"] for side in sides], dim=1),
            output["completion_ids"].size(1),
            batch_size=trainer.args.per_device_train_batch_size,
        )
    kl_R = divergences(output, logps_RT)
    losses_R = trainer.beta * trainer.accelerator.gather(kl_R).cpu().numpy()
    scored = samples.scored()
    losses_R[samples.is_scored_R] -= trainer.controller.run.advantages(
        scored.rewards_R, scored.group_ids_R, num_prompts
    )
    return losses_R
