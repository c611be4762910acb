"""Plays a method on a pool through a real controller, and takes the moments of its gradient.

The rollouts of each prompt are divided at random. From one part the controller learns, as it would
in earlier batches; on the other the batch that it then plans is judged. This is repeated for
several splits, and within a split for several plays, that is draws of prompts and plans. Given a
draw and a plan the moments are exact; over plays the law of total variance holds.

Where an advantage or weight also depends on the other groups of the batch (`prompt`, `spo`), these
are held at one outcome in each play: what is shared makes groups depend on each other a little, and
that is left out.

Axes: P prompts of the pool, O groups of a batch, R rollouts, C numbers of successes from 0, J
rollouts of a prompt in a part, M plays.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field
from scipy import stats

from gdro.checks import Count, Float, Natural, Refusal, build, check, options
from gdro.controller import GDROController
from gdro.groups import make_groups
from gdro.plans import Plan
from gdro_lab.microscope.moments import (
    Classes,
    Groups,
    classes_of,
    inner_products,
    mean_coefficients,
    own_products,
    true_gradient,
    variances,
)
from gdro_lab.microscope.pool import Pool

SAME = 1e-9  # of advantages, relative
COMPARED = ("variance_ratio", "snr_ratio", "cosine", "bias")


@options
class Setting:
    """How methods are played on a pool."""

    prompts: Count | None = None
    """Prompts of a batch; None for all of the pool at once."""
    rollouts: Annotated[Float, Field(gt=1)] = 4
    """n̄, mean rollouts per prompt."""
    n_max: Count = 12
    """Most rollouts of a prompt; the least are the method's own, by default 2."""
    visits: Natural = 1
    """How often each prompt was sampled before, in batches of the same size."""
    judged: Count = 32
    """Rollouts of each prompt on which a batch is judged, at least twice its largest group; the
    controller learns from the others."""
    splits: Count = 20
    """Random divisions of the pool."""
    plays: Count = 1
    """Batches in each; at least 2 where not all prompts are in a batch."""
    groups: bool = False
    """Whether the families are named to the controller, as by `group_column`."""
    averaging: Literal["prompt"] | None = None
    """"prompt" weighs by n̄/n_i beside the method's own weights."""
    divide_by: Literal["tokens", "rollouts"] = "tokens"
    """What the loss divides by: all tokens of the batch, as in the loop and TRL's "dapo", in units
    of the pool's mean length, or all rollouts."""
    seed: Natural = 0
    """Of splits, knowledge and plays, the same for all methods."""


@dataclass(frozen=True, eq=False)
class Judged:
    """Moments of a method's batch gradient, by prompt, means over the splits.

    The length of a gradient is in the units of the sketched model; all are of a batch that would
    give the gradient of the mean pass rate with RLOO and equal rollouts.
    """

    variance_P: np.ndarray
    """What each prompt's groups add to the trace of the covariance, given draw and plan."""
    between_PP: np.ndarray
    """Covariance over draws and plans of the mean gradient, by pairs of prompts."""
    square_PP: np.ndarray
    """|mean gradient|², by pairs of prompts."""
    inner_PP: np.ndarray
    """Mean gradient times the true one, of the mean pass rate, by pairs."""
    truth_PP: np.ndarray
    """|true gradient|², by pairs."""

    def scores(self, counts_P: np.ndarray | None = None) -> dict[str, float]:
        """Variance, signal-to-noise and bias.

        Args:
            counts_P: 1 for each prompt that counts, else 0; all by default.
        """
        b_P = np.ones(len(self.variance_P)) if counts_P is None else counts_P
        rollouts = float(b_P @ self.variance_P)
        draws = float(b_P @ self.between_PP @ b_P)
        square = float(b_P @ self.square_PP @ b_P)
        inner = float(b_P @ self.inner_PP @ b_P)
        truth = float(b_P @ self.truth_PP @ b_P)
        variance = rollouts + draws
        return {
            "variance": rollouts,
            "variance_of_draws": draws,
            "square": square,
            "snr": _ratio(square, variance),
            "cosine": _ratio(inner, np.sqrt(max(square * truth, 0.0))),
            "bias": np.sqrt(_ratio(max(square - 2 * inner + truth, 0.0), truth)),
        }


def _ratio(value: float, to: float) -> float:
    """NaN where there is nothing to compare with."""
    return float(value / to) if to > 0 else np.nan


