"""Groups of prompts that the data set names, in place of difficulty bins. D prompts."""

from collections.abc import Mapping, Sequence, Set
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from gdro.bins import MOST_BINS, PRESETS, DifficultyBins
from gdro.checks import build, check
from gdro.uids import as_uids, check_different, check_uids


class StaticGroups(DifficultyBins):
    """Groups that the data set names, such as levels or subjects, in place of difficulty bins.

    A prompt's group never changes; its pass@k record is kept all the same, with k, history and
    estimator as in `DifficultyBins`. The trainer makes its groups with those of the preset.

    Args:
        uids: (D,), one stable uid a prompt. Only these prompts can be planned.
        labels: (D,), the name of each prompt's group, all strings or all integers.
        groups: the names in the order of their bins, hardest first; sorted by default.
    """

    are_named = True

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
        check_different(uids_D)
        names = sorted(set(names_D)) if groups is None else as_uids(groups, "groups").tolist()
        self.groups: list[Any] = list(dict.fromkeys(names))
        check("number of groups", len(self.groups), int, le=MOST_BINS)
        bin_of = {name: b for b, name in enumerate(self.groups)}
        for name in names_D:
            if name not in bin_of:
                raise ValueError(f"groups must hold the label {name!r}, got {self.groups}")
        self.bin_of_uid: dict[int | str, int] = {
            uid: bin_of[name] for uid, name in zip(uids_D.tolist(), names_D, strict=True)
        }
        self.add(self.bin_of_uid.keys())

    @property
    def num_bins(self) -> int:
        return len(self.groups)

    @property
    def names(self) -> list[str]:
        return [str(group) for group in self.groups]

    def add(self, new: Set[int | str]) -> None:
        unknown = new - self.bin_of_uid.keys()
        if unknown:
            raise ValueError(f"uids must be of prompts with a label, got {min(unknown)!r}")
        super().add(new)
        for uid in new:
            self.bins_D[self.row_of[uid]] = self.bin_of_uid[uid]

    def next_bins(self, bins: np.ndarray, estimate: np.ndarray) -> np.ndarray:
        return bins

    def settings(self) -> dict[str, Any]:
        return super().settings() | {"groups": self.groups}

    def check_state(self, state: Mapping[str, Any]) -> None:
        super().check_state(state)
        for uid, group in zip(state["uids"], state["bins_D"], strict=True):
            if self.bin_of_uid.get(uid) != group:
                raise ValueError(
                    f"labels must hold those of the saved state, but the uid {uid!r} has no label "
                    "now, or another one"
                )

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up the history of prompts; those that have joined since begin without one."""
        super().load_state_dict(state)
        self.add(self.bin_of_uid.keys() - self.row_of.keys())


def make_groups(
    name: str,
    given: Mapping[str, Any],
    preset: str,
    uids: Sequence[Any],
    labels: Sequence[Any],
) -> StaticGroups:
    """Groups from arguments of the user, called `name` in errors, and those of a preset."""
    given = check(name, given, Mapping[str, object])
    # an unknown preset is refused by the controller
    arguments = {**PRESETS.get(preset, {}), **given}
    return build(name, StaticGroups, arguments, uids=uids, labels=labels)
