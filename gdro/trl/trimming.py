"""What a training step leaves out: rows without an advantage, columns of padding.

Where nothing but advantages trains (`only_advantages_train`), a rollout of advantage 0 adds nothing
to the gradient. It is left out of forward and backward, and the loss is scaled so that the gradient
stays that of the whole batch.

Axes: R rollouts of a micro-batch, N some of them, T tokens.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from accelerate.utils import DistributedType
from torch import Tensor, nn
from trl import GRPOTrainer

from gdro.trl.values import LossInputs

logger = logging.getLogger(__name__)

TokenLogps = tuple[Tensor, Tensor | None, Tensor | None]
"""Log-probabilities, entropies and the loss of the routers, the latter two where asked for."""

# losses that divide by the tokens of the whole generation batch
SUMS = ("dapo", "cispo", "vespo")
# losses of Unsloth that are means over rows; the others divide by the whole batch's tokens
MEANS_OVER_ROWS = ("grpo", "sapo", "dr_grpo", "luspo")


@dataclass
class Savings:
    """What a trainer knows of what it does not compute."""

    computed_tokens: int = 0
    """With a gradient, of the micro-batch."""
    said: set[str] = field(default_factory=set)
    """Savings that are off, and why."""
    compared: set[str] = field(default_factory=set)
    """Ways of computing prompts, "with" and "without" gradients, that were held to TRL's."""
    differ: str = ""
    """What differed there."""
    apart: str | None = None
    """Why prompts are computed for each rollout in the whole training; None before it is known."""
    has_dropout: bool = False
    """Whether a module of the model drops values at random while it trains."""


def say_once(trainer: GRPOTrainer, what: str) -> None:
    """Warn of a saving that is off, and why, once in a training."""
    if what not in trainer.savings.said:
        trainer.savings.said.add(what)
        logger.warning(f"trim_batches: {what}")


def has_batch_terms(trainer: GRPOTrainer) -> bool:
    """Whether the loss has terms over all rows: entropy bonus, router loss, entropy quantile."""
    has_terms = trainer._entropy_bonus_enabled or trainer.aux_loss_enabled
    return has_terms or trainer.top_entropy_quantile < 1


def only_advantages_train(trainer: GRPOTrainer) -> bool:
    """Whether rows of advantage 0 have no gradient."""
    return trainer.beta == 0 and not has_batch_terms(trainer)


def trimmed_loss(
    trainer: GRPOTrainer,
    loss: Callable[[LossInputs], Tensor],
    model: nn.Module,
    inputs: LossInputs,
) -> Tensor:
    """TRL's `loss` on what has a gradient, scaled to that of the whole micro-batch.

    The log gets the tokens of the micro-batch, and those of them that were computed.
    """
    trainer.savings.computed_tokens = 0
    kept = what_trains(trainer, inputs)
    value = zero_loss(model) if kept is None else kept[1] * loss(kept[0])
    tokens = inputs["prompt_mask"].sum() + inputs["completion_mask"].sum()
    both = torch.stack([torch.full_like(tokens, trainer.savings.computed_tokens), tokens])
    computed, whole = trainer.accelerator.reduce(both, reduction="sum").tolist()
    trainer._metrics["train"]["gdro/computed_tokens"].append(computed)
    trainer._metrics["train"]["gdro/batch_tokens"].append(whole)
    return value


def count_tokens(trainer: GRPOTrainer, *masks: Tensor) -> None:
    """Add what is computed with a gradient to the trainer's count."""
    if torch.is_grad_enabled():
        trainer.savings.computed_tokens += sum(int(mask.sum()) for mask in masks)


def what_trains(trainer: GRPOTrainer, inputs: LossInputs) -> tuple[LossInputs, float] | None:
    """The rows and columns with a gradient, and the factor of their loss; None if none have."""
    if "num_images" in inputs:
        say_once(trainer, "batches with images are computed whole")
        return inputs, 1.0
    keep = len(inputs["advantages"])
    if only_advantages_train(trainer):
        with_signal = (inputs["advantages"] != 0).sum()
        # with several processes, forward and backward exchange weights: all take part
        if not with_signal and trainer.accelerator.distributed_type == DistributedType.NO:
            return None
        # as many on every process, since TRL gathers its metrics by row
        keep = int(trainer.accelerator.gather(with_signal.clamp(min=1)).max())
    return trim_batch(inputs, keep, trainer.loss_type)


def zero_loss(model: nn.Module) -> Tensor:
    """A loss of 0 whose backward gives a gradient of 0 to each weight that has none yet.

    It takes the place of forward and backward where no row has an advantage. Weights must have a
    gradient, or the optimizer would pass over them, and with them over their momentum and decay.
    """
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    without = [weight for weight in weights if weight.grad is None]
    # a backward needs at least one
    chosen = without or [min(weights, key=torch.Tensor.numel)]
    # sums over nothing: no weight is read, so none can make it NaN
    return torch.stack([weight.flatten()[:0].sum().float() for weight in chosen]).sum()


def take_rows(inputs: LossInputs, rows_N: Tensor) -> LossInputs:
    """Some rows of the inputs of a loss, by positions or by a mask of all."""
    return {
        name: value[rows_N] if torch.is_tensor(value) and value.dim() else value
        for name, value in inputs.items()
    }


