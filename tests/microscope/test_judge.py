"""Methods played on pools: against resampling through the controller, splits, draws, refusals."""

import numpy as np
import pytest
from click.testing import CliRunner
from pools import bernoulli_pool, random_pool
from processes import REPOSITORY
from scipy import stats

from gdro import GDROController, Method, register
from gdro_lab.microscope import judge as judging
from gdro_lab.microscope.__main__ import main
from gdro_lab.microscope.judge import Setting, judge, scores_against

QUICK = {"judged": 24, "splits": 1}


def play_by_hand(pool, setting, method, options, resamples):
    """Gradients of one taught and planned batch, each from rollouts of its own, (X, S)."""
    known = pool.rewards_PK.shape[1] - setting.judged
    rng = np.random.default_rng([setting.seed, 0])
    shape = pool.rewards_PK.shape
    order_PK = rng.permuted(np.tile(np.arange(shape[1]), (shape[0], 1)), axis=1)
    judged_PJ = order_PK[:, : setting.judged]
    known_PJ = np.take_along_axis(pool.rewards_PK, order_PK[:, setting.judged :], 1)
    assert known_PJ.shape[1] == known
    play_rng = np.random.default_rng([setting.seed, 0, 0])
    controller = judging._controller(pool, method, setting, 0, options)
    judging._teach(controller, pool, known_PJ, shape[0], setting.visits, play_rng)
    places = play_rng.permutation(shape[0])
    plan = controller.plan(pool.uids_P[places])
    chosen_rng = np.random.default_rng(5)
    gradients_PKS = pool.sketch_NS[pool.texts_PK].astype(float)
    rollouts_OXR = []
    hits_XO = np.zeros((resamples, len(places)), int)
    for o, (place, n) in enumerate(zip(places, plan.rollouts, strict=True)):
        shuffled = chosen_rng.permuted(np.tile(judged_PJ[place], (resamples, 1)), axis=1)
        rollouts_OXR.append(shuffled[:, :n])
        hits_XO[:, o] = pool.rewards_PK[place][shuffled[:, :n]].sum(axis=1)
    outcomes_UO, outcome_X = np.unique(hits_XO, axis=0, return_inverse=True)
    answers_UO2 = np.stack(
        [judging.observed_advantages(controller, plan, hits_O) for hits_O in outcomes_UO]
    )
    totals_XS = np.zeros((resamples, gradients_PKS.shape[-1]))
    for o, place in enumerate(places):
        right_XR = pool.rewards_PK[place][rollouts_OXR[o]] > 0
        advantages_X2 = answers_UO2[outcome_X, o]
        if setting.averaging == "prompt":
            advantages_X2 = advantages_X2 * setting.rollouts / plan.rollouts[o]
        factors_XR = np.where(right_XR, advantages_X2[:, :1], advantages_X2[:, 1:])
        totals_XS += np.einsum("xr,xrs->xs", factors_XR, gradients_PKS[place][rollouts_OXR[o]])
    lengths_P = pool.mean_length_P / pool.mean_length_P.mean()
    return totals_XS / (plan.rollouts @ lengths_P[places])


@pytest.mark.parametrize(
    ("method", "options", "played"),
    [
        ("rollout_prompts", {}, {"groups": True}),
        ("rollout", {"averaging": "rollout"}, {}),
        ("composed", {"rollouts": "vip", "advantages": "rloo"}, {"averaging": "prompt"}),
    ],
)
def test_moments_are_those_of_resampled_batches(method, options, played):
    """20,000 batches through the real controller."""
    pool = random_pool(8, prompts=4, rollouts=36, families_P=["a", "b", "a", "b"])
    setting = Setting(**QUICK, **played)
    judged = judge(pool, method, setting, **options)
    totals_XS = play_by_hand(pool, setting, method, options, 20_000)
    squares_X = np.square(totals_XS).sum(axis=1)
    error = squares_X.std() / np.sqrt(len(squares_X))
    whole = judged.scores()
    # both parts are without the pool's noise, of which their sum has none
    assert abs(squares_X.mean() - whole["variance"] - whole["square"]) <= 4 * error
    assert error <= 0.02 * squares_X.mean()


