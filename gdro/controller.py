"""One object a run holds: plan before generation, observe after it, weights for the advantages.

Axes: P prompts of the batch, R rollouts of the batch, B bins, D prompts of the data set. The way of
one step is plan → (generate) → observe → weights; what was seen and decided comes back from `observe`
as one row of the run's record.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from gdro.bins import UNSEEN, DifficultyBins, as_uids, check_settings
from gdro.prompt_gdro import PromptGDRO, bin_means
from gdro.rollout_gdro import RolloutGDRO, as_whole, check_choice

METHODS = ("grpo", "prompt", "rollout", "both")

PRESETS: dict[str, dict] = {
    "default": {},
    # every choice as printed, where the default departs from it; why is in each argument's docstring
    "paper": {
        "bins": {"estimator": "any_of_k"},
        "prompt": {"share_floor": 0.05, "debias": False},
        "rollout": {
            "utility": "loss",
            "selection": "argmax",
            "joint": "bins",
            "price_driver": "realized",
            "debias": False,
        },
        "signal": "surrogate",
        "averaging": "prompt",
        "weight_scale": "none",
    },
}


class _Plan(NamedTuple):
    """What `plan` decided: keys, bins and rollouts of the prompts (P,), rollouts of the bins (B,)."""

    keys: np.ndarray
    bin_ids_P: np.ndarray
    rollouts_P: np.ndarray
    rollouts_B: np.ndarray


class GDROController:
    """Difficulty bins and the two adversaries, driven by uids.

    method: "grpo" (neither adversary; bins are still kept, for the record), "prompt", "rollout", "both".
    preset: "default" or "paper" (every choice as printed). The other arguments override it.
    bins, prompt, rollout: objects, or the arguments to make them; the number of bins follows `bins`.
    signal, the loss of a prompt that Prompt-GDRO sees:
      "failure_rate"  1 − share of its rollouts that are right (footnote 3, up to an affine map)
      "surrogate"     (6)–(7), needs `losses` in `observe`; on-policy it is β·KL and knows no difficulty
      "spread"        unbiased variance of its rewards, whose expectation is free of n
    action, how Prompt-GDRO acts: "reweight" scales advantages, (16); "resample" draws the prompts of
      the batch with bin probabilities q, see `draw`.
    averaging, of (17) and of the gradient: "rollout" lets each rollout count the same, as TRL's loss
      does; "prompt" each prompt however many rollouts it got, as printed, so that moving rollouts only
      changes the noise of a prompt's gradient and not its size.
    weight_scale: "mean" divides the weights by their batch mean; "none" leaves them, as printed. Either
      way the size of the whole gradient moves a little, since prompts of one bin differ in advantage.
    unseen, what a prompt without an estimate gets: "neutral", n̄ rollouts and the mean weight; or the
      number of a bin, to be treated as one of it.
    success_threshold: a rollout is right if its reward is greater (0 serves 0/1 and ±1 rewards).
    seed: of everything chance decides.
    Raises ValueError for an unknown choice and for num_bins that disagree.
    """

    def __init__(
        self,
        method: str = "both",
        *,
        preset: str = "default",
        bins: DifficultyBins | Mapping | None = None,
        prompt: PromptGDRO | Mapping | None = None,
        rollout: RolloutGDRO | Mapping | None = None,
        signal: str | None = None,
        action: str | None = None,
        averaging: str | None = None,
        weight_scale: str | None = None,
        unseen: str | int = "neutral",
        success_threshold: float = 0.0,
        seed: int = 0,
    ):
        check_choice("method", method, METHODS)
        check_choice("preset", preset, tuple(PRESETS))
        chosen = PRESETS[preset]
        self.bins = _made(DifficultyBins, bins, chosen.get("bins", {}))
        size = {"num_bins": self.bins.num_bins}
        self.prompt = _made(PromptGDRO, prompt, size | chosen.get("prompt", {}))
        self.rollout = _made(RolloutGDRO, rollout, size | {"seed": seed} | chosen.get("rollout", {}))
        for name, part in (("prompt", self.prompt), ("rollout", self.rollout)):
            if part.num_bins != self.bins.num_bins:
                raise ValueError(
                    f"{name} has {part.num_bins} bins, but bins has {self.bins.num_bins}; "
                    "give both the same number"
                )
        self.method, self.preset = method, preset
        self.signal = signal or chosen.get("signal", "failure_rate")
        self.action = action or "reweight"
        self.averaging = averaging or chosen.get("averaging", "rollout")
        self.weight_scale = weight_scale or chosen.get("weight_scale", "mean")
        check_choice("signal", self.signal, ("failure_rate", "surrogate", "spread"))
        check_choice("action", self.action, ("reweight", "resample"))
        check_choice("averaging", self.averaging, ("prompt", "rollout"))
        check_choice("weight_scale", self.weight_scale, ("mean", "none"))
        check_choice("unseen", unseen, ("neutral", *range(self.num_bins)))
        self.unseen, self.success_threshold, self.seed = unseen, float(success_threshold), int(seed)
        self.step = 0
        self._planned: _Plan | None = None
        self._observed: _Plan | None = None

    @property
    def num_bins(self) -> int:
        return self.bins.num_bins

    @property
    def mean_rollouts(self) -> float:
        return self.rollout.mean_rollouts

    @property
    def moves_rollouts(self) -> bool:
        return self.method in ("rollout", "both")

    @property
    def reweights(self) -> bool:
        return self.method in ("prompt", "both") and self.action == "reweight"

    @property
    def resamples(self) -> bool:
        return self.method in ("prompt", "both") and self.action == "resample"

    @property
    def needs_losses(self) -> bool:
        """Whether `observe` must be given the surrogate losses (6)."""
        by_prompt = self.method in ("prompt", "both") and self.signal == "surrogate"
        return by_prompt or (self.moves_rollouts and self.rollout.utility == "loss")

    def plan(self, uids) -> np.ndarray:
        """Rollouts per prompt, (P,) integers; they sum to mean_rollouts × P, exactly.

        Bins decide first (`RolloutGDRO.allocate`); prompts not seen yet get n̄ on average. Where no
        choice of arms spends the budget of the bins at hand exactly, or n̄ is no whole number, the
        rollouts left over go one each to prompts drawn by lot among those below n_max, so no prompt's
        place in the batch matters; `rollout.infeasible_steps` counts the steps of the former kind.
        Raises ValueError if mean_rollouts × P is not a whole number.
        """
        uids = as_uids(uids)
        keys = uids.keys
        total = as_whole(self.mean_rollouts * len(keys))
        if not total:
            raise ValueError(
                f"mean_rollouts × prompts must be a whole number above 0, got {self.mean_rollouts} × "
                f"{len(keys)}; change mean_rollouts or the number of prompts"
            )
        rollouts_P = np.full(len(keys), int(self.mean_rollouts))
        rollouts_B = np.full(self.num_bins, int(self.mean_rollouts))
        bin_ids_P, seen_budget = self._placed(uids), 0
        seen_P = (bin_ids_P >= 0) & self.moves_rollouts
        if seen_P.any():
            counts_B = np.bincount(bin_ids_P[seen_P], minlength=self.num_bins)
            seen_budget = int(self.mean_rollouts * int(counts_B.sum()) + 1e-9)
            rollouts_B = self.rollout.allocate(counts_B, seen_budget)
            rollouts_P[seen_P] = rollouts_B[bin_ids_P[seen_P]]
        self._hand_out(rollouts_P, seen_budget, seen_P, keys)
        self._hand_out(rollouts_P, total - seen_budget, ~seen_P, keys)
        self._planned = _Plan(keys, bin_ids_P, rollouts_P, rollouts_B)
        return rollouts_P.copy()

    def _hand_out(self, rollouts_P, budget, open_P, keys):
        """Bring the open prompts up to their budget, one rollout a prompt and round, by lot; in place."""
        left_over = budget - int(rollouts_P[open_P].sum())
        if left_over == 0:
            return
        rng = np.random.default_rng((self.seed, self.step, 1))
        lots_P = np.empty(len(keys))
        lots_P[np.argsort(keys, kind="stable")] = rng.random(len(keys))  # a lot hangs on the uid
        while left_over > 0:
            candidates = np.flatnonzero((rollouts_P < self.rollout.n_max) & open_P)
            lucky = candidates[np.argsort(lots_P[candidates])][:left_over]
            rollouts_P[lucky] += 1
            left_over -= len(lucky)

    def observe(self, uids, group_ids, rewards, *, losses=None) -> dict:
        """Learn from a batch's rollouts: bins move, then both adversaries. Returns the step's record.

        uids: (P,). group_ids: (R,) position in `uids` of the prompt each rollout belongs to.
        rewards: (R,). losses: (R,) surrogate losses ℓ_ij of (6), needed if `needs_losses`.
        A prompt counts in the bin it was in before this batch, so that its own luck does not choose
        the bin it is booked under; on its first visit, in the bin it has just earned.
        Raises ValueError for wrong lengths, NaN, a prompt without rollouts, or (methods that move
        rollouts) prompts or rollout counts other than those planned.
        """
        uids = as_uids(uids)
        keys = uids.keys
        group_ids_R, rewards_R, losses_R = self._checked(keys, group_ids, rewards, losses)
        trials_P = np.bincount(group_ids_R, minlength=len(keys))
        if (trials_P == 0).any():
            raise ValueError(
                f"prompts {np.flatnonzero(trials_P == 0)} of the batch have no rollouts; "
                "give group_ids for every prompt, or leave those uids out"
            )
        plan = self._plan_of(uids, trials_P)
        successes_P = _group_sums(group_ids_R, rewards_R > self.success_threshold, trials_P)
        variance_P = _group_variances(group_ids_R, rewards_R, trials_P)

        bin_ids_P = plan.bin_ids_P
        self.bins.update(uids, successes_P.astype(np.int64), trials_P)
        first_visit_P = bin_ids_P < 0
        if first_visit_P.any():
            bin_ids_P = np.where(first_visit_P, self._placed(uids), bin_ids_P)

        loss_P = None if losses_R is None else _group_sums(group_ids_R, losses_R, trials_P) / trials_P
        signal_P = {
            "failure_rate": 1.0 - successes_P / trials_P,
            "surrogate": loss_P,
            "spread": variance_P,
        }[self.signal]
        counts_P = trials_P if self.averaging == "rollout" else None
        if signal_P is not None:
            self.prompt.update(bin_ids_P, signal_P, counts_P)

        counts_B = np.bincount(bin_ids_P + 1, minlength=self.num_bins + 1)[1:]
        demand = None
        if self.moves_rollouts and counts_B.any():
            # the loss of an arm is of prompts that played it; a first visit played none
            played_loss_P = None if loss_P is None else np.where(first_visit_P, np.nan, loss_P)
            utility_P = variance_P if self.rollout.utility == "variance" else played_loss_P
            utility_B, _ = bin_means(bin_ids_P, utility_P, self.num_bins, counts_P)
            spent = len(rewards_R) / len(keys)
            played_B = np.where(counts_B > 0, plan.rollouts_B, 0)
            demand = self.rollout.update(counts_B, played_B, utility_B, spent)

        success_B = _bin_means_of_all(bin_ids_P, successes_P / trials_P, counts_B)
        mean_rollouts_B = _bin_means_of_all(bin_ids_P, trials_P, counts_B)
        variance_B, _ = bin_means(bin_ids_P, variance_P, self.num_bins)
        row = {
            "step": self.step,
            "unseen": int((bin_ids_P < 0).sum()),
            "share": (counts_B / len(keys)).tolist(),
            "weight": self.prompt.weights().tolist(),
            "probability": self.prompt.probabilities().tolist(),
            "rollouts": _without_nan(mean_rollouts_B),
            "success": _without_nan(success_B),
            "deviation": _without_nan(np.sqrt(variance_B)),
            "price": float(self.rollout.price),
            "demand": demand,
            "infeasible_steps": int(self.rollout.infeasible_steps),
            "mean_reward": float(rewards_R.sum() / len(rewards_R)),
        }
        self._planned, self._observed = None, plan
        self.step += 1
        return row

    def weights(self, uids, rollouts=None) -> np.ndarray:
        """Factor on each prompt's advantages, (P,).

        min(ω_b, ω_max) of the prompt's bin where Prompt-GDRO reweights, 1 elsewhere. rollouts: (P,),
        as planned, by default those of the last plan; with averaging "prompt" the factor n̄/n_i makes a
        prompt with many rollouts count as one prompt. Prompts of excluded bins are left at 1, whatever
        the others get.
        """
        uids = as_uids(uids)
        bin_ids_P = self._placed(uids)
        weights_P = np.ones(len(bin_ids_P))
        played_P = (bin_ids_P >= 0) & ~np.isin(bin_ids_P, self.prompt.exclude)
        if self.reweights and played_P.any():
            played_weights = self.prompt.weights()[bin_ids_P[played_P]]
            if self.weight_scale == "mean":
                played_weights /= played_weights.mean()
            weights_P[played_P] = played_weights
            weights_P[bin_ids_P < 0] = played_weights.mean()
        if self.averaging == "prompt" and (self.moves_rollouts or rollouts is not None):
            weights_P = weights_P * (self.mean_rollouts / self._rollouts_of(uids, rollouts))
        return weights_P

    def _rollouts_of(self, uids, rollouts):
        """Rollouts as given, or as last planned for just these prompts, (P,)."""
        plan = self._planned or self._observed
        if rollouts is None and plan is not None and np.array_equal(plan.keys, uids.keys):
            return plan.rollouts_P
        rollouts_P = np.zeros(0) if rollouts is None else np.asarray(rollouts, float)
        if rollouts_P.shape != uids.keys.shape or (rollouts_P < 1).any():
            raise ValueError(
                f"rollouts must be one count ≥ 1 for each of {len(uids.keys)} uids, got {rollouts}; "
                "give those of the plan (averaging 'prompt' weighs by them)"
            )
        return rollouts_P

    def draw(self, uids, size) -> np.ndarray:
        """Prompts of the next batch, (size,) positions in `uids`, drawn with bin probabilities q.

        uids: (D,) all prompts of the data set. Prompts not seen yet keep their share of the data, and
        so do excluded bins; the rest is divided by q among the bins that have prompts. Within a bin
        prompts are drawn evenly, and none twice until all of the bin have been.
        """
        uids = as_uids(uids)
        if size < 1 or len(uids.keys) == 0:
            raise ValueError(
                f"size must be at least 1 and uids not empty, got {size} of {len(uids.keys)} uids; "
                "give the uids of the whole data set"
            )
        bin_ids_D = self._placed(uids)
        rng = np.random.default_rng((self.seed, self.step, 2))
        counts_B = np.bincount(bin_ids_D + 1, minlength=self.num_bins + 1)  # [0]: not seen yet
        chances_B = counts_B / counts_B.sum()
        left_alone = [0, *(b + 1 for b in self.prompt.exclude)]
        played_B = (counts_B > 0) & ~np.isin(np.arange(self.num_bins + 1), left_alone)
        q_B = np.append(0.0, self.prompt.probabilities())[played_B]
        chances_B[played_B] = chances_B[played_B].sum() * q_B / q_B.sum()
        quota_B = rng.multinomial(size, chances_B / chances_B.sum())
        in_key_order_D = np.argsort(uids.keys, kind="stable")
        drawn = []
        for bin_id in np.flatnonzero(quota_B):
            members = in_key_order_D[bin_ids_D[in_key_order_D] == bin_id - 1]
            for start in range(0, quota_B[bin_id], len(members)):
                drawn.append(rng.permutation(members)[: quota_B[bin_id] - start])
        return rng.permutation(np.concatenate(drawn))

    def _placed(self, uids):
        """Bins of prompts, with the choice for those not seen yet applied; −1 is neutral."""
        bin_ids_P = self.bins.assign(uids)
        if self.unseen == "neutral":
            return bin_ids_P
        return np.where(bin_ids_P == UNSEEN, self.unseen, bin_ids_P)

    def _plan_of(self, uids, trials_P):
        """The plan for just these prompts and rollouts; where rollouts do not move, none is needed."""
        plan = self._planned
        if plan is not None and np.array_equal(plan.keys, uids.keys):
            same_rollouts = np.array_equal(plan.rollouts_P, trials_P)
            if same_rollouts or not self.moves_rollouts:
                return plan
        if self.moves_rollouts:
            raise ValueError(
                "observe was given other prompts or rollout counts than the last plan; "
                "call plan(uids), generate exactly that many rollouts for each, then observe"
            )
        return _Plan(uids.keys, self._placed(uids), trials_P, np.full(self.num_bins, int(self.mean_rollouts)))

    def _checked(self, keys, group_ids, rewards, losses):
        group_ids_R = np.asarray(group_ids)
        rewards_R = np.asarray(rewards, float)
        if group_ids_R.ndim != 1 or group_ids_R.shape != rewards_R.shape or not group_ids_R.size:
            raise ValueError(
                f"group_ids and rewards must be one per rollout, got shapes {group_ids_R.shape} "
                f"and {rewards_R.shape}"
            )
        if group_ids_R.dtype.kind not in "iu" or not (
            group_ids_R.min() >= 0 and group_ids_R.max() < len(keys)
        ):
            raise ValueError(
                f"group_ids must be positions in uids, integers in [0, {len(keys)}), "
                f"got {np.unique(group_ids_R)}"
            )
        _check_finite("rewards", rewards_R)
        if losses is None:
            if self.needs_losses:
                raise ValueError(
                    f"losses are needed by signal {self.signal!r} and utility "
                    f"{self.rollout.utility!r}; give one surrogate loss (6) per rollout"
                )
            return group_ids_R, rewards_R, None
        losses_R = np.asarray(losses, float)
        if losses_R.shape != rewards_R.shape:
            raise ValueError(
                f"losses must be one per rollout, got shape {losses_R.shape} for {len(rewards_R)} rollouts"
            )
        _check_finite("losses", losses_R)
        return group_ids_R, rewards_R, losses_R

    def state_dict(self) -> dict:
        """Nested dictionary of plain values and arrays; see `gdro.records.save_state`."""
        return {
            "settings": self._settings(),
            "step": self.step,
            "bins": self.bins.state_dict(),
            "prompt": self.prompt.state_dict(),
            "rollout": self.rollout.state_dict(),
        }

    def load_state_dict(self, state: dict) -> None:
        """Inverse of `state_dict`; ValueError if the state is of other settings."""
        check_settings("GDROController", self._settings(), state["settings"])
        self.bins.load_state_dict(state["bins"])
        self.prompt.load_state_dict(state["prompt"])
        self.rollout.load_state_dict(state["rollout"])
        self.step = int(state["step"])
        self._planned = self._observed = None

    def _settings(self):
        names = "method signal action averaging weight_scale unseen success_threshold seed"
        return {name: getattr(self, name) for name in names.split()}


def make_controller(method, preset, options, num_generations, seed=0):
    """A GDROController from a configuration's plain values; n̄ is TRL's `num_generations`.

    Raises ValueError for a name that GDROController does not know and for values it refuses.
    """
    options = dict(options or {})
    rollout = dict(options.pop("rollout", {}))
    if rollout.setdefault("mean_rollouts", num_generations) != num_generations:
        raise ValueError(
            f"gdro_options['rollout']['mean_rollouts'] is {rollout['mean_rollouts']}, but TRL samples "
            f"num_generations={num_generations} a prompt; set num_generations alone"
        )
    rollout.setdefault("n_max", max(12, 3 * num_generations))  # the paper's 12 at its n̄ of 4
    options.setdefault("seed", seed)
    try:
        return GDROController(method, preset=preset, rollout=rollout, **options)
    except TypeError as error:
        raise ValueError(f"gdro_options: {error}; see GDROController for the names") from error


def _made(kind, given, defaults):
    """The object itself, or one made from defaults overridden by the arguments given."""
    if isinstance(given, kind):
        return given
    if given is None or isinstance(given, Mapping):
        return kind(**{**defaults, **(given or {})})
    raise ValueError(f"expected a {kind.__name__} or its arguments, got {given!r}")


def _group_sums(group_ids_R, values_R, trials_P):
    return np.bincount(group_ids_R, values_R, len(trials_P))


def _group_variances(group_ids_R, values_R, trials_P):
    """Unbiased variance within each group, (P,); NaN for a group of one."""
    means_P = _group_sums(group_ids_R, values_R, trials_P) / trials_P
    squares_P = _group_sums(group_ids_R, (values_R - means_P[group_ids_R]) ** 2, trials_P)
    return np.divide(squares_P, trials_P - 1, out=np.full(len(trials_P), np.nan), where=trials_P > 1)


def _bin_means_of_all(bin_ids_P, values_P, counts_B):
    """Mean by bin of a value that every prompt has, (B,); NaN for a bin without prompts."""
    sums_B = np.bincount(bin_ids_P + 1, values_P, len(counts_B) + 1)[1:]
    return sums_B / np.where(counts_B > 0, counts_B, np.nan)


def _check_finite(name, values_R):
    if not np.isfinite(values_R).all():
        bad = np.flatnonzero(~np.isfinite(values_R))
        raise ValueError(
            f"{name} must be finite, got {values_R[bad[0]]} for rollout {bad[0]} "
            f"({len(bad)} of {len(values_R)}); mend what computes them"
        )


def _without_nan(values_B):
    return [None if math.isnan(value) else value for value in values_B.tolist()]
