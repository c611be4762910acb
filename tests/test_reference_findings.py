"""The 19 behaviours of the released implementation that this project must be shown not to have.

One test for each, in the order of the list. Each states what is correct as a check, lets ours pass it,
and shows that the check bites: the released behaviour, in a few lines of its own, fails it.
"""

import json
import subprocess
import sys
from collections import Counter
from functools import partial
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from test_controller import play

import gdro
from gdro import DifficultyBins, GDROController, PromptGDRO, RolloutGDRO
from gdro.core.bins import UNSEEN, move_bins
from gdro.methods.arms import arm_log_probabilities, best_joint_arms, exp3p_losses, sample_joint_arms
from gdro.methods.base import group_advantages
from gdro.training.files import load_state, save_state

SHARP = {"k": 1, "history": 1, "hysteresis": 0.0, "edges": (0.5,)}


def fails(check, *arguments):
    """Whether the check turns the released behaviour down."""
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        check(*arguments)
    return True


def seasoned(method="rollout", bins=SHARP, **settings):
    """Two bins, 0–3 hard and noisy, 4–7 easy and without noise, and a variance to tell them apart."""
    controller = GDROController(method, bins=bins, **settings)
    controller.bins.update(np.arange(8), [0] * 4 + [10] * 4, [10] * 8)
    controller.method.rollout_gdro.update([4, 4], [4, 4], [0.25, 0.01])
    return controller


def test_01_rollouts_follow_the_uid_not_the_place_in_the_batch():
    """A prompt's rollouts are decided by its own uid."""

    def check(plan):
        hard_first, easy_first = plan(range(8)), plan(range(7, -1, -1))
        assert hard_first[0] > hard_first[7]
        assert easy_first.tolist() == hard_first[::-1].tolist()

    controller = seasoned()
    previous_batch = controller.plan(range(8)).rollouts
    check(lambda uids: controller.plan(uids).rollouts)
    assert fails(check, lambda uids: previous_batch)  # by position, from the last batch's bins


def test_02_advantages_are_taken_within_the_true_rollout_groups():
    """With groups of different sizes the rollout-group ids say which rollouts belong together."""

    def check(advantages):
        rewards = np.array([1.0, 0.0, 1.0, 1.0, 1.0, 0.0, 2.0, 2.0, 2.0])
        by_hand = np.array([1, -1, *[0.25 / 0.1875**0.5] * 3, -0.75 / 0.1875**0.5, 0, 0, 0])
        assert advantages(rewards, np.repeat([0, 1, 2], [2, 4, 3]), 3) == pytest.approx(by_hand, abs=1e-3)

    def every_nth_row_a_prompt(rewards, groups, num_prompts):
        rows = rewards.reshape(num_prompts, -1)
        return ((rows - rows.mean(1, keepdims=True)) / (rows.std(1, keepdims=True) + 1e-4)).ravel()

    check(group_advantages)
    assert fails(check, every_nth_row_a_prompt)