def test_the_law_holds_where_its_assumptions_do():
    """Bernoulli prompts, by prompt: rollouts go to noisy ones, and the variance falls as known.

    RLOO's group mean has the variance (μ4 − σ⁴ (n − 3)/(n − 1))/n, times the squared slope 1.
    """
    rates_P = np.repeat([0.02, 0.3], 6)
    families_P = np.repeat(["hard", "middle"], 6)
    pool = bernoulli_pool(rates_P, 512, np.random.default_rng(3), families_P)
    setting = Setting(judged=448, splits=2, n_max=6, visits=2)
    by_rollout = {"rollouts": "rollout_prompts", "advantages": "rloo"}
    uniform = judge(pool, "composed", setting, advantages="rloo")
    known = Setting(judged=448, splits=2, n_max=6, visits=2, groups=True, averaging="prompt")
    moved = judge(pool, "composed", known, **by_rollout)
    assert scores_against(moved, uniform)["cosine"][0] == pytest.approx(1, abs=0.02)

    def exact(n_P):
        square_P = rates_P * (1 - rates_P)
        spread_P = square_P * (1 - 3 * square_P) - square_P**2 * (n_P - 3) / (n_P - 1)
        return (spread_P / n_P).sum() / len(n_P) ** 2

    assert uniform.scores()["variance"] == pytest.approx(exact(np.full(12, 4)), rel=0.1)
    ends_P = np.where(rates_P < 0.1, 2, 6)  # where knowledge of the families leads
    ratio = scores_against(moved, uniform)["variance_ratio"][0]
    assert exact(ends_P) / exact(np.full(12, 4)) <= ratio < 1


def test_an_interval_is_that_of_prompts_and_holds_its_estimate():
    """Of sums over prompts without shared terms, the jackknife is Student's t of a ratio."""
    rng = np.random.default_rng(0)
    nothing = np.zeros((40, 40))
    ones = judging.Judged(np.ones(40), nothing, np.eye(40), nothing, nothing)
    ours = judging.Judged(rng.gamma(4, 1, 40), nothing, np.eye(40), nothing, nothing)
    value, low, high = scores_against(ours, ones)["variance_ratio"]
    expected = stats.ttest_1samp(ours.variance_P, 0).confidence_interval()
    assert value == pytest.approx(ours.variance_P.mean())
    assert (low, high) == pytest.approx((expected.low, expected.high))
    pool = random_pool(2, prompts=8, rollouts=60)
    setting = Setting(judged=30, splits=2, prompts=3, plays=4)
    methods = {name: judge(pool, name, setting) for name in ("grpo", "pkpo", "pivotal")}
    for judged in methods.values():
        for value, low, high in scores_against(judged, methods["grpo"]).values():
            assert low <= value <= high


def test_draws_add_the_variance_of_a_sample_of_prompts():
    """The law of total variance: half of the prompts at random, against sampling theory."""
    pool = random_pool(2, prompts=8, rollouts=40)
    setting = {"judged": 30, "splits": 1, "divide_by": "rollouts"}
    drawn = judge(pool, "rloo", Setting(**setting, prompts=4, plays=30))
    whole = judge(pool, "rloo", Setting(**setting))
    # the mean gradient of a prompt alone, times the prompts
    own_PP = whole.square_PP * 64
    mean_square = own_PP.sum() / 64
    spread = (np.trace(own_PP) - 8 * mean_square) / 7
    expected = spread / 4 * (1 - 4 / 8)
    found = drawn.scores()
    # thirty draws know their variance to a quarter, and their mean to its standard error
    assert found["variance_of_draws"] == pytest.approx(expected, rel=0.4)
    apart = abs(np.sqrt(found["square"]) - np.sqrt(whole.scores()["square"]))
    assert apart <= 3 * np.sqrt(expected / 30)
    # half of the rollouts
    assert found["variance"] == pytest.approx(2 * whole.scores()["variance"], rel=0.05)


