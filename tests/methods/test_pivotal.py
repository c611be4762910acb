"""The pivotal method: values, draws, advantages and progress against cases worked out by hand."""

from itertools import product

import numpy as np
import pytest
from helpers import batch_of, first_drawn, method_of

from gdro.methods.pivotal import pivotal_value


@pytest.mark.parametrize(
    ("alpha", "beta", "k", "value"),
    [
        (0.5, 0.5, 1, 1 / 2),  # E p
        (0.5, 0.5, 2, 1 / 8),  # E p − E p² = 1/2 − 3/8
        (1.0, 1.0, 3, 1 / 12),  # ∫ p (1 − p)² dp
        (1.0, 1.0, 5, 1 / 30),
        (2.0, 1.0, 2, 1 / 6),  # ∫ 2p · p (1 − p) dp
        (4.5, 20.5, 3, 4.5 * 20.5 * 21.5 / (25 * 26 * 27)),
    ],
)
def test_value_in_closed_form(alpha, beta, k, value):
    assert pivotal_value(np.array([alpha]), np.array([beta]), k) == pytest.approx([value])


def test_draw_has_the_law_of_the_values_without_replacement():
    # successes of trials 0/0, 3/6 and 9/9; at k = 2 the value is αβ/(τ(τ + 1))
    known = batch_of([0], [0], [0], successes=[0.0, 3.0, 9.0], failures=[0.0, 3.0, 0.0])
    values = np.array([0.25 / 2, 3.5 * 3.5 / (7 * 8), 9.5 * 0.5 / (10 * 11)])
    first = 0.8 * values / values.sum() + 0.2 / 3
    among_two = first + [
        sum(first[j] * first[i] / (1 - first[j]) for j in range(3) if j != i) for i in range(3)
    ]
    method, rng = method_of("pivotal", k=2, epsilon=0.2), np.random.default_rng(0)
    singles = np.bincount(first_drawn(method, known, 6000), minlength=3) / 6000
    pairs = np.array([method.draw(known, 2, rng) for _ in range(6000)])
    assert singles == pytest.approx(first, abs=0.025)
    assert (pairs[:, 0] != pairs[:, 1]).all()
    assert np.bincount(pairs.ravel(), minlength=3) / 6000 == pytest.approx(among_two, abs=0.025)


def test_a_correct_rollout_gets_twice_the_share_of_the_others_that_are_wrong():
    batch = batch_of([1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 1], [0, 0, 0], [1, 0], [1], [0])
    advantages = method_of("pivotal").advantages(batch)
    expected = [2, 0, 0, 0, 4 / 3, 4 / 3, 0, 0, *[0] * 4, *[0] * 3, 2, 0, 0, 0]
    assert advantages == pytest.approx(expected)
    assert advantages == pytest.approx(method_of("pkpo", k=2).advantages(batch))


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("n", [2, 5])
def test_the_mean_step_of_a_prompt_is_the_gradient_of_pass_at_2(rate, n):
    method, mean = method_of("pivotal"), 0.0
    for group in product([0, 1], repeat=n):
        scores = np.array(group) - rate  # of a Bernoulli policy, with respect to its logit
        probability = np.prod(np.where(group, rate, 1 - rate))
        mean += probability * (method.advantages(batch_of(list(group))) * scores).mean()
    assert mean == pytest.approx(2 * (1 - rate) * rate * (1 - rate))  # d pass@2 / dp · dp / d logit
