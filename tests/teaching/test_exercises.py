"""Exercises: right answers pass in any form, wrong ones never; solutions equal the package."""

import runpy
from dataclasses import replace

import numpy as np
import pytest
from helpers import batch_of

from gdro import PromptAdversary, RolloutAdversary, advantages, metrics, theory
from gdro.arms import arm_log_probabilities, best_joint_arms, exp3p_losses
from gdro.bins import DifficultyBins, move_bins
from gdro.inspect.report import shares_of
from gdro.inspect.table import Groups
from gdro.methods import pivotal
from gdro.methods.replay import replay_weights
from gdro.scores import debias
from gdro_lab.teaching.exercises import SOLUTIONS, check, exercise
from gdro_lab.toy.maps import paired_gain

NAMES = [name for file in SOLUTIONS.glob("*.py") for name in runpy.run_path(file)["CASES"]]
FORMS = [
    lambda x: list(x) if isinstance(x, tuple) else np.asarray(x).tolist(),
    lambda x: x if isinstance(x, tuple) else tuple(np.ravel(x)),
    lambda x: np.concatenate([np.ravel(y) for y in x]) if isinstance(x, tuple) else np.array(x),
]


@pytest.mark.parametrize("name", sorted(NAMES))
def test_a_right_answer_passes_in_any_form_and_a_changed_one_does_not(name):
    right = exercise(name)[0]
    for form in FORMS:
        assert check(name, lambda *case, form=form: form(right(*case))).endswith("100 cases.")

    def changed(*case):
        answer = right(*case)
        return (*answer[:-1], answer[-1] + 1e-3) if isinstance(answer, tuple) else answer + 1e-3

    assert "not yet. Case 1 of 100" in check(name, changed)
    assert "not written yet" in check(name, lambda *case: None)
    assert "not yet" in check(name, lambda *case: 0.123)  # not broadcast to the right shape
    with pytest.raises(ZeroDivisionError) as caught:
        check(name, lambda *case: 1 / 0)
    assert f"{name} was called with" in caught.value.__notes__[0]


def bare(hits, trials, successes, failures, gained, expected):
    """`next_k` without the bounds 3 and 12."""
    _, gained, expected = exercise("next_k")[0](hits, trials, successes, failures, gained, expected)
    return round(3 + 6 * (gained + 5 / 3) / (expected + 5)), gained, expected


def left_edges(current, estimate, edges, hysteresis):
    shifts = (0, -hysteresis, hysteresis)
    fresh, low, high = (np.searchsorted(edges, estimate + d, side="left") for d in shifts)
    return np.where(current < 0, fresh, np.clip(current, low, high))


def without(name, **replaced):
    """A solution in which some arguments have no effect."""

    def answer(*case):
        places = exercise(name)[0].__code__.co_varnames
        return exercise(name)[0](*(replaced.get(p, c) for p, c in zip(places, case, strict=False)))

    return answer


def no_epsilon(rewards, group_ids):
    groups = [rewards[group_ids == g] for g in range(group_ids.max() + 1)]
    return np.concatenate([(group - group.mean()) / group.std() for group in groups])


def prompt_gdro(bins, losses, num_bins, eta, ema, max_weight, **options):
    adversary = PromptAdversary(num_bins, eta=eta, ema=ema, max_weight=max_weight, **options)
    for bins_P, losses_P in zip(bins, losses, strict=True):
        adversary.update(bins_P, losses_P)
    return adversary.weights()


def starved(scores, visits, ema):
    return np.divide(scores, 1 - (1 - ema) ** visits, out=np.zeros(4), where=visits > 0)


WRONG = [
    ("next_k", bare),
    ("move_bins", left_edges),
    ("move_bins", without("move_bins", hysteresis=0.0)),
    ("debiased_scores", starved),
    ("prompt_gdro", without("prompt_gdro", max_weight=np.inf)),
    ("prompt_gdro", lambda *case: prompt_gdro(*case, clip=np.inf)),
    ("prompt_gdro", lambda *case: prompt_gdro(*case, debias=False)),
    ("worst_share", without("worst_share", alpha=1)),
    ("arm_strategies", without("arm_strategies", gamma=0.0)),
    ("exp3p_losses", without("exp3p_losses", bonus=0.0)),
    ("group_advantages", no_epsilon),
    ("grpo_advantages", lambda r: no_epsilon(r, np.zeros(len(r), int))),
    ("smallest_group", lambda rate, chance: exercise("smallest_group")[0](rate, 0.98 * chance)),
    ("effective_number", lambda p: np.exp(-(p * np.log(p)).sum())),
    ("holm", lambda p: np.minimum(p * len(p), 1)),
    ("draw_by_clocks", without("draw_by_clocks", epsilon=0.0)),
    ("clipped_loss", without("clipped_loss", high=0.2)),
    ("replay_weight", lambda p, kept, n: 2 * n * np.maximum(p * (1 - p), 0.1) / kept),
]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(("name", "answer"), WRONG)
def test_a_wrong_answer_never_passes(name, answer):
    assert "not yet" in check(name, answer)


