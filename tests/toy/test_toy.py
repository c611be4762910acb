"""Toy games against closed forms and against each other; the stored map is what is played."""

import json

import numpy as np
import pytest
from helpers import batch_of, run_of
from hypothesis import given, settings
from hypothesis import strategies as st
from own_method import Failures
from processes import REPOSITORY as ROOT
from scipy.special import softmax
from scipy.stats import ttest_1samp

from gdro.arms import best_joint_arms
from gdro_lab.toy import TOY_METHODS, Game, Player, World, maps, play
from gdro_lab.toy.games import OracleRollouts, SharedDraw


def test_an_own_method_plays_beside_the_others_by_object_and_by_name(monkeypatch):
    seen = []
    monkeypatch.setattr(Failures, "update", lambda self, batch: seen.append(batch.trials_P))
    by_object = Game(method=Failures())
    results = play([by_object, Game(), by_object], [3, 4], [0, 6, 12])
    assert len(seen) == 2 * 12  # equal games are played once
    np.testing.assert_array_equal(results.accuracy[0], results.accuracy[2])
    assert set(np.sum(seen, axis=1)) == {64}
    assert 2 <= np.min(seen) <= np.max(seen) <= 8
    own, grpo, _ = results.accuracy
    np.testing.assert_allclose(own[:, 0], grpo[:, 0])
    assert np.abs(own[:, 2] - grpo[:, 2]).max() > 1e-3
    np.testing.assert_array_equal(grpo, play(Game(), [3, 4], [0, 6, 12]).accuracy[0])
    by_name = play(Game(method="failures"), [3, 4], [0, 6, 12])
    np.testing.assert_array_equal(by_name.accuracy[0], own)


@pytest.mark.parametrize("method", TOY_METHODS)
def test_a_game_does_not_depend_on_company_or_checkpoints(method):
    games = [Game(World(tail=0.0, spread=1.0), method), Game(method="grpo", step_size=16.0)]
    games += [Game(World(tail=1.5, spread=3.0), method, step_size=32.0)]
    seeds = [4, 17]
    together = play(games, seeds, [0, 5, 12])
    for g, game in enumerate(games):
        for s, seed in enumerate(seeds):
            alone = play(game, [seed], [12])
            for mine, other in zip(alone[:3], together[:3], strict=True):
                np.testing.assert_array_equal(mine[0, 0, 0], other[g, s, 2])


def test_the_shared_draw_has_the_law_of_prompt_gdros_own():
    """Bins by q, evenly within a bin; prompts without a bin keep their share."""
    rng, bins_D = np.random.default_rng(0), np.repeat([-1, 0, 1, 3], [4, 6, 2, 8])
    method = SharedDraw(prompt={"eta": 2.0})
    method.begin(run_of(num_bins=4))
    for _ in range(30):
        method.prompt_adversary.update([0, 1, 2, 3], [0.9, 0.6, 0.5, 0.1])
    pool = batch_of(*[[0]] * 20, bins=bins_D)
    drawn = np.zeros((2, 20))
    for _ in range(3000):
        method.inform(rng.random(20), rng.random(5), np.zeros(20))
        drawn[0] += np.bincount(method.draw(pool, 5, rng), minlength=20)
        drawn[1] += np.bincount(super(SharedDraw, method).draw(pool, 5, rng), minlength=20)
    by_bin = np.stack([np.bincount(bins_D + 1, of, 5) for of in drawn]) / (5 * 3000)
    q_B = method.prompt_adversary.probabilities()[[0, 1, 3]]
    np.testing.assert_allclose(by_bin[:, [1, 2, 4]], [0.8 * q_B / q_B.sum()] * 2, atol=0.02)
    np.testing.assert_allclose(drawn[:, bins_D == 3], drawn[:, bins_D == 3].mean(), rtol=0.3)


def test_a_cumulative_score_adds_up_the_losses_of_all_prompts_in_a_bin(monkeypatch):
    game = Game(method="prompt", score="cumulative", eta=0.05, grouping="skill", clip=50.0)
    player, wanted = Player(game, 3), np.zeros(6)
    observe = player.controller.observe

    def counting(plan, group_ids, rewards, **more):
        failed_P = 1 - np.bincount(group_ids, rewards) / np.bincount(group_ids)
        np.add.at(wanted, game.world.skill_D[plan.uids], failed_P * 6 / 16)
        return observe(plan, group_ids, rewards, **more)

    monkeypatch.setattr(player.controller, "observe", counting)
    for _ in range(10):
        player.step()
    np.testing.assert_allclose(player.measure()[2], 0.99 * softmax(0.05 * wanted) + 0.01 / 6)


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=40, deadline=None)
def test_the_oracles_rollouts_are_as_good_as_the_exact_programme(seed):
    rng, method = np.random.default_rng(seed), OracleRollouts()
    rates_P, arms = rng.random(7) * (rng.random(7) > 0.3), np.arange(1, 7)
    method.run = run_of(mean_rollouts=3, n_min=1, n_max=6)
    method.inform(np.zeros(7), np.zeros(7), rates_P)
    greedy = method.allocate(batch_of(*[[0]] * 7), 21, rng)
    assert greedy.sum() == 21
    assert greedy.max() <= 6
    variances_P = rates_P * (1 - rates_P)
    exact, left_over = best_joint_arms(-variances_P[:, None] / arms, np.ones(7, int), arms, 21)
    assert left_over == 0
    assert (variances_P / greedy).sum() <= (variances_P / exact).sum() + 1e-7


