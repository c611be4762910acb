"""What a method would do on the prompts of a log: the library's own methods play it again.

The controller plans batch after batch, as in a training; in place of a model, each prompt has the
pass rate that the log suggests for it at that time. So the forecast knows what the log knows and no
more: prompts are learned as fast as they were in this run, whatever the method trains on.

A prompt's pass rate at a visit is drawn from its posterior: the distribution of all pass rates is
the prior, and its rollouts count, those of its other visits less the further away they are. Between
visits, that of the nearest one holds. One number a prompt says where in its posteriors it is drawn,
so that a prompt which is hard at one visit is hard at the next.

Axes: G rollout groups of the log, D prompts, P prompts of a batch, R rollouts, M points of the grid
of pass rates, C classes of pass rates.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gdro.controller import GDROController
from gdro.inspect.difficulty import PassRates
from gdro.inspect.table import Groups
from gdro.rounds import sample_in_rounds

MOST_GROUPS = 20_000  # of the log that are played; of more, some prompts are
MOST_STEPS = 400  # the last ones
ENOUGH_GROUPS = 4_000  # played again until there are so many, since outcomes are random
MOST_PLAYS = 8
KEPT = 0.5  # what a visit counts at the next one
EPOCHS = 4  # of a log without steps
BATCH = 32  # prompts of its batches


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
    rates_G: np.ndarray
    """Pass rate at it."""
    lengths_G: np.ndarray
    """Mean length of its completions; 1 where the log has none."""

    def places(self, prompts_P: np.ndarray, step: int) -> np.ndarray:
        """The visit of each prompt that is nearest to a step, (P,)."""
        steps = len(self.batches)
        keys_P = prompts_P * steps + step
        after_P = self.keys_G.searchsorted(keys_P).clip(0, len(self.keys_G) - 1)
        before_P = (after_P - 1).clip(0)
        # of another prompt: as far away as can be
        gaps_2P = [
            np.where(
                self.keys_G[place_P] // steps == prompts_P,
                np.abs(self.keys_G[place_P] - keys_P),
                steps,
            )
            for place_P in (before_P, after_P)
        ]
        return np.where(gaps_2P[0] <= gaps_2P[1], before_P, after_P)


def make_course(groups: Groups, has_steps: bool, rng: np.random.Generator) -> Course:
    """The course of a log.

    Args:
        groups: of the log, in the order of their steps.
        has_steps: whether the log says when they were sampled; else their prompts are shuffled into
            batches, for some epochs.
        rng: of the pass rates, and of that order.
    """
    chosen = _not_too_many(groups, rng)
    rates = PassRates(groups.trials_G, groups.hits_G, groups.prompts_G)
    order_G = np.lexsort((chosen.steps_G, chosen.prompts_G))
    chosen = chosen.take(order_G)
    trials_G, hits_G = pooled_counts(chosen.prompts_G, chosen.trials_G, chosen.hits_G)
    prompts_D, row_G = np.unique(chosen.prompts_G, return_inverse=True)
    level_G = rng.random(len(prompts_D))[row_G]
    below_GM = rates.posterior(trials_G, hits_G).cumsum(axis=1)
    rates_G = rates.grid_M[(below_GM < level_G[:, None] * below_GM[:, -1:]).sum(axis=1)]
    if has_steps:
        steps, step_G = np.unique(chosen.steps_G, return_inverse=True)
        batches = [row_G[step_G == step] for step in range(len(steps))]
    else:
        step_G = np.zeros(len(row_G), np.int64)
        orders = [rng.permutation(len(prompts_D)) for _ in range(EPOCHS)]
        size = min(BATCH, len(prompts_D))
        batches = [
            order[start : start + size]
            for order in orders
            for start in range(0, len(order) - size + 1, size)
        ]
    lengths_G = np.ones(len(chosen))
    if chosen.lengths_G is not None:
        lengths_G = chosen.lengths_G / chosen.trials_G
    return Course(
        batches=batches,
        prompts_D=np.arange(len(prompts_D)),
        mean_rollouts=max(2, round(float(groups.trials_G.mean()))),
        keys_G=row_G * len(batches) + step_G,
        rates_G=rates_G,
        lengths_G=lengths_G,
    )


def _not_too_many(groups: Groups, rng: np.random.Generator) -> Groups:
    """The groups of the last steps, and where these are many, of some of the prompts."""
    steps = np.unique(groups.steps_G)
    if len(steps) > MOST_STEPS:
        groups = groups.take(groups.steps_G >= steps[-MOST_STEPS])
    if len(groups) > MOST_GROUPS:
        kept_P = rng.random(int(groups.prompts_G.max()) + 1) < MOST_GROUPS / len(groups)
        groups = groups.take(kept_P[groups.prompts_G])
    return groups


def pooled_counts(
    prompts_G: np.ndarray, trials_G: np.ndarray, hits_G: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Rollouts of each visit with those of the prompt's other visits, and correct ones, (G,) each.

    A visit v steps of the prompt away counts `KEPT`ᵛ.

    Args:
        prompts_G: sorted, the visits of each in the order of their steps.
        trials_G, hits_G: of each visit.
    """
    counts_2G = np.stack([trials_G, hits_G]).astype(float)
    is_first_G = np.append(True, np.diff(prompts_G) != 0)
    is_last_G = np.append(is_first_G[1:], True)
    before_2G = _faded_sums(counts_2G, is_first_G)
    after_2G = _faded_sums(counts_2G[:, ::-1], is_last_G[::-1])[:, ::-1]
    trials, hits = before_2G + after_2G - counts_2G
    return trials, hits