def beta_pass_at_k(successes, trials, k):
    bins, uids = DifficultyBins(k=k), np.arange(len(trials))
    bins.update(uids, successes, trials)
    return bins.pass_at_k(uids)


def rollout_gdro(counts, variances, arms, mean_rollouts, eta, ema):
    adversary = RolloutAdversary(len(counts[0]), arms[0], arms[-1], mean_rollouts, eta, ema=ema)
    for n_B, v_B in zip(counts, variances, strict=True):
        adversary.update(n_B, mean_rollouts * (n_B > 0), np.where(n_B > 0, v_B, np.nan))
    return adversary.allocate(counts[-1]), adversary.price


def next_k(hits, trials, successes, failures, gained, expected):
    method = pivotal.Pivotal()
    method.gained, method.expected = gained, expected
    groups = outcomes(hits, trials)
    method.update(batch_of(*groups, successes=successes, failures=failures))
    return method.k_now, method.gained, method.expected


def pivotal_advantages(rewards, ids):
    hits, trials = np.bincount(ids, rewards), np.bincount(ids)
    batch = replace(
        batch_of(*outcomes(hits, trials)), group_ids_R=ids, rewards_R=rewards, correct_R=rewards > 0
    )
    return pivotal.Pivotal().advantages(batch)


def kinds_of_groups(hits, trials):
    places = np.arange(len(hits))
    groups = Groups(
        prompts_G=places,
        steps_G=places,
        trials_G=trials,
        hits_G=hits,
        is_flat_G=(hits == 0) | (hits == trials),
        lengths_G=None,
    )
    return [shares_of(groups, np.ones(len(hits)))[kind] for kind in ("solved", "failed", "mixed")]


def outcomes(hits, trials):
    """Rewards of each prompt."""
    return [[1] * int(k) + [0] * int(n - k) for k, n in zip(hits, trials, strict=True)]


PACKAGE = {
    "pass_at_k": metrics.pass_at_k,
    "beta_pass_at_k": beta_pass_at_k,
    "move_bins": move_bins,
    "soft_worst_case": theory.soft_worst_case,
    "debiased_scores": debias,
    "prompt_gdro": prompt_gdro,
    "square_root_law": theory.square_root_allocation,
    "joint_choice": lambda *case: best_joint_arms(*case)[0],
    "arm_strategies": lambda *case: np.exp(arm_log_probabilities(*case)),
    "exp3p_losses": lambda loss, arm, p, bonus: exp3p_losses([loss], [arm], p[None], bonus)[0],
    "rollout_gdro": rollout_gdro,
    "grpo_advantages": lambda r: advantages.group_advantages(r, np.zeros(len(r), int), 1),
    "group_advantages": lambda r, ids: advantages.group_advantages(r, ids, ids.max() + 1),
    "oracle_rollouts": lambda v, arms, budget: best_joint_arms(
        -v[:, None] / arms, np.ones(len(v), int), arms, budget
    )[0],
    "paired_gain": lambda *case: tuple(paired_gain(*case)),
    "effective_number": metrics.effective_number,
    "lead_lag": metrics.lead_lag,
    "weighted_standard_error": metrics.weighted_standard_error,
    "value_for_two": lambda alpha, beta: pivotal.pivotal_value(alpha, beta, 2),
    "pivotal_advantages": pivotal_advantages,
    "next_k": next_k,
    "replay_weight": lambda rates, kept, n: replay_weights(rates, 2 * n) / kept,
    "kinds_of_groups": kinds_of_groups,
}


@pytest.mark.parametrize("name", PACKAGE)
def test_the_solution_is_what_the_package_does(name):
    assert check(name, PACKAGE[name]).endswith("correct in 100 cases.")


def test_the_open_exercises_have_solutions_that_show_what_they_say():
    solved = {
        k: v for p in sorted(SOLUTIONS.glob("0[0123]*")) for k, v in runpy.run_path(p).items()
    }
    kinds = solved["learn"]("both") - solved["learn"]("grpo")
    assert kinds[0] > 0.3
    assert kinds[1] > 0
    estimates, rollouts = solved["any_of_n_run"]()
    assert (np.diff(rollouts) != 0).sum() >= 4  # it swings, for ever
    assert estimates.min() < 0.5 < estimates[100:].max()
    early, late = solved["effective_groups"]([0.65, 40.0], [20, 400], 4, skills=8).T
    assert early[1] < min(early[0], late[1])
    demands = solved["demand_with_absent_bins"]()
    assert demands[200:].mean() == pytest.approx(4, abs=0.3)
