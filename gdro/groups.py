"""Static groups: a data set's own level or subject column in place of difficulty bins.

The same interface as `DifficultyBins`, so that `GDROController(bins=StaticGroups(...))` runs both games over
them. A prompt's group never changes; its pass@k record is kept all the same, for the figures.
"""

import numpy as np

from gdro.bins import UNSEEN, DifficultyBins, as_uids


class StaticGroups(DifficultyBins):
    """Groups that the data set names.

    uids: (D,), one stable uid a prompt. labels: (D,), its group's name (a level, a subject). groups: the
    names in the order of their bins, hardest first where there is such an order; by default
    sorted. k, history, estimator: of the record that `pass_at_k` reads, as in `DifficultyBins`.
    Raises ValueError for a uid given twice, a label not in `groups`, and no prompts at all.
    """

    def __init__(self, uids, labels, groups=None, k: int = 8, history: int = 50, estimator: str = "beta"):
        known = as_uids(uids)
        labels = list(labels)
        if not labels or len(known.keys) != len(labels):
            raise ValueError(
                f"labels must be one per uid, at least one, got {len(labels)} for {len(known.keys)} uids"
            )
        self.groups = list(dict.fromkeys(groups)) if groups is not None else sorted(set(labels))
        unknown = sorted(set(labels) - set(self.groups))
        if unknown:
            raise ValueError(f"labels {unknown} are not among the groups {self.groups}; add them to `groups`")
        super().__init__(k=k, history=history, hysteresis=0.0, estimator=estimator)
        order_D = np.argsort(known.keys, kind="stable")
        self._keys_D = known.keys[order_D]
        if (np.diff(self._keys_D) == 0).any():
            raise ValueError("a uid is given twice; every prompt needs a uid of its own")
        place = {group: b for b, group in enumerate(self.groups)}
        self._group_D = np.array([place[label] for label in labels])[order_D]
        self._table.kind = known.kind

    @property
    def num_bins(self) -> int:
        return len(self.groups)

    def assign(self, uids) -> np.ndarray:
        """Group of each prompt, (P,) integers; −1 for a uid that was not named at the start."""
        keys = self._table.keys(uids)
        place = np.minimum(np.searchsorted(self._keys_D, keys), len(self._keys_D) - 1)
        return np.where(self._keys_D[place] == keys, self._group_D[place], UNSEEN)

    def _settings(self):
        settings = super()._settings()
        settings.pop("edges")
        settings.pop("hysteresis")
        return settings | {
            "groups": [str(group) for group in self.groups],
            "keys": self._keys_D.tolist(),
            "group_of_key": self._group_D.tolist(),
        }