def _faded_sums(values_2G: np.ndarray, is_first_G: np.ndarray) -> np.ndarray:
    """Σ KEPTᵛ of each value and those v places before it, back to the first of its prompt."""
    sums_2G = values_2G.copy()
    place_G = np.arange(len(is_first_G))
    visit_G = place_G - np.maximum.accumulate(np.where(is_first_G, place_G, 0))
    for visit in range(1, int(visit_G.max(initial=0)) + 1):
        at = np.flatnonzero(visit_G == visit)
        sums_2G[:, at] += KEPT * sums_2G[:, at - 1]
    return sums_2G


@dataclass
class Tally:
    """Sums over what a method played."""

    prompts: int = 0
    mixed: int = 0
    first_visits: int = 0
    rollouts: int = 0
    trained: int = 0
    length: float = 0.0
    trained_length: float = 0.0
    noise: float = 0.0
    batches: int = 0

    def __post_init__(self) -> None:
        self.rates: list[np.ndarray] = []
        self.spent: list[np.ndarray] = []

    def summary(self, edges: Sequence[float], draws: bool) -> dict[str, Any]:
        """Shares, as plain JSON values."""
        rollouts_C, _ = np.histogram(
            np.concatenate(self.rates), edges, weights=np.concatenate(self.spent)
        )
        return {
            "mixed": self.mixed / self.prompts,
            "rollouts_by_pass_rate": (rollouts_C / self.rollouts).tolist(),
            "trained_rollouts": self.trained / self.rollouts,
            "trained_length": self.trained_length / self.length,
            # of other prompts it would be another thing's noise
            "noise": None if draws else self.noise / self.batches,
            "first_visits": self.first_visits / self.prompts,
        }


