"""Asks a method and checks its answers, so that a faulty method cannot break the controller."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import numpy as np

from gdro.core.bins import DifficultyBins
from gdro.core.checks import check_array
from gdro.core.limits import LARGEST
from gdro.core.saved import all_or_nothing
from gdro.methods.base import Method
from gdro.methods.batch import Batch, Prompts, Run


class CheckedMethod:
    """Starts a method and asks it: the functions of `Method`, with a ValueError for each wrong answer."""

    def __init__(self, method: Method, run: Run) -> None:
        self.method = method
        method.run = run  # here, so that a method's own `start` need not call that of its base
        method.start(run)
        # types and shapes of its state, which may not change, or a checkpoint could not be loaded
        self.kinds = method.kinds()

    def draw(self, pool: Prompts, size: int, rng: np.random.Generator) -> np.ndarray | None:
        """Positions in the pool, (size,), or None."""
        drawn = self.method.draw(pool, size, rng)
        return None if drawn is None else self._array("draw", drawn, size, 0, len(pool) - 1, whole=True)

    def allocate(self, prompts: Prompts, budget: int, rng: np.random.Generator) -> np.ndarray:
        """Numbers ≥ 0, not all of them 0, (P,)."""
        wanted_P = self._array("allocate", self.method.allocate(prompts, budget, rng), len(prompts), 0)
        if not wanted_P.any():
            raise self._refusal("allocate", "must be above 0 for some prompt, got zeros")
        return wanted_P

    def extend(self, batch: Batch, left: int, rng: np.random.Generator) -> np.ndarray | None:
        """Further rollouts, (P,), within what is left and n_max, or None."""
        further = self.method.extend(batch, left, rng)
        if further is None:
            return None
        further_P = self._array("extend", further, len(batch), 0, left, whole=True)
        if not 0 < further_P.sum() <= left or (batch.rollouts_P + further_P).max() > batch.run.n_max:
            most = f"{batch.run.n_max} for a prompt with those it has"
            raise self._refusal("extend", f"must be 1 to {left} rollouts in all, and {most}, got {further}")
        return further_P

    def weights(self, batch: Batch) -> np.ndarray:
        """Factors on the advantages, (P,)."""
        return self._array("weights", self.method.weights(batch), len(batch), 0, LARGEST)

    def advantages(self, batch: Batch) -> np.ndarray:
        """Advantages before they are weighted, (R,)."""
        size = len(batch.rewards_R)
        return self._array("advantages", self.method.advantages(batch), size, -LARGEST, LARGEST)

    def ready(self, batch: Batch) -> bool:
        """Whether to take the optimizer step now."""
        ready = self.method.ready(batch)
        if not isinstance(ready, bool | np.bool_):
            raise self._refusal("ready", f"must be True or False, got {ready!r}")
        return bool(ready)

    def check_state(self) -> None:
        """Refuse a state of which an attribute has changed its type, dtype or shape."""
        if (kinds := self.method.kinds()) != self.kinds:
            raise ValueError(
                f"the state of method {self.method.label!r} must stay as `start` made it, {self.kinds}, "
                f"got {kinds}; start with the type, dtype and shape that it will have, and name "
                "arrays with a row for each prompt in `by_prompt`"
            )

    def _array(self, what: str, values: Any, size: int, *bounds: float, whole: bool = False) -> np.ndarray:
        name = f"{what} of method {self.method.label!r}"
        return check_array(name, values, (size,), *bounds, whole=whole, remedy="fix the method")

    def _refusal(self, what: str, why: str) -> ValueError:
        return ValueError(f"{what} of method {self.method.label!r} {why}; fix the method")


def restored_on_error(
    method: Method, bins: DifficultyBins, batch: Batch | None = None
) -> AbstractContextManager[None]:
    """Restores the method, the known uids, and a batch's bins and memo, if the block raises an error."""
    # `UidTable.add` replaces its arrays and never writes into them, so the old ones need no copy
    table = vars(bins.table)
    undos: list[Callable] = [method.undo(), partial(table.update, dict(table))]
    if batch is not None:
        undos.append(bins.undo(batch.rows_P))
        undos += [batch.memo.clear, partial(batch.memo.update, dict(batch.memo))]
    return all_or_nothing(*undos)
