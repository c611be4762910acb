"""Errors where input enters: one sentence with the argument and the value."""

import numpy as np
import pytest
import torch

from gdro import (
    DifficultyBins,
    GDROController,
    Pivotal,
    PromptAdversary,
    PromptGDRO,
    RolloutAdversary,
    StaticGroups,
    register,
)
from gdro.checks import check, check_array
from gdro.groups import make_groups
from gdro.metrics import pass_at_k
from gdro_lab.intervals import bootstrap_interval
from gdro_lab.toy import Game, World, play

GROUPS = ([1, 2], ["a", "b"])
COARSE = torch.zeros(2, 2, dtype=torch.bfloat16)  # which numpy cannot read


@pytest.mark.parametrize(
    ("call", "parts"),
    [
        (lambda: DifficultyBins(k=-7), ("DifficultyBins", "k", "-7")),
        (lambda: DifficultyBins(estimator="mean"), ("DifficultyBins", "estimator", "'mean'")),
        (lambda: DifficultyBins(edges=[0.5, 0.25]), ("edges", "[0.5, 0.25]")),
        (lambda: DifficultyBins().update([1], [3], [2]), ("successes", "3")),
        (lambda: StaticGroups([1, 2], ["a", 1]), ("labels", "['a', 1]")),
        (lambda: StaticGroups([1, 1], ["a", "b"]), ("uids", "1")),
        (lambda: StaticGroups([1, 2], ["a"]), ("labels", "2", "1")),
        (lambda: StaticGroups([1, 2], ["a", "b"], ["a"]), ("groups", "'b'")),
        (lambda: GDROController("grpo", pass_rates={1: None}), ("pass_rates", "none")),
        (lambda: GDROController("grpo", pass_rates={1: 37.5}), ("pass_rates", "37.5")),
        (lambda: GDROController("grpo", pass_rates={1: "half"}), ("pass_rates", "half")),
        (lambda: GDROController("grpo", pass_rates={}, pass_rate_rollouts=0), ("rollouts", "0")),
        (lambda: GDROController("grpo", 2.5).plan([1, 2, 3]), ("whole", "7.5")),
        (lambda: GDROController(Pivotal(), k=3), ("options", "k")),
        (lambda: GDROController(PromptGDRO(), preset="paper"), ("PromptGDRO", "'paper'")),
        (lambda: GDROController("coba", kappa=5), ("alpha_max", "9.5")),
        (lambda: GDROController("oracle").draw([1, 2], 1), ("rates", "None")),
        (lambda: PromptAdversary(eta=np.ones((3, 3))), ("PromptAdversary", "eta", "array([[1.")),
        (lambda: GDROController("both", n_min=5), ("Run", "mean_rollouts", "4")),
        (lambda: GDROController("both", rollout={"n_max": 8}), ("n_max", "8")),  # the controller's
        (lambda: GDROController("grpo", bins={1: 2}), ("bins", "1")),
        (lambda: GDROController("promt"), ("method", "'promt'")),
        (lambda: GDROController("pivotal", k=0), ("Pivotal", "k", "0")),
        (lambda: GDROController("dars", pilot=4), ("pilot", "4")),  # no less than the budget
        (lambda: make_groups("bins", {"kk": 3}, "paper", *GROUPS), ("bins", "kk")),
        (lambda: GDROController("pivotal", foo=3), ("Pivotal", "foo", "3")),
        (lambda: GDROController("both", prompt={"foo": 3}), ("PromptAdversary", "foo", "3")),
        (lambda: register(GDROController), ("name", "GDROController")),
        (lambda: PromptAdversary(3).update([1.5], [0]), ("bin_ids", "1.5")),
        (lambda: RolloutAdversary(3).allocate([4, 4]), ("bin_counts", "(2,)")),
        (lambda: World(transfer=1.2), ("World", "transfer", "1.2")),
        (lambda: Game(batch=1000), ("Game", "batch", "1000")),
        (lambda: play([Game()], [0], [5, 2]), ("checkpoints", "-3")),
        (lambda: check("share", 1.5, ge=0, le=1), ("share", "1", "1.5")),
        (lambda: check_array("rewards", [[1, 2], [3]]), ("rewards", "[[1, 2], [3]]")),
        (lambda: check_array("rewards", COARSE), ("rewards", "tensor([[0., 0.], [0.,", "BFloat16")),
        (lambda: check_array("rewards", [0, np.nan]), ("rewards", "nan")),
        (lambda: pass_at_k([1], [4], 8), ("trials", "4")),
        (lambda: bootstrap_interval([[np.nan]], np.random.default_rng(0)), ("values_SP", "nan")),
    ],
)
def test_an_error_is_one_sentence_with_the_argument_and_the_value(call, parts):
    with pytest.raises(ValueError) as raised:
        call()
    message = str(raised.value)
    assert "\n" not in message
    for part in parts:
        assert part in message, message
