"""Groups of prompts that the data set names, in place of difficulty bins. D prompts."""

from collections import Counter
from collections.abc import Sequence, Set
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from gdro.bins import DifficultyBins, as_uids, check_uids


class StaticGroups(DifficultyBins):
    """Groups that the data set names, such as levels or subjects, in place of difficulty bins.

    A prompt's group never changes; its pass@k record is kept all the same, with k, history and
    estimator as in `DifficultyBins`.

    Args:
        uids: (D,), one stable uid a prompt. Only these prompts can be planned.
        labels: (D,), the name of each prompt's group, all strings or all integers.
        groups: the names in the order of their bins, hardest first; sorted by default.
    """

    def __init__(
        self,
        uids: ArrayLike | Sequence[str],
        labels: ArrayLike | Sequence[str],
        groups: Sequence[str] | Sequence[int] | None = None,
        k: int = 8,
        history: int = 50,
        estimator: Literal["beta", "any_of_k"] = "beta",
    ) -> None:
        super().__init__(k=k, history=history, estimator=estimator)
        uids_D = check_uids(uids)
        names_D = as_uids(labels, "labels").tolist()
        if len(names_D) != len(uids_D):
            raise ValueError(
                f"labels must have one for each of the {len(uids_D)} uids, got {len(names_D)}"
            )
        for uid, times in Counter(uids_D.tolist()).most_common(1):
            if times > 1:
                raise ValueError(f"uids must differ, got {uid!r} more than once")
        names = sorted(set(names_D)) if groups is None else groups
        self.groups: list[Any] = list(dict.fromkeys(names))
        bin_of = {name: b for b, name in enumerate(self.groups)}
        for name in names_D:
            if name not in bin_of:
                raise ValueError(f"groups must hold the label {name!r}, got {self.groups}")
        bins_D = [bin_of[name] for name in names_D]
        self.labels: list[Any] = []  # none yet, while rows are given to all
        rows_D = self.rows(uids_D)  # makes room in `bins_D`
        self.bins_D[rows_D] = bins_D
        self.labels = sorted([uid, b] for uid, b in zip(uids_D.tolist(), bins_D, strict=True))

    @property
    def num_bins(self) -> int:
        return len(self.groups)

    def add(self, new: Set[int | str]) -> None:
        if self.labels:
            raise ValueError(f"uids must be of prompts with a label, got {min(new)!r}")
        super().add(new)

    def next_bins(self, bins: np.ndarray, estimate: np.ndarray) -> np.ndarray:
        return bins

    def settings(self) -> dict[str, Any]:
        return super().settings() | {"groups": self.groups, "labels": self.labels}