def test_the_same_seed_gives_the_same_numbers():
    pool = random_pool(4, prompts=5, rollouts=40)
    setting = Setting(judged=30, splits=3, prompts=3, plays=3)
    one = judge(pool, "pivotal", setting).scores()
    assert judge(pool, "pivotal", setting).scores() == one
    other = Setting(judged=30, splits=3, prompts=3, plays=3, seed=1)
    assert judge(pool, "pivotal", other).scores() != one


def test_a_method_that_looks_at_the_whole_batch_is_played_beside_outcomes():
    """Prompt-GDRO's weights hang on all groups; their mean is 1, so its step is about GRPO's."""
    pool = random_pool(5, prompts=8, rollouts=40)
    controller = GDROController("prompt", 4)
    judging._teach(controller, pool, pool.rewards_PK, 8, 2, np.random.default_rng(0))
    plan = controller.plan(pool.uids_P)
    assert judging.advantage_tables(controller, plan) is None
    found = judge(pool, "prompt", Setting(**QUICK)).scores()
    grpo = judge(pool, "grpo", Setting(**QUICK)).scores()
    assert 0.3 < found["square"] / grpo["square"] < 3
    controller = GDROController("grpo", 4)
    assert judging.advantage_tables(controller, controller.plan(pool.uids_P)) is not None


@register("by_place")
class ByPlace(Method):
    """Not a function of the reward."""

    def advantages(self, batch):
        return np.arange(len(batch.rewards_R), dtype=float)


@register("draws_twice")
class DrawsTwice(Method):
    def draw(self, pool, size, rng):
        return np.zeros(size, int)


@pytest.mark.parametrize(
    ("method", "setting", "named"),
    [
        ("dapo", {}, "dapo"),
        ("dars", {}, "dars"),
        ("pivotal_replay", {}, "pivotal_replay"),
        ("by_place", {}, "by_place"),
        ("nsr", {}, "nsr"),  # of groups of equal rewards, whose gradients are not there
        ("draws_twice", {"prompts": 3, "plays": 2}, "draws_twice"),
        ("grpo", {"prompts": 3}, "plays"),
        ("grpo", {"prompts": 7}, "prompts"),
        ("grpo", {"judged": 40}, "judged"),
        ("rollout_prompts", {"judged": 6}, "judged"),
        ("grpo", {"visits": 5}, "visits"),  # of 4 rollouts, where 16 are left
        ("grpo", {"rollouts": 1.0}, "rollouts"),
    ],
)
def test_what_cannot_be_judged_is_refused(method, setting, named):
    pool = random_pool(6, prompts=6, rollouts=40)
    pool.texts_PK[2] = -1  # the flat prompt
    with pytest.raises(ValueError, match=named):
        judge(pool, method, Setting(**QUICK | setting))


def test_a_pool_without_flat_gradients_serves_methods_with_a_baseline():
    pool = random_pool(6, prompts=6, rollouts=40)
    whole = judge(pool, "grpo", Setting(**QUICK)).scores()
    pool.texts_PK[2] = -1
    assert judge(pool, "grpo", Setting(**QUICK)).scores() == whole


def test_the_command_knows_options_and_methods_of_ones_own(tmp_path):
    path = tmp_path / "pool.npz"
    random_pool(7, prompts=6, rollouts=60).save(path)
    text = (REPOSITORY / "examples/own_method.py").read_text("utf-8")
    file = tmp_path / "judged.py"  # under a name that no other test has registered
    file.write_text(text.replace('"failures"', '"judged_failures"'), "utf-8")
    own = ["--methods-from", str(file), "judged_failures:floor=1"]
    methods = ["rollout:averaging=rollout", "rollout:averaging=prompt", "dapo"]
    played = ["--splits", "2", "--visits", "2"]
    result = CliRunner().invoke(main, ["judge", str(path), *played, *own, *methods])
    scores = [line.partition(": ")[2] for line in result.stdout.splitlines()]
    assert len(set(scores)) == 3
    assert "dapo" in result.stderr  # with the reason, and the others go on
    assert result.exit_code == 2
