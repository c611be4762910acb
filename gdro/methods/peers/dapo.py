"""DAPO's dynamic sampling (arXiv 2503.14476): a step waits until enough groups with both outcomes came back.

Groups in which all rollouts are correct or all wrong have advantages of 0 and teach nothing. Batches are
generated until `groups` others were collected, then one optimizer step is taken on all of them: a step is
what one or more batches brought, and its cost is all rollouts made for it. Those of discarded groups are
`discarded` in the record. Compare runs by rollouts, never by steps.

Clip-higher (ε .2 below, .28 above) is the trainer's: `epsilon_high` in TRL. In `gdro.loop` each batch gets
one on-policy step, at ratio 1, where neither bound acts. Left out: cutting a surplus of groups (it is trained
on), the penalty for length, and the mean over kept tokens alone: where a trainer divides by all tokens, a
step is smaller by the discarded share.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from gdro.core.checks import check_int, option
from gdro.methods.base import Batch, Method, Run, register


@register("dapo")
@dataclass(eq=False)
class DAPO(Method):
    """Steps only on enough groups that teach."""

    # groups with both outcomes that a step needs; by default the prompts of a batch
    groups: int | None = option(None, check_int, 1, optional=True)
    max_batches: int = option(10, check_int, 1)  # after which the step is taken with whatever came

    state = ("collected", "batches")

    def start(self, run: Run) -> None:
        self.collected = self.batches = 0  # since the last optimizer step
        self.discarded = 0  # rollouts of this batch's groups that teach nothing

    def update(self, batch: Batch) -> None:
        teaches_P = (batch.hits_P > 0) & (batch.hits_P < batch.trials_P)
        self.discarded = int(batch.trials_P[~teaches_P].sum())
        self.collected += int(np.count_nonzero(teaches_P))
        self.batches += 1

    def report(self) -> dict[str, Any]:
        return {"discarded": self.discarded}

    def ready(self, batch: Batch) -> bool:
        needed = len(batch) if self.groups is None else self.groups
        if self.collected < needed and self.batches < self.max_batches:
            return False
        self.collected = self.batches = 0
        return True