def scores_against(judged: Judged, baseline: Judged) -> dict[str, tuple[float, float, float]]:
    """Ratios of variance and signal-to-noise to a baseline's, and cosine and bias.

    Returns:
        By score the value and its 95% interval, by the jackknife over prompts: a bootstrap would
        draw a prompt twice, and the products of a prompt with its copy are not those of two.
    """
    prompts = len(judged.variance_P)
    check("prompts of the pool", prompts, int, ge=2)
    value = _compared(judged, baseline, np.ones(prompts))
    left_out_PC = np.array([_compared(judged, baseline, 1.0 - row) for row in np.eye(prompts)])
    deviation = np.sqrt((prompts - 1) * left_out_PC.var(axis=0))
    half = stats.t.ppf(0.975, prompts - 1) * deviation
    low, high = value - half, value + half
    return {
        name: (float(value[c]), float(low[c]), float(high[c])) for c, name in enumerate(COMPARED)
    }


def _compared(judged: Judged, baseline: Judged, counts_P: np.ndarray) -> np.ndarray:
    """The scores of `COMPARED` on the prompts that count."""
    ours = judged.scores(counts_P)
    theirs = baseline.scores(counts_P)
    variance = _ratio(ours["variance"], theirs["variance"])
    snr = _ratio(ours["snr"], theirs["snr"])
    return np.array([variance, snr, ours["cosine"], ours["bias"]])


def judge(pool: Pool, method: str, setting: Setting | None = None, /, **options: Any) -> Judged:
    """Judge a registered method on a pool.

    Args:
        pool: with more rollouts a prompt than are judged.
        method: its name.
        setting: how it is played.
        **options: of the method.

    Raises:
        ValueError: for a method whose batch is more than one plan, or that teaches from prompts of
            which the pool has no gradients.
    """
    chosen = setting or Setting()
    prompts, rollouts = pool.rewards_PK.shape
    size = check("prompts", chosen.prompts or prompts, int, ge=1, le=prompts)
    check("judged", chosen.judged, int, ge=2, lt=rollouts)
    if size < prompts:
        check("plays", chosen.plays, int, ge=2)  # the variance of draws needs two
    parts: list[Judged] = []
    for split in range(chosen.splits):
        rng = np.random.default_rng([chosen.seed, split])
        order_PK = rng.permuted(np.tile(np.arange(rollouts), (prompts, 1)), axis=1)
        classes = classes_of(pool, order_PK[:, : chosen.judged])
        known_PJ = np.take_along_axis(pool.rewards_PK, order_PK[:, chosen.judged :], 1)
        plays = []
        for play in range(chosen.plays):
            play_rng = np.random.default_rng([chosen.seed, split, play])
            controller = _controller(pool, method, chosen, split * chosen.plays + play, options)
            _teach(controller, pool, known_PJ, size, chosen.visits, play_rng)
            plays.append(_plan(controller, pool, chosen, size, known_PJ, play_rng))
        parts.append(_judged(classes, plays))
    means = {name: np.mean([vars(part)[name] for part in parts], axis=0) for name in vars(parts[0])}
    return Judged(**means)


def _controller(
    pool: Pool, method: str, setting: Setting, seed: int, options: Mapping[str, Any]
) -> GDROController:
    """A new controller; ValueError for a method whose step is more than one plan."""
    fixed: dict[str, Any] = {"n_max": setting.n_max, "seed": seed}
    if setting.groups:
        labels = pool.uids_P.tolist(), pool.families_P.tolist()
        fixed["bins"] = make_groups("groups", {}, "default", *labels)
    controller = build(
        f"options of {method!r}",
        GDROController,
        options,
        method=method,
        mean_rollouts=setting.rollouts,
        **fixed,
    )
    played = controller.method
    several = {
        "samples in rounds, the later ones by what came back": played.in_rounds,
        "may wait for further batches before a step": played.waits,
        "replays texts of earlier batches": played.replays,
    }
    for what, is_so in several.items():
        if is_so:
            raise ValueError(
                f"method must have one plan a step, from which the moments follow, got {method!r}, "
                f"which {what}"
            )
    return controller


