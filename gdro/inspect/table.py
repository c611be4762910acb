"""Rollouts of a run as arrays, and the groups that they form.

Axes: R rollouts, G rollout groups.
"""

from dataclasses import dataclass, replace

import numpy as np

from gdro.advantages import flat_groups
from gdro.checks import Refusal
from gdro.metrics import is_correct


@dataclass(frozen=True, kw_only=True)
class About:
    """What a log has, and what it lacks."""

    kind: str = "GDROTrainer"
    """Or "TRL", "verl", "tinker-cookbook", "prime-rl" or "table"."""
    unit: str = "tokens"
    """Of lengths: "characters" where the log has texts and no counts of tokens."""
    has_steps: bool = True
    has_prompts: bool = True
    """Otherwise each group counts as a prompt of its own."""
    left_out: int = 0
    """Rows without a reward, or alone in their group."""
    notes: tuple[str, ...] = ()
    """What was chosen, left out or assumed, in a sentence each."""


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
    """Length of its completion; None where the log has none."""
    prompt_lengths_R: np.ndarray | None
    """Length of its prompt; None where the log has none, or completions have none."""
    discarded_R: np.ndarray | None
    """Whether it was sampled and not trained on; None where the log does not say it."""
    about: About

    def __len__(self) -> int:
        return len(self.rewards_R)

    @property
    def counted_in(self) -> str:
        """What computation is counted in: the most exact that the log has."""
        if self.lengths_R is None:
            return "rollouts"
        unit = self.about.unit
        return unit if self.prompt_lengths_R is not None else f"completion {unit}"


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
    lengths_G: np.ndarray | None = None
    """Sum of the lengths of its completions."""
    computed_G: np.ndarray | None = None
    """What TRL computes of it: prompt and completion of each rollout that is not discarded."""
    shared_G: np.ndarray | None = None
    """The same with its prompt computed once."""
    needed_G: np.ndarray | None = None
    """The same without rollouts whose advantage is 0."""

    def __len__(self) -> int:
        return len(self.trials_G)

    @property
    def kinds(self) -> dict[str, np.ndarray]:
        """Which groups are solved (all rollouts are correct), failed (none is) and mixed."""
        is_solved_G = self.hits_G == self.trials_G
        is_failed_G = self.hits_G == 0
        return {
            "solved": is_solved_G,
            "failed": is_failed_G,
            "mixed": ~(is_solved_G | is_failed_G),
        }

    def take(self, chosen_G: np.ndarray) -> "Groups":
        """Some of the groups, by positions or by a mask."""
        fields = {name: value for name, value in vars(self).items() if value is not None}
        return replace(self, **{name: value[chosen_G] for name, value in fields.items()})


def choose_threshold(rewards_R: np.ndarray) -> float | None:
    """The reward above which a rollout is correct, where nobody says it; None if unknown.

    0, as for the controller, where some rewards are above and some are not. Of two rewards that 0
    does not tell apart, as 1 and 2, the smaller; of more, such as stages from 0.1 to 1, nothing
    says which are correct.
    """
    low = float(rewards_R.min())
    high = float(rewards_R.max())
    if low <= 0 < high or low == high:
        return 0.0
    is_two = bool(np.isin(rewards_R, (low, high)).all())
    return low if is_two else None


def form_groups(rollouts: Rollouts, threshold: float) -> Groups:
    """Count what each group brought; a rollout is correct if its reward is above the threshold.

    Raises:
        Refusal: where no group has two rollouts.
    """
    groups_R = rollouts.groups_R
    trials_G = np.bincount(groups_R)
    if trials_G.max() < 2:
        raise Refusal(
            "the log must have two rollouts or more of a prompt in a step, got one each: name the "
            "column that says the question with --prompt COLUMN, or the group with --group COLUMN "
            "and --prompt none, or leave the column of steps out with --step none"
        )
    correct_R = is_correct(rollouts.rewards_R, threshold)
    first_G = np.full(len(trials_G), len(groups_R))
    np.minimum.at(first_G, groups_R, np.arange(len(groups_R)))
    is_flat_G = flat_groups(rollouts.rewards_R, groups_R, len(trials_G))
    lengths_G = None
    if rollouts.lengths_R is not None:
        lengths_G = np.bincount(groups_R, rollouts.lengths_R)
    groups = Groups(
        prompts_G=rollouts.prompts_R[first_G],
        steps_G=rollouts.steps_R[first_G],
        trials_G=trials_G,
        hits_G=np.bincount(groups_R, correct_R).astype(np.int64),
        is_flat_G=is_flat_G,
        lengths_G=lengths_G,
        **_computation(rollouts, is_flat_G, first_G),
    )
    order_G = groups.steps_G.argsort(kind="stable")
    return groups.take(order_G[trials_G[order_G] > 1])


def _computation(
    rollouts: Rollouts, is_flat_G: np.ndarray, first_G: np.ndarray
) -> dict[str, np.ndarray]:
    """What is computed of each group: by TRL, with its prompt once, without zero advantages.

    The prompt is computed once but for its last token, which stands before each completion, as it
    predicts the first token of that.
    """
    groups_R = rollouts.groups_R
    mean_G = np.bincount(groups_R, rollouts.rewards_R) / np.bincount(groups_R)
    distance_R = np.abs(rollouts.rewards_R - mean_G[groups_R])
    widest_G = np.zeros(len(mean_G))
    np.maximum.at(widest_G, groups_R, distance_R)
    # a mean of rewards is exact only to rounding
    has_advantage_R = ~is_flat_G[groups_R] & (distance_R > 1e-9 * widest_G[groups_R])
    trained_R = np.ones(len(groups_R), bool)
    if rollouts.discarded_R is not None:
        trained_R = ~rollouts.discarded_R
    completions_R = np.ones(len(groups_R)) if rollouts.lengths_R is None else rollouts.lengths_R
    prompts_R = np.zeros(len(groups_R))
    last = 0
    if rollouts.prompt_lengths_R is not None:
        prompts_R = rollouts.prompt_lengths_R
        last = int(rollouts.about.unit == "tokens")
    prefix_G = np.maximum(prompts_R[first_G] - last, 0)

    def with_prefix(kept_R: np.ndarray) -> np.ndarray:
        rows_G = np.bincount(groups_R, (completions_R + last) * kept_R)
        return rows_G + prefix_G * (np.bincount(groups_R, kept_R) > 0)

    return {
        "computed_G": np.bincount(groups_R, (prompts_R + completions_R) * trained_R),
        "shared_G": with_prefix(trained_R),
        "needed_G": with_prefix(trained_R & has_advantage_R),
    }
