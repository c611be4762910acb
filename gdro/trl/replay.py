"""Kept texts that are trained on again, beside the rollouts (`gdro.methods.buffer`).

Axes: R rollouts, of all processes; N kept texts, or rows of a micro-batch.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from accelerate.utils import DistributedType
from numpy.typing import ArrayLike
from torch import Tensor
from trl import GRPOTrainer
from trl.trainer.utils import pad

from gdro.methods.buffer import is_whole
from gdro.trl.advantages import policy_logps
from gdro.trl.trimming import has_batch_terms, share_of, take_rows
from gdro.trl.values import LossInputs

# what TRL holds for each token besides ids and masks, in some settings
LOGPS = ("old_per_token_logps", "ref_per_token_logps", "sampling_per_token_logps")
PER_TOKEN = (*LOGPS, "importance_sampling_ratio", "tool_mask")


class Text(NamedTuple):
    """A completion of a prompt, as token ids without padding."""

    prompt_ids: Sequence[int]
    completion_ids: Sequence[int]


def keep_successes(
    trainer: GRPOTrainer, uids: Sequence[int | str], texts: list[Text], correct_R: np.ndarray
) -> None:
    """Add the correct rollouts of a step to the trainer's replay buffer, those that are whole."""
    tokenizer = trainer._tokenizer  # a processor has no special tokens of its own
    ends = set(trainer.eos_token_ids)
    specials = set(tokenizer.all_special_ids)
    for r in np.flatnonzero(correct_R).tolist():
        ids = texts[r].completion_ids
        if is_whole(ids, ends, specials):
            key = tokenizer.decode(ids, skip_special_tokens=True)
            trainer.replay_buffer.add(uids[r], texts[r], key)


def add_replayed(trainer: GRPOTrainer, output: LossInputs) -> LossInputs:
    """Add this process's share of the replayed texts to what TRL's loss takes."""
    answer = trainer.controller.replay(trainer.replay_buffer.uids)
    if answer is None:
        return output
    _, kept, weights_N = trainer.replay_buffer.rows(*answer)
    texts = [Text(*text) for text in kept]
    total = sum(len(text.completion_ids) for text in texts)
    trainer._metrics["train"]["gdro/replayed"].append(len(texts))
    trainer._metrics["train"]["gdro/replayed_tokens"].append(total)
    # equally many rows for each process and micro-step: rows without tokens fill them
    accelerator = trainer.accelerator
    fill = -len(texts) % (accelerator.num_processes * trainer.args.steps_per_generation)
    texts += [Text(texts[0].prompt_ids, [])] * fill
    weights_N = np.append(weights_N, np.zeros(fill))
    # dealt out in turn; TRL shuffles the rows before it cuts them into micro-batches
    local = slice(accelerator.process_index, None, accelerator.num_processes)
    first = len(output["advantages"])
    pad_id = trainer._tokenizer.pad_token_id
    output = add_texts(output, texts[local], weights_N[local], pad_id, total)
    stored = [output[name] for name in LOGPS if output.get(name) is not None]
    if stored:  # kept texts are taken as the policy's own: ratio 1, no KL
        policy = policy_logps(trainer, output, slice(first, None))
        for logps_RT in stored:
            logps_RT[first:] = policy
    return output


def needs_whole_batch(trainer: GRPOTrainer) -> bool:
    """Whether a loss must be computed in one call: also with DeepSpeed, whose backward may step."""
    is_deepspeed = trainer.accelerator.distributed_type == DistributedType.DEEPSPEED
    return is_deepspeed or has_batch_terms(trainer)


def loss_in_parts(
    loss: Callable[[LossInputs], Tensor],
    inputs: LossInputs,
    size: int,
    loss_type: str,
    backward: Callable[[Tensor], object],
) -> Tensor:
    """The loss of a micro-batch, on at most `size` of its rows at once.

    Each part but the last runs its backward here, so that its activations are freed.
    """

    def part(rows_N: Tensor) -> Tensor:
        return share_of(inputs, rows_N, loss_type) * loss(take_rows(inputs, rows_N))

    *earlier, last = torch.arange(len(inputs["advantages"])).split(size)
    done = []
    for rows_N in earlier:
        value = part(rows_N)
        backward(value)
        done.append(value.detach())
    return part(last) + torch.stack(done).sum()


def texts_of(output: LossInputs) -> list[Text]:
    """Prompts and completions, without padding, of what TRL has scored."""
    prompts = unpadded(output["prompt_ids"], output["prompt_mask"])
    completions = unpadded(output["completion_ids"], output["completion_mask"])
    return [Text(*pair) for pair in zip(prompts, completions, strict=True)]


def unpadded(ids_RT: Tensor, mask_RT: Tensor) -> list[list[int]]:
    """The token ids of each row where its mask is not 0."""
    pairs = zip(ids_RT, mask_RT.bool(), strict=True)
    return [ids_T[mask_T].tolist() for ids_T, mask_T in pairs]


def add_texts(
    output: LossInputs, texts: Sequence[Text], weights: ArrayLike, pad_id: int, total: int
) -> LossInputs:
    """Add a row for each text to what `_generate_and_score_completions` returned.

    Args:
        output: left as it is.
        texts: an empty completion only fills the batch.
        weights: their advantages. What TRL holds for each token is 1.
        pad_id: token id of padding.
        total: completion tokens of all processes' texts.
    """
    advantages = output["advantages"]
    longer = {
        "advantages": torch.cat([advantages, advantages.new_tensor(weights)]),
        "num_items_in_batch": output["num_items_in_batch"] + total,
    }
    prompts = [text.prompt_ids for text in texts]
    completions = [text.completion_ids for text in texts]
    for part, new, side in (("prompt", prompts, "left"), ("completion", completions, "right")):
        ids = [torch.tensor(row, dtype=torch.long, device=advantages.device) for row in new]
        masks = [*output[f"{part}_mask"], *map(torch.ones_like, ids)]
        ids = [*output[f"{part}_ids"], *ids]
        longer[f"{part}_ids"] = pad(ids, padding_value=pad_id, padding_side=side)
        longer[f"{part}_mask"] = pad(masks, padding_value=0, padding_side=side)
    rows, width = output["completion_ids"].shape
    for name in PER_TOKEN:
        values = output.get(name)
        if values is None:
            continue
        # a ratio may have one column, for whole sequences
        columns = longer["completion_ids"].size(1) if values.size(1) == width else 1
        longer[name] = values.new_ones(len(longer["advantages"]), columns)
        longer[name][:rows, : values.size(1)] = values
    return output | longer
