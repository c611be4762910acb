"""DAPO's dynamic sampling (arXiv 2503.14476): a step waits until enough groups with both outcomes came back.

Groups in which all rollouts are correct or all wrong have advantages of 0 and teach nothing. Batches are
generated until `groups` others were collected, then one optimizer step is taken on all of them: a step is
what one or more batches brought, and its cost is all rollouts made for it, discarded groups too. Compare runs
by rollouts, never by steps.

Left out: cutting a surplus of groups (it is trained on), asymmetric clipping, the penalty for length, and the
mean over kept tokens alone: where a trainer divides by all tokens, a step is smaller by the discarded share.
"""

import numpy as np

from gdro.checks import check_int
from gdro.methods.base import Batch, Method, register


@register("dapo")
class DAPO(Method):
    """Steps only on enough groups that teach.

    Args:
        groups: groups with both outcomes that a step needs; by default the prompts of a batch.
        max_batches: batches after which the step is taken with whatever came.
    """

    state = ("collected", "batches")

    def __init__(self, groups: int | None = None, max_batches: int = 10) -> None:
        self.groups = None if groups is None else check_int("groups", groups, 1)
        self.max_batches = check_int("max_batches", max_batches, 1)
        self.collected = self.batches = 0  # since the last optimizer step

    def ready(self, batch: Batch) -> bool:
        self.collected += int(np.count_nonzero((batch.hits_P > 0) & (batch.hits_P < batch.trials_P)))
        self.batches += 1
        needed = len(batch) if self.groups is None else self.groups
        if self.collected < needed and self.batches < self.max_batches:
            return False
        self.collected = self.batches = 0
        return True
