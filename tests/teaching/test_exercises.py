"""The exercises: right answers pass, twenty wrong ones get the hint they need, the solutions are right."""

import re
import runpy
from inspect import signature
from pathlib import Path

import numpy as np
import pytest

from gdro.methods import METHODS
from gdro.teaching.checker import check
from gdro.teaching.exercises import EDGES, EXERCISES

SOLUTIONS = sorted((Path(__file__).parents[2] / "notebooks/solutions").glob("0*.py"))


@pytest.mark.parametrize("name", EXERCISES)
def test_right_answers_pass_and_others_do_not(name):
    right = EXERCISES[name]
    assert check(name, lambda *case: right(*case)) == f"{name}: correct in 20 cases."
    assert check(name, lambda *case: None) == f"{name}: not written yet."

    def wrong(*case):
        answer = right(*case)
        return (*answer[:-1], answer[-1] + 0.001) if isinstance(answer, tuple) else answer + 1

    case = ", ".join(f"{argument} = .*" for argument in signature(right).parameters)
    found = r"It should return .*, and it returns .*\. Largest difference.*"
    pattern = rf"{name}: not yet\. Case 1 of 20: {case}\.\n{found}"
    assert re.fullmatch(pattern, check(name, wrong))
    assert "shape should be" in check(name, lambda *case: np.zeros((1, 1, 7))) or "value(s)" in check(
        name, lambda *case: 0
    )


def right(name, change):
    """The right answer, changed."""
    return lambda *case: change(EXERCISES[name](*case))


def forgot(successes, trials, k):
    1 - (1 - successes / trials) ** k


def left_edges(current, estimate, edges, hysteresis):
    fresh, low, high = (
        np.searchsorted(edges, estimate + d, side="left") for d in (0, -hysteresis, hysteresis)
    )
    return np.where(current < 0, fresh, np.clip(current, low, high))


def overflowing(losses, eta):
    with np.errstate(over="ignore", invalid="ignore"):
        odds = np.exp(eta * losses)
        return np.log(odds.sum()) / eta, odds / odds.sum()


def sigma_plus(epsilon):
    def advantages(rewards, group_ids):
        groups = [rewards[group_ids == g] for g in range(group_ids.max() + 1)]
        with np.errstate(invalid="ignore"):
            return np.concatenate([(group - group.mean()) / (group.std() + epsilon) for group in groups])

    return advantages


def entropy_with_zeros(probabilities):
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.exp(-(probabilities * np.log(probabilities)).sum())


def starved(scores, visits, ema):
    return np.divide(scores, 1 - (1 - ema) ** visits, out=np.zeros(4), where=visits > 0)


WRONG = {
    ("pass_at_k", forgot): "did you forget `return`",
    ("pass_at_k", lambda s, n, k: 1 - (1 - s / n) ** k): "Largest difference",
    ("beta_pass_at_k", right("beta_pass_at_k", lambda x: 1 - x)): "Largest difference",
    ("beta_pass_at_k", right("beta_pass_at_k", lambda x: x[:, None])): "should be (5,), and it is (5, 1)",
    ("beta_pass_at_k", right("beta_pass_at_k", lambda x: x + 1e-4)): "off by the same constant, +0.0001",
    ("move_bins", left_edges): "19 ordinary cases; in this one every estimate lies exactly on an edge",
    ("move_bins", right("move_bins", lambda x: x + 1)): "off by the same constant, +1",
    ("soft_worst_case", overflowing): "not finite: an overflow",
    ("soft_worst_case", right("soft_worst_case", lambda x: x[0])): "return 2 value(s), and it returns 1",
    ("debiased_scores", starved): "Largest difference: 0.",
    ("square_root_law", right("square_root_law", lambda x: x / 4)): "Every number is 0.25 times",
    ("arm_strategies", right("arm_strategies", np.transpose)): "It is transposed: add .T.",
    ("arm_strategies", right("arm_strategies", lambda x: x[:, ::-1])): "in another order",
    ("exp3p_losses", right("exp3p_losses", lambda x: -x)): "The sign is turned",
    ("group_advantages", sigma_plus(0)): "not finite: an overflow, a logarithm of 0 or a division by 0",
    ("group_advantages", sigma_plus(1e-3)): "nearly correct: look for an ε",
    ("paired_gain", right("paired_gain", lambda x: (x[0], 2 * x[1]))): "times what it should be",
    ("effective_number", entropy_with_zeros): "correct in 19 ordinary cases; in this one a probability is 0",
    ("lead_lag", right("lead_lag", lambda x: -x)): "The sign is turned",
    ("merged_weight", right("merged_weight", np.transpose)): "It is transposed",
    ("draw_by_clocks", right("draw_by_clocks", lambda x: x[::-1])): "in another order",
    ("clipped_loss", right("clipped_loss", lambda x: x * np.nan)): "not finite",
}  # fmt: skip


@pytest.mark.parametrize(("name", "answer", "hint"), [(*key, hint) for key, hint in WRONG.items()])
def test_a_wrong_answer_gets_the_hint_it_needs(name, answer, hint):
    assert hint in check(name, answer)


def test_a_case_cannot_be_changed_by_the_answer_and_what_it_raises_names_the_case():
    def in_place(worth, size, epsilon, clocks):
        clocks /= (1 - epsilon) * worth / worth.sum() + epsilon / len(worth)
        return clocks.argsort()[:size]

    assert check("draw_by_clocks", in_place).endswith("correct in 20 cases.")
    with pytest.raises(ZeroDivisionError) as caught:
        check("value_for_two", lambda alpha, beta: 1 / 0)
    assert "value_for_two was called with alpha = [" in caught.value.__notes__[0]


def test_every_exercise_has_one_solution_that_is_correct(monkeypatch):
    """Prompt-GDRO and the default Rollout-GDRO among them, written without anything of gdro."""
    monkeypatch.delitem(METHODS, "half_solved", raising=False)
    solved = {}
    for path in SOLUTIONS:
        names = {name: of for name, of in runpy.run_path(str(path)).items() if name in EXERCISES}
        assert not set(names) & set(solved)
        solved |= names
        if path.stem != "07_beyond_bins":
            assert "gdro import" not in path.read_text(encoding="utf-8")
    METHODS.pop("half_solved")
    assert solved.keys() == EXERCISES.keys()
    for name, solution in solved.items():
        assert check(name, solution) == f"{name}: correct in 20 cases."
    assert EDGES.keys() <= EXERCISES.keys()
