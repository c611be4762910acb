"""The controller: asked for a plan before generation, and told afterwards what came back.

    plan = controller.plan(uids)      # plan.rollouts sums to mean_rollouts × len(uids)
    ...                               # generate and reward plan.rollouts[i] completions of prompt i
    observed = controller.observe(plan, group_ids, rewards)
    ...                               # observed.advantages multiply the policy gradient

Whatever the method does, the controller guarantees the exact budget, the bounds on rollouts, finite
numbers, the same run for the same seed, and results that do not depend on the order of the batch.
Input is checked before anything moves. One thread at a time may call it.

Axes: P prompts of a plan, K those of them that came back, R rollouts, D prompts of the data set.
"""

import math
import uuid
from collections.abc import Mapping
from inspect import signature
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from gdro.advantages import preset_options
from gdro.bins import PRESETS, DifficultyBins, make_bins
from gdro.budget import as_whole, exact_rollouts
from gdro.checks import LARGEST, MOST, UnknownOption, check, check_array, short
from gdro.method import Method, Prompts, Run
from gdro.plans import Observed, Plan, check_rollouts, make_batch
from gdro.record import record_row
from gdro.registry import make_method
from gdro.state import Stateful
from gdro.uids import SortedUids, as_uids, check_uids

# streams of random numbers: asking one question does not change the answer to another
PLAN, DRAW, EXTEND, REPLAY = range(4)


