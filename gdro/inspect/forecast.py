"""What a method would do on the prompts of a log: the library's own methods play it again.

The controller plans batch after batch, as in a training. In place of a model, a prompt has first
the rollouts that the log has of it at that time, and where the method wants more of them, others by
the pass rate that the log suggests. So the forecast knows what the log knows and no more: prompts
are learned as fast as they were in this run, whatever the method trains on.

The pass rate of a visit is drawn from its posterior, given its own rollouts and the distribution of
all pass rates. Where a method draws a prompt between its visits, the nearest one holds. One number
a prompt says where in its posteriors it is drawn, so that what is hard at one visit is hard at the
next.

Axes: G rollout groups of the log, D prompts, P prompts of a batch, R rollouts, M points of the grid
of pass rates, C classes of pass rates.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from gdro.checks import Refusal
from gdro.controller import GDROController
from gdro.inspect.difficulty import EDGES, PassRates
from gdro.inspect.table import Groups
from gdro.rounds import sample_in_rounds

MOST_GROUPS = 20_000  # that are played; of a larger log, only some prompts are
MOST_STEPS = 400  # that are played, the last of the log
ENOUGH_GROUPS = 6_000  # a small log is played several times, since outcomes are random
LEAST_PLAYS = 2  # each with pass rates of its own
MOST_PLAYS = 8
EPOCHS = 4  # in which a log without steps is played
MOST_ROLLOUTS = 33_000  # of a group: methods take up to three times as many
BATCH = 32  # prompts of a batch in these epochs


@dataclass(frozen=True, eq=False)
class Course:
    """Batches of prompts, and the pass rate of each prompt while they are played."""

    batches: list[np.ndarray]
    """Prompts of each step, (P,) each."""
    prompts_D: np.ndarray
    """All prompts, increasing."""
    mean_rollouts: int
    """n̄ of the log."""
    keys_G: np.ndarray
    """Prompt × steps + step of each visit, increasing."""
    trials_G: np.ndarray
    """Rollouts that the log has of it."""
    hits_G: np.ndarray
    """Correct ones among them."""
    rates_G: np.ndarray
    """Pass rate at it."""

    def places(self, prompts_P: np.ndarray, step: int) -> np.ndarray:
        """The visit of each prompt that is nearest to a step, (P,)."""
        steps = len(self.batches)
        keys_P = prompts_P * steps + step
        after_P = self.keys_G.searchsorted(keys_P).clip(0, len(self.keys_G) - 1)
        before_P = (after_P - 1).clip(0)
        # a visit of another prompt counts as the farthest
        gaps_2P = [
            np.where(
                self.keys_G[place_P] // steps == prompts_P,
                np.abs(self.keys_G[place_P] - keys_P),
                steps,
            )
            for place_P in (before_P, after_P)
        ]
        return np.where(gaps_2P[0] <= gaps_2P[1], before_P, after_P)


def make_course(
    groups: Groups, rates: PassRates, has_steps: bool, rng: np.random.Generator
) -> Course:
    """The course of a log.

    Args:
        groups: of the log, in the order of their steps.
        rates: the distribution of their pass rates.
        has_steps: whether the log says when they were sampled; else their prompts are shuffled into
            batches, for some epochs.
        rng: of the pass rates, and of that order.
    """
    chosen = groups.take(np.lexsort((groups.steps_G, groups.prompts_G)))
    prompts_D, row_G = np.unique(chosen.prompts_G, return_inverse=True)
    level_G = rng.random(len(prompts_D))[row_G]
    below_GM = rates.posterior(chosen.trials_G, chosen.hits_G).cumsum(axis=1)
    rates_G = rates.grid_M[(below_GM < level_G[:, None] * below_GM[:, -1:]).sum(axis=1)]
    if has_steps:
        steps, step_G = np.unique(chosen.steps_G, return_inverse=True)
        batches = [row_G[step_G == step] for step in range(len(steps))]
    else:
        step_G = np.zeros(len(row_G), np.int64)
        orders = [rng.permutation(len(prompts_D)) for _ in range(EPOCHS)]
        size = min(max(BATCH, EPOCHS * len(prompts_D) // MOST_STEPS), len(prompts_D))
        batches = [
            order[start : start + size]
            for order in orders
            for start in range(0, len(order) - size + 1, size)
        ]
    return Course(
        batches=batches,
        prompts_D=np.arange(len(prompts_D)),
        mean_rollouts=max(2, round(float(groups.trials_G.mean()))),
        keys_G=row_G * len(batches) + step_G,
        trials_G=chosen.trials_G,
        hits_G=chosen.hits_G,
        rates_G=rates_G,
    )


def groups_to_play(groups: Groups, rng: np.random.Generator) -> Groups:
    """Choose the groups that are played: of a large log, some prompts in the last steps."""
    steps = np.unique(groups.steps_G)
    if len(steps) > MOST_STEPS:
        groups = groups.take(groups.steps_G >= steps[-MOST_STEPS])
    if len(groups) > MOST_GROUPS:
        kept_P = rng.random(int(groups.prompts_G.max()) + 1) < MOST_GROUPS / len(groups)
        groups = groups.take(kept_P[groups.prompts_G])
    return groups


@dataclass(eq=False)
class Sampler:
    """Rollouts of a batch: those that the log has of each prompt's visit, then others."""

    trials_P: np.ndarray
    """Rollouts that the log has; none is used twice."""
    hits_P: np.ndarray
    """Correct ones among them."""
    rates_P: np.ndarray
    """Pass rates by which all others are drawn."""
    rng: np.random.Generator
    """Of the outcomes."""

    def __call__(self, group_ids_R: np.ndarray) -> np.ndarray:
        """Whether each rollout of a round is correct, (R,); those of a prompt stand together."""
        wanted_P = np.bincount(group_ids_R, minlength=len(self.rates_P))
        logged_P = np.minimum(wanted_P, self.trials_P)
        wrong_P = self.trials_P - self.hits_P
        from_log_P = self.rng.hypergeometric(self.hits_P, wrong_P, logged_P)
        self.trials_P = self.trials_P - logged_P
        self.hits_P = self.hits_P - from_log_P
        hits_P = from_log_P + self.rng.binomial(wanted_P - logged_P, self.rates_P)
        turn_R = np.arange(len(group_ids_R)) - (wanted_P.cumsum() - wanted_P)[group_ids_R]
        return (turn_R < hits_P[group_ids_R]).astype(float)


