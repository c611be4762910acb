"""What a run holds: plan before generation, observe after it. Any trainer can hold one.

    plan = controller.plan(uids)                           # plan.rollouts sums to mean_rollouts × len(uids)
    ... generate plan.rollouts[i] completions of prompt i, reward them ...
    batch = controller.observe(plan, group_ids, rewards)   # batch.advantages multiply the policy gradient

The controller guarantees what no method may break: the exact budget, the bounds on rollouts, finite numbers,
determinism, and results that do not depend on the order of the batch. A call that is refused, or in which a
method raises an error, changes nothing. All calls can come from several threads.

Axes: P prompts of a plan, K those of them that came back, R rollouts, B bins, D prompts of the data set.
"""

import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from threading import RLock
from typing import Any, NamedTuple
from uuid import uuid4

import numpy as np
from numpy.typing import ArrayLike

from gdro.core.beliefs import Uids, as_uids
from gdro.core.bins import DifficultyBins
from gdro.core.budget import as_whole, exact_rollouts
from gdro.core.checks import build, check_array, check_choice, check_int, check_number
from gdro.core.limits import LARGEST, MOST_ROLLOUTS
from gdro.core.returned import Returned, sorted_returns
from gdro.core.saved import Saved, all_or_nothing
from gdro.methods import Batch, Method, Prompts, Run
from gdro.methods.base import make_method, read_only
from gdro.methods.record import row_of

PRESETS: dict[str, dict[str, Any]] = {
    # on pass@8 a prompt solved half the time (.996) shares a bin with one always solved; not on pass@1
    "default": {"k": 1, "history": 20},
    "paper": {"k": 8, "history": 50, "estimator": "any_of_k"},
}
PLAN, DRAW, EXTEND = range(3)  # random streams of one step


@dataclass(frozen=True, eq=False)
class Plan:
    """Rollouts of each prompt of a batch: a value, of which several can be in flight."""

    uids: ArrayLike | Uids  # as given to `GDROController.plan`
    rollouts: np.ndarray  # (P,) integers
    key: tuple[str, int] = field(repr=False)  # its controller and its number there, the same in a copy
    prompts: Prompts = field(repr=False)  # in the order of their keys
    order_P: np.ndarray = field(repr=False)  # prompts.keys_P = keys[order_P]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self.rollouts if dtype is None and not copy else np.array(self.rollouts, dtype)

    def __len__(self) -> int:
        return len(self.rollouts)


class Observed(NamedTuple):
    """What `observe` returns."""

    weights: np.ndarray  # (P,) factor on each prompt's advantages; 1 where no rollout came back
    advantages: np.ndarray  # (R,) in the order of the rewards, weighted: what multiplies the policy gradient
    row: dict[str, Any]  # one row of the run's record, plain JSON values
    ready: bool  # False where the method wants these rollouts kept for the next optimizer step


