"""What a run holds: plan before generation, observe after it. Any trainer can hold one.

    plan = controller.plan(uids)                           # plan.rollouts sums to mean_rollouts × len(uids)
    ... generate plan.rollouts[i] completions of prompt i, reward them ...
    batch = controller.observe(plan, group_ids, rewards)   # batch.advantages multiply the policy gradient

The controller guarantees what no method may break: the exact budget, the bounds on rollouts, finite numbers,
determinism, independence of batch order. Axes: P prompts as given, K those of them with rollouts in the order
of their keys, R rollouts, B bins, D prompts of the data set.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from uuid import uuid4

import numpy as np
from numpy.typing import ArrayLike

from gdro.core.beliefs import Uids, as_uids
from gdro.core.bins import DifficultyBins
from gdro.core.budget import as_whole, exact_rollouts
from gdro.core.checks import build, check_array, check_choice, check_int, check_number
from gdro.core.saved import Saved
from gdro.methods import Batch, Method, Prompts, Run
from gdro.methods.base import make_method

PRESETS: dict[str, dict[str, Any]] = {
    # on pass@8 a prompt solved half the time (.996) shares a bin with one always solved; not on pass@1
    "default": {"k": 1, "history": 20},
    "paper": {"k": 8, "history": 50, "estimator": "any_of_k"},
}
PLAN, DRAW, EXTEND = range(3)  # random streams of one step


@dataclass(frozen=True, eq=False)
class Plan:
    """Rollouts of each prompt of a batch: a value, of which several can be in flight."""

    uids: Any  # as given to `GDROController.plan`
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
        method: a registered name ("grpo", "prompt", "rollout", "both", …) or a `Method`.
        mean_rollouts: n̄, rollouts per prompt over a batch; mean_rollouts × prompts must be whole.
        preset: "default", or "paper" for every choice as printed but the advantage_clip of 5, which
            `GDROConfig` sets. Other arguments override it.
        bins: a `DifficultyBins` (or `StaticGroups`), or arguments of `DifficultyBins`.
        n_min, n_max: bounds on a prompt's rollouts; by default 2 (or n̄ if that is less) and max(12, 3 n̄).
        success_threshold: a rollout is correct if its reward is greater (0 suits 0/1 and ±1 rewards).
        advantage_std, scale_rewards, advantage_clip: see `gdro.methods.base.group_advantages`.
        seed: of everything random.
        **options: arguments of the method.
    """

    state = ("step", "planned", "bins", "method")

    def __init__(
        self,
        method: str | Method = "both",
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
        self.preset, self.name = preset, self.method.name or type(self.method).__name__
        if bins is None or isinstance(bins, Mapping):
            bins = {**PRESETS[preset], **(bins or {})}
        self.bins = bins if isinstance(bins, DifficultyBins) else build("bins", DifficultyBins, bins)
        check_number("mean_rollouts", mean_rollouts, 1)
        self.mean_rollouts = mean_rollouts
        lows = (n_min, self.method.n_min, min(2, int(mean_rollouts)))  # the first that is given
        low = check_int("n_min", next(n for n in lows if n is not None), 1)
        high = max(12, math.ceil(3 * mean_rollouts)) if n_max is None else n_max
        check_int("n_max", high, low, remedy="n_min is more")
        remedy = "no plan within n_min and n_max could meet it"
        check_number("mean_rollouts", mean_rollouts, low, high, remedy=remedy)
        rule = (seed, advantage_std, scale_rewards, advantage_clip)
        self.run = Run(self.bins.num_bins, mean_rollouts, low, high, *rule)
        self.method.start(self.run)
        self.draws = self.method.draws  # whether `draw` chooses the prompts
        self.moves_rollouts = self.method.moves_rollouts  # whether plans may be uneven
        self.needs_losses = self.method.needs_losses  # whether `observe` should be given the losses (6)
        self.step = 0  # batches observed
        self.planned = 0  # plans made: seeds each plan's random numbers
        self._forget()

    def _forget(self) -> None:
        self._owner = uuid4().hex  # so that a plan of another controller, or of before, is refused
        # rollouts of the plans in flight, with what rounds added
        self._open: dict[tuple[str, int], np.ndarray] = {}
        self._pool: tuple | None = None  # of `draw`: uids as given, their order, keys and rows in it

    # Before generation

    def draw(self, uids: ArrayLike | Uids, size: int) -> np.ndarray | None:
        """Positions in `uids` of the next batch's prompts, (size,); None where the trainer's order stands.

        `uids` are all prompts of the data set, (D,). Give the same `as_uids(…)` object each time: its order
        and rows are then kept.
        """
        if not self.draws:
            return None
        uids = as_uids(uids)
        check_int("size", size, 1)
        if not len(uids):
            raise ValueError("uids must not be empty; give the uids of the whole data set")
        if self._pool is None or self._pool[0] is not uids:
            order_D = uids.order().astype(np.int32)
            rows_D = self.bins.rows(uids)[order_D].astype(np.int32)
            self._pool = (uids, order_D, uids.keys[order_D], rows_D)
        _, order_D, keys_D, rows_D = self._pool
        pool = self._prompts(keys_D, rows_D)
        drawn = self.method.draw(pool, size, self._rng(self.planned, DRAW))
        if drawn is None:
            return None
        return order_D[self._held_to("draw", drawn, size, 0, len(uids) - 1, whole=True)].astype(np.int64)

    def plan(self, uids: ArrayLike | Uids) -> Plan:
        """Rollouts for each prompt of a batch; they sum to mean_rollouts × P, exactly.

        The method says how they are divided; what does not fit the budget or the bounds is scaled, then
        rounded to whole rollouts, ties at random. A method with rounds may plan fewer: see `extend`.
        """
        known = as_uids(uids)
        total = as_whole(self.mean_rollouts * len(known))
        if not total:
            raise ValueError(
                f"mean_rollouts × prompts must be a whole number above 0, got {self.mean_rollouts} × "
                f"{len(known)}; change mean_rollouts or the number of prompts"
            )
        order_P = known.order()
        sorted_keys = Uids(known.keys[order_P], known.kind)
        prompts = self._prompts(sorted_keys.keys, self.bins.rows(sorted_keys))
        number, self.planned = self.planned, self.planned + 1
        rollouts_P = np.full(len(known), total // len(known))
        if self.moves_rollouts or total % len(known):
            rng = self._rng(number, PLAN)
            wanted_P = self._held_to("allocate", self.method.allocate(prompts, total, rng), len(known), 0)
            if not wanted_P.any():
                raise ValueError(f"allocate of method {self.name!r} must be above 0 for some prompt")
            bounds = self.run.n_min, self.run.n_max
            fits = (wanted_P == np.clip(np.rint(wanted_P), *bounds)).all() and wanted_P.sum() <= total
            if not (self.method.rounds and fits):  # a first round, after which `extend` spends the rest
                wanted_P = exact_rollouts(wanted_P, total, *bounds, rng)
            rollouts_P[order_P] = wanted_P
        rollouts_P.flags.writeable = False
        plan = Plan(uids, rollouts_P, (self._owner, number), prompts, order_P)
        self._open[plan.key] = rollouts_P
        return plan

    def extend(self, plan: Plan, group_ids: ArrayLike, rewards: ArrayLike) -> np.ndarray | None:
        """Further rollouts for the prompts of a plan, (P,); None when its step is done.

        For methods with rounds. `group_ids` and `rewards` are all that came back so far, as for `observe`.
        """
        planned_P = self._planned(plan)
        spent = int(planned_P.sum())
        left = round(self.mean_rollouts * len(plan)) - spent
        if not self.method.rounds or left <= 0:
            return None
        batch, position_K, _ = self._returned(plan, group_ids, rewards)
        further = self.method.extend(batch, left, self._rng(plan.key[1], EXTEND, spent))
        if further is None:
            return None
        further_P = np.zeros(len(plan), np.int64)
        further_P[position_K] = self._held_to("extend", further, len(batch), 0, left, whole=True)
        if not 0 < further_P.sum() <= left or (planned_P + further_P).max() > self.run.n_max:
            limits = f"1 to {left} rollouts in all and {self.run.n_max} for a prompt with those it has"
            raise ValueError(
                f"extend of method {self.name!r} must be {limits}, got {further}; fix the method"
            )
        self._open[plan.key] = planned_P + further_P
        return further_P

    # After generation

    def observe(
        self, plan: Plan, group_ids: ArrayLike, rewards: ArrayLike, *, losses: ArrayLike | None = None
    ) -> Observed:
        """Learn from what came back: bins move, then the method. Closes the plan.

        Args:
            plan: of this controller, in flight. Plans may be observed in any order.
            group_ids: (R,) position in `plan.uids` of the prompt each rollout belongs to. Prompts and
                rollouts may be missing; nothing is learned from what is.
            rewards: (R,).
            losses: (R,) surrogate losses ℓ_ij of (6); by default −A_ij, which is (6) on-policy at β = 0.
        """
        batch, position_K, order_R = self._returned(plan, group_ids, rewards, losses)
        del self._open[plan.key]
        self.bins.visit(batch.rows_P, batch.hits_P, batch.trials_P)
        batch.bins_after_P, batch.first_visit_P = self.bins.of_rows(batch.rows_P), batch.bins_P < 0
        batch.bins_P = np.where(batch.first_visit_P, batch.bins_after_P, batch.bins_P)
        self.method.update(batch)

        weights = self._held_to("weights", self.method.weights(batch), len(batch), 0)
        advantages_R = self._held_to("advantages", self.method.advantages(batch), len(order_R))
        weighted_R = np.empty(len(order_R))
        weighted_R[order_R] = advantages_R * weights[batch.group_ids_R]
        weights_P = np.ones(len(plan))
        weights_P[position_K] = weights
        row = {"step": self.step} | row_of(batch, weights) | self.method.report()
        self.step += 1
        return Observed(weights_P, weighted_R, row, bool(self.method.ready(batch)))

    def _returned(
        self, plan: Plan, group_ids: ArrayLike, rewards: ArrayLike, losses: ArrayLike | None = None
    ) -> tuple[Batch, np.ndarray, np.ndarray]:
        """What came back, sorted by uid key, so that nothing later depends on the order of the batch.

        Returns:
            The batch; the position in the plan of each of its prompts (K,); and the place among the given
            rollouts of each of its rollouts (R,).
        """
        planned_P, known = self._planned(plan), plan.prompts
        rewards_R = check_array("rewards", rewards)
        size, remedy = rewards_R.shape, "give each rollout the position of its prompt in plan.uids"
        if len(size) != 1 or not rewards_R.size:
            raise ValueError(
                f"rewards must be one per rollout, at least one, got shape {size}; a plan that brought "
                "nothing need not be observed"
            )
        group_ids_R = check_array("group_ids", group_ids, size, 0, len(plan) - 1, whole=True, remedy=remedy)
        losses_R = None if losses is None else check_array("losses", losses, size)
        trials_P = np.bincount(group_ids_R, minlength=len(plan))
        if (trials_P > planned_P).any():
            p = int((trials_P > planned_P).argmax())
            raise ValueError(
                f"group_ids must hold at most the planned rollouts of each prompt, got {trials_P[p]} for "
                f"prompt {p}, planned {planned_P[p]}; observe each rollout once, with its own plan"
            )
        present_K = np.flatnonzero(trials_P[plan.order_P])
        position_K = plan.order_P[present_K]
        place_P = np.zeros(len(plan), np.int64)
        place_P[position_K] = np.arange(len(position_K))
        group_ids_R = place_P[group_ids_R]
        # a stable sort of 16-bit integers is the fastest there is
        order_R = group_ids_R.astype(np.min_scalar_type(len(plan))).argsort(kind="stable")
        group_ids_R, rewards_R = group_ids_R[order_R], rewards_R[order_R]
        correct_R = rewards_R > self.success_threshold
        batch = Batch(
            # counts as they are now: another plan may have been observed since this one was made
            **vars(self._prompts(known.keys_P[present_K], known.rows_P[present_K])),
            rollouts_P=planned_P[position_K],
            trials_P=trials_P[position_K],
            hits_P=np.bincount(group_ids_R[correct_R], minlength=len(position_K)),
            group_ids_R=group_ids_R,
            rewards_R=rewards_R,
            correct_R=correct_R,
            given_losses_R=None if losses_R is None else losses_R[order_R],
            run=self.run,
        )
        batch.memo, batch.bins_P = known.memo, known.bins_P[present_K]
        return batch, position_K, order_R

    def _planned(self, plan: Plan) -> np.ndarray:
        """Rollouts that each prompt of a plan may bring, (P,)."""
        if not isinstance(plan, Plan) or plan.key not in self._open:
            raise ValueError(
                "plan must be in flight: from this controller's plan(uids) and not observed yet, "
                f"got {plan}; make a new one for each batch"
            )
        return self._open[plan.key]

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

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Inverse of `state_dict`; ValueError for other settings or a damaged state. Closes all plans."""
        before = self.state_dict()
        try:
            super().load_state_dict(state)
            check_int("the saved number of plans", self.planned, self.step)
        except ValueError:
            super().load_state_dict(before)  # not half of each
            raise
        self._forget()


def row_of(batch: Batch, weights_P: np.ndarray) -> dict[str, Any]:
    """What a record says of any method: plain values, lists by bin with None where a bin has no prompts."""
    size, bins = batch.run.num_bins + 1, batch.bins_P + 1  # [0]: without a bin
    counts_B = np.bincount(bins, minlength=size)[1:].tolist()

    def by_bin(values_P: np.ndarray, sizes_B: list) -> list[float | None]:
        sums_B = np.bincount(bins, values_P, size)[1:].tolist()
        return [s / n if n else None for s, n in zip(sums_B, sizes_B, strict=True)]

    known_P = batch.trials_P > 1  # a single rollout has no variance
    known_B = np.bincount(bins, known_P, size)[1:].tolist()
    variance_B = by_bin(np.where(known_P, batch.variance_P, 0.0), known_B)
    return {
        "unseen": int((batch.bins_P < 0).sum()),
        "share": [n / len(batch) for n in counts_B],
        "weight": by_bin(weights_P, counts_B),
        "probability": None,
        "rollouts": by_bin(batch.trials_P, counts_B),
        "success": by_bin(batch.hits_P / batch.trials_P, counts_B),
        "deviation": [None if v is None else math.sqrt(v) for v in variance_B],
        "price": None,
        "demand": None,
        "mean_reward": float(batch.rewards_R.mean()),
    }


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
