"""What methods share that look at a pilot before they spend the rest of a step. P prompts."""

import math
from dataclasses import dataclass

import numpy as np

from gdro.core.budget import exact_rollouts
from gdro.core.checks import check_int, option
from gdro.methods.base import Batch, Method, Prompts, Run


def spread_evenly(
    rollouts_P: np.ndarray, left: int, most_P: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """The rollouts with `left` more, spread as evenly as whole numbers and the upper bounds allow, (P,)."""
    rollouts_P = rollouts_P.copy()
    while left and (open_P := np.flatnonzero(rollouts_P < most_P)).size:
        each, one_more = divmod(left, len(open_P))
        more = each + (rng.permutation(len(open_P)) < one_more)
        more = np.minimum(more, (most_P - rollouts_P)[open_P])
        rollouts_P[open_P] += more
        left -= int(more.sum())
    return rollouts_P


@dataclass(eq=False)
class Pilot(Method):
    """The same few rollouts for every prompt first; `extend` divides what is left of the step's budget.

    Pilots count in the budget, and so does all that is spent on a prompt that turns out to be of no use. What
    `extend` does not ask for is not spent.
    """

    pilot: int = option(2, check_int, 1)  # rollouts of each prompt in the first round

    rounds = True

    def start(self, run: Run) -> None:
        name, most = f"{type(self).__name__}(pilot=…)", math.ceil(run.mean_rollouts) - 1
        remedy = "change it: it must reach n_min and leave some of mean_rollouts"
        check_int(name, self.pilot, run.n_min, most, remedy)

    def allocate(self, prompts: Prompts, budget: int, rng: np.random.Generator) -> np.ndarray:
        return np.full(len(prompts), self.pilot)

    def rest(
        self, batch: Batch, wanted_P: np.ndarray, left: int, rng: np.random.Generator
    ) -> np.ndarray | None:
        """`left` rollouts in proportion to what is wanted, up to n_max with the pilot, (P,); once a step."""
        chosen_P, room = wanted_P > 0, self.run.n_max - self.pilot
        total = min(left, room * int(chosen_P.sum()))
        if not total or batch.memo.get("extended"):
            return None
        batch.memo["extended"] = True
        further_P = np.zeros(len(batch), np.int64)
        further_P[chosen_P] = exact_rollouts(wanted_P[chosen_P], total, 0, room, rng)
        return further_P
