"""Rollouts of a run as arrays, and the groups that they form.

Axes: R rollouts, G rollout groups.
"""

from dataclasses import dataclass, replace

import numpy as np

from gdro.checks import Refusal
from gdro.metrics import is_correct


@dataclass(frozen=True, eq=False, kw_only=True)
class Rollouts:
    """What a log says of each rollout."""

    prompts_R: np.ndarray
    """A number of each rollout's prompt, from 0."""
    steps_R: np.ndarray
    """Step in which it was sampled, integers; 0 for all where the log has none."""
    groups_R: np.ndarray
    """A number of its group, from 0; rollouts of a group have the same prompt and step."""
    rewards_R: np.ndarray
    lengths_R: np.ndarray | None
    """Length of its completion in `unit`; None where the log has neither."""
    unit: str
    """"tokens", or "characters" where the log has texts and no counts of tokens."""
    has_steps: bool
    kind: str
    """"TRL" or "verl", whose settings are then named, or "table"."""
    notes: tuple[str, ...]
    """What was chosen, left out or assumed, in a sentence each."""

    def __len__(self) -> int:
        return len(self.rewards_R)


@dataclass(frozen=True, eq=False, kw_only=True)
class Groups:
    """Rollout groups of at least two, in the order of their steps."""

    prompts_G: np.ndarray
    """A number of each group's prompt."""
    steps_G: np.ndarray
    """Step in which it was sampled."""
    trials_G: np.ndarray
    """Rollouts."""
    hits_G: np.ndarray
    """Correct ones among them."""
    is_flat_G: np.ndarray
    """Whether all rewards are equal, so that GRPO's advantages are 0."""
    lengths_G: np.ndarray | None
    """Sum of the lengths of its completions."""

    def __len__(self) -> int:
        return len(self.trials_G)

    @property
    def is_solved_G(self) -> np.ndarray:
        """All rollouts are correct."""
        return self.hits_G == self.trials_G

    @property
    def is_failed_G(self) -> np.ndarray:
        """No rollout is correct."""
        return self.hits_G == 0

    @property
    def is_mixed_G(self) -> np.ndarray:
        """Some rollouts are correct and some are not."""
        return ~(self.is_solved_G | self.is_failed_G)

    def take(self, chosen_G: np.ndarray) -> "Groups":
        """Some of the groups, by positions or by a mask."""
        fields = {name: value for name, value in vars(self).items() if value is not None}
        return replace(self, **{name: value[chosen_G] for name, value in fields.items()})


def choose_threshold(rewards_R: np.ndarray) -> float:
    """The reward above which a rollout is correct, where nobody says it.

    0, as for the controller; but where the log has only two rewards and 0 does not tell them apart,
    as with 1 and 2, the smaller of them.
    """
    low = float(rewards_R.min())
    high = float(rewards_R.max())
    is_two = bool(np.isin(rewards_R, (low, high)).all()) and low < high
    return low if is_two and not low <= 0 < high else 0.0


def form_groups(rollouts: Rollouts, threshold: float) -> Groups:
    """Count what each group brought; a rollout is correct if its reward is above the threshold.

    Raises:
        Refusal: where no group has two rollouts.
    """
    groups_R = rollouts.groups_R
    trials_G = np.bincount(groups_R)
    correct_R = is_correct(rollouts.rewards_R, threshold)
    first_G = np.full(len(trials_G), len(groups_R))
    np.minimum.at(first_G, groups_R, np.arange(len(groups_R)))
    differs_R = rollouts.rewards_R != rollouts.rewards_R[first_G[groups_R]]
    lengths_G = None
    if rollouts.lengths_R is not None:
        lengths_G = np.bincount(groups_R, rollouts.lengths_R)
    groups = Groups(
        prompts_G=rollouts.prompts_R[first_G],
        steps_G=rollouts.steps_R[first_G],
        trials_G=trials_G,
        hits_G=np.bincount(groups_R, correct_R).astype(np.int64),
        is_flat_G=np.bincount(groups_R, differs_R) == 0,
        lengths_G=lengths_G,
    )
    if trials_G.max() < 2:
        raise Refusal(
            "the log must have two rollouts or more of a prompt in a step, got one each: name the "
            "column by which they are grouped with --group, or, where rollouts of a prompt have "
            "different steps, leave the column of steps out with --step none"
        )
    order_G = groups.steps_G.argsort(kind="stable")
    return groups.take(order_G[trials_G[order_G] > 1])
