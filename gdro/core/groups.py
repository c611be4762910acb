"""Groups that a data set names, in place of difficulty bins. D prompts of the data set."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from gdro.core.bins import DifficultyBins
from gdro.core.uids import as_uids


class StaticGroups(DifficultyBins):
    """Groups that the data set names, such as levels or subjects, in place of difficulty bins.

    A prompt's group never changes; its pass@k record is kept all the same, for the figures.

    Args:
        uids, labels: (D,) one stable uid a prompt, and the name of its group, str or int.
        groups: the names in the order of their bins, hardest first where there is such an order; sorted by
            default.
    """

    def __init__(
        self,
        uids: ArrayLike,
        labels: Sequence[Any],
        groups: Sequence[Any] | None = None,
        k: int = 8,
        history: int = 50,
        estimator: str = "beta",
    ) -> None:
        super().__init__(k=k, history=history, estimator=estimator)
        known, labels = as_uids(uids), list(labels)
        of_a_kind = any(labels and all(isinstance(label, kind) for label in labels) for kind in (str, int))
        if not of_a_kind or len(known) != len(labels):
            what = f"of one kind, str or int, and one per uid ({len(known)})"
            raise ValueError(f"labels must be {what}, got {len(labels)}: {labels[:4]}; convert them")
        self.groups = list(dict.fromkeys(groups)) if groups is not None else sorted(set(labels))
        if unknown := sorted(set(labels) - set(self.groups)):
            raise ValueError(f"labels must be among the groups {self.groups}, got {unknown}; add them")
        order_D = np.argsort(known.keys)
        # kept under these names as settings that a saved state must agree on
        self.uids = known.keys[order_D]
        self.labels = np.array([self.groups.index(label) for label in labels])[order_D]
        if (np.diff(self.uids) == 0).any():
            raise ValueError("uids must differ, got one twice; every prompt needs a uid of its own")
        rows_D = self.rows(known)[order_D]
        self.bins_D[rows_D] = self.labels

    @property
    def num_bins(self) -> int:
        return len(self.groups)

    def moved(self, bins: np.ndarray, estimate: np.ndarray) -> np.ndarray:
        return bins