def _teach(
    controller: GDROController,
    pool: Pool,
    known_PJ: np.ndarray,
    size: int,
    visits: int,
    rng: np.random.Generator,
) -> None:
    """Let a controller learn from earlier batches in which every prompt comes `visits` times."""
    prompts, known = known_PJ.shape
    used_P = np.zeros(prompts, int)  # of the rollouts that it may learn from, in their order
    for _ in range(visits):
        order = rng.permutation(prompts)
        for start in range(0, prompts, size):
            places_O = order[start : start + size]
            plan = controller.plan(pool.uids_P[places_O])
            ids_R = np.repeat(np.arange(len(places_O)), plan.rollouts)
            turn_R = np.concatenate([np.arange(n) for n in plan.rollouts])
            place_R = places_O[ids_R]
            next_R = used_P[place_R] + turn_R
            if next_R.max() >= known:  # it learns from a rollout once
                raise Refusal(
                    f"visits must be so few that no prompt needs more than the {known} rollouts "
                    f"that are not judged, got {visits}"
                )
            rewards_R = known_PJ[place_R, next_R]
            used_P[places_O] += plan.rollouts
            controller.observe(plan, ids_R, rewards_R)


def _plan(
    controller: GDROController,
    pool: Pool,
    setting: Setting,
    size: int,
    known_PJ: np.ndarray,
    rng: np.random.Generator,
) -> Groups:
    """Draw and plan a batch, and find the advantages of everything that can come back."""
    places_O = controller.draw(pool.uids_P, size)
    if places_O is None:  # the trainer's own order
        places_O = rng.permutation(len(pool.uids_P))[:size]
    elif len(set(places_O.tolist())) < size:
        raise ValueError(
            f"method must draw a prompt once a batch, got {controller.name!r}, which repeats one"
        )
    plan = controller.plan(pool.uids_P[places_O])
    rollouts_O = plan.rollouts
    tables_OC2 = advantage_tables(controller, plan)
    if tables_OC2 is None:
        # the other groups matter: each is held at one outcome, drawn from its known rollouts
        chosen = [
            rng.choice(known_PJ[place], n, replace=False)
            for place, n in zip(places_O, rollouts_O, strict=True)
        ]
        hits_O = np.array([rewards.sum() for rewards in chosen], int)
        tables_OC2 = tables_beside(controller, plan, hits_O)
    if setting.averaging == "prompt":
        tables_OC2 = tables_OC2 * (setting.rollouts / rollouts_O)[:, None, None]
    _check_flat(pool, controller.name, places_O, rollouts_O, tables_OC2)
    divisor = float(rollouts_O.sum())
    if setting.divide_by == "tokens":
        lengths_P = pool.mean_length_P / pool.mean_length_P.mean()
        divisor = float(rollouts_O @ lengths_P[places_O])
    rollouts_P = np.zeros(len(pool.uids_P), int)
    rollouts_P[places_O] = rollouts_O
    tables_PC2 = np.zeros((len(rollouts_P), *tables_OC2.shape[1:]))
    tables_PC2[places_O] = tables_OC2 / divisor
    return Groups(rollouts_P, tables_PC2)


def advantage_tables(controller: GDROController, plan: Plan) -> np.ndarray | None:
    """Weighted advantages of a success and of a failure by the successes of their group, (O, C, 2).

    Returns:
        None where they also depend on the other groups of the batch.
    """
    rollouts_O = plan.rollouts
    levels = np.arange(rollouts_O.max() + 1)
    tables = []
    # in the first turn all groups have c successes, in the second the others differ
    for turn in (0, 1):
        table_OC2 = np.zeros((len(rollouts_O), len(levels), 2))
        for level in levels:
            shift_O = turn * np.arange(len(rollouts_O))
            hits_O = (level + shift_O) % (rollouts_O + 1)
            answer_O2 = observed_advantages(controller, plan, hits_O)
            table_OC2[np.arange(len(rollouts_O)), hits_O] = answer_O2
        tables.append(table_OC2)
    scale = max(float(np.abs(tables[0]).max()), 1e-12)
    return tables[0] if np.abs(tables[0] - tables[1]).max() <= SAME * scale else None


