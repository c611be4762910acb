"""Work that a training step can leave out. Axes: R rollouts, T completion tokens, L prompt tokens."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

SUMS = ("dapo", "cispo", "vespo")  # losses that divide by the tokens of the whole generation batch


def trimmed(inputs: dict[str, Any], keep: int, loss_type: str) -> tuple[dict[str, Any], float]:
    """`inputs` of TRL's loss with `keep` of their rows, no wider than the longest prompt and completion left.

    Rows with an advantage come before those without, and of both the shorter first.

    Returns:
        The smaller inputs, and the factor that turns TRL's loss on them into that on all rows, as far as it
        depends on the weights.
    """
    lengths_R = inputs["completion_mask"].sum(dim=1)
    rows_R = torch.arange(len(lengths_R), device=lengths_R.device)
    if keep < len(rows_R):
        wanted_R = (inputs["advantages"] != 0) * (1 + lengths_R.max()) - lengths_R
        rows_R = wanted_R.argsort(descending=True, stable=True)[:keep].sort().values
    length, prompt = max(int(lengths_R[rows_R].max()), 1), int(inputs["prompt_mask"][rows_R].sum(dim=1).max())
    kept = {}
    for name, value in inputs.items():
        if torch.is_tensor(value) and value.dim():
            value = value[rows_R]
            if value.dim() == 2 and value.size(1) > 1:  # (R, 1) is one number a sequence
                value = value[:, -prompt:] if name.startswith("prompt") else value[:, :length]
        kept[name] = value
    if loss_type in SUMS:
        return kept, 1.0
    if loss_type == "bnpo":
        masks_RT = inputs["completion_mask"] * inputs.get("tool_mask", 1)
        return kept, float(masks_RT[rows_R].sum() / masks_RT.sum().clamp(min=1))
    return kept, len(rows_R) / len(lengths_R)


def by_length(
    score: Callable, ids_RT: Tensor, mask_RT: Tensor, length: int, batch_size: int | None
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Log-probabilities of completions, (R, length), from rows of similar length that are scored together.

    The same numbers as from all rows at once, to rounding, with less padding; 0 where the mask is 0.

    Args:
        score: TRL's `_get_per_token_logps_and_entropies` without its model.
        ids_RT, mask_RT: prompts, padded on their left, and completions, padded on their right.
        length: columns of the completions.
        batch_size: rows that are scored at once; None for all.
    """
    prompt_R, text_R = mask_RT[:, :-length].sum(dim=1), mask_RT[:, -length:].sum(dim=1)
    start = ids_RT.size(1) - length
    logps_RT: Tensor | None = None
    for rows_N in (prompt_R + text_R).argsort(descending=True).split(batch_size or len(ids_RT)):
        width = max(int(text_R[rows_N].max()), 1)
        columns = slice(start - max(int(prompt_R[rows_N].max()), 1), start + width)
        logps_NT, *_ = score(ids_RT[rows_N, columns], mask_RT[rows_N, columns], width)
        if logps_RT is None:
            logps_RT = logps_NT.new_zeros(len(ids_RT), length)
        logps_RT[rows_N, :width] = logps_NT * mask_RT[rows_N, start : start + width]
    assert logps_RT is not None  # there is a row
    return logps_RT, None, None


class HostRows(list):
    """Rows without tensors, which accelerate would otherwise copy one by one at each micro-step."""

    def to(self, *_: Any, **__: Any) -> "HostRows":
        """Themselves: they belong to no device."""
        return self


class FetchedOnce(torch.utils.data.Dataset):
    """A data set that keeps the last rows: TRL asks for a generation batch anew at each micro-step."""

    def __init__(self, rows: Any) -> None:
        self.rows, self.last, self.kept = rows, list[int](), list[Any]()

    def __len__(self) -> int:
        return len(self.rows)

    def __getitems__(self, places: list[int]) -> list[Any]:
        if places != self.last:
            self.last, self.kept = places, HostRows(self.rows.__getitems__(places))
        return self.kept