def test_02_successes_are_counted_within_the_true_rollout_groups():
    """The same for what the bins learn: group ids, in any order, not every n-th row."""

    def check(observe):
        controller = GDROController("prompt", bins=SHARP)
        plan = controller.plan(["a", "b"])
        observe(controller, plan, np.array([0, 1, 1, 1, 0, 1]), np.array([1, 0, 0, 0, 1, 1]))
        assert controller.bins.pass_at_k(["a", "b"]) == pytest.approx([2.5 / 3, 1.5 / 5])

    def every_nth_row_a_prompt(controller, plan, group_ids, rewards):
        controller.observe(plan, np.repeat(np.arange(len(plan)), len(rewards) // len(plan)), rewards)

    check(GDROController.observe)
    assert fails(check, every_nth_row_a_prompt)


@pytest.mark.parametrize("utility", ["variance", "loss"])
def test_03_arm_scores_and_price_are_updated_every_step(utility, monkeypatch):
    """Both move at each step of a run."""

    def check():
        controller = GDROController("rollout", bins=SHARP, rollout={"utility": utility})
        controller.bins.update(np.arange(8), [0] * 4 + [10] * 4, [10] * 8)
        for step in range(5):
            game = controller.method.rollout_gdro
            scores, price = game.losses(), game.price
            play(controller, step, np.arange(8), np.linspace(0.1, 0.9, 8))
            assert not np.array_equal(game.losses(), scores)
            assert game.price != price

    check()
    monkeypatch.setattr(RolloutGDRO, "update", lambda *_, **__: 0.0)
    assert fails(check)


def test_04_the_price_is_driven_by_the_demand():
    """The price answers to what the strategies would spend, so an exact budget does not freeze it."""

    def check(driver):
        controller = seasoned(rollout={"price_driver": driver, "price_lr": 0.5})
        before = controller.method.rollout_gdro.price
        row = play(controller, 0, np.arange(8), np.full(8, 0.5))[1].row
        assert sum(row["rollouts"]) / 2 == 4  # the budget was met exactly
        assert row["demand"] != 4
        assert row["price"] == pytest.approx(before + 0.5 * (row["demand"] - 4))
        assert row["price"] != before

    check("demand")
    assert fails(check, "realized")


def test_05_equal_scores_treat_the_bins_equally():
    """The choice is symmetric in the bins, and ties go to the most even split."""

    def check(chooser):
        for counts in ([3, 3, 6], [6, 3, 3], [3, 6, 3]):
            rollouts, _ = chooser(np.zeros((3, 11)), np.array(counts), np.arange(2, 13), 48)
            assert rollouts.tolist() == [4, 4, 4]

    def first_found(values, counts, arms, budget):
        return next(np.array(c) for c in product(arms, repeat=len(counts)) if counts @ c == budget), 0

    check(best_joint_arms)
    assert fails(check, first_found)

    def first_to_get_more(allocate):
        """Two equal bins, three rollouts for two prompts: neither always wins."""
        assert len({int(allocate(step)[0]) for step in range(30)}) == 2

    first_to_get_more(lambda seed: RolloutGDRO(2, 1, 2, 1.5, seed=seed).allocate([1, 1]))
    assert fails(first_to_get_more, lambda seed: first_found(None, np.ones(2), [1, 2], 3)[0])


def test_06_an_arm_with_a_higher_loss_becomes_less_likely():
    """(20) as printed: the loss is what the bandit lowers; what an arm is worth is chosen by name."""

    def check(log_probabilities):
        p = np.exp(log_probabilities(np.array([[0.0, 1.0, 2.0]]), 0.65, 0.01))[0]
        assert p[0] > p[1] > p[2]

    check(arm_log_probabilities)
    assert fails(check, lambda losses, eta, gamma: arm_log_probabilities(-losses, eta, gamma))
    rollout = RolloutGDRO(1, 1, 3, 2, utility="loss", price_lr=0.0)
    rollout.update([4], rollout.allocate([4]), [5.0])
    assert rollout.probabilities()[0].argmin() == 1  # the arm that was played
    rollout = RolloutGDRO(2)
    rollout.update([4, 4], [4, 4], [0.25, 0.01])
    assert np.diff(rollout.allocate([4, 4])) < 0  # the noisier bin buys more under the proxy (28)


def test_07_the_bandit_samples_and_divides_by_the_probability():
    """EXP3.P: arms are drawn, γ explores, and the loss of the arm played is importance-weighted."""

    def explores(selection):
        rollout, played = RolloutGDRO(2, n_max=6, utility="loss", selection=selection, gamma=0.3), set()
        for _ in range(60):
            rollouts = rollout.allocate([4, 4])
            played.add(int(rollouts[0]))
            rollout.update([4, 4], rollouts, [1.0 * rollouts[0], -1.0 * rollouts[0]])
        assert played == {2, 3, 4, 5, 6}

    explores(None)
    assert fails(explores, "argmax")

    def unbiased(estimate):
        rng, log_p = np.random.default_rng(0), np.log([[0.2, 0.8], [0.5, 0.5]])
        true, total = np.array([[1.0, 3.0], [2.0, 4.0]]), 0.0
        for _ in range(1500):
            arms, _, probabilities = sample_joint_arms(log_p, [2, 2], np.array([1, 2]), 6, rng)
            total = total + estimate(true[[0, 1], arms - 1], arms - 1, probabilities, 0.0)
        assert total / 1500 == pytest.approx(true, abs=0.25)

    unbiased(exp3p_losses)
    assert fails(unbiased, lambda losses, arms, p, bonus: exp3p_losses(losses, arms, np.ones_like(p), bonus))


def test_08_equal_losses_give_equal_weights_whatever_the_shares():
    """The score is intensive: a rare bin does not win by being rare."""

    def check(**settings):
        prompt = PromptGDRO(3, **settings)
        for _ in range(10):
            prompt.update(np.repeat([0, 1, 2], [977, 20, 4]), np.ones(1001))
        assert prompt.probabilities() == pytest.approx([1 / 3] * 3)

    check()
    assert fails(lambda: check(share_floor=1e-9))  # divided by the share


def test_09_clip_exploration_and_cap_are_as_printed():
    """(14) clips the score, (15) gives every one of the B bins γ/B, (16) caps the factor."""

    def check(**settings):
        prompt = PromptGDRO(4, eta=2.0, ema=1.0, debias=False, **settings)
        prompt.update([0, 1], [9.0, -9.0])  # two of four bins are in the batch
        omega = np.exp(2.0 * np.array([1.0, -1.0, 0.0, 0.0]))
        assert prompt.weights() == pytest.approx(np.minimum(omega, 3.0))
        assert prompt.probabilities() == pytest.approx(0.8 * omega / omega.sum() + 0.2 / 4)

    printed = {"gamma": 0.2, "clip": 1.0, "max_weight": 3.0}
    check(**printed)
    for without in ({"gamma": 0.0}, {"clip": np.inf}, {"max_weight": np.inf}):
        assert fails(partial(check, **printed | without))


def test_10_one_step_moves_every_average_once(monkeypatch):
    """With both games on, the score of (12) and the arm score each take one step a batch."""
    uids = np.arange(8)

    def check():
        controller = GDROController("both", bins=SHARP, prompt={"debias": False, "ema": 0.12})
        controller.bins.update(uids, [0] * 4 + [10] * 4, [10] * 8)
        play(controller, 0, uids, np.zeros(8))
        assert controller.method.prompt_gdro.scores() == pytest.approx([0.12, 0.12])
        assert controller.method.prompt_gdro.visits_B.tolist() == [1, 1]
        assert (controller.method.rollout_gdro.visits_BN == 1).all()

    check()
    once = PromptGDRO.update

    def twice(self, *arguments):
        once(self, *arguments)
        once(self, *arguments)

    monkeypatch.setattr(PromptGDRO, "update", twice)
    assert fails(check)


def test_11_difficulty_does_not_depend_on_the_rollouts_allotted():
    """The estimators give prompts of one success rate the same pass@k for n = 2 and n = 12."""

    def check(pass_at_8):
        found = []
        for n in (2, 12):
            hits_VP = np.random.default_rng(0).binomial(n, 0.1, (96 // n, 500))
            found.append(pass_at_8(hits_VP, n).mean())
        assert found == pytest.approx([1 - 0.9**8] * 2, abs=0.04)

    def ours(estimator, hits_VP, n):
        bins = DifficultyBins(estimator=estimator)
        for hits_P in hits_VP:
            bins.update(np.arange(500), hits_P, np.full(500, n))
        return bins.pass_at_k(np.arange(500))

    check(partial(ours, DifficultyBins().estimator))
    check(partial(ours, GDROController("both", preset="paper").bins.estimator))
    assert fails(check, lambda hits_VP, n: (hits_VP > 0).mean(axis=0))  # any of the n allotted


def test_12_an_unseen_prompt_is_a_state_of_its_own(monkeypatch):
    """It is in no bin, gets n̄ rollouts and the mean weight."""

    def check():
        # ten rollouts make an outcome, so that the new prompts are still without one afterwards
        blocks = SHARP | {"estimator": "any_of_k", "k": 10}
        controller = seasoned("both", blocks, weight_scale="none")
        controller.method.prompt_gdro.update([0, 1], [1.0, 0.0])
        uids = [0, 1, 2, 3, 4, 5, 6, 7, 98, 99]
        assert controller.bins.assign([99]).tolist() == [UNSEEN]
        plan = controller.plan(uids)
        assert plan.rollouts[8:].tolist() == [4, 4]
        weights = controller.observe(plan, np.repeat(range(10), plan.rollouts), np.arange(40) % 2).weights
        assert weights[8:] == pytest.approx([weights[:8].mean()] * 2)
        assert weights[0] > weights[8] > weights[7]

    check()
    of_rows = DifficultyBins.of_rows
    monkeypatch.setattr(DifficultyBins, "of_rows", lambda self, rows: np.maximum(of_rows(self, rows), 0))
    assert fails(check)  # as if it were of the hardest bin


def test_13_there_is_no_option_that_does_nothing():
    """Bins cannot be excluded, and who asks for it is told so."""
    with pytest.raises(ValueError, match=r"prompt must be arguments of PromptGDRO, got .*exclude"):
        GDROController("prompt", prompt={"exclude": (0,)})


def test_14_hysteresis_lets_prompts_down_as_well_as_up():
    """Past a boundary by the margin a prompt changes bin, in either direction."""
    edges, margin = np.array([0.5]), 0.03

    def check(move):
        for start, value, end in ((0, 0.52, 0), (0, 0.54, 1), (1, 0.48, 1), (1, 0.46, 0)):
            assert move(np.array([start]), np.array([value]), edges, margin).tolist() == [end]

    def upward_only(current, estimate, edges, margin):
        return np.maximum(current, move_bins(current, estimate, edges, margin))

    check(move_bins)
    assert fails(check, upward_only)


def test_15_edges_say_what_they_say():
    """Six bins are six, and each holds what lies between its edges."""

    def check(*more):
        bins = DifficultyBins(**SHARP | {"edges": (*np.arange(1, 6) / 6, *more)})
        assert bins.num_bins == 6
        bins.update(np.arange(61), np.arange(61), np.full(61, 60))
        assert np.bincount(bins.assign(np.arange(61))).tolist() == [10, 10, 10, 11, 10, 10]  # (s + ½)/61

    check()
    assert fails(check, 0.99)


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

    def go_on(controller):
        return [play(controller, step, np.arange(12), rates)[1].row for step in range(5, 9)]

    def check(carry):
        controller, resumed = (GDROController("both", preset=preset) for _ in range(2))
        for step in range(5):
            play(controller, step, np.arange(12), rates)
        carry(controller, resumed)
        assert go_on(controller) == go_on(resumed)

    def through_a_checkpoint(controller, resumed):
        save_state(tmp_path / "state.safetensors", controller.state_dict())
        resumed.load_state_dict(load_state(tmp_path / "state.safetensors"))

    check(through_a_checkpoint)
    assert fails(check, lambda controller, resumed: None)  # the checkpoint does not hold it


def test_18_every_rank_makes_the_same_plan_or_an_error():
    """Controllers fed the same data agree in everything; one fed a part of it refuses."""
    uids, rates = [f"p{i}" for i in range(12)], np.linspace(0.1, 0.9, 12)
    ranks = [GDROController("rollout", rollout={"utility": "loss"}) for _ in range(2)]
    for step in range(6):
        batches = [play(rank, step, uids, rates)[1] for rank in ranks]
        assert batches[0].row == batches[1].row
        assert batches[0].advantages.tobytes() == batches[1].advantages.tobytes()
        assert ranks[0].plan(uids).rollouts.tolist() == ranks[1].plan(uids).rollouts.tolist()

    def check(observe):
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
                observe(plan, *data)

    def truncating(plan, group_ids, rewards, losses):
        size = min(len(group_ids), len(rewards), len(losses))
        kept = group_ids[:size] < len(plan)
        return np.bincount(group_ids[:size][kept], rewards[:size][kept], len(plan))

    check(lambda *part: ranks[0].observe(*part[:3], losses=part[3]))
    assert fails(check, truncating)


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
    advantages = group_advantages(rewards, one_prompt, 1)  # 1 and −1, but for ε

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
    assert fails(check, -advantages)
    assert surrogate(0.0) is None  # the controller then takes −A itself
    # under Unsloth a row begins with the end of the longest prompt: one column more, here before or after
    for name in ("old_per_token_logps", "ref_per_token_logps"):
        first, second = output[name]
        junk = torch.tensor([7.0])
        output[name] = torch.stack([torch.cat([first, junk]), torch.cat([junk, second])])
    check(surrogate(0.1))