def tables_beside(controller: GDROController, plan: Plan, hits_O: np.ndarray) -> np.ndarray:
    """The same, each group in turn with 0, 1, … successes beside one outcome of the others."""
    rollouts_O = plan.rollouts
    table_OC2 = np.zeros((len(rollouts_O), int(rollouts_O.max()) + 1, 2))
    for o, n in enumerate(rollouts_O):
        for level in range(n + 1):
            changed_O = hits_O.copy()
            changed_O[o] = level
            table_OC2[o, level] = observed_advantages(controller, plan, changed_O)[o]
    return table_OC2


def observed_advantages(controller: GDROController, plan: Plan, hits_O: np.ndarray) -> np.ndarray:
    """Weighted advantages of a success and of a failure in each group, (O, 2), 0 if there is none.

    A copy of the controller is asked, so that it learns nothing.
    """
    rollouts_O = plan.rollouts
    ids_R = np.repeat(np.arange(len(rollouts_O)), rollouts_O)
    turn_R = np.concatenate([np.arange(n) for n in rollouts_O])
    correct_R = turn_R < hits_O[ids_R]
    observed = copy.deepcopy(controller).observe(plan, ids_R, correct_R.astype(float))
    advantages_R = observed.advantages
    answer_O2 = np.zeros((len(rollouts_O), 2))
    for kind, chosen_R in enumerate((correct_R, ~correct_R)):
        counts_O = np.bincount(ids_R[chosen_R], minlength=len(rollouts_O))
        sums_O = np.bincount(ids_R[chosen_R], advantages_R[chosen_R], len(rollouts_O))
        answer_O2[:, kind] = sums_O / np.maximum(counts_O, 1)
        apart_R = np.abs(advantages_R - answer_O2[ids_R, kind])[chosen_R]
        if apart_R.size and apart_R.max() > SAME * max(np.abs(advantages_R).max(), 1e-12):
            raise ValueError(
                "method must give equal rewards of a group equal advantages, got "
                f"{controller.name!r}, which does not"
            )
    return answer_O2


def _check_flat(
    pool: Pool,
    name: str,
    places_O: np.ndarray,
    rollouts_O: np.ndarray,
    tables_OC2: np.ndarray,
) -> None:
    """Refuse (ValueError) advantages of texts whose gradients the pool lacks."""
    missing_O = (pool.texts_PK[places_O] < 0).any(axis=1)
    solved_O = pool.rewards_PK[places_O, 0] > 0
    all_right_O = tables_OC2[np.arange(len(rollouts_O)), rollouts_O, 0]
    needed_O = np.where(solved_O, all_right_O, tables_OC2[:, 0, 1])
    if (missing_O & (np.abs(needed_O) > 0)).any():
        raise ValueError(
            "pool must have the gradients of flat prompts, made with `flat`, for a method that "
            f"teaches from groups of equal rewards, got {name!r}"
        )


def _judged(classes: Classes, plays: Sequence[Groups]) -> Judged:
    """Moments of a split, from the batches of its plays."""
    count = len(plays)
    prompts = len(classes.sizes_P2)
    means_M = np.stack([mean_coefficients(classes, groups) for groups in plays])
    mean_P2 = means_M.mean(axis=0)
    own_MMP = np.zeros((count, count, prompts))
    for a, one in enumerate(plays):
        for b, other in enumerate(plays[: a + 1]):
            own_MMP[a, b] = own_MMP[b, a] = own_products(classes, one, other)
    own_P = own_MMP.mean(axis=(0, 1))
    between_PP = np.zeros((prompts, prompts))
    if count > 1:
        spread_P = (np.einsum("mmp->p", own_MMP) - count * own_P) / (count - 1)
        for deviation_P2 in means_M - mean_P2:
            between_PP += inner_products(classes, deviation_P2, deviation_P2, own_P)
        between_PP /= count - 1
        np.fill_diagonal(between_PP, spread_P)
    truth = true_gradient(prompts)
    truth_P2 = mean_coefficients(classes, truth)
    inner_P = np.mean([own_products(classes, groups, truth) for groups in plays], axis=0)
    truth_P = own_products(classes, truth, truth)
    return Judged(
        variance_P=np.mean([variances(classes, groups) for groups in plays], axis=0),
        between_PP=between_PP,
        # less the variance of a mean over this many plays
        square_PP=inner_products(classes, mean_P2, mean_P2, own_P) - between_PP / count,
        inner_PP=inner_products(classes, mean_P2, truth_P2, inner_P),
        truth_PP=inner_products(classes, truth_P2, truth_P2, truth_P),
    )
