"""The order of rows within an optimizer step: those with an advantage first, by prompts.

TRL shuffles a generation batch and cuts it into micro-batches. A gradient is summed over those of
an optimizer step, so in which of them a row is changes it by rounding alone. In this order
micro-batches without a signal come last, and are not computed; the others are full of rows that
share prompts and are of like length.

Axes: R rows of a generation batch on this process.
"""

import math

import numpy as np
import torch
from trl import GRPOTrainer
from trl.trainer.utils import split_tensor_dict

from gdro.trl.trimming import (
    has_batch_terms,
    only_advantages_train,
    row_order,
    say_once,
    take_rows,
)
from gdro.trl.values import LossInputs


def order_batches(trainer: GRPOTrainer, batches: list[LossInputs]) -> list[LossInputs]:
    """The micro-batches of a generation, their rows ordered within each optimizer step."""
    if trainer.loss_type == "bnpo" or has_batch_terms(trainer):
        what = "bnpo's loss" if trainer.loss_type == "bnpo" else "a term of entropy or routers"
        say_once(trainer, f"rows keep TRL's order: {what} is a mean over each micro-batch")
        return batches
    if "num_images" in batches[0]:
        return batches
    rows = {
        name: torch.cat([batch[name] for batch in batches]) if value.dim() else value
        for name, value in batches[0].items()
    }
    # so many micro-batches are of one optimizer step, also where neither number divides the other
    window = math.gcd(trainer.args.gradient_accumulation_steps, len(batches))
    total = len(rows["advantages"])
    steps_R = np.arange(total) * len(batches) // (window * total)
    is_last_R = np.zeros(total, bool)
    if only_advantages_train(trainer):
        is_last_R = (rows["advantages"] == 0).cpu().numpy()
    lengths_R = rows["prompt_mask"].sum(dim=1) + rows["completion_mask"].sum(dim=1)
    places_R = row_order(rows["prompt_ids"], rows["prompt_mask"], lengths_R, is_last_R, steps_R)
    return split_tensor_dict(take_rows(rows, places_R), len(batches))