class GDROController(Saved):
    """Difficulty bins and a method, driven by uids.

    Args:
        method: a registered name ("grpo", "prompt", "rollout", "both", "pivotal", …) or a `Method`. There is
            no default, because no method is better than the others everywhere.
        mean_rollouts: n̄, rollouts per prompt over a batch; mean_rollouts × prompts must be whole.
        preset: "default", or "paper" for every choice as printed but the advantage_clip of 5, which
            `GDROConfig` sets. Other arguments override it.
        bins: a `DifficultyBins` (or `StaticGroups`), or arguments of `DifficultyBins`.
        n_min, n_max: bounds on a prompt's rollouts; by default 2 (or n̄ if that is less) and max(12, 3 n̄).
        success_threshold: a rollout is correct if its reward is greater (0 suits 0/1 and ±1 rewards).
        advantage_std, scale_rewards, advantage_clip: see `gdro.methods.base.group_advantages`.
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
        check_choice("preset", preset, tuple(PRESETS))
        self.success_threshold = check_number("success_threshold", success_threshold)
        self.method = make_method(method, preset, options)
        self.preset, self.name = preset, self.method.label
        if bins is None or isinstance(bins, Mapping):
            bins = {**PRESETS[preset], **(bins or {})}
        self.bins = bins if isinstance(bins, DifficultyBins) else build("bins", DifficultyBins, bins)
        check_number("mean_rollouts", mean_rollouts, 1)
        self.mean_rollouts = mean_rollouts
        lows = (n_min, self.method.n_min, min(2, int(mean_rollouts)))  # the first that is given
        low = check_int("n_min", next(n for n in lows if n is not None), 1)
        high = min(max(12, math.ceil(3 * mean_rollouts)), MOST_ROLLOUTS) if n_max is None else n_max
        check_int("n_max", high, low, MOST_ROLLOUTS, remedy="it must not be below n_min")
        remedy = "no plan within n_min and n_max could meet it"
        check_number("mean_rollouts", mean_rollouts, low, high, remedy=remedy)
        rule = (seed, advantage_std, scale_rewards, advantage_clip)
        self.run = Run(self.bins.num_bins, mean_rollouts, low, high, *rule)
        self.method.run = self.run
        self.method.start(self.run)
        self._kinds = self.method.kinds()  # as which its state must stay, so that a checkpoint can be loaded
        self.draws = self.method.draws  # whether `draw` chooses the prompts
        self.moves_rollouts = self.method.moves_rollouts  # whether plans may be uneven
        self.needs_losses = self.method.needs_losses  # whether `observe` should be given the losses (6)
        self.step = 0  # batches observed
        self.planned = 0  # plans made: seeds each plan's random numbers
        self._lock = RLock()
        self._forget()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_lock"}  # no copy has the lock

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _lock=RLock())

    def _forget(self) -> None:
        self._owner = uuid4().hex  # so that a plan of another controller, or of before, is refused
        # rollouts of the plans in flight, with what rounds added
        self._open: dict[tuple[str, int], np.ndarray] = {}
        # of `draw`: uids as given, their order, keys and rows in it
        self._pool: tuple[Uids, np.ndarray, np.ndarray, np.ndarray] | None = None

    # Before generation

    def draw(self, uids: ArrayLike | Uids, size: int) -> np.ndarray | None:
        """Positions in `uids` of the next batch's prompts, (size,); None to keep the trainer's own order.

        Args:
            uids: (D,), all prompts of the data set. Give the same `as_uids(…)` object each time: its order
                and rows are then kept.
            size: prompts wanted, at least 1.
        """
        if not self.draws:
            return None
        uids = as_uids(uids)
        check_int("size", size, 1)
        if not len(uids):
            raise ValueError("uids must not be empty; give the uids of the whole data set")
        with self._lock:
            if self._pool is None or self._pool[0] is not uids:
                order_D = uids.order().astype(np.int32)
                rows_D = self.bins.rows(uids)[order_D].astype(np.int32)
                self._pool = (uids, order_D, uids.keys[order_D], rows_D)
            _, order_D, keys_D, rows_D = self._pool
            with self._all_or_nothing():
                drawn = self.method.draw(self._prompts(keys_D, rows_D), size, self._rng(self.planned, DRAW))
                if drawn is None:
                    return None
                places = self._held_to("draw", drawn, size, 0, len(uids) - 1, whole=True)
            return order_D[places].astype(np.int64)

    def plan(self, uids: ArrayLike | Uids) -> Plan:
        """Rollouts for each prompt of a batch; they sum to mean_rollouts × P, exactly.

        The method says how they are divided. What does not fit the budget or the bounds is scaled, then
        rounded to whole rollouts, ties at random. A method with rounds may plan fewer: see `extend`.

        Args:
            uids: (P,), of the batch, all integers or all strings. A uid that comes twice is one prompt, with
                rollouts for each of its places.
        """
        known = as_uids(uids)
        total = as_whole(self.mean_rollouts * len(known))
        if not total:
            raise ValueError(
                f"mean_rollouts × prompts must be a whole number above 0, got {self.mean_rollouts} × "
                f"{len(known)}; change mean_rollouts or the number of prompts"
            )
        order_P = known.order()
        sorted_uids = Uids(known.keys[order_P], known.kind)
        with self._lock, self._all_or_nothing():
            prompts = self._prompts(sorted_uids.keys, self.bins.rows(sorted_uids))
            rollouts_P = np.full(len(known), total // len(known))
            if self.moves_rollouts or total % len(known):
                rng = self._rng(self.planned, PLAN)
                wanted_P = self._held_to("allocate", self.method.allocate(prompts, total, rng), len(known), 0)
                if not wanted_P.any():
                    raise ValueError(
                        f"allocate of method {self.name!r} must be above 0 for some prompt, got zeros; "
                        "fix the method"
                    )
                bounds = self.run.n_min, self.run.n_max
                fits = (wanted_P == np.clip(np.rint(wanted_P), *bounds)).all() and wanted_P.sum() <= total
                if not (self.method.rounds and fits):  # a first round, after which `extend` spends the rest
                    wanted_P = exact_rollouts(wanted_P, total, *bounds, rng)
                rollouts_P[order_P] = wanted_P
            plan = Plan(uids, read_only(rollouts_P), (self._owner, self.planned), prompts, order_P)
            self.planned += 1
            self._open[plan.key] = rollouts_P
            return plan

    def extend(self, plan: Plan, group_ids: ArrayLike, rewards: ArrayLike) -> np.ndarray | None:
        """Further rollouts for the prompts of a plan, (P,); None when its step is done.

        For methods with rounds. `group_ids` and `rewards` are all that came back so far, as for `observe`.
        """
        with self._lock:
            planned_P = self._planned(plan)
            spent = int(planned_P.sum())
            left = round(self.mean_rollouts * len(plan)) - spent
            if not self.method.rounds or left <= 0:
                return None
            batch, back = self._returned(plan, group_ids, rewards)
            with self._all_or_nothing(batch):
                further = self.method.extend(batch, left, self._rng(plan.key[1], EXTEND, spent))
                if further is None:
                    return None
                further_P = np.zeros(len(plan), np.int64)
                further_P[back.position_K] = self._held_to("extend", further, len(batch), 0, left, whole=True)
                if not 0 < further_P.sum() <= left or (planned_P + further_P).max() > self.run.n_max:
                    wanted = (
                        f"1 to {left} rollouts in all, and {self.run.n_max} for a prompt with those it has"
                    )
                    name = f"extend of method {self.name!r}"
                    raise ValueError(f"{name} must be {wanted}, got {further}; fix the method")
            self._open[plan.key] = planned_P + further_P
            return further_P

    # After generation

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
        with self._lock:
            batch, back = self._returned(plan, group_ids, rewards, losses)
            with self._all_or_nothing(batch):
                self.bins.visit(batch.rows_P, batch.hits_P, batch.trials_P)
                after_P = self.bins.of_rows(batch.rows_P)
                at_visit_P = np.where(batch.first_visit_P, after_P, batch.bins_P)
                batch = replace(batch, bins_P=at_visit_P, bins_after_P=after_P)
                self.method.update(batch)
                weights_K = self._held_to("weights", self.method.weights(batch), len(batch), 0, LARGEST)
                answer, size = self.method.advantages(batch), len(batch.rewards_R)
                advantages_R = self._held_to("advantages", answer, size, -LARGEST, LARGEST)
                row = row_of(self.method, self.step, batch, weights_K)
                ready = self.method.ready(batch)
                if not isinstance(ready, bool | np.bool_):
                    wanted = "must be True or False"
                    raise ValueError(f"ready of method {self.name!r} {wanted}, got {ready!r}; fix the method")
                if (kinds := self.method.kinds()) != self._kinds:
                    raise ValueError(
                        f"the state of method {self.name!r} must stay as `start` made it, {self._kinds}, "
                        f"got {kinds}; start with the type, dtype and shape that it will have, and name "
                        "arrays with a row for each prompt in `by_prompt`"
                    )
            weighted_R, weights_P = np.empty(size), np.ones(len(plan))
            weighted_R[back.order_R] = advantages_R * weights_K[batch.group_ids_R]
            weights_P[back.position_K] = weights_K
            del self._open[plan.key]
            self.step += 1
            return Observed(weights_P, weighted_R, row, bool(ready))

    def _returned(
        self, plan: Plan, group_ids: ArrayLike, rewards: ArrayLike, losses: ArrayLike | None = None
    ) -> tuple[Batch, Returned]:
        """What came back for a plan, as a batch before any bin moves, and how it was sorted."""
        planned_P, known = self._planned(plan), plan.prompts
        back = sorted_returns(plan.order_P, planned_P, group_ids, rewards, losses)
        correct_R = back.rewards_R > self.success_threshold
        # rows and bins are those of when it was planned; counts are of now, after other plans' visits
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

    # The method's answers

    def _all_or_nothing(self, batch: Batch | None = None) -> AbstractContextManager[None]:
        """Restores the method, the known uids, and a batch's bins and memo, if the block raises an error."""
        table = vars(self.bins.table)  # of which `add` replaces the arrays, and changes none
        undos: list[Callable] = [self.method.undo(), partial(table.update, dict(table))]
        if batch is not None:
            undos.append(self.bins.undo(batch.rows_P))
            undos += [batch.memo.clear, partial(batch.memo.update, dict(batch.memo))]
        return all_or_nothing(*undos)

    def _held_to(self, what: str, values: Any, size: int, *bounds: float, whole: bool = False) -> np.ndarray:
        """An answer of the method, checked."""
        name = f"{what} of method {self.name!r}"
        return check_array(name, values, (size,), *bounds, whole=whole, remedy="fix the method")

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

    def state_dict(self) -> dict[str, Any]:
        """Nested dictionary of plain values and copies of arrays, without the plans in flight."""
        with self._lock:
            return super().state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Inverse of `state_dict`; ValueError for other settings or a damaged state. Closes all plans."""
        with self._lock:
            super().load_state_dict(state)
            self._forget()

    def check_loaded(self) -> None:
        check_int("the saved number of plans", self.planned, self.step, remedy="use a whole checkpoint")


def make_controller(
    method: str,
    preset: str = "default",
    options: Mapping | None = None,
    num_generations: int = 4,
    seed: int = 0,
) -> GDROController:
    """A controller from a configuration's plain values; n̄ is TRL's `num_generations`."""
    given = {"method": method, "preset": preset, "mean_rollouts": num_generations}
    return build("gdro_options", GDROController, {"seed": seed} | dict(options or {}), **given)
