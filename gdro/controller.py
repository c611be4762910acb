"""What a run holds: plan before generation, observe after it. Any trainer can hold one.

    plan = controller.plan(uids)                           # plan.rollouts sums to mean_rollouts × len(uids)
    ... generate plan.rollouts[i] completions of prompt i, reward them ...
    batch = controller.observe(plan, group_ids, rewards)   # batch.advantages multiply the policy gradient

The controller guarantees what no method may break: the exact budget, the bounds on rollouts, finite numbers,
determinism, independence of batch order. Axes: P prompts, R rollouts, B bins, D prompts of the data set.
"""

import math
from collections.abc import Mapping
from typing import Any
from uuid import uuid4

import numpy as np
from numpy.typing import ArrayLike

from gdro.beliefs import Uids, as_uids
from gdro.bins import DifficultyBins
from gdro.budget import as_whole, exact_rollouts
from gdro.checks import check_array, check_choice, check_int, check_number, check_options
from gdro.methods import Batch, Method, Prompts, Run
from gdro.methods.base import make_method
from gdro.plan import Observed, Plan, returned, row_of
from gdro.saved import Saved

PRESETS: dict[str, dict[str, Any]] = {
    # on pass@8 a prompt solved half the time (.996) shares a bin with one always solved; not on pass@1
    "default": {"k": 1, "history": 20},
    "paper": {"k": 8, "history": 50, "estimator": "any_of_k"},
}
PLAN, DRAW, EXTEND = range(3)  # random streams of one step


