"""The 19 behaviours of the released implementation that ours must not have, in the order of the list."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from test_controller import play

import gdro
from gdro import DifficultyBins, GDROController, PromptGDRO, RolloutGDRO
from gdro.core.advantages import group_advantages
from gdro.core.bins import UNSEEN, move_bins
from gdro.methods.arms import arm_log_probabilities, best_joint_arms
from gdro.methods.bandit import exp3p_losses, sample_joint_arms
from gdro.training.files import load_state, save_state

SHARP = {"k": 1, "history": 1, "hysteresis": 0.0, "edges": (0.5,)}
EIGHT = [0] * 4 + [10] * 4, [10] * 8  # successes and trials: four prompts in each of two bins


def seasoned(method="rollout", bins=SHARP, **settings):
    """Two bins, 0–3 hard and noisy, 4–7 easy and without noise, and a variance to tell them apart."""
    controller = GDROController(method, bins=bins, **settings)
    controller.bins.update(np.arange(8), *EIGHT)
    controller.method.rollout_gdro.update([4, 4], [4, 4], [0.25, 0.01])
    return controller


def test_01_rollouts_follow_the_uid_not_the_place_in_the_batch():
    controller = seasoned()
    hard_first, easy_first = controller.plan(range(8)).rollouts, controller.plan(range(7, -1, -1)).rollouts
    assert hard_first[0] > hard_first[7]
    assert easy_first.tolist() == hard_first[::-1].tolist()


def test_02_advantages_and_successes_are_those_of_the_true_rollout_groups():
    """With groups of different sizes the group ids, in any order, say which rollouts belong together."""
    rewards = np.array([1.0, 0.0, 1.0, 1.0, 1.0, 0.0, 2.0, 2.0, 2.0])
    by_hand = np.array([1, -1, *[0.25 / 0.1875**0.5] * 3, -0.75 / 0.1875**0.5, 0, 0, 0])
    advantages = group_advantages(rewards, np.repeat([0, 1, 2], [2, 4, 3]), 3)
    assert advantages == pytest.approx(by_hand, abs=1e-3)
    controller = GDROController("prompt", bins=SHARP)
    controller.observe(controller.plan(["a", "b"]), [0, 1, 1, 1, 0, 1], [1, 0, 0, 0, 1, 1])
    assert controller.bins.pass_at_k(["a", "b"]) == pytest.approx([2.5 / 3, 1.5 / 5])


@pytest.mark.parametrize("utility", ["variance", "loss"])
def test_03_arm_scores_and_price_are_updated_every_step(utility):
    controller = GDROController("rollout", bins=SHARP, rollout={"utility": utility})
    controller.bins.update(np.arange(8), *EIGHT)
    game = controller.method.rollout_gdro
    for step in range(5):
        scores, price = game.losses(), game.price
        play(controller, step, np.arange(8), np.linspace(0.1, 0.9, 8))
        assert not np.array_equal(game.losses(), scores)
        assert game.price != price


@pytest.mark.parametrize(("driver", "moves"), [("demand", True), ("realized", False)])
def test_04_the_price_is_driven_by_the_demand(driver, moves):
    """It answers to what the strategies would spend: what is spent is the budget, which moves nothing."""
    controller = seasoned(rollout={"price_driver": driver, "price_lr": 0.5})
    before = controller.method.rollout_gdro.price
    row = play(controller, 0, np.arange(8), np.full(8, 0.5))[1].row
    assert sum(row["rollouts"]) / 2 == 4  # the budget was met exactly
    assert row["demand"] != 4
    assert row["price"] == pytest.approx(before + 0.5 * (row["demand"] - 4) * moves)


def test_05_equal_scores_treat_the_bins_equally():
    """The choice is symmetric in the bins, ties go to the most even split, then to each bin in turn."""
    for counts in ([3, 3, 6], [6, 3, 3], [3, 6, 3]):
        rollouts, _ = best_joint_arms(np.zeros((3, 11)), np.array(counts), np.arange(2, 13), 48)
        assert rollouts.tolist() == [4, 4, 4]
    firsts = {int(RolloutGDRO(2, 1, 2, 1.5, seed=seed).allocate([1, 1])[0]) for seed in range(30)}
    assert firsts == {1, 2}  # three rollouts for two prompts


def test_06_an_arm_with_a_higher_loss_becomes_less_likely():
    """(20) as printed: the loss is what the bandit lowers; what an arm is worth is chosen by name."""
    p = np.exp(arm_log_probabilities(np.array([[0.0, 1.0, 2.0]]), 0.65, 0.01))[0]
    assert p[0] > p[1] > p[2]
    rollout = RolloutGDRO(1, 1, 3, 2, utility="loss", price_lr=0.0)
    rollout.update([4], rollout.allocate([4]), [5.0])
    assert rollout.probabilities()[0].argmin() == 1  # the arm that was played
    rollout = RolloutGDRO(2)
    rollout.update([4, 4], [4, 4], [0.25, 0.01])
    assert np.diff(rollout.allocate([4, 4])) < 0  # the noisier bin buys more under the proxy (28)


def test_07_the_bandit_samples_and_divides_by_the_probability():
    """EXP3.P: arms are drawn, γ explores, and the loss of the arm played is importance-weighted."""
    rollout, played = RolloutGDRO(2, n_max=6, utility="loss", gamma=0.3), set()
    for _ in range(60):
        rollouts = rollout.allocate([4, 4])
        played.add(int(rollouts[0]))
        rollout.update([4, 4], rollouts, [1.0 * rollouts[0], -1.0 * rollouts[0]])
    assert played == {2, 3, 4, 5, 6}
    rng, log_p = np.random.default_rng(0), np.log([[0.2, 0.8], [0.5, 0.5]])
    true, total = np.array([[1.0, 3.0], [2.0, 4.0]]), 0.0
    for _ in range(1500):
        arms, _, probabilities = sample_joint_arms(log_p, [2, 2], np.array([1, 2]), 6, rng)
        total = total + exp3p_losses(true[[0, 1], arms - 1], arms - 1, probabilities, 0.0)
    assert total / 1500 == pytest.approx(true, abs=0.25)


def test_08_equal_losses_give_equal_weights_whatever_the_shares():
    """The score is intensive: a rare bin does not win by being rare."""
    prompt = PromptGDRO(3)
    for _ in range(10):
        prompt.update(np.repeat([0, 1, 2], [977, 20, 4]), np.ones(1001))
    assert prompt.probabilities() == pytest.approx([1 / 3] * 3)


def test_09_clip_exploration_and_cap_are_as_printed():
    """(14) clips the score, (15) gives every one of the B bins γ/B, (16) caps the factor."""
    prompt = PromptGDRO(4, eta=2.0, ema=1.0, debias=False, gamma=0.2, clip=1.0, max_weight=3.0)
    prompt.update([0, 1], [9.0, -9.0])  # two of four bins are in the batch
    omega = np.exp(2.0 * np.array([1.0, -1.0, 0.0, 0.0]))
    assert prompt.weights() == pytest.approx(np.minimum(omega, 3.0))
    assert prompt.probabilities() == pytest.approx(0.8 * omega / omega.sum() + 0.2 / 4)


def test_10_one_step_moves_every_average_once():
    """With both games on, the score of (12) and the arm score each take one step a batch."""
    controller = GDROController("both", bins=SHARP, prompt={"debias": False, "ema": 0.12})
    controller.bins.update(np.arange(8), *EIGHT)
    play(controller, 0, np.arange(8), np.zeros(8))
    assert controller.method.prompt_gdro.scores() == pytest.approx([0.12, 0.12])
    assert controller.method.prompt_gdro.visits_B.tolist() == [1, 1]
    assert (controller.method.rollout_gdro.visits_BN == 1).all()


@pytest.mark.parametrize("preset", ["default", "paper"])
def test_11_difficulty_does_not_depend_on_the_rollouts_allotted(preset):
    """Prompts of one success rate have the same estimate of pass@8 for n = 2 and n = 12."""
    found = []
    for n in (2, 12):
        bins = DifficultyBins(estimator=GDROController("grpo", preset=preset).bins.estimator)
        for hits_P in np.random.default_rng(0).binomial(n, 0.1, (96 // n, 500)):
            bins.update(np.arange(500), hits_P, np.full(500, n))
        found.append(bins.pass_at_k(np.arange(500)).mean())
    assert found == pytest.approx([1 - 0.9**8] * 2, abs=0.04)


def test_12_an_unseen_prompt_is_a_state_of_its_own():
    """It is in no bin, gets n̄ rollouts and the mean weight."""
    # ten rollouts make an outcome, so that the new prompts are still without one afterwards
    controller = seasoned("both", SHARP | {"estimator": "any_of_k", "k": 10}, weight_scale="none")
    controller.method.prompt_gdro.update([0, 1], [1.0, 0.0])
    assert controller.bins.assign([99]).tolist() == [UNSEEN]
    plan = controller.plan([0, 1, 2, 3, 4, 5, 6, 7, 98, 99])
    assert plan.rollouts[8:].tolist() == [4, 4]
    weights = controller.observe(plan, np.repeat(range(10), plan.rollouts), np.arange(40) % 2).weights
    assert weights[8:] == pytest.approx([weights[:8].mean()] * 2)
    assert weights[0] > weights[8] > weights[7]


def test_13_there_is_no_option_that_does_nothing():
    """Bins cannot be excluded, and who asks for it is told so."""
    with pytest.raises(ValueError, match=r"prompt must be arguments of PromptGDRO, got .*exclude"):
        GDROController("prompt", prompt={"exclude": (0,)})


def test_14_hysteresis_lets_prompts_down_as_well_as_up():
    """Past a boundary by the margin a prompt changes bin, in either direction."""
    for start, value, end in ((0, 0.52, 0), (0, 0.54, 1), (1, 0.48, 1), (1, 0.46, 0)):
        assert move_bins(np.array([start]), np.array([value]), np.array([0.5]), 0.03).tolist() == [end]


def test_15_edges_say_what_they_say():
    """Six bins are six, and each holds what lies between its edges."""
    bins = DifficultyBins(**SHARP | {"edges": np.arange(1, 6) / 6})
    assert bins.num_bins == 6
    bins.update(np.arange(61), np.arange(61), np.full(61, 60))
    assert np.bincount(bins.assign(np.arange(61))).tolist() == [10, 10, 10, 11, 10, 10]  # (s + ½)/61


# named one by one: what a text may raise in the worker that checks answers (its outcome is counted); a
# text that is no number
COUNTED = {"verify.py": 2, "notebooks.py": 1}


def swallowed(folder):
    """At how many places of each file an error could vanish without a word."""
    typed = "lint.flake8-bandit.check-typed-exception=true"
    rules = ["--isolated", "--ignore-noqa", "--select=BLE001,E722,S110,S112", f"--config={typed}"]
    ruff = [sys.executable, "-m", "ruff", "check", "--output-format=json", *rules, folder]
    found = json.loads(subprocess.run(ruff, capture_output=True, text=True).stdout)
    counts = Counter(Path(one["filename"]).name for one in found)
    for file in Path(folder).rglob("*.py"):
        counts[file.name] += file.read_text("utf-8").count("suppress(")
    return {name: count for name, count in counts.items() if count}


def test_16_no_error_is_swallowed(tmp_path):
    """Errors are raised, with the reason: no handler of everything, none that does nothing."""
    assert swallowed(Path(gdro.__file__).parent) == COUNTED
    released = (
        "try:\n    x()\nexcept Exception:\n    y = 0",
        "try:\n    x()\nexcept:\n    y = 0",
        "try:\n    x()\nexcept (KeyError, Exception) as e:\n    log(e)",
        "try:\n    x()\nexcept KeyError:\n    pass",
        "with contextlib.suppress(KeyError):\n    x()",
    )
    for number, source in enumerate(released):
        (tmp_path / f"{number}.py").write_text(source)
    assert len(swallowed(tmp_path)) == len(released)


@pytest.mark.parametrize("preset", ["default", "paper"])
def test_17_the_state_is_saved_and_restored_bit_for_bit(preset, tmp_path):
    """A run that resumes from a checkpoint is the run that was never stopped."""
    rates = np.linspace(0.02, 0.98, 12)
    controller, resumed = (GDROController("both", preset=preset) for _ in range(2))
    for step in range(5):
        play(controller, step, np.arange(12), rates)
    save_state(tmp_path / "state.json", controller.state_dict())
    resumed.load_state_dict(load_state(tmp_path / "state.json"))
    for step in range(5, 9):
        rows = [play(one, step, np.arange(12), rates)[1].row for one in (controller, resumed)]
        assert rows[0] == rows[1]


def test_18_every_rank_makes_the_same_plan_or_an_error():
    """Controllers fed the same data agree in everything; one fed a part of it refuses."""
    uids, rates = [f"p{i}" for i in range(12)], np.linspace(0.1, 0.9, 12)
    ranks = [GDROController("rollout", rollout={"utility": "loss"}) for _ in range(2)]
    for step in range(6):
        batches = [play(rank, step, uids, rates)[1] for rank in ranks]
        assert batches[0].row == batches[1].row
        assert batches[0].advantages.tobytes() == batches[1].advantages.tobytes()
        assert ranks[0].plan(uids).rollouts.tolist() == ranks[1].plan(uids).rollouts.tolist()
    whole, part = ranks[0].plan(uids), ranks[0].plan(uids[:6])
    group_ids = np.repeat(np.arange(12), whole.rollouts)
    rewards, losses, mine = np.ones(len(group_ids)), np.zeros(len(group_ids)), slice(0, 24)
    for plan, *data in (
        (whole, group_ids, rewards[mine], losses),  # the rewards of this rank alone
        (whole, group_ids[mine], rewards[mine], losses),  # and its group ids
        (part, group_ids, rewards, losses),  # the prompts of this rank alone
        (whole, np.tile(group_ids[mine], 2), rewards, losses),  # its group ids for everyone's rewards
    ):
        with pytest.raises(ValueError):
            ranks[0].observe(plan, *data[:2], losses=data[2])


def test_19_the_printed_surrogate_holds_the_kl_term():
    """(6): minus the clipped objective plus β times the KL, averaged over the tokens of a rollout."""
    torch = pytest.importorskip("torch")
    trainer = pytest.importorskip("gdro.trainer").GDROTrainer
    logps = torch.tensor([[-1.0, -2.0, -9.0], [-0.5, -0.5, -0.5]])
    reference = torch.tensor([[-1.5, -2.0, -1.0], [-0.5, -1.0, -0.25]])
    output = {
        "old_per_token_logps": logps,
        "ref_per_token_logps": reference,
        "completion_mask": torch.tensor([[1, 1, 0], [1, 1, 1]]),
        "prompt_mask": torch.tensor([[0, 1], [1, 1]]),
    }
    rewards, one_prompt = np.array([1.0, 0.0]), np.array([0, 0])

    def surrogate(beta):
        stand_in = SimpleNamespace(
            controller=GDROController("prompt", signal="surrogate"),
            beta=beta,
            accelerator=SimpleNamespace(gather=lambda x: x),
        )
        return trainer._surrogate_losses(stand_in, output, rewards, one_prompt, 1)

    def kl(gap):
        return np.exp(gap) - gap - 1

    def check(losses):
        by_hand = [-1 + 0.1 * kl(-0.5) / 2, 1 + 0.1 * (kl(-0.5) + kl(0.25)) / 3]
        assert losses == pytest.approx(by_hand, abs=3e-4)

    check(surrogate(0.1))
    assert surrogate(0.0) is None  # the controller then takes −A itself
    # under Unsloth a row begins with the end of the longest prompt: one column more, here before or after
    for name in ("old_per_token_logps", "ref_per_token_logps"):
        first, second = output[name]
        junk = torch.tensor([7.0])
        output[name] = torch.stack([torch.cat([first, junk]), torch.cat([junk, second])])
    check(surrogate(0.1))
