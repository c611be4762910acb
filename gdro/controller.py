"""The controller: a trainer asks it for a plan before generation and reports what came back afterwards.

    plan = controller.plan(uids)                           # plan.rollouts sums to mean_rollouts × len(uids)
    ... generate plan.rollouts[i] completions of prompt i, reward them ...
    batch = controller.observe(plan, group_ids, rewards)   # batch.advantages multiply the policy gradient

Whatever the method does, the controller guarantees the exact budget, the bounds on rollouts, finite numbers,
determinism, and results that do not depend on the order of the batch. A call that raises an error, its own or
the method's, changes nothing. Calls may come from several threads.

Axes: P prompts of a plan, K those of them that came back, R rollouts, B bins, D prompts of the data set.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple
from uuid import uuid4

import numpy as np
from numpy.typing import ArrayLike

from gdro.core.arrays import read_only
from gdro.core.bins import DifficultyBins
from gdro.core.budget import as_whole, exact_rollouts
from gdro.core.checks import build, check_choice, check_int, check_number
from gdro.core.returned import Returned, sorted_returns
from gdro.core.shared import Shared, one_at_a_time
from gdro.core.uids import Uids, as_uids
from gdro.methods import Batch, Method, Prompts
from gdro.methods.checked import CheckedMethod, restored_on_error
from gdro.methods.record import row_of
from gdro.methods.setup import make_method, make_run

PRESETS: dict[str, dict[str, Any]] = {
    # pass@1, because pass@8 of a prompt that is solved half the time is .996, almost that of a solved one
    "default": {"k": 1, "history": 20},
    "paper": {"k": 8, "history": 50, "estimator": "any_of_k"},
}
# Each question has a random stream of its own, so that asking one does not change the answer to another.
PLAN, DRAW, EXTEND = range(3)


@dataclass(frozen=True, eq=False)
class Plan:
    """Rollouts of each prompt of a batch. It never changes, and several can be in flight."""

    uids: ArrayLike | Uids  # as given to `GDROController.plan`
    rollouts: np.ndarray  # (P,) integers, in the order of the uids
    key: tuple[str, int] = field(repr=False)  # its controller and its number there, the same in a copy
    prompts: Prompts = field(repr=False)  # sorted by key
    order_P: np.ndarray = field(repr=False)  # prompts.keys_P = keys[order_P]

    def __len__(self) -> int:
        return len(self.rollouts)


class Observed(NamedTuple):
    """What `observe` returns."""

    weights: np.ndarray  # (P,) factor on each prompt's advantages; 1 where no rollout came back
    advantages: np.ndarray  # (R,) in the order of the rewards, weighted: what multiplies the policy gradient
    row: dict[str, Any]  # one row of the run's record, plain JSON values
    ready: bool  # False where the method wants these rollouts kept for the next optimizer step


class GDROController(Shared):
    """Difficulty bins and a method, driven by uids.

    Args:
        method: a registered name ("grpo", "prompt", "rollout", "both", "pivotal", …) or a `Method`. There is
            no default, because no method is better than the others everywhere.
        mean_rollouts: n̄, rollouts per prompt over a batch; mean_rollouts × prompts must be whole.
        preset: "default", or "paper" for every choice as printed but the advantage_clip of 5, which
            `GDROConfig` sets. Other arguments override it.
        bins: a `DifficultyBins` or `StaticGroups`, or a mapping of arguments of `DifficultyBins`.
        n_min, n_max: bounds on a prompt's rollouts; by default 2 (or n̄ if that is less) and max(12, 3 n̄).
        success_threshold: a rollout is correct if its reward is greater (0 suits 0/1 and ±1 rewards).
        advantage_std, scale_rewards, advantage_clip: see `gdro.core.advantages.group_advantages`.
        seed: an integer ≥ 0, of everything random.
        **options: arguments of the method.

    Attributes:
        method, bins, run: the `Method`, the `DifficultyBins` and the sizes that the arguments came to.
        step: batches observed so far.

    Raises:
        ValueError: for an unknown method or preset, and for arguments outside their domain.
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
        super().__init__()
        check_choice("preset", preset, tuple(PRESETS))
        self.success_threshold = check_number("success_threshold", success_threshold)
        self.method = make_method(method, preset, options)
        self.name = self.method.label
        if bins is None or isinstance(bins, Mapping):
            bins = {**PRESETS[preset], **(bins or {})}
        self.bins = bins if isinstance(bins, DifficultyBins) else build("bins", DifficultyBins, bins)
        n_min = self.method.n_min if n_min is None else n_min  # None in both: the default of `make_run`
        rest = (seed, advantage_std, scale_rewards, advantage_clip)  # the further fields of `Run`
        self.run = make_run(self.bins.num_bins, mean_rollouts, n_min, n_max, *rest)
        self._ask = CheckedMethod(self.method, self.run)
        self.step = 0  # batches observed
        self.planned = 0  # plans made: seeds each plan's random numbers
        self._close_plans()

    def _close_plans(self) -> None:
        self._owner = uuid4().hex  # plans of another controller, or from before loading, have another
        # rollouts of the plans in flight, with what rounds added
        self._open: dict[tuple[str, int], np.ndarray] = {}
        # of `draw`: uids as given, their order, keys and rows in it
        self._pool: tuple[Uids, np.ndarray, np.ndarray, np.ndarray] | None = None

    # Before generation

    @one_at_a_time
    def draw(self, uids: ArrayLike | Uids, size: int) -> np.ndarray | None:
        """Positions in `uids` of the next batch's prompts, (size,); None to keep the trainer's own order.

        Args:
            uids: (D,), all prompts of the data set. Give the same `as_uids(…)` object each time: its order
                and rows are then kept.
            size: prompts wanted, at least 1.
        """
        if not self.method.draws:
            return None
        uids = as_uids(uids)
        check_int("size", size, 1)
        if not len(uids):
            raise ValueError("uids must not be empty; give the uids of the whole data set")
        with restored_on_error(self.method, self.bins):
            pool = self._pool
            if pool is None or pool[0] is not uids:
                # kept from step to step, since sorting a large pool is slow
                order_D = uids.order()
                pool = (uids, order_D, uids.keys[order_D], self.bins.rows(uids)[order_D])
            _, order_D, keys_D, rows_D = pool
            places = self._ask.draw(self._prompts(keys_D, rows_D), size, self._rng(self.planned, DRAW))
        self._pool = pool  # only now, since rows of a refused call are taken back
        return None if places is None else order_D[places]  # back from the order of the keys

    @one_at_a_time
    def plan(self, uids: ArrayLike | Uids) -> Plan:
        """Rollouts for each prompt of a batch; they sum to mean_rollouts × P, exactly.

        The method says how they are divided. An answer that does not fit the budget or the bounds is scaled,
        then rounded to whole rollouts, ties at random. A method with rounds may plan fewer: see `extend`.

        Args:
            uids: (P,), of the batch, all integers or all strings. A uid that comes twice is one prompt, with
                rollouts for each of its places.
        """
        known = as_uids(uids)
        total = as_whole(self.run.mean_rollouts * len(known))
        if not total:
            raise ValueError(
                f"mean_rollouts × prompts must be a whole number above 0, got {self.run.mean_rollouts} × "
                f"{len(known)}; change mean_rollouts or the number of prompts"
            )
        order_P = known.order()
        with restored_on_error(self.method, self.bins):
            prompts = self._prompts(known.keys[order_P], self.bins.rows(known)[order_P])
            rng, bounds = self._rng(self.planned, PLAN), (self.run.n_min, self.run.n_max)
            wanted_P = self._ask.allocate(prompts, total, rng)
            # a first round that fits is left as it is, since `extend` spends the rest
            fits = self.method.rounds and wanted_P.sum() <= total
            if not (fits and (wanted_P == np.clip(np.rint(wanted_P), *bounds)).all()):
                wanted_P = exact_rollouts(wanted_P, total, *bounds, rng)
            rollouts_P = np.empty(len(known), np.int64)
            rollouts_P[order_P] = wanted_P
        plan = Plan(uids, read_only(rollouts_P), (self._owner, self.planned), prompts, order_P)
        self.planned += 1
        self._open[plan.key] = rollouts_P
        return plan

    @one_at_a_time
    def extend(self, plan: Plan, group_ids: ArrayLike, rewards: ArrayLike) -> np.ndarray | None:
        """Further rollouts for the prompts of a plan, (P,); None when its step is done.

        For methods with rounds. `group_ids` and `rewards` are all that came back so far, as for `observe`.
        """
        planned_P = self._planned(plan)
        spent = int(planned_P.sum())  # grows from round to round, so each has random numbers of its own
        left = round(self.run.mean_rollouts * len(plan)) - spent
        if not self.method.rounds or left <= 0:
            return None
        batch, back = self._returned(plan, group_ids, rewards)
        with restored_on_error(self.method, self.bins, batch):
            further_K = self._ask.extend(batch, left, self._rng(plan.key[1], EXTEND, spent))
        if further_K is None:
            return None
        further_P = np.zeros(len(plan), np.int64)
        further_P[back.position_K] = further_K
        self._open[plan.key] = planned_P + further_P
        return further_P

    # After generation

    @one_at_a_time
    def observe(
        self, plan: Plan, group_ids: ArrayLike, rewards: ArrayLike, *, losses: ArrayLike | None = None
    ) -> Observed:
        """Learn from what came back: bins move, then the method. Closes the plan.

        After an error nothing has moved, and the plan can be observed again with the right data.

        Args:
            plan: of this controller, in flight. Plans may be observed in any order.
            group_ids: (R,) position in `plan.uids` of the prompt each rollout belongs to. Prompts and
                rollouts may be missing; nothing is learned from what is.
            rewards: (R,), finite.
            losses: (R,) surrogate losses ℓ_ij of (6); by default −A_ij, which is (6) on-policy at β = 0.

        Raises:
            ValueError: for a plan of another controller or one already observed, for data that do not fit the
                plan, and for answers of the method that are not finite or have another shape.
        """
        batch, back = self._returned(plan, group_ids, rewards, losses)
        # Bins move first, so that the method sees where prompts are now (`bins_after_P`). A prompt still
        # counts in the bin in which it was planned (`bins_P`), or its own outcome would choose where it
        # counts; on a first visit there is none, and the new one is taken. Then the method learns and
        # answers. If an answer is refused, `restored_on_error` puts bins, method and memo back and the plan
        # stays open: it is closed, and the step counted, only after the block.
        with restored_on_error(self.method, self.bins, batch):
            self.bins.visit(batch.rows_P, batch.hits_P, batch.trials_P)
            after_P = self.bins.of_rows(batch.rows_P)
            at_visit_P = np.where(batch.first_visit_P, after_P, batch.bins_P)
            batch = replace(batch, bins_P=at_visit_P, bins_after_P=after_P)
            self.method.update(batch)
            weights_K, advantages_R = self._ask.weights(batch), self._ask.advantages(batch)
            row = row_of(self.method, self.step, batch, weights_K)
            ready = self._ask.ready(batch)
            self._ask.check_state()
        # back from the order of the keys to that in which the trainer gave its rollouts
        weighted_R, weights_P = np.empty(len(advantages_R)), np.ones(len(plan))
        weighted_R[back.order_R] = advantages_R * weights_K[batch.group_ids_R]
        weights_P[back.position_K] = weights_K
        del self._open[plan.key]
        self.step += 1
        return Observed(weights_P, weighted_R, row, ready)

    def _returned(
        self, plan: Plan, group_ids: ArrayLike, rewards: ArrayLike, losses: ArrayLike | None = None
    ) -> tuple[Batch, Returned]:
        """What came back for a plan: a batch with the bins not moved yet, and how it was sorted."""
        planned_P, known = self._planned(plan), plan.prompts
        back = sorted_returns(plan.order_P, planned_P, group_ids, rewards, losses)
        correct_R = back.rewards_R > self.success_threshold
        # Rows, bins and memo are those at planning. Counts are those of now: plans that were observed in
        # between may have visited the same prompts. `observe` replaces bins_after_P once bins have moved.
        rows_K, bins_K = known.rows_P[back.present_K], known.bins_P[back.present_K]
        now = vars(self._prompts(known.keys_P[back.present_K], rows_K))
        batch = Batch(
            **now | {"bins_P": bins_K, "memo": known.memo},
            rollouts_P=planned_P[back.position_K],
            trials_P=back.trials_K,
            hits_P=np.bincount(back.group_ids_R[correct_R], minlength=len(rows_K)),
            bins_after_P=bins_K,
            first_visit_P=bins_K < 0,
            group_ids_R=back.group_ids_R,
            rewards_R=back.rewards_R,
            correct_R=correct_R,
            given_losses_R=back.losses_R,
            run=self.run,
        )
        return batch, back

    def _planned(self, plan: Plan) -> np.ndarray:
        """Rollouts that each prompt of a plan may bring, (P,)."""
        if not isinstance(plan, Plan) or plan.key not in self._open:
            raise ValueError(
                "plan must be in flight: from this controller's plan(uids) and not observed yet, "
                f"got {plan}; make a new one for each batch"
            )
        return self._open[plan.key]

    # The state

    def _prompts(self, keys_P: np.ndarray, rows_P: np.ndarray) -> Prompts:
        successes_P, failures_P = self.bins.beliefs.counts(rows_P)
        return Prompts(
            keys_P=keys_P,
            rows_P=rows_P,
            bins_P=self.bins.of_rows(rows_P),
            successes_P=successes_P,
            failures_P=failures_P,
        )

    def _rng(self, *stream: int) -> np.random.Generator:
        return np.random.default_rng((self.run.seed, *stream))

    def settings(self) -> dict[str, Any]:
        return vars(self.run) | {"method": self.name, "success_threshold": self.success_threshold}

    def check_loaded(self) -> None:
        check_int("the saved number of plans", self.planned, self.step, remedy="use a whole checkpoint")
        self._close_plans()
