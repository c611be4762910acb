"""Errors where input enters: one sentence with the argument and the value."""

import numpy as np
import pytest
import torch

from gdro import (
    DifficultyBins,
    GDROController,
    PromptAdversary,
    RolloutAdversary,
    StaticGroups,
    register,
)
from gdro.checks import build, check, check_array
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
        (lambda: DifficultyBins(k=2.0), ("DifficultyBins", "k", "2.0")),
        (lambda: DifficultyBins(edges=[0.5, 0.25]), ("edges", "[0.5, 0.25]")),
        (lambda: DifficultyBins(kk=3), ("DifficultyBins", "kk", "3")),
        (lambda: DifficultyBins(edges=np.linspace(0.1, 0.9, 40_000)), ("edges", "40000")),
        (lambda: DifficultyBins(k=2**16), ("DifficultyBins", "k", "65536")),
        (lambda: DifficultyBins(history=10**12), ("DifficultyBins", "history", "1000000000000")),
        (lambda: DifficultyBins().assign([1, "a"]), ("uids", "[1, 'a']")),
        (lambda: DifficultyBins().assign([1.0, 2.0]), ("uids", "[1.0, 2.0]")),
        (lambda: DifficultyBins().update([1], [3], [2]), ("successes", "3")),
        (lambda: DifficultyBins().update([1], [0], [0]), ("trials", "0")),
        (lambda: StaticGroups([1, 2], ["a", 1]), ("labels", "['a', 1]")),
        (lambda: PromptAdversary(eta=np.ones((3, 3))), ("PromptAdversary", "eta", "array([[1.")),
        (lambda: PromptAdversary(eta=np.nan), ("PromptAdversary", "eta", "nan")),
        (lambda: GDROController("grpo", 4, n_max=3), ("Run", "mean_rollouts", "4")),
        (lambda: GDROController("both", n_min=5), ("Run", "mean_rollouts", "4")),
        (lambda: GDROController("both", 1.5), ("mean_rollouts", "1.5")),  # one has no variance
        (lambda: GDROController("both", n_min=1), ("n_min", "1")),
        (lambda: GDROController("both", scale_rewards=True), ("Run", "scale_rewards", "True")),
        (lambda: GDROController("both", rollout={"n_max": 8}), ("n_max", "8")),  # the controller's
        (lambda: GDROController("grpo", 1e308), ("mean_rollouts", "1e+308")),
        (lambda: GDROController("grpo", seed=10**5000), ("Run", "seed")),
        (lambda: GDROController("grpo", seed=-(10**5000)), ("Run", "seed")),
        (lambda: GDROController("grpo", success_threshold=10**5000), ("success_threshold",)),
        (lambda: GDROController("grpo", bins={1: 2}), ("bins", "1")),
        (lambda: GDROController("composed", draw={"pivotal": {1: 2}}), ("'pivotal'", "1")),
        (lambda: GDROController("composed", draw={"pivotal": 3}), ("'pivotal'", "3")),
        (lambda: build("gdro_options", GDROController, {1: 2}), ("gdro_options", "1")),
        (lambda: GDROController("promt"), ("method", "'promt'")),
        (lambda: GDROController("pivotal", k=0), ("Pivotal", "k", "0")),
        (lambda: GDROController("pivotal", k=10**6), ("Pivotal", "k", "1000000")),
        (lambda: GDROController("pkpo", k=10**6), ("PKPO", "k", "1000000")),
        (lambda: GDROController("dapo", groups=10**5000), ("DAPO", "groups")),
        (lambda: GDROController("coba", window=2**31), ("CoBA", "window", "2147483648")),
        (lambda: GDROController("coba", kappa=1.0), ("CoBA", "kappa", "1.0")),  # no room for β
        (lambda: GDROController("rollout_prompts", weight=1e308), ("weight", "1e+308")),
        (lambda: GDROController("pivotal", epsilon=2.0), ("Pivotal", "epsilon", "2.0")),
        (lambda: GDROController("dars", pilot=4), ("pilot", "4")),  # no less than the budget
        (lambda: make_groups("bins", {"kk": 3}, "paper", *GROUPS), ("bins", "kk")),
        (lambda: make_groups("bins", {1: 2, "kk": 3}, "paper", *GROUPS), ("bins", "1")),
        (lambda: make_groups("bins", {"uids": [3]}, "paper", *GROUPS), ("bins", "uids")),
        (lambda: GDROController("grpo", foo=3), ("grpo", "foo", "3")),
        (lambda: GDROController("pivotal", foo=3), ("Pivotal", "foo", "3")),
        (lambda: GDROController("both", prompt={"foo": 3}), ("PromptAdversary", "foo", "3")),
        (lambda: GDROController("composed", foo=3), ("composed", "foo", "3")),
        (lambda: build("gdro_options", GDROController, {"self": 3}), ("gdro_options", "self")),
        (lambda: register(GDROController), ("name", "GDROController")),
        (lambda: PromptAdversary(3).update([1.5], [0]), ("bin_ids", "1.5")),
        (lambda: PromptAdversary(3).update([3], [0]), ("bin_ids", "3")),
        (lambda: PromptAdversary(3).update([1], [np.inf]), ("losses", "inf")),
        (lambda: RolloutAdversary(3).allocate([4, 4]), ("bin_counts", "(2,)")),
        (lambda: RolloutAdversary(2).allocate([4, -4]), ("bin_counts", "-4")),
        (lambda: RolloutAdversary(2).update([4, 4], [4, 1], [0, 0]), ("rollouts", "1")),
        (lambda: RolloutAdversary(2).update([4, 4], [4, 4], [0, np.inf]), ("observed", "inf")),
        (lambda: World(transfer=1.2), ("World", "transfer", "1.2")),
        (lambda: Game(eta=-1.0), ("Game", "eta", "-1.0")),
        (lambda: Game(method="ppo"), ("Game", "method", "'ppo'")),
        (lambda: Game(n_min=9), ("Game", "n_max", "9")),
        (lambda: Game(batch=1000), ("Game", "batch", "1000")),
        (lambda: play([Game()], [0], [5, 2]), ("checkpoints", "-3")),
        (lambda: check("size", 2.5, int), ("size", "2.5")),
        (lambda: check("share", 1.5, ge=0, le=1), ("share", "1", "1.5")),
        (lambda: check_array("rewards", [[1, 2], [3]]), ("rewards", "[[1, 2], [3]]")),
        (lambda: check_array("rewards", COARSE), ("rewards", "tensor([[0., 0.], [0.,", "BFloat16")),
        (lambda: check_array("rewards", np.full((9, 9), "x")), ("rewards", "'x'")),
        (lambda: check_array("rewards", np.ones((9, 9)), (2,)), ("rewards", "(2,)", "1.")),
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