def play(
    course: Course, make: Callable[[int], GDROController], edges: Sequence[float], seed: int
) -> dict[str, Any]:
    """What a method does on a course.

    Args:
        course: of the log.
        make: a new controller with the method, from a seed.
        edges: of the classes of pass rates.
        seed: of the outcomes and the controller.

    Returns:
        "mixed": share of groups with both outcomes; "rollouts_by_pass_rate": share of rollouts in
        each class; "trained_rollouts" and "trained_length": share of rollouts, and of their tokens,
        whose advantage is not 0; "noise": `noise_proxy`, None for a method that draws prompts;
        "first_visits": share of groups whose prompt the method had never seen.
    """
    tally = Tally()
    draws = False
    for repeat in range(MOST_PLAYS):
        controller = make(seed + repeat)
        draws = controller.method.draws
        rng = np.random.default_rng((seed, repeat))
        for step, batch in enumerate(course.batches):
            drawn = controller.draw(course.prompts_D, len(batch))
            prompts_P = batch if drawn is None else course.prompts_D[drawn]
            _play_batch(course, controller, prompts_P, step, rng, tally)
        if tally.prompts >= ENOUGH_GROUPS:
            break
    return tally.summary(edges, draws)


def _play_batch(
    course: Course,
    controller: GDROController,
    prompts_P: np.ndarray,
    step: int,
    rng: np.random.Generator,
    tally: Tally,
) -> None:
    """Plan, sample and observe a batch, and add what it brought to the tally."""
    places_P = course.places(prompts_P, step)
    rates_P = course.rates_G[places_P]
    lengths_P = course.lengths_G[places_P]
    plan = controller.plan(prompts_P)
    samples = sample_in_rounds(
        controller, plan, lambda ids_R: rng.random(len(ids_R)) < rates_P[ids_R]
    )
    groups_R = samples.group_ids_R
    observed = controller.observe(plan, groups_R, samples.rewards_R, correct=samples.correct_R)
    count = len(prompts_P)
    trials_P = np.bincount(groups_R, minlength=count)
    hits_P = np.bincount(groups_R, samples.correct_R, count)
    trained_R = observed.advantages != 0
    tally.prompts += count
    tally.mixed += int(((hits_P > 0) & (hits_P < trials_P)).sum())
    tally.first_visits += int((~plan.prompts.visited_P).sum())
    tally.rollouts += len(groups_R)
    tally.trained += int(trained_R.sum())
    tally.length += float(lengths_P[groups_R].sum())
    tally.trained_length += float(lengths_P[groups_R[trained_R]].sum())
    tally.noise += noise_proxy(rates_P, trials_P, observed.weights)
    tally.batches += 1
    tally.rates.append(rates_P)
    tally.spent.append(trials_P)


def noise_proxy(rates_P: np.ndarray, trials_P: np.ndarray, weights_P: np.ndarray) -> float:
    """Variance of the weighted mean of a batch's rewards, Σ n w² p (1 − p) / (Σ n w)².

    With w = n̄/n, where every prompt counts equally, it is the variance proxy (28) over the number
    of prompts.
    """
    variance = trials_P * weights_P**2 * rates_P * (1 - rates_P)
    return float(variance.sum() / (trials_P * weights_P).sum() ** 2)


def forecast(
    groups: Groups, has_steps: bool, methods: Sequence[str], edges: Sequence[float], seed: int = 0
) -> dict[str, dict[str, Any]]:
    """What each method would do, by its name; see `play`.

    "noise" is relative to that of "grpo".

    Args:
        groups: of the log, in the order of their steps.
        has_steps: whether the log says when they were sampled.
        methods: registered names.
        edges: of the classes of pass rates.
        seed: of everything random.

    Raises:
        ValueError: for a name that is not registered, and for a method that cannot play with the
            log's number of rollouts.
    """
    course = make_course(groups, has_steps, np.random.default_rng(seed))

    def make(method: str) -> Callable[[int], GDROController]:
        return lambda one: GDROController(method, course.mean_rollouts, seed=one)

    found = {
        name: play(course, make(name), edges, seed) for name in dict.fromkeys(("grpo", *methods))
    }
    even = found["grpo"]["noise"]
    for entry in found.values():
        if entry["noise"] is not None:
            entry["noise"] = entry["noise"] / even if even else None
    return found