def test_a_step_follows_the_gradient_of_the_weighted_log_likelihood():
    world = World(skills=1, prompts=1, noise=0.0, transfer=0.4)
    player, rng = Player(Game(world, batch=1, step_size=2.0), 0), np.random.default_rng(0)
    player.memory_F, answers = rng.normal(size=64), np.array([0, 2, 0, 3, 3])
    rewards = 1.0 * (answers == 0)
    advantages = (rewards - rewards.mean()) / (rewards.std(ddof=1) + 1e-4)
    logits = ("directions_ADF", "offset_D", "skill_D")

    def objective(change_F):
        player.memory_F = player.memory_F + change_F
        p_A = player.policy(*(getattr(player, name) for name in logits))[:, 0]
        player.memory_F = player.memory_F - change_F
        return (advantages * np.log(p_A[answers])).mean()

    slope_F = [(objective(1e-6 * e) - objective(-1e-6 * e)) / 2e-6 for e in np.eye(64)]
    before_F = player.memory_F.copy()
    p_AD = player.policy(*(getattr(player, name) for name in logits))
    player.kept = [(np.zeros(5, int), answers, advantages)]
    player.learn(p_AD, np.zeros(64))
    np.testing.assert_allclose(player.memory_F - before_F, 2.0 * np.array(slope_F), atol=1e-7)


def test_paired_gain_is_students_interval_of_the_differences():
    values, baseline = np.random.default_rng(0).normal(size=(2, 3, 20))
    gain = maps.paired_gain(values, baseline)
    low, high = ttest_1samp(values - baseline, 0.0, axis=1).confidence_interval(0.95)
    np.testing.assert_allclose([gain.mean - gain.half, gain.mean + gain.half], [low, high])
    np.testing.assert_array_equal(gain.verdict(), (low > 0).astype(int) - (high < 0))
    with pytest.raises(ValueError, match="number of seeds"):
        maps.paired_gain([1.0], [0.0])


def test_gain_map_compares_at_the_best_step_sizes_of_other_seeds():
    worlds, seeds, other = [World(), World(tail=0.0)], range(8), range(100, 108)
    step_sizes = (4.0, 16.0)
    gains, chosen = maps.recorded_gain_map(
        None, worlds, ["resample"], step_sizes, other, seeds, [5, 15]
    )
    place = maps.best_step_sizes(worlds, step_sizes, other, [5, 15])["pass_at_8"]
    best = np.array(step_sizes)[place]
    np.testing.assert_array_equal(chosen["pass_at_8"], best)
    games = [Game(worlds[1], method, step_size=best[1, 1]) for method in ("grpo", "resample")]
    found = maps.paired_gain(*play(games, seeds, [15]).pass_at_8.mean(axis=-1)[::-1, :, 0])
    place = (0, 1, 1)
    gain = gains["pass_at_8"]
    np.testing.assert_allclose((gain.mean[place], gain.half[place]), found, atol=1e-12)
    with pytest.raises(ValueError, match="overlap"):
        maps.recorded_gain_map(None, worlds, ["resample"], step_sizes, seeds, seeds, [5])


def test_a_recorded_map_is_what_is_played(tmp_path):
    """Written, read where the arguments are the same, played where not."""
    arguments = ([World()], ["resample"], [4.0, 16.0], [7, 8], [0, 1, 2], [5])
    record = tmp_path / "map.json"
    played = maps.recorded_gain_map(None, *arguments)
    for _ in range(2):  # played, then read
        (gains, step_sizes) = maps.recorded_gain_map(record, *arguments)
        for measure, gain in gains.items():
            np.testing.assert_array_equal(gain, played[0][measure])
            np.testing.assert_array_equal(step_sizes[measure], played[1][measure])
    other, _ = maps.recorded_gain_map(record, *arguments[:-1], [6])
    assert (other["pass_at_8"].mean != gains["pass_at_8"].mean).all()

    shipped = json.loads((ROOT / "data/toy/map.json").read_text(encoding="utf-8"))
    worlds, methods, _, _, seeds, checkpoints = shipped["settings"]
    step = shipped["step_sizes"]["pass_at_8"][-1][0]
    games = [
        Game(World(**worlds[-1]), of, step_size=step) for of in ("grpo", "resample", "rollout")
    ]
    values = maps.MEASURES["pass_at_8"][1](play(games, seeds, checkpoints[:1]))[..., 0]
    gains = np.array(shipped["gains"]["pass_at_8"])  # mean and half, methods, worlds, checkpoints
    stored = gains[:, [methods.index("resample"), methods.index("rollout")], -1, 0]
    np.testing.assert_allclose(maps.paired_gain(values[1:], values[:1]), stored)
