"""Errors where input enters: one sentence with the argument and the value."""

import numpy as np
import pytest

from gdro import DifficultyBins, GDROController, PromptAdversary
from gdro.checks import check, check_array


class Unreadable:
    """As a tensor in bfloat16 is to numpy."""

    def __array__(self, *_, **__):
        raise TypeError("no bfloat16")

    def __repr__(self):
        return "tensor(3,\n       dtype=bfloat16)"


@pytest.mark.parametrize(
    ("call", "parts"),
    [
        (lambda: DifficultyBins(k=-7), ("DifficultyBins", "k", "-7")),
        (lambda: DifficultyBins(estimator="mean"), ("DifficultyBins", "estimator", "'mean'")),
        (lambda: DifficultyBins(edges=[0.5, 0.25]), ("edges", "[0.5, 0.25]")),
        (lambda: DifficultyBins(kk=3), ("DifficultyBins", "kk", "3")),
        (lambda: PromptAdversary(eta=np.ones((3, 3))), ("PromptAdversary", "eta", "array([[1.")),
        (lambda: GDROController("grpo", 4, n_max=3), ("Run", "mean_rollouts", "4")),
        (lambda: GDROController("promt"), ("method", "'promt'")),
        (lambda: GDROController("pivotal", k=0), ("Pivotal", "k", "0")),
        (lambda: check("size", 2.5, int), ("size", "2.5")),
        (lambda: check("share", 1.5, ge=0, le=1), ("share", "1", "1.5")),
        (lambda: check_array("rewards", [[1, 2], [3]]), ("rewards", "[[1, 2], [3]]")),
        (lambda: check_array("rewards", Unreadable()), ("rewards", "tensor(3,", "no bfloat16")),
        (lambda: check_array("rewards", np.full((9, 9), "x")), ("rewards", "'x'")),
        (lambda: check_array("rewards", np.ones((9, 9)), (2,)), ("rewards", "(2,)", "1.")),
        (lambda: check_array("rewards", [0, np.nan]), ("rewards", "nan")),
    ],
)
def test_an_error_is_one_sentence_with_the_argument_and_the_value(call, parts):
    with pytest.raises(ValueError) as raised:
        call()
    message = str(raised.value)
    assert "\n" not in message
    for part in parts:
        assert part in message, message