class Played(NamedTuple):
    """What a method did with the prompts of a batch."""

    rates_P: np.ndarray
    """Pass rates."""
    is_new_P: np.ndarray
    """Whether the method had never seen them, in the order of their uids."""
    trials_P: np.ndarray
    """Rollouts."""
    hits_P: np.ndarray
    """Correct ones among them."""
    trained_P: np.ndarray
    """Those whose advantage is not 0."""
    noise: np.ndarray
    """`noise_proxy` of the batch."""


def play(courses: Sequence[Course], method: str, seed: int) -> dict[str, Any]:
    """Play a method on courses of a log.

    Args:
        courses: each is played once.
        method: registered name.
        seed: of the outcomes and the controller.

    Returns:
        "draws": whether the method draws the prompts; "mixed": share of groups with both outcomes,
        which without a draw hardly differs from the log's; "rollouts_by_pass_rate": share of
        rollouts in each class; "trained_rollouts": share of rollouts whose advantage is not 0;
        "noise": `noise_proxy`, None for a method that draws; "first_visits": share of groups whose
        prompt the method had never seen.
    """
    batches = []
    for repeat, course in enumerate(courses):
        controller = GDROController(method, course.mean_rollouts, seed=seed + repeat)
        rng = np.random.default_rng((seed, repeat))
        is_used_G = np.zeros(len(course.keys_G), bool)
        for step, batch in enumerate(course.batches):
            # a step may have sampled a prompt in several places
            size = min(len(batch), len(course.prompts_D))
            drawn = controller.draw(course.prompts_D, size)
            prompts_P = batch if drawn is None else course.prompts_D[drawn]
            batches.append(_play_batch(course, controller, prompts_P, step, is_used_G, rng))
    draws = controller.method.draws
    every = Played(*map(np.hstack, zip(*batches, strict=True)))
    rollouts = every.trials_P.sum()
    is_mixed_P = (every.hits_P > 0) & (every.hits_P < every.trials_P)
    rollouts_C, _ = np.histogram(every.rates_P, EDGES, weights=every.trials_P)
    return {
        "draws": draws,
        "mixed": float(is_mixed_P.mean()),
        "rollouts_by_pass_rate": (rollouts_C / rollouts).tolist(),
        "trained_rollouts": float(every.trained_P.sum() / rollouts),
        # on other prompts, noise cannot be compared
        "noise": None if draws else float(every.noise.mean()),
        "first_visits": float(every.is_new_P.mean()),
    }


