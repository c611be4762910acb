"""The toy engine against the plain loop around a controller, and against closed forms."""

import json
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import ttest_1samp

from gdro import METHODS, Method
from gdro.arms import best_joint_arms
from gdro_lab.toy import ARRAY_METHODS, Game, World, maps, play
from gdro_lab.toy.engine import Table, answer_pulls, greedy_rollouts, sampled_answers
from gdro_lab.toy.plain import PlainGame

ROOT = Path(__file__).parents[2]
MIXED = World(rare="mixed", tail=1.5, transfer=0.5)
OPTIONS = [
    {},
    {"world": MIXED},
    {"grouping": "skill"},
    {"num_bins": 10, "k": 2, "hysteresis": 0.1, "n_max": 12, "mean_rollouts": 5},
    {"eta": 3.0, "ema": 1.0, "rollout_eta": 30.0, "price_lr": 0.0},
]


def plain_result(game, seed, steps):
    plain = PlainGame(game, seed)
    for _ in range(steps):
        plain.step()
    return np.array(plain.measure()[:2])[:, 0]


@pytest.mark.parametrize("method", ["grpo", "prompt", "rollout", "both"])
@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "-".join(options) or "default")
def test_one_seed_equals_the_plain_loop(method, options):
    game = Game(method=method, **options)
    # seed 3: no two bins are equal in everything; the controller puts those in random order
    plain = plain_result(game, 3, 25)
    for companions in ([], [replace(game, step_size=x) for x in (2.0, 30.0)]):
        result = play([*companions, game], [3], [25])
        found = [result.accuracy[-1, 0, 0], result.pass_at_8[-1, 0, 0]]
        np.testing.assert_allclose(found, plain, atol=1e-11)


def test_with_other_random_numbers_the_plain_loop_has_the_same_law():
    """Resampling draws prompts, the controller with a generator of its own: paired over seeds."""
    game, seeds = Game(method="resample", step_size=4.0), range(48)
    engine = play(game, seeds, [12]).pass_at_8[0, :, 0].mean(axis=-1)
    gap = engine - [plain_result(game, seed, 12)[1].mean() for seed in seeds]
    assert abs(gap.mean()) < 4 * gap.std(ddof=1) / np.sqrt(len(seeds))
    assert gap.std() < 0.05


class Failures(Method):
    """Rollouts in proportion to the failure rate."""

    seen: ClassVar[list] = []

    def allocate(self, prompts, budget, rng):
        return 1.1 - prompts.rate_P

    def update(self, batch):
        self.seen.append((batch.trials_P.sum(), batch.trials_P.min(), batch.trials_P.max()))


def test_an_own_method_plays_beside_the_others_by_object_and_by_name(monkeypatch):
    Failures.seen.clear()
    own_method = Game(method=Failures())
    results = play([own_method, Game(), own_method], [3, 4], [0, 6, 12])
    assert len(Failures.seen) == 2 * 12  # equal games are played once
    np.testing.assert_array_equal(results.accuracy[0], results.accuracy[2])
    total, least, most = np.transpose(Failures.seen)
    assert set(total) == {64}
    assert least.min() >= 2
    assert most.max() <= 8
    own, grpo, _ = results.accuracy
    np.testing.assert_allclose(own[:, 0], grpo[:, 0])
    assert np.abs(own[:, 2] - grpo[:, 2]).max() > 1e-3
    np.testing.assert_array_equal(grpo, play(Game(), [3, 4], [0, 6, 12]).accuracy[0])
    monkeypatch.setitem(METHODS, "toy-failures", Failures)
    by_name = play(Game(method="toy-failures"), [3, 4], [0, 6, 12])
    np.testing.assert_array_equal(by_name.accuracy[0], own)


@pytest.mark.parametrize("method", ARRAY_METHODS)
def test_a_game_does_not_depend_on_company_blocks_threads_or_checkpoints(method, monkeypatch):
    games = [Game(World(tail=0.0, spread=1.0), method), Game(method="grpo", step_size=16.0)]
    games += [Game(World(tail=1.5, spread=3.0), method, step_size=32.0)]
    seeds = [4, 17, 20, 33, 1]
    monkeypatch.setattr("gdro_lab.toy.GAMES_PER_BLOCK", 4)
    together = play(games, seeds, [0, 5, 12], threads=2)
    monkeypatch.undo()
    for g, game in enumerate(games):
        for s, seed in enumerate(seeds):
            alone = play(game, [seed], [12], threads=1)
            for mine, other in zip(alone[:2], together[:2], strict=True):
                np.testing.assert_allclose(mine[0, 0, 0], other[g, s, 2], atol=1e-11)


@pytest.mark.parametrize("method", ["rollout", "both", "oracle"])
def test_rollouts_are_matched_in_every_step_and_game(method):
    """Σ n = n̄ P, read from inside."""
    table = Table([Game(MIXED, method)] * 2, [16, 1, 2, 18, 19])
    plan, seen = table._plan, []
    table._plan = lambda *a: seen.append(plan(*a)) or seen[-1]
    for _ in range(20):
        table.step()
    for n_PG in seen:
        assert (n_PG.sum(axis=0) == 64).all()
        assert n_PG.min() >= 2
        assert n_PG.max() <= 8


