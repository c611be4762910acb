"""Behaviours of the released implementation that ours must not have."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from helpers import play

import gdro
import gdro_lab
from gdro import DifficultyBins, GDROController, RolloutAdversary
from gdro.rounds import Samples

SHARP = {"k": 1, "history": 1, "hysteresis": 0.0, "edges": (0.5,)}
EIGHT = [0] * 4 + [10] * 4, [10] * 8  # successes and trials: four prompts in each of two bins


def test_a_tie_goes_to_each_bin_in_turn():
    firsts = {
        int(RolloutAdversary(2, 1, 2, 1.5, seed=seed).allocate([1, 1])[0]) for seed in range(30)
    }
    assert firsts == {1, 2}  # three rollouts for two prompts


def test_one_step_moves_every_average_once():
    """With both games on, the score of (12) and the arm score each take one step a batch."""
    controller = GDROController("both", bins=SHARP, prompt={"debias": False, "ema": 0.12})
    controller.bins.update(np.arange(8), *EIGHT)
    play(controller, 0, np.arange(8), np.zeros(8))
    assert controller.method.prompt_adversary.scores() == pytest.approx([0.12, 0.12])
    assert controller.method.prompt_adversary.visits_B.tolist() == [1, 1]
    assert (controller.method.rollout_adversary.visits_BN == 1).all()


@pytest.mark.parametrize("preset", ["default", "paper"])
def test_difficulty_does_not_depend_on_the_rollouts_allotted(preset):
    """Prompts of one success rate have the same estimate of pass@8 for n = 2 and n = 12."""
    found = []
    for n in (2, 12):
        bins = DifficultyBins(estimator=GDROController("grpo", preset=preset).bins.estimator)
        for hits_P in np.random.default_rng(0).binomial(n, 0.1, (96 // n, 500)):
            bins.update(np.arange(500), hits_P, np.full(500, n))
        found.append(bins.pass_at_k(np.arange(500)).mean())
    assert found == pytest.approx([1 - 0.9**8] * 2, abs=0.04)


def test_no_error_is_swallowed(tmp_path):
    """Errors are raised, with the reason: no handler of everything but these, none that is silent.

    A block of processes ends them whatever happens; the parsers of mathematics raise
    Exception itself for a text that they cannot read.
    """
    known = ["machine.py", "math_reward.py", "symbolic.py"]
    released = tmp_path / "released.py"
    released.write_text("try:\n    x()\nexcept Exception:\n    y = 0")
    folders = [Path(package.__file__).parent for package in (gdro, gdro_lab)]
    typed = "--config=lint.flake8-bandit.check-typed-exception=true"
    rules = ["--isolated", "--ignore-noqa", "--select=BLE001,E722,S110,S112", typed]
    ruff = [sys.executable, "-m", "ruff", "check", "--output-format=json", *rules]
    found = subprocess.run([*ruff, *folders, released], capture_output=True, text=True).stdout
    names = [Path(one["filename"]).name for one in json.loads(found)]
    assert sorted(names) == sorted([*known, released.name])
    assert not any("suppress(" in f.read_text("utf-8") for p in folders for f in p.rglob("*.py"))


def test_the_printed_surrogate_holds_the_kl_term():
    """(6): minus the clipped objective plus β times the KL, averaged over a rollout."""
    import torch

    from gdro.trl.advantages import surrogate_losses

    logps = torch.tensor([[-1.0, -2.0, -9.0], [-0.5, -0.5, -0.5]])
    reference = torch.tensor([[-1.5, -2.0, -1.0], [-0.5, -1.0, -0.25]])
    output = {
        "old_per_token_logps": logps,
        "ref_per_token_logps": reference,
        "completion_mask": torch.tensor([[1, 1, 0], [1, 1, 1]]),
        "prompt_mask": torch.tensor([[0, 1], [1, 1]]),
    }
    samples = Samples(np.array([0, 0]), np.array([1.0, 0.0]), np.array([True, False]))

    def surrogate(beta):
        stand_in = SimpleNamespace(
            controller=GDROController("prompt", signal="surrogate"),
            beta=beta,
            accelerator=SimpleNamespace(gather=lambda x: x),
        )
        return surrogate_losses(stand_in, output, samples, 1)

    def kl(gap):
        return np.exp(gap) - gap - 1

    def check(losses):
        by_hand = [-1 + 0.1 * kl(-0.5) / 2, 1 + 0.1 * (kl(-0.5) + kl(0.25)) / 3]
        assert losses == pytest.approx(by_hand, abs=3e-4)

    check(surrogate(0.1))
    assert surrogate(0.0) is None  # the controller then takes −A itself
    # under Unsloth a row begins with the end of the longest prompt: a column more, before or after
    for name in ("old_per_token_logps", "ref_per_token_logps"):
        first, second = output[name]
        junk = torch.tensor([7.0])
        output[name] = torch.stack([torch.cat([first, junk]), torch.cat([junk, second])])
    check(surrogate(0.1))