def _play_batch(
    course: Course,
    controller: GDROController,
    prompts_P: np.ndarray,
    step: int,
    is_used_G: np.ndarray,
    rng: np.random.Generator,
) -> Played:
    """Plan, sample and observe a batch.

    Args:
        is_used_G: visits whose rollouts were played already; those of this batch are added.
    """
    places_P = course.places(prompts_P, step)
    is_first_P = np.zeros(len(places_P), bool)
    is_first_P[np.unique(places_P, return_index=True)[1]] = True
    has_log_P = is_first_P & ~is_used_G[places_P]
    is_used_G[places_P] = True
    rates_P = course.rates_G[places_P]
    plan = controller.plan(prompts_P)
    sampler = Sampler(
        np.where(has_log_P, course.trials_G[places_P], 0),
        np.where(has_log_P, course.hits_G[places_P], 0),
        rates_P,
        rng,
    )
    samples = sample_in_rounds(controller, plan, sampler)
    groups_R = samples.group_ids_R
    observed = controller.observe(plan, groups_R, samples.rewards_R, correct=samples.correct_R)
    count = len(prompts_P)
    trials_P = np.bincount(groups_R, minlength=count)
    return Played(
        rates_P=rates_P,
        is_new_P=~plan.prompts.visited_P,
        trials_P=trials_P,
        hits_P=np.bincount(groups_R, samples.correct_R, count),
        trained_P=np.bincount(groups_R, observed.advantages != 0, count),
        noise=noise_proxy(rates_P, trials_P, observed.weights),
    )


def noise_proxy(rates_P: np.ndarray, trials_P: np.ndarray, weights_P: np.ndarray) -> np.ndarray:
    """Variance of the weighted mean of a batch's rewards, Σ n w² p (1 − p) / (Σ n w)².

    With w = n̄/n, where every prompt counts equally, it is the variance proxy (28) over the number
    of prompts.
    """
    variance = trials_P * weights_P**2 * rates_P * (1 - rates_P)
    return variance.sum() / (trials_P * weights_P).sum() ** 2


def forecast(
    groups: Groups,
    rates: PassRates,
    has_steps: bool,
    methods: Sequence[str],
    seed: int,
) -> dict[str, dict[str, Any]]:
    """Forecast what each method would do, by its name; see `play`.

    "noise" is relative to that of "grpo".

    Args:
        groups: of the log, in the order of their steps.
        rates: the distribution of their pass rates.
        has_steps: whether the log says when they were sampled.
        methods: registered names.
        seed: of everything random.

    Raises:
        Refusal: for a name that is not registered, and for a method that cannot play with the
            log's number of rollouts.
    """
    mean = groups.trials_G.mean()
    if mean > MOST_ROLLOUTS:
        raise Refusal(
            f"the log must have at most {MOST_ROLLOUTS:,} rollouts a group on average, got "
            f"{mean:,.0f}: name the column by which they are grouped with --group"
        )
    plays = min(max(math.ceil(ENOUGH_GROUPS / len(groups)), LEAST_PLAYS), MOST_PLAYS)
    courses = [
        make_course(groups, rates, has_steps, np.random.default_rng((seed, repeat)))
        for repeat in range(plays)
    ]
    names = dict.fromkeys(("grpo", *methods))
    found = {name: play(courses, name, seed) for name in names}
    even = found["grpo"]["noise"]
    for entry in found.values():
        if entry["noise"] is not None:
            entry["noise"] = entry["noise"] / even if even else None
    return found
