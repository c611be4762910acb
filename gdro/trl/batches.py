"""What a step samples, and what of it TRL trains on.

A method may ask for further rollouts (`extend`) or further prompts (`ready`), where TRL samples
once a step and trains on a batch of fixed size. So the rollouts of a step are collected in a `Step`
first, with the same content on every process, and TRL gets as many as its batch holds.

Axes: D prompts of the data set, P prompts of a batch, R rollouts of a step or of TRL's batch, F
reward functions, T tokens.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor
from trl.trainer.utils import pad


class Rollout(NamedTuple):
    """One of the rollouts that TRL's `_generate` returned."""

    prompt_ids: list[int]
    completion_ids: list[int]
    completion: Any  # text, or messages
    logprobs: list[float] | None
    extra: dict[str, Any]  # columns of the table of completions, from `log_extra`


def split_rollouts(output: tuple, extras: dict[str, list]) -> list[Rollout]:
    """What `_generate` returned, by rollout. `extras` are columns with a value for each."""
    prompt_ids, completion_ids, _, completions, logprobs, *_ = output
    size = len(prompt_ids)
    whole = {name: values for name, values in extras.items() if len(values) == size}
    rows = [{name: values[r] for name, values in whole.items()} for r in range(size)]
    logprobs = logprobs or [None] * size
    parts = zip(prompt_ids, completion_ids, completions, logprobs, rows, strict=True)
    return [Rollout(*part) for part in parts]


@dataclass(eq=False)
class TrainBatch:
    """As many rollouts of a step as TRL's batch holds."""

    rows: list[dict[str, Any]]  # of the data set, those of this process
    rollouts: list[Rollout]  # of this process
    is_filler: list[bool]  # of this process: rows whose tokens do not count
    rewards_RF: Tensor  # of all processes, as are the next two
    advantages_R: np.ndarray
    is_flat_R: np.ndarray  # whether all rewards of the rollout's group are equal; True for fillers

    def generated(self) -> tuple:
        """What TRL's `_generate` returns, in its form, for text without tools."""
        parts = map(list, zip(*self.rollouts, strict=True))
        prompt_ids, completion_ids, completions, logprobs, _ = parts
        tool_mask = None  # 0 for tokens that neither train nor count in the loss
        if any(self.is_filler):
            pairs = zip(completion_ids, self.is_filler, strict=True)
            tool_mask = [[int(not is_filler)] * len(ids) for ids, is_filler in pairs]
        known = None if logprobs[0] is None else logprobs
        return prompt_ids, completion_ids, tool_mask, completions, known, {}, None, []

    def extras(self) -> dict[str, list]:
        """Columns of the table of completions, of this process."""
        names = {name: None for rollout in self.rollouts for name in rollout.extra}
        return {name: [rollout.extra.get(name) for rollout in self.rollouts] for name in names}