def trim_batch(inputs: LossInputs, keep: int, loss_type: str) -> tuple[LossInputs, float]:
    """`inputs` of TRL's loss with `keep` of their rows, as wide as the longest texts left.

    Rows with an advantage are kept before those without, and of both the shorter. Returns too the
    factor that turns the loss on them into that on all rows, as far as it depends on the weights.
    """
    lengths_R = inputs["completion_mask"].sum(dim=1)
    rows_N = torch.arange(len(lengths_R), device=lengths_R.device)
    if keep < len(rows_N):
        # any row with an advantage ranks above any without
        rank_R = (inputs["advantages"] != 0) * (1 + lengths_R.max()) - lengths_R
        rows_N = rank_R.argsort(descending=True, stable=True)[:keep].sort().values
    length = max(int(lengths_R[rows_N].max()), 1)
    prompt_length = int(inputs["prompt_mask"][rows_N].sum(dim=1).max())
    kept = take_rows(inputs, rows_N)
    for name, value in kept.items():
        # (R, 1) is one number a sequence
        if not torch.is_tensor(value) or value.dim() != 2 or value.size(1) == 1:
            continue
        if name.startswith("prompt"):  # padded on the left
            kept[name] = value[:, -prompt_length:]
        else:
            kept[name] = value[:, :length]
    return kept, share_of(inputs, rows_N, loss_type)


def share_of(inputs: LossInputs, rows_N: Tensor, loss_type: str) -> float:
    """The factor that turns the loss on some rows into their part of the loss on all."""
    if loss_type in SUMS:
        return 1.0
    if loss_type == "bnpo":  # a mean over tokens
        masks_RT = inputs["completion_mask"] * inputs.get("tool_mask", 1)
        return float(masks_RT[rows_N].sum() / masks_RT.sum().clamp(min=1))
    return len(rows_N) / len(inputs["advantages"])


def why_padding_counts(model: Any) -> str:
    """Why a text's results depend on the padding before it; "" where they do not.

    Rotary positions count from token to token, so that padding shifts nothing. Learned positions,
    such as GPT-2's, do not, nor do those that are scaled by the length with its padding. The tokens
    of an adapter stand before the padding.
    """
    rotary = getattr(model.config.get_text_config(), "rope_parameters", None) or {}
    # a dictionary for each kind of layer, or one for all
    kinds = [kind for kind in rotary.values() if isinstance(kind, dict)] or [rotary]
    if not rotary:
        return "positions are not rotary"
    if any(kind.get("rope_type") in ("dynamic", "longrope") for kind in kinds):
        return "rotary positions are scaled by the length"
    if any(adapter.is_prompt_learning for adapter in getattr(model, "peft_config", {}).values()):
        return "the adapter adds tokens before the prompts"
    return ""


def rows_with_signal(inputs: LossInputs, loss_type: str) -> LossInputs:
    """`inputs` of Unsloth's loss without rows of advantage 0, but at least one: the same gradient.

    Its backward ignores what the loss is multiplied by, so where it takes a mean over rows the
    advantages are scaled. Columns stay: its log-probabilities are as wide as the longest completion
    and the padding of the prompts together.
    """
    has_signal_R = inputs["advantages"] != 0
    if has_signal_R.all() or "num_images" in inputs:
        return inputs
    has_signal_R[0] |= not has_signal_R.any()
    rows_N = has_signal_R.nonzero()[:, 0]
    kept = take_rows(inputs, rows_N)
    if loss_type in MEANS_OVER_ROWS:
        kept["advantages"] = kept["advantages"] * (len(rows_N) / len(has_signal_R))
    return kept


def row_order(ids_RT: Tensor, mask_RT: Tensor, lengths_R: Tensor, *before_R: np.ndarray) -> Tensor:
    """Places of rows, (R,): those of a prompt together, the longest first; `before_R` go before."""
    _, prompt_R = torch.unique(torch.cat([ids_RT, mask_RT], dim=1), dim=0, return_inverse=True)
    longest_P = torch.zeros_like(lengths_R).scatter_reduce(0, prompt_R, lengths_R, "amax")
    keys = [key.cpu().numpy() for key in (-lengths_R, prompt_R, -longest_P[prompt_R])]
    # the last key counts most
    return torch.from_numpy(np.lexsort([*keys, *before_R])).to(ids_RT.device)


def logps_by_length(
    score: Callable[[Tensor, Tensor, int], TokenLogps],
    ids_RT: Tensor,
    mask_RT: Tensor,
    length: int,
    batch_size: int | None,
) -> TokenLogps:
    """Log-probabilities of completions, (R, length), by prompts and lengths.

    Rows of a prompt go together, and prompts of similar length: the same numbers as from all rows
    at once, to rounding, with less padding; 0 where the mask is 0. Prompts are padded on their
    left, completions on their right. `score` gives those of at most `batch_size` rows.
    """
    prompt_R = mask_RT[:, :-length].sum(dim=1)
    text_R = mask_RT[:, -length:].sum(dim=1)
    start = ids_RT.size(1) - length  # the first column of the completions
    places_R = row_order(ids_RT[:, :start], mask_RT[:, :start], prompt_R + text_R)
    logps_RT = torch.zeros(0)
    for rows_N in places_R.split(batch_size or len(ids_RT)):
        width = max(int(text_R[rows_N].max()), 1)
        columns = slice(start - max(int(prompt_R[rows_N].max()), 1), start + width)
        logps_NT, *_ = score(ids_RT[rows_N, columns], mask_RT[rows_N, columns], width)
        if not len(logps_RT):  # its type and device are known now
            logps_RT = logps_NT.new_zeros(len(ids_RT), length)
        logps_RT[rows_N, :width] = logps_NT * mask_RT[rows_N, start : start + width]
    return logps_RT, None, None
