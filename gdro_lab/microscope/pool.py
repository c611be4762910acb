"""A pool: K rollouts of each of P prompts, with sketched gradients of the distinct texts.

It takes the place of the population. Axes: P prompts, K rollouts of each, N distinct texts, S
numbers of a sketch.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from gdro_lab.failures import at_the_door

LARGEST = 2.0**14  # of a stored number; float16 holds up to 2^16


@dataclass(frozen=True, eq=False, kw_only=True)
class Pool:
    """Rollouts of prompts, and the gradients of their log-probabilities."""

    uids_P: np.ndarray
    """Strings."""
    families_P: np.ndarray
    """Strings; a world's groups of prompts."""
    rewards_PK: np.ndarray
    """1 and 0."""
    texts_PK: np.ndarray
    """Place of each rollout's text in `sketch_NS`; −1 in a flat prompt, one whose rewards are all
    equal, where the pool was made without their gradients."""
    sketch_NS: np.ndarray
    """Gradients of the texts' log-probabilities, sketched: inner products are unbiased."""
    mean_length_P: np.ndarray
    """Tokens of a prompt's rollouts, on average."""
    made: dict[str, Any] = field(default_factory=dict)
    """How it was made: model, world, seeds, arithmetic."""

    def save(self, path: str | Path) -> None:
        """Write the pool to an .npz file, sketches in float16 by a common scale."""
        scale = float(np.abs(self.sketch_NS).max(initial=0.0)) / LARGEST or 1.0
        arrays = {name: getattr(self, name) for name in ARRAYS}
        arrays["sketch_NS"] = (self.sketch_NS / scale).astype(np.float16)
        with Path(path).open("wb") as stream:
            np.savez_compressed(stream, **arrays, scale=scale, made=json.dumps(self.made))


ARRAYS = tuple(name for name in Pool.__dataclass_fields__ if name != "made")


def read_pool(path: str | Path) -> Pool:
    """Read the pool that `Pool.save` wrote; Refusal if there is none."""
    wanted = f"pool must be an .npz file that `make` wrote, got {str(path)!r}"
    with at_the_door(wanted), Path(path).open("rb") as stream, np.load(stream) as file:
        arrays = {name: file[name] for name in ARRAYS}
        arrays["sketch_NS"] = arrays["sketch_NS"].astype(np.float32) * float(file["scale"])
        return Pool(made=json.loads(str(file["made"])), **arrays)