class Step:
    """All rollouts of one optimizer step, of all processes, with rewards and advantages."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.rollouts: list[Rollout] = []
        self.spent = 0  # rollouts, with those that were dropped
        self.rewards_RF = torch.zeros(0, 0)
        self.advantages_R = np.zeros(0)
        self.is_flat_R = np.zeros(0, bool)  # whether all rewards of the rollout's group are equal
        self.group_has_signal_R = np.zeros(0, bool)  # whether an advantage in its group is not 0

    def add_rollouts(
        self, rows: list[dict[str, Any]], rollouts: list[Rollout], rewards_RF: Tensor
    ) -> None:
        """Add a rollout of each row; what was sampled beyond that is dropped."""
        self.rows += rows
        self.rollouts += rollouts[: len(rows)]
        new_RF = rewards_RF[: len(rows)].cpu()
        self.rewards_RF = torch.cat([self.rewards_RF, new_RF]) if len(self.rewards_RF) else new_RF

    def add_batch(
        self, advantages: ArrayLike, is_flat_R: np.ndarray, group_ids_R: np.ndarray
    ) -> None:
        """Add what the controller made of one batch, whose rollouts were added before."""
        advantages_R = np.asarray(advantages)
        has_signal_P = np.bincount(group_ids_R, advantages_R != 0) > 0
        self.advantages_R = np.append(self.advantages_R, advantages_R)
        self.group_has_signal_R = np.append(self.group_has_signal_R, has_signal_P[group_ids_R])
        self.is_flat_R = np.append(self.is_flat_R, is_flat_R)

    def train_batch(self, size: int, mine: slice) -> TrainBatch:
        """`size` rollouts, `mine` those of this process: groups with a signal, as sampled, first.

        Where fewer were sampled, the shortest fills the rest: with advantage 0, and no token that
        counts.
        """
        places_R = np.sort(np.argsort(~self.group_has_signal_R, kind="stable")[:size])
        is_filler_R = np.arange(size) >= len(places_R)
        lengths = [len(rollout.completion_ids) for rollout in self.rollouts]
        places_R = np.append(places_R, np.full(size - len(places_R), np.argmin(lengths)))
        return TrainBatch(
            rows=[dict(self.rows[r]) for r in places_R[mine]],
            rollouts=[self.rollouts[r] for r in places_R[mine]],
            is_filler=is_filler_R[mine].tolist(),
            rewards_RF=self.rewards_RF[places_R],
            advantages_R=np.where(is_filler_R, 0.0, self.advantages_R[places_R]),
            is_flat_R=is_filler_R | self.is_flat_R[places_R],
        )


def own_share(rows: Sequence[Any], accelerator: Any) -> list[Any]:
    """The rows that this process samples. All sample equally many, so some rows may come twice."""
    share = -(-len(rows) // accelerator.num_processes)
    first = accelerator.process_index * share
    return [rows[r % len(rows)] for r in range(first, first + share)]


def has_spread(rewards_R: np.ndarray, group_ids_R: np.ndarray) -> np.ndarray:
    """Whether the rewards of each rollout's group differ, (R,)."""
    _, first_P, place_R = np.unique(group_ids_R, return_index=True, return_inverse=True)
    differs_R = np.abs(rewards_R - rewards_R[first_P][place_R]) > 1e-6
    return (np.bincount(place_R, differs_R) > 0)[place_R]


