"""Exercises: right answers pass in any form, wrong ones never; solutions equal the package."""

import runpy
from types import SimpleNamespace

import numpy as np
import pytest

from gdro import (
    DifficultyBins,
    PromptAdversary,
    RolloutAdversary,
    advantages,
    metrics,
    pivotal,
    theory,
)
from gdro import arms as arm_functions
from gdro.bins import move_bins
from gdro.method import Batch
from gdro.prompt_gdro import debias
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

    assert "not yet. Case 1 of 100" in check(name, changed) or name == "draw_by_clocks"
    assert "not written yet" in check(name, lambda *case: None)
    assert "not yet" in check(name, lambda *case: 0.123)  # not broadcast to the right shape
    with pytest.raises(ZeroDivisionError) as caught:
        check(name, lambda *case: 1 / 0)
    assert f"{name} was called with" in caught.value.__notes__[0]


def prompt_gdro(bins, losses, num_bins, eta, ema, max_weight, **options):
    adversary = PromptAdversary(num_bins, eta=eta, ema=ema, max_weight=max_weight, **options)
    for bins_P, losses_P in zip(bins, losses, strict=True):
        adversary.update(bins_P, losses_P)
    return adversary.weights()


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
    visited = SimpleNamespace(
        hits_P=hits, trials_P=trials, successes_P=successes, failures_P=failures,
        rate_P=(successes + 0.5) / (successes + failures + 1),
    )  # fmt: skip
    method = pivotal.Pivotal()
    method.gained, method.expected = gained, expected
    method.update(SimpleNamespace(hard_hits=lambda: Batch.hard_hits(visited)))
    return method.k_now, method.gained, method.expected


def pivotal_advantages(rewards, ids):
    hits, trials = np.bincount(ids, rewards), np.bincount(ids)
    batch = {"trials_P": trials, "hits_P": hits, "correct_R": rewards > 0, "group_ids_R": ids}
    return pivotal.Pivotal().advantages(SimpleNamespace(**batch))


PACKAGE = {
    "pass_at_k": metrics.pass_at_k,
    "beta_pass_at_k": beta_pass_at_k,
    "move_bins": move_bins,
    "soft_worst_case": theory.soft_worst_case,
    "debiased_scores": debias,
    "prompt_gdro": prompt_gdro,
    "square_root_law": theory.square_root_allocation,
    "joint_choice": lambda *case: arm_functions.best_joint_arms(*case)[0],
    "arm_strategies": lambda *case: np.exp(arm_functions.arm_log_probabilities(*case)),
    "exp3p_losses": lambda loss, arm, p, bonus: arm_functions.exp3p_losses(
        [loss], [arm], p[None], bonus
    )[0],
    "rollout_gdro": rollout_gdro,
    "group_advantages": lambda r, ids: advantages.group_advantages(r, ids, ids.max() + 1),
    "oracle_rollouts": lambda v, arms, budget: arm_functions.best_joint_arms(
        -v[:, None] / arms, np.ones(len(v), int), arms, budget
    )[0],
    "paired_gain": lambda *case: tuple(paired_gain(*case)),
    "effective_number": metrics.effective_number,
    "lead_lag": metrics.lead_lag,
    "weighted_standard_error": metrics.weighted_standard_error,
    "value_for_two": lambda alpha, beta: pivotal.pivotal_value(alpha, beta, 2),
    "pivotal_advantages": pivotal_advantages,
    "next_k": next_k,
}


@pytest.mark.parametrize("name", PACKAGE)
def test_the_solution_is_what_the_package_does(name):
    assert check(name, PACKAGE[name]).endswith("correct in 100 cases.")