class GDROController(Stateful):
    """Difficulty bins and a method, driven by uids.

    Args:
        method: a registered name ("grpo", "prompt", "rollout", "both", "pivotal", …) or a `Method`.
        mean_rollouts: n̄, rollouts per prompt over a batch; mean_rollouts × prompts must be whole.
        preset: "default", or "paper" for every choice as printed, except the clip of advantages at
            5: pass `advantage_clip=5` (`GDROConfig` does so). Other arguments override it.
        bins: a new `DifficultyBins` or `StaticGroups`, or a mapping of arguments of
            `DifficultyBins`, over those of the preset (`gdro.bins.PRESETS`). A `DifficultyBins`
            that you make yourself has k = 8 and H = 50 unless you say otherwise.
        n_min, n_max: bounds on a prompt's rollouts; by default 2 (or n̄ if that is less) and
            max(12, 3 n̄).
        success_threshold: a rollout is correct if its reward is greater (0 suits 0/1 and ±1).
        advantage_std, scale_rewards: of (3), see `gdro.advantages.group_advantages`; methods with
            advantages of their own, such as pivotal, do not use them.
        advantage_clip: bound on |A| of rollouts before weighting, in every method; None for none.
        pass_rates: by uid, measured before this run; None or NaN where one is unknown. Bins,
            plans and draws use them from the first batch, until rollouts say otherwise.
        pass_rate_rollouts: how many rollouts each is worth as evidence.
        seed: an integer ≥ 0, from which all random numbers follow.
        **more: options of the method.

    Attributes:
        method, bins, run: the `Method`, `DifficultyBins` and `Run` made from the arguments.
        name: of the method, as registered.
        step: batches observed so far.
        planned: plans made so far.
    """

    state = ("step", "planned", "bins", "method")

    def __init__(
        self,
        method: str | Method,
        mean_rollouts: float = 4,
        *,
        preset: str = "default",
        bins: DifficultyBins | Mapping[str, object] | None = None,
        n_min: int | None = None,
        n_max: int | None = None,
        success_threshold: float = 0.0,
        advantage_std: str = "population",
        scale_rewards: str = "group",
        advantage_clip: float | None = None,
        pass_rates: Mapping[Any, float | None] | None = None,
        pass_rate_rollouts: int = 8,
        seed: int = 0,
        **more: object,
    ) -> None:
        check("preset", preset, Literal[tuple(PRESETS)])
        self.success_threshold = check("success_threshold", success_threshold)
        try:
            self.method = make_method(method, preset, more)
        except UnknownOption as error:
            own = signature(GDROController).parameters.keys() - {"method", "more"}
            raise UnknownOption(f"{error}; the controller has {sorted(own)}") from None
        # of the class itself: an unregistered subclass must not go by its parent's name
        self.name = vars(type(self.method)).get("name") or type(self.method).__name__
        self.bins = make_bins(bins, preset)
        mean = check("mean_rollouts", mean_rollouts, ge=1, le=MOST)
        if n_min is None:
            # two rollouts can differ, unless the mean leaves only one
            n_min = min(2, int(mean)) if self.method.n_min is None else self.method.n_min
        if n_max is None:
            n_max = min(max(12, math.ceil(3 * mean)), MOST)
        self.run = Run(
            num_bins=self.bins.num_bins,
            mean_rollouts=mean,
            n_min=n_min,
            n_max=n_max,
            seed=seed,
            has_groups=self.bins.are_named,
            bin_names=self.bins.names,
            advantage_std=advantage_std,  # type: ignore[arg-type]
            scale_rewards=scale_rewards,  # type: ignore[arg-type]
            advantage_clip=advantage_clip,
        )
        self.method.begin(self.run)
        self.bins.in_use = True
        if pass_rates is not None:
            self.bins.start_from(pass_rates, pass_rate_rollouts)
        self.step = 0
        self.planned = 0  # seeds each plan's random numbers
        self._open: dict[int, np.ndarray]  # of the plans in flight: rollouts with extensions, (P,)
        self._pool: ArrayLike | None  # of `draw`: all uids as given
        self._sorted_pool: SortedUids  # the same, sorted
        self._forget_plans()

    # Before generation

    def draw(self, uids: ArrayLike, size: int) -> np.ndarray | None:
        """Choose the prompts of the next batch.

        Args:
            uids: (D,), all prompts of the data set. Give the same array each time and leave it as
                it is: its order and rows are then kept (`gdro.uids.as_uids` makes one of a list).
            size: prompts wanted, from 1 to D.

        Returns:
            Positions in `uids`, (size,); None where the method leaves them to the trainer's order.
        """
        if not self.method.draws:
            return None
        is_new = uids is not self._pool or not isinstance(uids, np.ndarray)  # a list may change
        array = check_uids(uids) if is_new else self._sorted_pool.uids_P
        size = check("size", size, int, ge=1, le=len(array))
        if is_new:  # once, since a large array takes long
            self._sorted_pool = self.bins.sort(array)
            self._pool = uids
        pool = self._prompts(self._sorted_pool)
        # seeded by the plan to come: asked twice before it, `draw` answers the same
        places = self.method.draw(pool, size, self._rng(self.planned, DRAW))
        if places is None:
            return None
        places = self._check_answer("draw", places, size, 0, len(array) - 1, whole=True)
        return self._sorted_pool.order_P[places]  # back from the order of the uids

    def plan(self, uids: ArrayLike) -> Plan:
        """Divide the rollouts of a batch among its prompts.

        The method says how; an answer that does not fit the budget or the bounds is scaled and
        rounded, ties at random. A plan is in flight until it is observed or cancelled.

        Args:
            uids: (P,), of the batch, all integers or all strings. A uid that comes twice is one
                prompt, with rollouts for each of its places.

        Returns:
            The plan. Its rollouts sum to mean_rollouts × P, exactly; those of a method with rounds
            may sum to less, and `extend` then spends the rest.
        """
        array = check_uids(uids)
        total = as_whole("mean_rollouts × prompts", self.run.mean_rollouts * len(array), 1)
        by_uid = self.bins.sort(array)
        prompts = self._prompts(by_uid)
        rng = self._rng(self.planned, PLAN)
        answer = self.method.allocate(prompts, total, rng)
        answer_P = self._check_answer("allocate", answer, len(array), 0)
        if not answer_P.any():
            raise ValueError(
                f"allocate of method {self.name!r} must give some prompt more than 0, "
                f"got 0 for all {len(array)}"
            )
        bounds = self.run.n_min, self.run.n_max
        if self.method.in_rounds and answer_P.sum() < total:  # `extend` spends the rest
            if (answer_P != np.clip(np.rint(answer_P), *bounds)).any():
                raise ValueError(
                    f"allocate of method {self.name!r}, which has extend, must give whole numbers "
                    f"in {bounds} or the whole budget of {total}, got {short(answer_P.tolist())}"
                )
        else:
            answer_P = exact_rollouts(answer_P, total, *bounds, rng)
        rollouts_P = np.empty(len(array), np.int64)
        rollouts_P[by_uid.order_P] = answer_P
        plan = Plan(uids, rollouts_P, self.planned, self._identity, prompts, by_uid.order_P)
        self._open[plan.number] = rollouts_P.copy()  # the caller may write into the plan's own
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
        """Ask a method with rounds for more; `gdro.rounds.sample_in_rounds` does so.

        Args:
            plan: in flight.
            group_ids, rewards, correct: all that came back so far, as for `observe`.

        Returns:
            Further rollouts for the prompts of the plan, (P,); None when its step is done.
        """
        planned_P = self._planned_rollouts(plan)
        spent = int(planned_P.sum())
        left = round(self.run.mean_rollouts * len(plan)) - spent
        if not self.method.in_rounds or left <= 0:
            return None
        given = check_rollouts(planned_P, group_ids, rewards, correct, None, self.success_threshold)
        batch, positions_K, _ = make_batch(
            plan, planned_P, given, self.bins, self.run, is_visit=False
        )
        # what was spent grows from round to round, so each has random numbers of its own
        answer = self.method.extend(batch, left, self._rng(plan.number, EXTEND, spent))
        if answer is None:
            return None
        room_K = self.run.n_max - batch.rollouts_P
        further_K = self._check_answer("extend", answer, len(batch), 0, room_K, whole=True)
        check(f"sum of extend of method {self.name!r}", further_K.sum(), int, ge=1, le=left)
        further_P = np.zeros(len(plan), np.int64)
        further_P[positions_K] = further_K
        self._open[plan.number] = planned_P + further_P
        return further_P

    def cancel(self, plan: Plan) -> None:
        """Close a plan whose rollouts will not come back. Nothing is learned from it."""
        self._planned_rollouts(plan)  # refuses what is not in flight
        del self._open[plan.number]

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

        Returns:
            Weights of the prompts, weighted advantages of the rollouts, a row of the record, and
            whether to take the optimizer step now.

        Raises:
            ValueError: for a plan that is not in flight, data that do not fit it, and answers of
                the method that are not finite or have another shape.
        """
        planned_P = self._planned_rollouts(plan)
        given = check_rollouts(
            planned_P, group_ids, rewards, correct, losses, self.success_threshold
        )
        del self._open[plan.number]
        # bins move first, so that the method sees where prompts are now
        batch, positions_K, order_R = make_batch(
            plan, planned_P, given, self.bins, self.run, is_visit=True
        )
        self.method.update(batch)
        weights = self.method.weights(batch)
        weights_K = self._check_answer("weights", weights, len(batch), 0, LARGEST)
        advantages = self.method.advantages(batch)
        count = len(order_R)
        advantages_R = self._check_answer("advantages", advantages, count, -LARGEST, LARGEST)
        if self.run.advantage_clip is not None:  # also of methods with advantages of their own
            clip = self.run.advantage_clip
            advantages_R = np.clip(advantages_R, -clip, clip)
        row = record_row(self.step, batch, weights_K, self.method.report())
        ready = check(f"ready of method {self.name!r}", self.method.ready(batch), bool)
        # back from the order of the uids to that in which the trainer gave its rollouts
        weighted_R = np.empty(count)
        weighted_R[order_R] = advantages_R * weights_K[batch.group_ids_R]
        weights_P = np.ones(len(plan))
        weights_P[positions_K] = weights_K
        self.step += 1
        return Observed(weights_P, weighted_R, row, ready)

    def replay(self, uids: ArrayLike) -> tuple[np.ndarray, np.ndarray] | None:
        """Choose prompts to train on again by their kept successes, after `observe`.

        Args:
            uids: (P,), of the prompts in the trainer's replay buffer.

        Returns:
            Positions in `uids` and the weights that their kept texts share, (N,) each, or None.
        """
        if not self.method.replays:
            return None
        array = as_uids(uids)
        if not len(array):  # nothing is kept yet
            return None
        by_uid = self.bins.sort(array)
        answer = self.method.replay(self._prompts(by_uid), self._rng(self.step, REPLAY))
        if answer is None:
            return None
        places, weights = answer
        count = np.size(places)
        if not count:
            return None
        places = self._check_answer("replay", places, count, 0, len(array) - 1, whole=True)
        weights = self._check_answer("replay", weights, count, 0, LARGEST)
        return by_uid.order_P[places], weights

    def is_trainers_own(self, scale_rewards: str) -> bool:
        """Whether the trainer's own GRPO, with this `scale_rewards`, has the same advantages."""
        own = preset_options("default") | {"scale_rewards": scale_rewards}
        return self.name == "grpo" and own.items() <= vars(self.run).items()

    # What is given to the method

    def _prompts(self, by_uid: SortedUids) -> Prompts:
        """What is known of prompts now."""
        successes_P, failures_P = self.bins.beliefs.counts(by_uid.rows_P)
        return Prompts(
            uids_P=by_uid.uids_P,
            rows_P=by_uid.rows_P,
            bins_P=self.bins.of_rows(by_uid.rows_P),
            successes_P=successes_P,
            failures_P=failures_P,
            measured_P=self.bins.measured_D[by_uid.rows_P],
        )

    def _rng(self, *stream: int) -> np.random.Generator:
        # not default_rng((seed, 0)): it repeats default_rng(seed), which a loop may use itself
        return np.random.default_rng(np.random.SeedSequence(self.run.seed, spawn_key=stream))

    # Checks

    def _planned_rollouts(self, plan: Plan) -> np.ndarray:
        """Rollouts that each prompt of a plan in flight may bring, (P,); refuses other plans."""
        if not isinstance(plan, Plan):
            raise ValueError(f"plan must be one of this controller's, got {short(plan)}")
        if plan.controller != self._identity or plan.number not in self._open:
            raise ValueError(
                "plan must be this controller's, and neither observed, cancelled nor from before "
                f"a state was loaded, got {short(plan)}"
            )
        return self._open[plan.number]

    def _check_answer(
        self,
        hook: str,
        answer: object,
        size: int,
        low: ArrayLike,
        high: ArrayLike = math.inf,
        whole: bool = False,
    ) -> np.ndarray:
        """The method's answer, (size,), if it lies within the bounds; else ValueError."""
        name = f"{hook} of method {self.name!r}"
        return check_array(name, answer, (size,), low, high, whole=whole)

    # The state

    def settings(self) -> dict[str, Any]:
        return vars(self.run) | {"method": self.name, "success_threshold": self.success_threshold}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._forget_plans()

    def _forget_plans(self) -> None:
        """Start with no plan in flight: earlier ones belong to another history."""
        # tells plans of others apart; no result depends on it
        self._identity = uuid.uuid4().hex
        self._open = {}
        self._pool = None
