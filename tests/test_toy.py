"""The toy engine against the plain loop, against the objects, and against closed forms."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gdro.bins import move_bins
from gdro.estimators import BetaPosterior
from gdro.rollout_gdro import best_joint_arms, sample_joint_arms
from gdro.toy import METHODS, Game, World, even_edges, play
from gdro.toy.engine import answer_pulls, beta_pass_at_k, moved_bins, sampled_answers
from gdro.toy.games import WORLDS, skill_counts
from gdro.toy.joint_arms import (
    best_joint_arms_of_games,
    greedy_rollouts,
    rungs_reached,
    running_sums,
    sample_joint_arms_of_games,
)
from gdro.toy.maps import (
    REAL_VARIANTS,
    ablate,
    best_step_sizes,
    gain_map,
    own_best_gains,
    paired_gain,
    real_gains,
    shipped_gains,
    toy_against_real,
)
from gdro.toy.plain import PlainGame, ScriptedCoin, sampled_answer

SHARED = World(sharing=0.3, rare="mixed", tail=1.5)


def plain_result(game, seed, steps):
    plain = PlainGame(game, seed)
    for _ in range(steps):
        plain.step()
    return plain.measure()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"world": SHARED},
        {"grouping": "skill"},
        {"num_bins": 10, "k": 2, "hysteresis": 0.1, "n_min": 1, "n_max": 12, "mean_rollouts": 3},
        {"estimator": "unbiased", "history": 20},
        {"estimator": "any_of_n"},
        {"joint": "bins", "eta": 3.0, "rollout_eta": 3.0},
        {"rollout_gamma": 0.0, "rollout_eta": 300.0},
    ],
    ids=lambda options: "-".join(options) or "default",
)
def test_one_seed_equals_the_plain_loop(method, options):
    game = Game(method=method, **options)
    accuracy, pass_at_8 = plain_result(game, 7, 25)
    # alone, and as one of many that share a seed's batch: the engine reads the data set differently
    for companions in ([], [replace(game, step_size=x) for x in (2.0, 5.0, 11.0, 30.0)]):
        result = play([*companions, game], [7], [25])
        np.testing.assert_allclose(result.accuracy[-1, 0, 0], accuracy, atol=1e-11)
        np.testing.assert_allclose(result.pass_at_8[-1, 0, 0], pass_at_8, atol=1e-11)


@pytest.mark.parametrize("method", ["prompt", "resample", "both"])
def test_cumulative_scores_equal_the_plain_loop(method):
    game = Game(method=method, score="cumulative", eta=0.05, grouping="skill", clip=50.0)
    accuracy, _ = plain_result(game, 3, 25)
    np.testing.assert_allclose(play([game], [3], [25]).accuracy[0, 0, 0], accuracy, atol=1e-11)


def test_a_game_does_not_depend_on_its_company():
    games = [Game(World(tail=t, spread=h), m, step_size=x) for t, h, m, x in
             [(0.0, 1.0, "rollout", 8.0), (1.5, 3.0, "rollout", 32.0), (1.0, 2.0, "grpo", 16.0)]]  # fmt: skip
    seeds = [4, 17, 20, 33]
    together = play(games, seeds, [0, 10, 20], threads=2)
    for g, game in enumerate(games):
        for s, seed in enumerate(seeds):
            alone = play([game], [seed], [20], threads=1)
            np.testing.assert_allclose(together.accuracy[g, s, 2], alone.accuracy[0, 0, 0], atol=1e-11)


@pytest.mark.parametrize("method", ["rollout", "resample"])
def test_cutting_into_blocks_changes_nothing(method, monkeypatch):
    games = [Game(method=method, step_size=x) for x in (2.0, 4.0, 8.0, 16.0, 32.0, 64.0)]
    seeds = [4, 17, 20, 33, 1]
    whole = play(games, seeds, [12])
    monkeypatch.setattr("gdro.toy.engine.COLUMNS", 4)
    for mine, his in zip(play(games, seeds, [12]), whole, strict=True):
        np.testing.assert_allclose(mine, his, atol=1e-11)


def test_games_of_a_seed_start_alike_and_checkpoints_change_nothing():
    games = [Game(method=method) for method in METHODS]
    result = play(games, [5], [0, 7, 15])
    assert np.ptp(result.accuracy[:, 0, 0], axis=0).max() == 0
    np.testing.assert_array_equal(result.accuracy[:, :, 2], play(games, [5], [15]).accuracy[:, :, 0])


def test_before_training_accuracy_is_the_softmax_of_the_offsets():
    world = World(jitter=0.0, spread=1.5, tail=0.0)
    logits = -0.5 + 1.5 * np.linspace(1, -1, 6)
    wanted = np.exp(logits) / (np.exp(logits) + 3)
    result = play([Game(world)], [0], [0])
    np.testing.assert_allclose(result.accuracy[0, 0, 0], wanted)
    np.testing.assert_allclose(result.pass_at_8[0, 0, 0], 1 - (1 - wanted) ** 8)


def test_rollouts_are_matched_in_every_step_and_game():
    """Σ n = n̄ P, read from inside, for methods that move rollouts."""
    from gdro.toy.engine import _Table

    for method in ("rollout", "rollout_loss", "both", "oracle"):
        table = _Table([Game(SHARED, method)] * 2, [16, 1, 2, 18, 19])
        seen = []
        plan = table._plan
        table._plan = lambda *a, plan=plan, seen=seen: seen.append(plan(*a)) or seen[-1]
        for _ in range(20):
            table.step()
        for n_PG in seen:
            assert (n_PG.sum(axis=0) == 64).all()
            assert n_PG.min() >= 2
            assert n_PG.max() <= 8


def test_luck_does_not_depend_on_the_controllers_settings():
    games = [Game(), Game(num_bins=10), Game(n_max=12), Game(rollout_eta=2.0)]
    result = play(games, [3], [10])
    assert np.ptp(result.accuracy, axis=0).max() == 0


# ---- the batched pieces against the objects' own functions ------------------------------------


joint_problems = st.integers(0, 2**32 - 1)


@given(joint_problems)
@settings(max_examples=60, deadline=None)
def test_best_joint_arms_of_games_equals_best_joint_arms(seed):
    rng = np.random.default_rng(seed)
    arms = np.arange(2, 2 + rng.integers(1, 8))
    counts_BG = rng.multinomial(12, [0.3, 0.1, 0.2, 0.4, 0.0], size=7).T
    values_BNG = rng.normal(size=(5, len(arms), 7)).round(int(rng.integers(0, 3)))
    budget = np.full(7, 12 * 3 if len(arms) > 1 else 24)
    rollouts_BG, left_over_G = best_joint_arms_of_games(
        values_BNG, counts_BG, arms, budget, rng.random((5, 7))
    )
    for g in range(7):
        present = counts_BG[:, g] > 0
        values, counts = values_BNG[present, :, g], counts_BG[present, g]
        mine_B = rollouts_BG[present, g]
        rollouts, left_over = best_joint_arms(values, counts, arms, int(budget[g]))
        assert left_over == left_over_G[g]
        assert (rollouts_BG[~present, g] == 0).all()
        # of several best choices the order decides, so values and not choices are compared
        mine, his = (values[np.arange(len(counts)), n - 2].sum() for n in (mine_B, rollouts))
        np.testing.assert_allclose(mine, his, atol=1e-6)
        assert counts @ mine_B == counts @ rollouts


def test_joint_arms_of_games_leave_over_what_no_choice_spends():
    """Five prompts in one bin and one rollout too many; beside a game that meets its budget."""
    arms, counts_BG, budget_G = np.arange(2, 6), np.array([[5, 4], [0, 1]]), np.array([16, 16])
    log_p_BNG, numbers_BG = np.log(np.full((2, 4, 2), 0.25)), np.full((2, 2), 0.5)
    for rollouts_BG, left_over_G, *_ in (
        best_joint_arms_of_games(log_p_BNG, counts_BG, arms, budget_G, numbers_BG),
        sample_joint_arms_of_games(log_p_BNG, counts_BG, arms, budget_G, numbers_BG, numbers_BG),
    ):
        np.testing.assert_array_equal(left_over_G, [1, 0])
        np.testing.assert_array_equal((rollouts_BG * counts_BG).sum(axis=0), [15, 16])
    with pytest.raises(ValueError, match="below the smallest arm"):
        best_joint_arms_of_games(log_p_BNG, counts_BG, arms, np.array([9, 16]), numbers_BG)


def assert_samples_like_sample_joint_arms(log_p_BNG, counts_BG, arms, budget, rng):
    coins, draws = rng.random(counts_BG.shape), rng.random(counts_BG.shape)
    rollouts_BG, left_over_G, chances_BNG = sample_joint_arms_of_games(
        log_p_BNG, counts_BG, arms, np.full(counts_BG.shape[1], budget), coins, draws
    )
    for g, counts_B in enumerate(counts_BG.T):
        coin = ScriptedCoin()
        coin.counts = counts_B.tolist()
        coin.script(coins[:, g].tolist(), draws[:, g].tolist())
        order = coin.permutation(np.flatnonzero(counts_B))
        rollouts, left_over, chances = sample_joint_arms(
            log_p_BNG[order, :, g], counts_B[order], arms, budget, coin
        )
        np.testing.assert_array_equal(rollouts_BG[order, g], rollouts)
        np.testing.assert_allclose(chances_BNG[order, :, g], chances, atol=1e-12)
        assert np.isnan(chances_BNG[counts_B == 0, :, g]).all()
        assert left_over == left_over_G[g]


def test_sample_joint_arms_of_games_equals_sample_joint_arms():
    rng = np.random.default_rng(3)
    counts_BG = rng.multinomial(12, [0.3, 0.1, 0.2, 0.4, 0.0], size=20).T
    log_p_BNG = np.log(rng.dirichlet(np.ones(6), size=(20, 5))).transpose(1, 2, 0)
    assert_samples_like_sample_joint_arms(log_p_BNG, counts_BG, np.arange(2, 8), 48, rng)


@pytest.mark.parametrize("steepness", [100.0, 5000.0])
def test_sampled_arms_survive_chances_that_underflow(steepness):
    """Every bin is sure of its largest arm, which the budget rules out for most; e^-5000 is 0."""
    rng = np.random.default_rng(4)
    arms = np.arange(2, 8)
    counts_BG = np.array([[3, 12, 1], [4, 0, 1], [5, 0, 10]])
    log_p_BNG = np.broadcast_to(-steepness * (7 - arms)[:, None], (3, 6, 3)).astype(float)
    assert_samples_like_sample_joint_arms(log_p_BNG, counts_BG, arms, 48, rng)


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=40, deadline=None)
def test_greedy_rollouts_are_as_good_as_the_exact_programme(seed):
    rng = np.random.default_rng(seed)
    variances_P, arms = rng.random(7) * (rng.random(7) > 0.3), np.arange(1, 7)
    greedy = greedy_rollouts(variances_P[:, None], 1, 6, 14)[:, 0]
    assert greedy.sum() == 21
    assert greedy.max() <= 6
    exact, left_over = best_joint_arms(-variances_P[:, None] / arms, np.ones(7, int), arms, 21)
    assert left_over == 0
    assert (variances_P / greedy).sum() <= (variances_P / exact).sum() + 1e-7


@pytest.mark.parametrize(("spare", "wanted"), [(0, [2, 2, 2]), (4, [4, 3, 3]), (9, [5, 5, 5])])
def test_greedy_rollouts_without_variance_are_even_and_the_first_prompts_come_first(spare, wanted):
    np.testing.assert_array_equal(greedy_rollouts(np.zeros((3, 1)), 2, 5, spare)[:, 0], wanted)


@given(st.integers(0, 2**32 - 1), st.sampled_from([0.0, 0.03, 0.3]))
@settings(max_examples=60, deadline=None)
def test_moved_bins_equals_move_bins(seed, hysteresis):
    rng = np.random.default_rng(seed)
    current = rng.integers(-1, 6, (20, 3)).astype(np.int8)
    estimate = rng.choice([*even_edges(6), 0.0, 1.0, 0.2, 1 / 3 + 0.03, np.nan], (20, 3))
    edges = np.array(even_edges(6))
    np.testing.assert_array_equal(
        moved_bins(current, estimate, edges, hysteresis), move_bins(current, estimate, edges, hysteresis)
    )


@pytest.mark.parametrize("k", [1, 3, 8])
def test_beta_pass_at_k_equals_the_estimator(k):
    estimator, rng = BetaPosterior(k, 50), np.random.default_rng(k)
    estimator.grow(30)
    trials = rng.integers(1, 9, 30)
    estimator.add(np.arange(30), rng.integers(0, trials + 1), trials)
    counts = estimator.arrays["successes"], estimator.arrays["failures"]
    np.testing.assert_allclose(beta_pass_at_k(*counts, k), estimator.pass_at_k(np.arange(30)), rtol=1e-12)


def test_running_sums_and_rungs():
    numbers = np.random.default_rng(0).random((4, 3))
    np.testing.assert_allclose(running_sums(numbers.copy()), numbers.cumsum(axis=0))
    np.testing.assert_array_equal(rungs_reached(np.array([[0.2], [0.5], [1.0]]), np.array([0.5])), [2])


# ---- the learner against independent computation ----------------------------------------------


def test_sampled_answers_have_the_chances_asked_for():
    rng = np.random.default_rng(0)
    p_A = np.array([0.1, 0.5, 0.15, 0.25])
    p_AGP = np.broadcast_to(p_A[:, None, None], (4, 3000, 4))
    n_GP = rng.integers(1, 6, (3000, 4))
    counts = sampled_answers(p_AGP, n_GP, iter(rng.random((5, 3000, 4))))
    np.testing.assert_array_equal(counts.sum(axis=0), n_GP)
    np.testing.assert_allclose(counts.sum(axis=(1, 2)) / n_GP.sum(), p_A, atol=0.01)
    assert sampled_answer([0.2, 0.8], 0.1999) == 0
    assert sampled_answer([0.2, 0.8], 0.2) == 1


def test_answer_pulls_are_the_gradient_of_the_weighted_log_likelihood():
    logits, answers = np.array([0.3, -0.2, 0.5, 0.0]), np.array([0, 2, 0, 3, 3])
    rewards = (answers == 0).astype(float)
    advantages = (rewards - rewards.mean()) / (rewards.std(ddof=1) + 1e-4)

    def objective(z):
        return (advantages * (z - np.log(np.exp(z).sum()))[answers]).mean()

    numeric = [(objective(logits + 1e-6 * e) - objective(logits - 1e-6 * e)) / 2e-6 for e in np.eye(4)]
    counts = np.bincount(answers, minlength=4)[:, None, None]
    pulls, square = answer_pulls(counts, np.array([[5]]))
    np.testing.assert_allclose(pulls[:, 0, 0], numeric, atol=1e-8)
    np.testing.assert_allclose(square[0, 0], ((advantages / 5) ** 2).sum())


def test_all_right_and_all_wrong_pull_nothing():
    for counts in ([4, 0, 0, 0], [0, 1, 3, 0]):
        pulls, square = answer_pulls(np.array(counts)[:, None, None], np.array([[4]]))
        assert (pulls == 0).all()
        assert square == 0


@pytest.mark.parametrize("tail", [0.0, 0.7, 2.0, 5.0])
def test_skill_counts_follow_the_tail(tail):
    counts = skill_counts(World(tail=tail, prompts=100, skills=7))
    assert counts.sum() == 100
    assert counts.min() >= 1
    assert (np.diff(counts) <= 0).all()
    wanted = 1 + 93 * np.arange(1, 8.0) ** -tail / (np.arange(1, 8.0) ** -tail).sum()
    assert np.abs(counts - wanted).max() <= 1


def test_resampling_draws_hard_bins_more_often():
    games = [Game(World(tail=0.0, spread=3.0), method, step_size=8.0) for method in ("grpo", "resample")]
    result = play(games, range(16), [60])
    assert result.worst_skill()[1].mean() > result.worst_skill()[0].mean() + 0.1


# ---- the map ----------------------------------------------------------------------------------


def test_paired_gain_matches_a_t_interval_over_worlds():
    from scipy.stats import ttest_1samp

    rng = np.random.default_rng(0)
    seeds = np.arange(2 * WORLDS)
    values = rng.normal(size=len(seeds))
    gain = paired_gain(values, np.zeros(len(seeds)), seeds)
    by_world = (values[:WORLDS] + values[WORLDS:]) / 2
    low, high = ttest_1samp(by_world, 0.0).confidence_interval(0.95)
    np.testing.assert_allclose([gain.mean - gain.half, gain.mean + gain.half], [low, high])
    assert gain.verdict() == (1 if low > 0 else -1 if high < 0 else 0)


def test_gain_map_compares_at_grpo_best_step_size_of_other_seeds():
    worlds, steps, seeds, other = [World(), World(tail=0.0)], (4.0, 16.0), range(16), range(100, 116)
    gains, chosen = gain_map(worlds, ["resample"], steps, other, seeds, [5, 15])
    best, _ = best_step_sizes(worlds, steps, other, [5, 15])
    np.testing.assert_array_equal(chosen["pass_at_8"], np.array(steps)[best["pass_at_8"]])
    y, c = 1, 1
    step = chosen["pass_at_8"][y, c]
    by_hand = play(
        [Game(worlds[y], m, step_size=step) for m in ("grpo", "resample")], seeds, [15]
    ).mean_pass_at_8()
    np.testing.assert_allclose(gains["pass_at_8"].mean[0, y, c], (by_hand[1] - by_hand[0]).mean(), atol=1e-12)
    with pytest.raises(ValueError, match="overlap"):
        gain_map(worlds, ["resample"], steps, seeds, seeds, [5])
    assert own_best_gains(worlds, ["prompt"], steps, other, seeds, 5).mean.shape == (1, 2)


def test_ablation_starts_from_the_game_as_it_is():
    game = Game(method="resample")
    table = ablate(game, {"same": {}, "EMA off": {"ema": 1.0}}, range(16), 6)
    assert table["same"]["pass_at_8"].mean == table["as it is"]["pass_at_8"].mean
    assert set(table["EMA off"]) == {"pass_at_8", "worst_skill", "typical"}


def test_real_gains_reads_records_or_says_that_there_are_none(tmp_path):
    from gdro.records import write_table

    assert real_gains(tmp_path) is None
    for variant, right in (("grpo", 1), ("prompt", 3)):
        rows = [
            {"uid": i, "family": "ab"[i % 2], "successes": right, "trials": 4, "tokens": 8} for i in range(4)
        ]
        write_table(tmp_path / variant / "seed0" / "evaluation.jsonl", rows)
    found = real_gains(tmp_path)
    assert found["seeds"] == 1
    assert found["gains"]["prompt"] == [(0.0, 0.0, 0.0), (0.5, 0.5, 0.5)]


def test_shipped_gains_are_those_of_the_table(tmp_path):
    gains = shipped_gains()
    assert set(REAL_VARIANTS) <= set(gains)
    assert "grpo" not in gains
    low, high = gains["prompt-resample"]["pass_at_8"][1:]
    assert low < gains["prompt-resample"]["pass_at_8"][0] < high < 0
    with pytest.raises(FileNotFoundError, match="scores"):
        shipped_gains(measured_dir=tmp_path)


def test_toy_against_real_plays_the_variants_that_the_toy_has():
    real = {
        "prompt": {"label": "P", "pass_at_8": (0.1, 0.0, 0.2), "worst_skill": (0.0, -0.1, 0.1)},
        "elsewhere": {"label": "E", "pass_at_8": (0.0, 0.0, 0.0), "worst_skill": (0.0, 0.0, 0.0)},
    }
    table = toy_against_real(World(), 16.0, range(16), 6, real)
    assert list(table) == ["P"]
    assert table["P"]["pass_at_8"]["real"] == (0.1, 0.0, 0.2)
    by_hand = play([Game(method=m, step_size=16.0) for m in ("grpo", "prompt")], range(16), [6]).worst_skill()
    mean, low, high = table["P"]["worst_skill"]["toy"]
    np.testing.assert_allclose(mean, (by_hand[1] - by_hand[0]).mean(), atol=1e-12)
    assert low <= mean <= high


# ---- bad input --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"gamma": 1.5}, ["gamma", "1.5", "uniform share"]),
        ({"n_min": 9}, ["n_min", "9 > 8"]),
        ({"mean_rollouts": 20}, ["mean_rollouts", "20"]),
        ({"num_bins": 1}, ["num_bins", "1"]),
        ({"k": 0}, ["k", "0"]),
        ({"hysteresis": 1.0}, ["hysteresis", "1.0"]),
        ({"estimator": "magic"}, ["estimator", "magic", "beta"]),
        ({"method": "ppo"}, ["method", "ppo", "grpo"]),
        ({"step_size": 0.0}, ["step_size", "0.0", "try"]),
        ({"batch": 1000}, ["batch", "1000", "48"]),
        ({"score": "sum"}, ["score", "sum"]),
        ({"grouping": "colour"}, ["grouping", "colour"]),
        ({"ema": 0.0}, ["ema", "0.0"]),
    ],
)
def test_bad_games_are_refused_with_field_value_and_remedy(fields, words):
    with pytest.raises(ValueError) as caught:
        Game(**fields)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"tail": -1.0}, "tail"),
        ({"spread": np.nan}, "spread"),
        ({"transfer": 1.2}, "transfer"),
        ({"skills": 0}, "skills"),
        ({"prompts": 3}, "prompts"),
        ({"rare": "sometimes"}, "rare"),
        ({"answers": 1}, "answers"),
    ],
)
def test_bad_worlds_are_refused(fields, word):
    with pytest.raises(ValueError, match=word):
        World(**fields)


@pytest.mark.parametrize(
    "arguments",
    [
        ([], [0], [1]),
        ([Game()], [], [1]),
        ([Game()], [0], []),
        ([Game()], [0], [5, 2]),
        ([Game()], [-1], [1]),
    ],
)
def test_bad_plays_are_refused(arguments):
    with pytest.raises(ValueError):
        play(*arguments)


def test_worlds_of_unlike_sizes_are_refused_together():
    with pytest.raises(ValueError, match="skills"):
        play([Game(), replace(Game(), world=World(skills=3))], [0], [1])
