"""Groups of prompts that the data set names, in place of difficulty bins."""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from gdro.bins import DifficultyBins, as_uids


class StaticGroups(DifficultyBins):
    """Groups that the data set names, such as levels or subjects, in place of difficulty bins.

    A prompt's group never changes; its pass@k record is kept all the same.

    Args:
        uids, labels: (D,) one stable uid a prompt, and the name of its group, str or int.
        groups: the names in the order of their bins, hardest first; sorted by default.
    """

    def __init__(
        self,
        uids: ArrayLike | Sequence[str],
        labels: Sequence[Any],
        groups: Sequence[Any] | None = None,
        k: int = 8,
        history: int = 50,
        estimator: Literal["beta", "any_of_k"] = "beta",
    ) -> None:
        super().__init__(k=k, history=history, estimator=estimator)
        labels = as_uids(labels, "labels").tolist()
        self.groups = list(dict.fromkeys(sorted(set(labels)) if groups is None else groups))
        bin_of = {name: b for b, name in enumerate(self.groups)}
        bins = [bin_of[label] for label in labels]
        uids = as_uids(uids)
        self.labels = sorted([uid, b] for uid, b in zip(uids.tolist(), bins, strict=True))
        rows = self.rows(uids)  # makes room in `bins_D`
        self.bins_D[rows] = bins

    @property
    def num_bins(self) -> int:
        return len(self.groups)

    def next_bins(self, bins: np.ndarray, estimate: np.ndarray) -> np.ndarray:
        return bins

    def settings(self) -> dict[str, Any]:
        return super().settings() | {"groups": self.groups, "labels": self.labels}
