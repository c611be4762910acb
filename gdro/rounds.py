"""One plan from its first rollouts to the last that `extend` asks for (docs/methods.md has a loop).

Axes: D prompts of the data set, P prompts of a batch, R rollouts.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from gdro.checks import LARGEST, check, check_array
from gdro.controller import GDROController
from gdro.metrics import is_correct
from gdro.plans import Plan, check_correct
from gdro.uids import check_uids


class Outcomes(NamedTuple):
    """What a round brought, where the reward alone does not say which rollouts are correct."""

    rewards_R: ArrayLike
    """NaN or None where a rollout has no reward."""
    correct_R: ArrayLike
    """Whether each rollout is correct."""


@dataclass(frozen=True, eq=False)
class Samples:
    """All rollouts of a plan, in the order in which they were sampled."""

    group_ids_R: np.ndarray
    """Position in `plan.uids` of each rollout's prompt."""
    rewards_R: np.ndarray
    """NaN where a rollout has no reward."""
    correct_R: np.ndarray
    """Whether each rollout is correct."""

    @property
    def is_scored_R(self) -> np.ndarray:
        """Which rollouts have a reward."""
        return ~np.isnan(self.rewards_R)

    def scored(self) -> "Samples":
        """Those that have a reward, which is what the controller may be told of."""
        is_scored_R = self.is_scored_R
        return Samples(
            self.group_ids_R[is_scored_R],
            self.rewards_R[is_scored_R],
            self.correct_R[is_scored_R],
        )


def sample_in_rounds(
    controller: GDROController,
    plan: Plan,
    sample_and_reward: Callable[[np.ndarray], ArrayLike | Outcomes],
) -> Samples:
    """Sample a plan's rollouts, and what the method asks for when it has seen their rewards.

    Args:
        controller: that made the plan.
        plan: in flight; it stays so until `observe`.
        sample_and_reward: called once a round with the group ids of the rollouts to sample now,
            (R,) positions in `plan.uids` in increasing order. It returns their rewards, (R,), or
            `Outcomes`; without those, a reward above success_threshold is correct.

    Returns:
        What all rounds brought. Where every rollout has a reward, its arrays are ready for
        `observe`; else those of its `scored()` are.
    """
    samples = Samples(np.zeros(0, np.int64), np.zeros(0), np.zeros(0, bool))
    more_P: np.ndarray | None = plan.rollouts
    while more_P is not None:
        new_R = np.repeat(np.arange(len(plan)), more_P)
        outcomes = sample_and_reward(new_R)
        if not isinstance(outcomes, Outcomes):
            rewards_R = _check_values("rewards", outcomes, new_R)
            outcomes = Outcomes(rewards_R, is_correct(rewards_R, controller.success_threshold))
        samples = _append(samples, new_R, outcomes)
        scored = samples.scored()
        if not len(scored.rewards_R):  # nothing by which a method could choose
            break
        more_P = controller.extend(
            plan, scored.group_ids_R, scored.rewards_R, correct=scored.correct_R
        )
    return samples


def next_plan(
    controller: GDROController, uids: Sequence[int | str] | np.ndarray, size: int
) -> Plan:
    """Draw `size` of the prompts of the data set, `uids` (D,), and plan their rollouts.

    For a loop without an order of its own: where the method does not draw, the prompts come in
    epochs, each in a random order, by the controller's seed. Give the same list or array each time.
    """
    # what reads slowly, such as a column of `datasets`, is asked only for what is drawn
    is_lazy = isinstance(uids, Sequence) and not isinstance(uids, list | tuple | str | bytes)
    known_D = uids if is_lazy else check_uids(uids)
    check("size", size, int, ge=1, le=len(known_D))
    drawn_P = controller.draw(uids, size)  # not `known_D`: the controller recognizes an array
    if drawn_P is None:
        seed = controller.run.seed
        drawn_P = prompts_of_batch(controller.planned, size, len(known_D), seed, shuffled=True)
    return controller.plan([known_D[place] for place in drawn_P.tolist()])


def prompts_of_batch(number: int, size: int, total: int, seed: int, shuffled: bool) -> np.ndarray:
    """Positions in the data set of the prompts of batch `number` (from 0), (size,).

    Each epoch has an order of its own; what is left over at its end is dropped. Nothing but the
    arguments matters, so a resumed run takes the same prompts.
    """
    epoch, batch = divmod(number, total // size)
    rng = np.random.default_rng((seed, epoch))
    order_D = rng.permutation(total) if shuffled else np.arange(total)
    return order_D[batch * size : (batch + 1) * size]


def _append(samples: Samples, new_R: np.ndarray, outcomes: Outcomes) -> Samples:
    """The samples of all rounds so far."""
    rewards_R = _check_values("rewards", outcomes.rewards_R, new_R)
    correct_R = _check_values("correct", outcomes.correct_R, new_R)
    is_scored_R = ~np.isnan(rewards_R)
    check_correct(correct_R[is_scored_R], int(is_scored_R.sum()))
    return Samples(
        np.append(samples.group_ids_R, new_R),
        np.append(samples.rewards_R, rewards_R),
        np.append(samples.correct_R, correct_R == 1),
    )


def _check_values(name: str, values: ArrayLike, new_R: np.ndarray) -> np.ndarray:
    """Check what came back for each new rollout, (R,); NaN and None stand for no value."""
    name = f"{name} of sample_and_reward"
    return check_array(name, values, new_R.shape, -LARGEST, LARGEST, missing=True)