def prompts_of_batch(number: int, size: int, total: int, seed: int, shuffled: bool) -> np.ndarray:
    """Positions in the data set of the prompts of batch `number` (from 0), (size,).

    Each epoch has an order of its own; what is left over at its end is dropped. Nothing but the
    arguments matters, so a resumed run takes the same prompts.
    """
    epoch, batch = divmod(number, total // size)
    rng = np.random.default_rng((seed, epoch))
    order_D = rng.permutation(total) if shuffled else np.arange(total)
    return order_D[batch * size : (batch + 1) * size]


# What a training step can leave out.

SUMS = ("dapo", "cispo", "vespo")  # losses that divide by the tokens of the whole generation batch


def take_rows(inputs: dict[str, Any], rows_R: Tensor) -> dict[str, Any]:
    """Some rows of the inputs of a loss."""
    return {
        name: value[rows_R] if torch.is_tensor(value) and value.dim() else value
        for name, value in inputs.items()
    }


def trim_batch(inputs: dict[str, Any], keep: int, loss_type: str) -> tuple[dict[str, Any], float]:
    """`inputs` of TRL's loss with `keep` of their rows, as wide as the longest texts left.

    Rows with an advantage are kept before those without, and of both the shorter. Also the factor
    that turns the loss on them into that on all rows, as far as it depends on the weights.
    """
    lengths_R = inputs["completion_mask"].sum(dim=1)
    rows_R = torch.arange(len(lengths_R), device=lengths_R.device)
    if keep < len(rows_R):
        wanted_R = (inputs["advantages"] != 0) * (1 + lengths_R.max()) - lengths_R
        rows_R = wanted_R.argsort(descending=True, stable=True)[:keep].sort().values
    length = max(int(lengths_R[rows_R].max()), 1)
    prompt = int(inputs["prompt_mask"][rows_R].sum(dim=1).max())
    kept = take_rows(inputs, rows_R)
    for name, value in kept.items():
        # (R, 1) is one number a sequence
        if torch.is_tensor(value) and value.dim() == 2 and value.size(1) > 1:
            kept[name] = value[:, -prompt:] if name.startswith("prompt") else value[:, :length]
    if loss_type in SUMS:
        return kept, 1.0
    if loss_type == "bnpo":
        masks_RT = inputs["completion_mask"] * inputs.get("tool_mask", 1)
        return kept, float(masks_RT[rows_R].sum() / masks_RT.sum().clamp(min=1))
    return kept, len(rows_R) / len(lengths_R)


# losses of Unsloth that are means over rows; the others divide by the whole batch's tokens
MEANS_OVER_ROWS = ("grpo", "sapo", "dr_grpo", "luspo")


def rows_with_signal(inputs: dict[str, Any], loss_type: str) -> dict[str, Any]:
    """`inputs` of Unsloth's loss without rows of advantage 0, but at least one: the same gradient.

    Its backward ignores what the loss is multiplied by, so where it takes a mean over rows the
    advantages are scaled. Columns stay: its log-probabilities are as wide as the longest completion
    and the padding of the prompts together.
    """
    has_signal_R = inputs["advantages"] != 0
    if has_signal_R.all() or "num_images" in inputs:
        return inputs
    has_signal_R[0] |= not has_signal_R.any()
    rows_R = has_signal_R.nonzero()[:, 0]
    kept = take_rows(inputs, rows_R)
    if loss_type in MEANS_OVER_ROWS:
        kept["advantages"] = kept["advantages"] * (len(rows_R) / len(has_signal_R))
    return kept


def score_by_length(
    score: Callable, ids_RT: Tensor, mask_RT: Tensor, length: int, batch_size: int | None
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Log-probabilities of completions, (R, length), where rows of similar length go together.

    The same numbers as from all rows at once, to rounding, with less padding; 0 where the mask is
    0. The arguments are those of `score`, TRL's `_get_per_token_logps_and_entropies`: prompts
    padded on their left with completions padded on their right, and the columns of the latter.
    """
    prompt_R, text_R = mask_RT[:, :-length].sum(dim=1), mask_RT[:, -length:].sum(dim=1)
    start, logps_RT = ids_RT.size(1) - length, torch.zeros(0)
    for rows_N in (prompt_R + text_R).argsort(descending=True).split(batch_size or len(ids_RT)):
        width = max(int(text_R[rows_N].max()), 1)
        columns = slice(start - max(int(prompt_R[rows_N].max()), 1), start + width)
        logps_NT, *_ = score(ids_RT[rows_N, columns], mask_RT[rows_N, columns], width)
        if not len(logps_RT):
            logps_RT = logps_NT.new_zeros(len(ids_RT), length)
        logps_RT[rows_N, :width] = logps_NT * mask_RT[rows_N, start : start + width]
    return logps_RT, None, None


# Kept texts that are trained on again (`gdro.methods.bank`).

# what TRL holds for each token besides ids and masks, in some settings
LOGPS = ("old_per_token_logps", "ref_per_token_logps", "sampling_per_token_logps")
PER_TOKEN = (*LOGPS, "importance_sampling_ratio", "tool_mask")


def texts_of(output: dict[str, Any]) -> list[tuple[list[int], list[int]]]:
    """Prompt ids and completion ids, without padding, of what TRL has scored."""

    def rows(part: str) -> list[list[int]]:
        pairs = zip(output[f"{part}_ids"], output[f"{part}_mask"].bool(), strict=True)
        return [ids_T[mask_T].tolist() for ids_T, mask_T in pairs]

    return list(zip(rows("prompt"), rows("completion"), strict=True))


def add_texts(
    output: dict[str, Any], texts: Sequence[tuple], weights: ArrayLike, pad_id: int, total: int
) -> dict[str, Any]:
    """What `_generate_and_score_completions` returns, with a row for each text.

    Args:
        texts: prompt ids and completion ids of each; an empty completion only fills the batch.
        weights: their advantages. What TRL holds for each token is 1.
        total: completion tokens of all processes' texts.
    """
    device, added = output["prompt_ids"].device, {}
    old, width = output["completion_ids"].shape
    for place, (name, side) in enumerate((("prompt", "left"), ("completion", "right"))):
        new = [torch.tensor(text[place], dtype=torch.long, device=device) for text in texts]
        ids, mask = [*output[f"{name}_ids"], *new], [*output[f"{name}_mask"]]
        mask += [torch.ones_like(row) for row in new]
        added[f"{name}_ids"] = pad(ids, padding_value=pad_id, padding_side=side)
        added[f"{name}_mask"] = pad(mask, padding_value=0, padding_side=side)
    advantages = output["advantages"]
    added["advantages"] = torch.cat([advantages, advantages.new_tensor(weights)])
    added["num_items_in_batch"] = output["num_items_in_batch"] + total
    for name in PER_TOKEN:
        if (values := output.get(name)) is not None:
            # a ratio may have one column, for whole sequences
            columns = added["completion_ids"].size(1) if values.size(1) == width else 1
            added[name] = values.new_ones(len(added["advantages"]), columns)
            added[name][:old, : values.size(1)] = values
    return output | added
