"""The controller: asked for a plan before generation, and told afterwards what came back.

    plan = controller.plan(uids)      # plan.rollouts sums to mean_rollouts × len(uids)
    ...                               # generate and reward plan.rollouts[i] completions of prompt i
    batch = controller.observe(plan, group_ids, rewards)
    ...                               # batch.advantages multiply the policy gradient

Whatever the method does, the controller guarantees the exact budget, the bounds on rollouts, finite
numbers, the same run for the same seed, and results that do not depend on the order of the batch.
Input is checked before anything moves. One thread at a time may call it.

Axes: P prompts of a plan, K those of them that came back, R rollouts, D prompts of the data set.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from gdro.bins import DifficultyBins, as_uids
from gdro.budget import as_whole, exact_rollouts
from gdro.checks import LARGEST, build, check, check_array, need
from gdro.method import Batch, Method, Prompts, Run
from gdro.record import row_of
from gdro.registry import make_method
from gdro.state import Saved

PRESETS: dict[str, dict[str, Any]] = {  # of the bins
    # pass@1, because pass@8 of a prompt that is solved half the time is .996, almost that of a
    # solved one
    "default": {"k": 1, "history": 20},
    "paper": {"k": 8, "history": 50, "estimator": "any_of_k"},
}
# streams of random numbers: asking one question does not change the answer to another
PLAN, DRAW, EXTEND, REPLAY = range(4)


@dataclass(frozen=True, eq=False)
class Plan:
    """Rollouts of each prompt of a batch. It never changes, and several can be in flight."""

    uids: ArrayLike  # as given to `GDROController.plan`
    rollouts: np.ndarray  # (P,) integers, in the order of the uids
    number: int  # of its controller's plans
    prompts: Prompts = field(repr=False)  # sorted by uid
    order_P: np.ndarray = field(repr=False)  # prompts.uids_P = uids[order_P]

    def __len__(self) -> int:
        return len(self.rollouts)


class Observed(NamedTuple):
    """What `observe` returns."""

    weights: np.ndarray  # (P,) factor on each prompt's advantages; 1 where no rollout came back
    advantages: np.ndarray  # (R,) in the order of the rewards, weighted
    row: dict[str, Any]  # one row of the run's record, plain JSON values
    ready: bool  # False where the method wants these rollouts kept for the next optimizer step


class GDROController(Saved):
    """Difficulty bins and a method, driven by uids.

    Args:
        method: a registered name ("grpo", "prompt", "rollout", "both", "pivotal", …) or a `Method`.
        mean_rollouts: n̄, rollouts per prompt over a batch; mean_rollouts × prompts must be whole.
        preset: "default", or "paper" for every choice as printed but the advantage_clip of 5, which
            `GDROConfig` sets. Other arguments override it.
        bins: a `DifficultyBins` or `StaticGroups`, or a mapping of arguments of `DifficultyBins`.
        n_min, n_max: bounds on a prompt's rollouts; by default 2 (or n̄ if that is less) and
            max(12, 3 n̄).
        success_threshold: a rollout is correct if its reward is greater (0 suits 0/1 and ±1).
        advantage_std, scale_rewards, advantage_clip: see `gdro.advantages.group_advantages`.
        seed: an integer ≥ 0, of everything random.
        **options: arguments of the method.

    Attributes:
        method, bins, run: what the arguments came to, a `Method`, a `DifficultyBins` and a `Run`.
        step: batches observed so far.
    """

    state = ("step", "planned", "bins", "method")

    def __init__(
        self,
        method: str | Method,
        mean_rollouts: float = 4,
        *,
        preset: str = "default",
        bins: DifficultyBins | Mapping[str, Any] | None = None,
        n_min: int | None = None,
        n_max: int | None = None,
        success_threshold: float = 0.0,
        advantage_std: str = "population",
        scale_rewards: str = "group",
        advantage_clip: float | None = None,
        seed: int = 0,
        **options: Any,
    ) -> None:
        check("preset", preset, Literal[tuple(PRESETS)])
        self.success_threshold = check("success_threshold", success_threshold)
        self.method = make_method(method, preset, options)
        self.name = vars(type(self.method)).get("name") or type(self.method).__name__
        if not isinstance(bins, DifficultyBins):
            bins = build("bins", DifficultyBins, {**PRESETS[preset], **(bins or {})})
        self.bins: DifficultyBins = bins  # type: ignore[assignment]
        mean = check("mean_rollouts", mean_rollouts, ge=1)
        n_min = self.method.n_min if n_min is None else n_min
        self.run = Run(
            num_bins=self.bins.num_bins,
            mean_rollouts=mean,
            n_min=min(2, int(mean)) if n_min is None else n_min,
            n_max=max(12, math.ceil(3 * mean)) if n_max is None else n_max,
            seed=seed,
            advantage_std=advantage_std,  # type: ignore[arg-type]
            scale_rewards=scale_rewards,  # type: ignore[arg-type]
            advantage_clip=advantage_clip,
        )
        self.method.run = self.run  # here, so that a method's `start` need not call its base's
        self.method.start(self.run)
        self.step = 0  # batches observed
        self.planned = 0  # plans made: seeds each plan's random numbers
        self._open: dict[int, tuple] = {}  # of plans in flight: uids, rollouts with extensions
        self._pool: tuple | None = None  # of `draw`: uids as given, and what `_sort` makes of them

    # Before generation

    def draw(self, uids: ArrayLike, size: int) -> np.ndarray | None:
        """Positions in `uids` of the next batch's prompts, (size,); None for the trainer's order.

        Args:
            uids: (D,), all prompts of the data set. Give the same array each time and leave it as
                it is: its order and rows are then kept (`gdro.bins.as_uids` makes one of a list).
            size: prompts wanted, at least 1.
        """
        if not self.method.draws:
            return None
        size = as_whole("size", size, 1)
        if self._pool is None or self._pool[0] is not uids or not isinstance(uids, np.ndarray):
            # kept from step to step, since sorting a large pool is slow
            self._pool = (uids, *self._sort(uids))
        _, order_D, uids_D, rows_D = self._pool
        pool = self._prompts(uids_D, rows_D)
        places = self.method.draw(pool, size, self._rng(self.planned, DRAW))
        if places is None:
            return None
        # back from the order of the uids
        return order_D[self._answer("draw", places, size, 0, len(uids_D) - 1, whole=True)]

    def plan(self, uids: ArrayLike) -> Plan:
        """Rollouts for each prompt of a batch; they sum to mean_rollouts × P, exactly.

        The method says how they are divided; an answer that does not fit the budget or the bounds
        is scaled and rounded, ties at random. A method with rounds may plan fewer: see `extend`.

        Args:
            uids: (P,), of the batch, all integers or all strings. A uid that comes twice is one
                prompt, with rollouts for each of its places.
        """
        wanted = self.run.mean_rollouts * len(uids)  # type: ignore[arg-type]
        total = as_whole("mean_rollouts × prompts", wanted, 1)
        order_P, uids_P, rows_P = self._sort(uids)
        prompts = self._prompts(uids_P, rows_P)
        rng, bounds = self._rng(self.planned, PLAN), (self.run.n_min, self.run.n_max)
        wanted_P = self.method.allocate(prompts, total, rng)
        wanted_P = self._answer("allocate", wanted_P, len(uids_P), 0)
        need(wanted_P.any(), f"allocate of method {self.name!r} must not be 0 for all prompts")
        # a first round that fits is left as it is, since `extend` spends the rest
        fits = self.method.rounds and wanted_P.sum() <= total
        if not (fits and (wanted_P == np.clip(np.rint(wanted_P), *bounds)).all()):
            wanted_P = exact_rollouts(wanted_P, total, *bounds, rng)
        rollouts_P = np.empty(len(uids_P), np.int64)
        rollouts_P[order_P] = wanted_P
        plan = Plan(uids, rollouts_P, self.planned, prompts, order_P)
        self._open[plan.number] = uids_P, rollouts_P.copy()
        self.planned += 1
        return plan

    def extend(
        self,
        plan: Plan,
        group_ids: ArrayLike,
        rewards: ArrayLike,
        *,
        correct: ArrayLike | None = None,
    ) -> np.ndarray | None:
        """Further rollouts for the prompts of a plan, (P,); None when its step is done.

        For methods with rounds; the arguments are all that came back so far, as for `observe`.
        """
        planned_P = self._rollouts(plan)
        spent = int(planned_P.sum())
        left = round(self.run.mean_rollouts * len(plan)) - spent
        if not self.method.rounds or left <= 0:
            return None
        batch, position_K, _ = self._batch(plan, group_ids, rewards, correct)
        # what was spent grows from round to round, so each has random numbers of its own
        further_K = self.method.extend(batch, left, self._rng(plan.number, EXTEND, spent))
        if further_K is None:
            return None
        room_K = self.run.n_max - batch.rollouts_P
        further_K = self._answer("extend", further_K, len(batch), 0, room_K, whole=True)
        self._answer("sum of extend", further_K.sum(), None, 1, left, whole=True)
        further_P = np.zeros(len(plan), np.int64)
        further_P[position_K] = further_K
        self._open[plan.number] = plan.prompts.uids_P, planned_P + further_P
        return further_P

    # After generation

    def observe(
        self,
        plan: Plan,
        group_ids: ArrayLike,
        rewards: ArrayLike,
        *,
        correct: ArrayLike | None = None,
        losses: ArrayLike | None = None,
    ) -> Observed:
        """Learn from what came back: bins move, then the method. Closes the plan.

        Args:
            plan: of this controller, in flight. Plans may be observed in any order.
            group_ids: (R,) position in `plan.uids` of the prompt each rollout belongs to. Prompts
                and rollouts may be missing; nothing is learned from what is.
            rewards: (R,), finite.
            correct: (R,) whether each rollout is; by default, a reward above success_threshold.
            losses: (R,) surrogate losses ℓ_ij of (6); by default −A_ij, which is (6) on-policy at
                β = 0.

        Raises:
            ValueError: for a plan that is not in flight, data that do not fit it, and answers of
                the method that are not finite or have another shape.
        """
        batch, position_K, order_R = self._batch(plan, group_ids, rewards, correct, losses)
        del self._open[plan.number]
        # Bins move first, so that the method sees where prompts are now. A prompt still counts in
        # the bin in which it was planned, or its own outcome would choose where it counts; on a
        # first visit there is none, and the new one is taken.
        self.bins.visit(batch.rows_P, batch.hits_P, batch.trials_P)
        after_P = self.bins.of_rows(batch.rows_P)
        at_visit_P = np.where(batch.first_visit_P, after_P, batch.bins_P)
        batch = replace(batch, bins_P=at_visit_P, bins_after_P=after_P)
        self.method.update(batch)
        weights_K, advantages_R = self.method.weights(batch), self.method.advantages(batch)
        weights_K = self._answer("weights", weights_K, len(batch), 0, LARGEST)
        advantages_R = self._answer("advantages", advantages_R, len(order_R), -LARGEST, LARGEST)
        row = row_of(self.step, batch, weights_K, self.method.report())
        ready = bool(self.method.ready(batch))
        # back from the order of the uids to that in which the trainer gave its rollouts
        weighted_R, weights_P = np.empty(len(advantages_R)), np.ones(len(plan))
        weighted_R[order_R] = advantages_R * weights_K[batch.group_ids_R]
        weights_P[position_K] = weights_K
        self.step += 1
        return Observed(weights_P, weighted_R, row, ready)

    def replay(self, uids: ArrayLike) -> tuple[np.ndarray, np.ndarray] | None:
        """Prompts to train on again by their kept successes, after `observe`; None for none.

        Args:
            uids: (P,), of the prompts in the trainer's bank (`gdro.methods.bank.Bank.uids`).

        Returns:
            Positions in `uids`, and the weight that the kept texts of each share.
        """
        if not self.method.replays or not len(uids):  # type: ignore[arg-type]
            return None
        order_P, *sorted_P = self._sort(uids)
        answer = self.method.replay(self._prompts(*sorted_P), self._rng(self.step, REPLAY))
        if answer is None or not len(answer[0]):
            return None
        places, weights = answer
        places = self._answer("replay", places, len(weights), 0, len(order_P) - 1, whole=True)
        return order_P[places], self._answer("replay", weights, len(weights), 0, LARGEST)

    def _batch(
        self, plan: Plan, group_ids: Any, rewards: Any, correct: Any, losses: Any = None
    ) -> tuple[Batch, np.ndarray, np.ndarray]:
        """What came back for a plan, checked and sorted by uid, with the bins not moved yet.

        Also the positions in `plan.uids` of its prompts, (K,), and of its rollouts as given, (R,).
        """
        planned_P, known = self._rollouts(plan), plan.prompts
        size = (max(len(rewards), 1),)
        rewards_R = check_array("rewards", rewards, size, -LARGEST, LARGEST)
        group_ids_R = check_array("group_ids", group_ids, size, 0, len(plan) - 1, whole=True)
        correct_R = rewards_R > self.success_threshold
        if correct is not None:
            correct_R = check_array("correct", correct, size, 0, 1).astype(bool)
        if losses is not None:
            losses = check_array("losses", losses, size, -LARGEST, LARGEST)
        # fewer rollouts than planned are fine, as an engine may drop some; more exceed the budget
        trials_P = np.bincount(group_ids_R, minlength=len(plan))
        check_array("rollouts of each prompt in group_ids", trials_P, None, 0, planned_P)
        # rollouts by the uid of their prompt; prompts with any, first among those sorted by uid
        order_R = plan.order_P.argsort()[group_ids_R].argsort(kind="stable")
        present_K = np.flatnonzero(trials_P[plan.order_P])
        position_K = plan.order_P[present_K]
        group_ids_R = np.repeat(np.arange(len(position_K)), trials_P[position_K])
        # bins are those at planning; counts those of now, as other plans may have been observed
        rows_K, bins_K = known.rows_P[present_K], known.bins_P[present_K]
        successes_K, failures_K = self.bins.beliefs.counts(rows_K)
        batch = Batch(
            uids_P=known.uids_P[present_K],
            rows_P=rows_K,
            bins_P=bins_K,
            successes_P=successes_K,
            failures_P=failures_K,
            memo=known.memo,
            rollouts_P=planned_P[position_K],
            trials_P=trials_P[position_K],
            hits_P=np.bincount(group_ids_R[correct_R[order_R]], minlength=len(rows_K)),
            bins_after_P=bins_K,
            first_visit_P=bins_K < 0,
            group_ids_R=group_ids_R,
            rewards_R=rewards_R[order_R],
            correct_R=correct_R[order_R],
            given_losses_R=None if losses is None else losses[order_R],
            run=self.run,
        )
        return batch, position_K, order_R

    def _rollouts(self, plan: Plan) -> np.ndarray:
        """Rollouts that each prompt of a plan in flight may bring, (P,)."""
        uids_P, rollouts_P = self._open.get(plan.number, (None, None))
        if not np.array_equal(uids_P, plan.prompts.uids_P):  # to print a plan is slow
            raise ValueError(f"plan must be this controller's, not observed yet, got {plan}")
        return rollouts_P

    def _sort(self, uids: ArrayLike) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The order that sorts uids, the sorted uids, and their rows, (P,) each."""
        array = as_uids(uids)
        need(len(array), "uids must have at least one, got none")
        order_P = array.argsort(kind="stable")
        return order_P, array[order_P], self.bins.rows(array)[order_P]

    def _prompts(self, uids_P: np.ndarray, rows_P: np.ndarray) -> Prompts:
        successes_P, failures_P = self.bins.beliefs.counts(rows_P)
        return Prompts(
            uids_P=uids_P,
            rows_P=rows_P,
            bins_P=self.bins.of_rows(rows_P),
            successes_P=successes_P,
            failures_P=failures_P,
        )

    def _answer(
        self, what: str, values: Any, size: int | None, *bounds: Any, **rules: Any
    ) -> np.ndarray:
        """An answer of the method, (size,) or a number, within bounds; ValueError with its name."""
        name, shape = f"{what} of method {self.name!r}", () if size is None else (size,)
        return check_array(name, values, shape, *bounds, **rules)

    def _rng(self, *stream: int) -> np.random.Generator:
        return np.random.default_rng((self.run.seed, *stream))

    # The state

    def settings(self) -> dict[str, Any]:
        return vars(self.run) | {"method": self.name, "success_threshold": self.success_threshold}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._open, self._pool = {}, None  # plans from before are not in flight any more