@given(st.integers(0, 2**32 - 1))
def test_greedy_rollouts_are_as_good_as_the_exact_programme(seed):
    rng = np.random.default_rng(seed)
    variances_P, arms = rng.random(7) * (rng.random(7) > 0.3), np.arange(1, 7)
    greedy = greedy_rollouts(variances_P[:, None], 1, 6, 14)[:, 0]
    assert greedy.sum() == 21
    assert greedy.max() <= 6
    exact, left_over = best_joint_arms(-variances_P[:, None] / arms, np.ones(7, int), arms, 21)
    assert left_over == 0
    assert (variances_P / greedy).sum() <= (variances_P / exact).sum() + 1e-7
    # without variance: evenly, the first prompts first
    assert greedy_rollouts(np.zeros((3, 1)), 2, 5, 4)[:, 0].tolist() == [4, 3, 3]


def test_sampled_answers_have_the_probabilities_asked_for():
    rng = np.random.default_rng(0)
    p_A = np.array([0.1, 0.5, 0.15, 0.25])
    n_PG = rng.integers(1, 6, (4, 3000))
    p_APG = np.broadcast_to(p_A[:, None, None], (4, 4, 3000))
    counts = sampled_answers(p_APG, n_PG, rng.random((3000, 5, 4)), 1)
    np.testing.assert_array_equal(counts.sum(axis=0), n_PG)
    np.testing.assert_allclose(counts.sum(axis=(1, 2)) / n_PG.sum(), p_A, atol=0.01)


def test_answer_pulls_are_the_gradient_of_the_weighted_log_likelihood():
    logits, answers = np.array([0.3, -0.2, 0.5, 0.0]), np.array([0, 2, 0, 3, 3])
    rewards = (answers == 0).astype(float)
    advantages = (rewards - rewards.mean()) / (rewards.std(ddof=1) + 1e-4)

    def objective(z):
        return (advantages * (z - np.log(np.exp(z).sum()))[answers]).mean()

    steps = 1e-6 * np.eye(4)
    numeric = [(objective(logits + e) - objective(logits - e)) / 2e-6 for e in steps]
    counts = np.bincount(answers, minlength=4)[:, None, None]
    pulls, square = answer_pulls(counts, np.array([[5]]))
    np.testing.assert_allclose(pulls[:, 0, 0], numeric, atol=1e-8)
    np.testing.assert_allclose(square[0, 0], ((advantages / 5) ** 2).sum())


def test_paired_gain_is_students_interval_of_the_differences():
    values, baseline = np.random.default_rng(0).normal(size=(2, 3, 20))
    gain = maps.paired_gain(values, baseline)
    low, high = ttest_1samp(values - baseline, 0.0, axis=1).confidence_interval(0.95)
    np.testing.assert_allclose([gain.mean - gain.half, gain.mean + gain.half], [low, high])
    np.testing.assert_array_equal(gain.verdict(), (low > 0).astype(int) - (high < 0))


@pytest.mark.parametrize(
    ("own_best", "method", "step_sizes"),
    [(False, "resample", (4.0, 16.0)), (True, "prompt", (1.0, 16.0))],
)
def test_gain_map_compares_at_the_best_step_sizes_of_other_seeds(own_best, method, step_sizes):
    worlds, seeds, other = [World(), World(tail=0.0)], range(16), range(100, 116)
    gains, chosen = maps.recorded_gain_map(
        None, worlds, [method], step_sizes, other, seeds, [5, 15], own_best
    )
    places = {
        name: maps.best_step_sizes(worlds, step_sizes, other, [5, 15], name)
        for name in ("grpo", method)
    }
    best = {name: np.array(step_sizes)[place["pass_at_8"]] for name, place in places.items()}
    np.testing.assert_array_equal(chosen["pass_at_8"], best["grpo"])
    own = best[method if own_best else "grpo"][1, 1]
    games = [Game(worlds[1], step_size=best["grpo"][1, 1]), Game(worlds[1], method, step_size=own)]
    found = maps.paired_gain(*play(games, seeds, [15]).pass_at_8.mean(axis=-1)[::-1, :, 0])
    place = (0, 1, 1)
    gain = gains["pass_at_8"]
    np.testing.assert_allclose((gain.mean[place], gain.half[place]), found, atol=1e-12)
    if not own_best:
        by_games = maps.gains_over_grpo(games[1:], seeds, 15)["pass_at_8"]
        np.testing.assert_allclose(np.ravel(by_games), found, atol=1e-12)


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

    shipped = json.loads((ROOT / "data/measured/toy_map.json").read_text(encoding="utf-8"))
    worlds, methods, _, _, seeds, checkpoints, own_best = shipped["settings"]
    assert not own_best
    for method, name in enumerate(methods):
        step = shipped["step_sizes"]["pass_at_8"][-1][0]
        games = [Game(World(**worlds[-1]), of, step_size=step) for of in ("grpo", name)]
        found = maps.MEASURES["pass_at_8"][1](play(games, seeds, checkpoints[:1]))[..., 0]
        np.testing.assert_allclose(
            maps.paired_gain(found[1], found[0]),
            [part[method][-1][0] for part in shipped["gains"]["pass_at_8"]],
        )