class GDROController(Saved):
    """Difficulty bins and a method, driven by uids.

    Args:
        method: a registered name ("grpo", "prompt", "rollout", "both", …) or a `Method`.
        mean_rollouts: n̄, rollouts per prompt over a batch; mean_rollouts × prompts must be whole.
        preset: "default", or "paper" for every choice as printed. Other arguments override it.
        bins: a `DifficultyBins` (or `StaticGroups`), or arguments of `DifficultyBins`.
        n_min, n_max: bounds on a prompt's rollouts; by default 2 (or n̄ if that is less) and max(12, 3 n̄).
        unseen: how a prompt without an estimate is treated: "neutral", as a prompt of no bin, or the number
            of a bin, as one of it.
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
        unseen: str | int = "neutral",
        success_threshold: float = 0.0,
        advantage_std: str = "population",
        scale_rewards: str = "group",
        advantage_clip: float | None = None,
        seed: int = 0,
        **options: Any,
    ) -> None:
        check_choice("preset", preset, tuple(PRESETS))
        check_choice("advantage_std", advantage_std, ("population", "sample"))
        check_choice("scale_rewards", scale_rewards, ("group", "batch", "none"))
        if advantage_clip is not None:
            check_number("advantage_clip", advantage_clip, 0, open_low=True, remedy="None clips nothing")
        self.method = make_method(method, preset, options)
        self.preset, self.seed = preset, check_int("seed", seed, 0)
        self.success_threshold = check_number("success_threshold", success_threshold)
        if not isinstance(bins, DifficultyBins):
            wanted = {**PRESETS[preset], "history": self.method.history or PRESETS[preset]["history"]}
            bins = DifficultyBins(
                **wanted | check_options("bins", {} if bins is None else bins, DifficultyBins)
            )
        self.bins, self.num_bins = bins, bins.num_bins
        check_choice("unseen", unseen, ("neutral", *range(self.num_bins)))
        self.unseen = unseen
        check_number("mean_rollouts", mean_rollouts, 1)
        lows = (n_min, self.method.n_min, min(2, int(mean_rollouts)))  # the first that is given
        highs = (n_max, self.method.n_max, max(12, math.ceil(3 * mean_rollouts)))
        low = check_int("n_min", next(n for n in lows if n is not None), 1)
        high = check_int("n_max", next(n for n in highs if n is not None), low, remedy="n_min is more")
        remedy = "no plan within n_min and n_max could meet it"
        check_number("mean_rollouts", mean_rollouts, low, high, remedy=remedy)
        rule = (advantage_std, scale_rewards, advantage_clip)
        self.run = Run(self.num_bins, mean_rollouts, low, high, self.seed, *rule)
        self.method.start(self.run)
        self.name = self.method.name or type(self.method).__name__
        self.mean_rollouts = mean_rollouts
        self.draws = self.method.draws  # whether `draw` chooses the prompts
        self.moves_rollouts = self.method.moves_rollouts  # whether plans may be uneven
        self.needs_losses = self.method.needs_losses  # whether `observe` should be given the losses (6)
        self.step = 0  # batches observed
        self.planned = 0  # plans made: seeds each plan's random numbers
        self._pool: tuple[Uids, np.ndarray, np.ndarray] | None = None
        self._forget_plans()

    def _forget_plans(self) -> None:
        self._owner = uuid4().hex  # so that a plan of another controller, or of before, is refused
        self._open: set[int] = set()  # numbers of the plans in flight
        self._extended: dict[int, np.ndarray] = {}  # what rounds have added to a plan's rollouts

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
            order_D = uids.keys.argsort(kind="stable").astype(np.int32)
            self._pool = (uids, order_D, self.bins.rows(uids)[order_D].astype(np.int32))
        _, order_D, rows_D = self._pool
        pool = self._prompts(uids.keys, rows_D, order_D)
        drawn = self.method.draw(pool, size, self._rng(self.planned, DRAW))
        if drawn is None:
            return None
        return order_D[self._held_to("draw", drawn, size, 0, len(uids) - 1, whole=True)].astype(np.int64)

    def plan(self, uids: ArrayLike | Uids) -> Plan:
        """Rollouts for each prompt of a batch; they sum to mean_rollouts × P, exactly.

        The method says how they are divided; what does not fit the budget or the bounds is scaled, then
        rounded to whole rollouts, ties at random. A method with rounds may plan fewer: see `extend`.
        """
        keyed = as_uids(uids)
        total = as_whole(self.mean_rollouts * len(keyed))
        if not total:
            raise ValueError(
                f"mean_rollouts × prompts must be a whole number above 0, got {self.mean_rollouts} × "
                f"{len(keyed)}; change mean_rollouts or the number of prompts"
            )
        order_P = keyed.keys.argsort(kind="stable")
        prompts = self._prompts(keyed.keys, self.bins.rows(keyed)[order_P], order_P)
        number, self.planned = self.planned, self.planned + 1
        if self.moves_rollouts or total % len(keyed):
            rng = self._rng(number, PLAN)
            sorted_P = self._spent(self.method.allocate(prompts, total, rng), len(keyed), total, rng)
        else:
            sorted_P = np.full(len(keyed), total // len(keyed))
        rollouts_P = np.empty(len(keyed), np.int64)
        rollouts_P[order_P] = sorted_P
        rollouts_P.flags.writeable = False
        self._open.add(number)
        return Plan(uids, rollouts_P, self._owner, number, prompts, order_P)

    def extend(self, plan: Plan, group_ids: ArrayLike, rewards: ArrayLike) -> np.ndarray | None:
        """Further rollouts for the prompts of a plan, (P,); None when its step is done.

        For methods with rounds. `group_ids` and `rewards` are all that came back so far, as for `observe`.
        """
        allowed_P = self._allowed(plan)
        spent = int(allowed_P.sum())
        left = round(self.mean_rollouts * len(plan)) - spent
        if not self.method.rounds or left <= 0:
            return None
        batch, position_K, _ = self._returned(plan, group_ids, rewards)
        further = self.method.extend(batch, left, self._rng(plan.number, EXTEND, spent))
        if further is None:
            return None
        further = self._held_to("extend", further, len(batch), 0, left, whole=True)
        self._held_to("the sum of extend", [further.sum()], 1, 1, left)
        further_P = np.zeros(len(plan), np.int64)
        further_P[position_K] = further
        self._extended[plan.number] = allowed_P + further_P
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
        self._open.remove(plan.number)
        self._extended.pop(plan.number, None)
        self.bins.visit(batch.rows_P, batch.hits_P, batch.trials_P)
        batch.bins_after_P = self._placed(batch.rows_P)
        batch.first_visit_P = batch.bins_P < 0
        batch.bins_P = np.where(batch.first_visit_P, batch.bins_after_P, batch.bins_P)
        self.method.update(batch)

        weights = self._held_to("weights", self.method.weights(batch), len(batch), 0)
        advantages_R = self._held_to("advantages", self.method.advantages(batch), len(order_R))
        weighted_R = np.empty(len(order_R))
        weighted_R[order_R] = advantages_R * weights[batch.group_ids_R]
        weights_P = np.ones(len(plan))
        weights_P[position_K] = weights
        row = {"step": self.step} | row_of(batch, weights, self.num_bins) | self.method.report()
        self.step += 1
        return Observed(weights_P, weighted_R, row, bool(self.method.ready(batch)))

    def _returned(
        self, plan: Plan, group_ids: ArrayLike, rewards: ArrayLike, losses: ArrayLike | None = None
    ) -> tuple[Batch, np.ndarray, np.ndarray]:
        given = (group_ids, rewards, losses, self.success_threshold, self.run)
        batch, position_K, order_R = returned(plan, self._allowed(plan), *given)
        # counts as they are now: another plan may have been observed since this one was made
        batch.successes_P, batch.failures_P = self.bins.beliefs.counts(batch.rows_P)
        return batch, position_K, order_R

    def _allowed(self, plan: Plan) -> np.ndarray:
        if not isinstance(plan, Plan) or plan.owner != self._owner or plan.number not in self._open:
            raise ValueError(
                "plan must be in flight: from this controller's plan(uids) and not observed yet, "
                f"got {plan}; make a new one for each batch"
            )
        return self._extended.get(plan.number, plan.rollouts)

    # What the methods' answers are held to

    def _spent(self, wanted: Any, size: int, total: int, rng: np.random.Generator) -> np.ndarray:
        """Rollouts (P,) as the method wants them, made to spend the budget exactly within the bounds."""
        wanted_P = self._held_to("allocate", wanted, size, 0)
        self._held_to("the largest of allocate", [wanted_P.max()], 1, np.nextafter(0, 1))
        if self.method.rounds and (wanted_P == np.rint(wanted_P)).all() and wanted_P.sum() <= total:
            return wanted_P.astype(np.int64)  # the first round; `extend` spends the rest
        return exact_rollouts(wanted_P, total, self.run.n_min, self.run.n_max, rng)

    def _held_to(self, what: str, values: Any, size: int, *bounds: float, whole: bool = False) -> np.ndarray:
        name = f"{what} of method {self.name!r}"
        return check_array(name, values, (size,), *bounds, whole=whole, remedy="fix the method")

    # State by uid

    def _prompts(self, keys: np.ndarray, rows: np.ndarray, order: np.ndarray) -> Prompts:
        successes, failures = self.bins.beliefs.counts(rows)
        return Prompts(
            keys_P=keys[order],
            rows_P=rows,
            bins_P=self._placed(rows),
            successes_P=successes,
            failures_P=failures,
        )

    def _placed(self, rows: np.ndarray) -> np.ndarray:
        """Bins of prompts, with the choice for those not seen yet applied; −1 is neutral."""
        bins_P = self.bins.of_rows(rows)
        return bins_P if self.unseen == "neutral" else np.where(bins_P < 0, self.unseen, bins_P)

    def _rng(self, *stream: int) -> np.random.Generator:
        return np.random.default_rng((self.seed, *stream))

    def settings(self) -> dict[str, Any]:
        own = {"method": self.name, "unseen": self.unseen, "success_threshold": self.success_threshold}
        return vars(self.run) | own

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Inverse of `state_dict`; ValueError for other settings or a damaged state. Closes all plans."""
        super().load_state_dict(state)
        check_int("the saved number of plans", self.planned, self.step)
        self._pool = None
        self._forget_plans()


def make_controller(
    method: str,
    preset: str = "default",
    options: Mapping[str, Any] | None = None,
    num_generations: int = 4,
    seed: int = 0,
) -> GDROController:
    """A controller from a configuration's plain values; n̄ is TRL's `num_generations`."""
    chosen = {"seed": seed, "mean_rollouts": num_generations} | dict(options or {})
    if chosen["mean_rollouts"] != num_generations:
        raise ValueError(
            f"gdro_options['mean_rollouts'] must be num_generations={num_generations}, got "
            f"{chosen['mean_rollouts']}; set num_generations alone"
        )
    try:
        return GDROController(method, preset=preset, **chosen)
    except TypeError as error:
        raise ValueError(f"gdro_options: {error}; see GDROController for the names") from error
