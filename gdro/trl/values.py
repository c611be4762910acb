"""Values that pass between the files of the trainer.

Axes: P prompts of a batch, R rollouts of all processes, in TRL's order; T tokens of completions.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from torch import Tensor

Row: TypeAlias = dict[str, Any]
"""A row of the data set: its columns by name."""

LossInputs: TypeAlias = dict[str, Any]
"""What TRL's loss takes: tensors with a row for each rollout of this process, by name."""


class PromptBatch(NamedTuple):
    """The prompts of a batch, of all processes."""

    uids: Sequence[int | str]
    """(P,)"""
    read: Callable[[np.ndarray], list[Row]]
    """The rows of the prompts at some places in the batch. No two have objects in common, since
    what judges a rollout may write into its row: a prompt is read anew for each, as TRL does."""


@dataclass(frozen=True, eq=False)
class Signal:
    """What the controller made of the rollouts of a batch."""

    advantages_R: np.ndarray
    """(R,) weighted; 0 for a rollout without a reward."""
    is_flat_R: np.ndarray
    """(R,) whether all rewards of the rollout's group are equal; True without a reward."""
    ready: bool
    """False where the method wants further prompts before the optimizer steps."""


@contextmanager
def replaced(thing: object, **attributes: object) -> Iterator[None]:
    """Inside this block an object has these attributes, in place of its own and its class's.

    An attribute of the object comes before those of its class: TRL calls the replacement, also
    where a user's subclass overrides the function.
    """
    own = {name: vars(thing)[name] for name in attributes if name in vars(thing)}
    vars(thing).update(attributes)
    try:
        yield
    finally:
        for name in attributes:
            del vars(thing)[name]
        vars(thing).update(own)


def copy_of(value: Any) -> Any:
    """A copy of a row, or of lists of rollouts: what people's code writes into is theirs.

    Other objects are shared, such as a verifier that a transform of the data hands out.
    """
    if isinstance(value, dict):
        return {name: copy_of(part) for name, part in value.items()}
    if isinstance(value, list):
        return [copy_of(part) for part in value]
    return deepcopy(value) if isinstance(value, np.ndarray | Tensor) else value


def learned_mask(output: LossInputs) -> Tensor:
    """The tokens that the model wrote, (R, T): those of a completion but for what tools wrote."""
    mask_RT = output["completion_mask"]
    return mask_RT * output["tool_mask"] if "tool_mask" in output else mask_RT
