"""The controller: one step's way from uids to advantages, plans in flight, its state."""

import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch
from helpers import come_back, play

from gdro import GDROController, sample_in_rounds
from gdro.advantages import group_advantages

SHARP = {"k": 1, "history": 1, "hysteresis": 0.0, "edges": (0.2, 0.4, 0.6, 0.8)}


def give_record(controller, uids, successes):
    """A past of ten rollouts for prompts, without a step."""
    controller.bins.update(uids, np.asarray(successes), np.full(len(successes), 10))


def test_a_plan_is_a_value_that_is_observed_once_and_not_after_a_state_was_loaded():
    controller = GDROController("both")
    state, early = controller.state_dict(), controller.plan(["a", "b"])
    assert early.uids == ["a", "b"]
    controller.load_state_dict(state)
    plan = controller.plan(["a", "b"])
    controller.observe(pickle.loads(pickle.dumps(plan)), [0, 1], [0, 1])
    foreign = GDROController("both").plan(["a", "c"])
    again = controller.plan(["a", "b"])
    again.rollouts[:] = 0  # what the caller does to it has no effect
    controller.observe(again, torch.tensor([0, 1]), torch.tensor([0.0, 1.0]))
    controller.plan(["a", "b"])
    for closed in (early, plan, foreign):  # the same plan, whichever copy
        with pytest.raises(ValueError, match="plan"):
            controller.observe(closed, [0, 1], [0, 1])


def test_a_mean_that_is_not_whole_is_spent_exactly():
    controller = GDROController("rollout", 4.5)
    play(controller, 0, [0, 1], [0.5, 0.5])
    rollouts = controller.plan(np.arange(1, 257)).rollouts  # the one seen does not pay for it
    assert rollouts.sum() == 1152
    assert sorted(set(rollouts.tolist())) == [4, 5]
    # 4.1 × 30 is 122.99999999999999 in floating point
    assert GDROController("both", 4.1).plan(list(range(30))).rollouts.sum() == 123


def test_an_infeasible_budget_is_met_by_single_prompts_at_random():
    """Two bins of three prompts each: every choice of arms spends a multiple of three."""
    order, seen = np.array([3, 1, 5, 0, 4, 2]), set()
    for seed in range(8):
        rollouts = []
        for uids in (np.arange(6), order):
            controller = GDROController("rollout", 25 / 6, bins=SHARP, seed=seed)
            give_record(controller, np.arange(6), [0, 0, 0, 10, 10, 10])
            rollouts.append(controller.plan(uids).rollouts)
        assert rollouts[0].sum() == 25
        assert rollouts[0][order].tolist() == rollouts[1].tolist()
        seen.add(tuple(rollouts[0]))
    assert len(seen) > 1  # it moves with the seed


@pytest.mark.parametrize("method", ["grpo", "prompt", "rollout", "both"])
def test_nothing_is_learned_from_what_is_missing(method):
    controller = GDROController(method, bins=SHARP)
    give_record(controller, np.arange(8), np.repeat([0, 10], 4))
    plan = controller.plan(np.arange(9))  # 8 has no record
    group_ids, rewards = come_back(plan, 0, np.linspace(0, 1, 9))
    missing = np.isin(np.arange(9), [2, 5])
    kept = ~missing[group_ids] & (np.arange(len(group_ids)) % 4 != 1)
    rows = controller.bins.rows(np.arange(9))
    before = np.array(controller.bins.beliefs.counts(rows))
    batch = controller.observe(plan, group_ids[kept], rewards[kept])
    assert batch.weights[missing].tolist() == [1.0, 1.0]
    assert batch.advantages.shape == (kept.sum(),)
    # three hard prompts came back, three easy ones, and the new one, which counts where it arrived
    assert np.multiply(batch.row["share"], 7) == pytest.approx([3, 0, 0, 0, 4])
    assert batch.row["mean_reward"] == rewards[kept].mean()
    counted = [np.bincount(group_ids[kept], hit[kept], 9) for hit in (rewards, ~rewards)]
    keep = np.where(missing, 1.0, 1 - 1 / controller.bins.history)
    assert np.array(controller.bins.beliefs.counts(rows)) == pytest.approx(keep * before + counted)


def test_a_prompt_seen_by_another_plan_meanwhile_is_not_counted_as_new_to_it():
    controller = GDROController("both")
    first, second = controller.plan([1, 2]), controller.plan([1, 3])
    controller.observe(first, *come_back(first, 0, [1.0, 0.0]))
    seen = {}
    controller.method.update = lambda batch: seen.update(batch=batch)
    controller.observe(second, *come_back(second, 0, [1.0, 1.0]))
    assert seen["batch"].successes_P.tolist() == [4.0, 0.0]
    assert seen["batch"].failures_P.tolist() == [0.0, 0.0]


def test_the_record_of_a_step_by_hand():
    controller = GDROController(
        "prompt", bins=SHARP, averaging="prompt", prompt={"ema": 1.0, "eta": 1.0}
    )
    give_record(controller, ["hard", "easy"], [0, 10])
    plan = controller.plan(["easy", "hard", "new"])
    group_ids, rewards = [0, 0, 0, 1, 1, 1, 1, 2, 2], [1, 1, 0, 0, 0, 1, 0, 1, 1]
    row = controller.observe(plan, group_ids, rewards).row
    # "new" counts in the bin it has just reached, the last, beside "easy"; "hard" in the first
    assert row["share"] == pytest.approx([1 / 3, 0, 0, 0, 2 / 3])
    easy = pytest.approx((2 / 3 + 1) / 2)
    assert row["success"] == [pytest.approx(1 / 4), None, None, None, easy]
    assert row["rollouts"] == [4, None, None, None, pytest.approx(2.5)]
    assert row["deviation"][0] == pytest.approx(0.5)
    assert row["deviation"][4] == pytest.approx(np.sqrt((1 / 3 + 0) / 2))
    assert row["mean_reward"] == pytest.approx(5 / 9)
    # failure rates .75 and 1/6, other bins at their mean
    middle = (0.75 + 1 / 6) / 2
    assert row["weight"] == pytest.approx(np.exp([0.75, middle, middle, middle, 1 / 6]).tolist())
    assert (row["step"], row["unseen"], row["demand"], row["price"]) == (0, 1, None, None)


@pytest.mark.parametrize(
    ("signal", "averaging", "expected"),
    [
        ("failure_rate", "prompt", (1 / 4 + 1) / 2),
        ("failure_rate", "rollout", (1 + 2) / 6),
        ("surrogate", "prompt", (2.5 + 10) / 2),
        ("surrogate", "rollout", (10 + 20) / 6),
    ],
)
def test_signals_and_averages_by_hand(signal, averaging, expected):
    controller = GDROController(
        "prompt", bins=SHARP, prompt={"ema": 1.0}, signal=signal, averaging=averaging
    )
    give_record(controller, [0, 1], [0, 0])
    rollouts = [0, 0, 0, 0, 1, 1], [1, 1, 0, 1, 0, 0]
    assert controller.method.needs_losses == (signal == "surrogate")
    controller.observe(controller.plan([0, 1]), *rollouts, losses=[1, 2, 3, 4, 10, 10])
    assert controller.method.prompt_adversary.scores()[0] == pytest.approx(expected)


def test_arm_losses_come_from_prompts_that_played_the_arm():
    """A first visit gets n̄ whatever arm its bin plays, so its loss says nothing of that arm."""
    rollout = {"utility": "loss", "ema": 1.0, "bonus": 0.0, "price_lr": 0.0}
    controller = GDROController("rollout", bins=SHARP, rollout=rollout)
    game = controller.method.rollout_adversary
    give_record(controller, [4, 5, 6], [0, 0, 10])
    plan = controller.plan([4, 5, 6, 7])
    arm = plan.rollouts[0] - 2
    probability = game.played_BN[0, arm]
    assert 0 < probability < 1
    group_ids = np.repeat(np.arange(4), plan.rollouts)
    losses = np.array([0.5, 0.5, 0.1, 99.0])[group_ids]
    # another plan in flight does not change what this one played
    later = controller.plan([4, 5, 6, 7])
    controller.observe(plan, group_ids, np.zeros(16), losses=losses)  # 7 reaches the hardest bin
    assert controller.bins.assign([7]).tolist() == [0]
    assert game.losses()[0, arm] == pytest.approx(0.5 / probability)
    assert later.rollouts.sum() == 16


@pytest.mark.parametrize("utility", ["variance", "loss"])
@pytest.mark.parametrize(("driver", "mean"), [("realized", 4), ("realized", 4.5), ("demand", 4)])
def test_the_printed_price_never_moves_even_with_prompts_not_seen_and_rollouts_lost(
    utility, driver, mean
):
    rollout = {"utility": utility, "price_driver": driver}
    controller, rng = GDROController("rollout", mean, rollout=rollout), np.random.default_rng(0)
    rates = np.linspace(0.02, 0.98, 40)
    for step in range(10):
        chosen = rng.choice(40, 14, replace=False)
        play(controller, step, chosen, rates[chosen])
    plan = controller.plan(np.arange(14))
    controller.observe(plan, [0, 0, 1], [1, 0, 1])
    assert (controller.method.rollout_adversary.price == 0.0) == (driver == "realized")


@pytest.mark.parametrize("std", ["population", "sample"])
@pytest.mark.parametrize("scale", ["group", "batch", "none"])
@pytest.mark.parametrize("clip", [None, 0.7])
def test_advantages_by_hand_in_groups_of_any_size(std, scale, clip):
    groups, freedom = [[1.0, 0, 0], [2.0], [1.0, 1.0], [0.0, 3, 1, 5]], std == "sample"
    rewards = np.concatenate(groups)
    by_hand = []
    for group in map(np.array, groups):
        sigma = {"group": group.std(ddof=freedom) if len(group) > 1 else 0.0, "none": 1 - 1e-4}
        sigma["batch"] = rewards.std(ddof=freedom)
        by_hand.append((group - group.mean()) / (sigma[scale] + 1e-4))
    expected = np.clip(np.concatenate(by_hand), -(clip or np.inf), clip or np.inf)
    ids = np.repeat(np.arange(4), [3, 1, 2, 4])
    assert group_advantages(rewards, ids, 4, std, scale, clip) == pytest.approx(expected)
    equal = np.full(8, 0.1)  # whose mean is not .1
    assert not group_advantages(equal, np.zeros(8, int), 1, std, scale, clip).any()
    order = np.random.default_rng(0).permutation(10)
    controller = GDROController("grpo", advantage_std=std, scale_rewards=scale, advantage_clip=clip)
    batch = controller.observe(controller.plan([9, 7, 5, 3]), ids[order], rewards[order])
    assert batch.advantages == pytest.approx(expected[order])


@pytest.mark.parametrize("scale", ["mean", "none"])
def test_weights_are_those_of_the_bins(scale):
    blocks = {"k": 4, "history": 2, "estimator": "any_of_k"}
    settings = {"weight_scale": scale, "averaging": "rollout"}  # rollouts are missing below
    controller = GDROController("prompt", bins=SHARP | blocks, **settings)
    give_record(controller, [0, 1], [0, 10])
    plan = controller.plan([1, 99, 0])  # two rollouts are too few for an estimate of 99
    weights = controller.observe(plan, [0, 0, 1, 1, 2, 2], [1, 1, 1, 0, 0, 0]).weights
    omega = controller.method.prompt_adversary.weights()
    mean = (omega[0] + omega[4]) / 2
    assert omega[0] > omega[4]
    expected = np.array([omega[4], mean, omega[0]]) / (mean if scale == "mean" else 1)
    assert weights == pytest.approx(expected)


@pytest.mark.parametrize("averaging", ["rollout", "prompt"])
def test_by_prompt_each_counts_as_one_however_many_its_rollouts(averaging):
    controller = GDROController("rollout", averaging=averaging)
    batch = controller.observe(controller.plan([0, 1]), [0] * 2 + [1] * 4, [1, 0, 1, 0, 0, 0])
    assert batch.weights.tolist() == ([2.0, 1.0] if averaging == "prompt" else [1.0, 1.0])
    unweighted = group_advantages(np.array([1.0, 0, 1, 0, 0, 0]), np.repeat([0, 1], [2, 4]), 2)
    assert batch.advantages == pytest.approx(unweighted * np.repeat(batch.weights, [2, 4]))


def test_draws_follow_the_bin_probabilities_and_leave_unseen_prompts_their_share():
    """Bins of 10, 20, 30 and 40 prompts and 20 not seen, with q far from the shares."""
    bins_D = np.repeat([0, 1, 2, 4, -1], [10, 20, 30, 40, 20])
    controller = GDROController("prompt", bins=SHARP, action="resample")
    give_record(controller, list(range(100)), [0] * 10 + [3] * 20 + [5] * 30 + [10] * 40)
    controller.method.prompt_adversary.update([0, 1, 2, 4], [2.0, 1.0, 0.5, 0.0])
    q = controller.method.prompt_adversary.probabilities()
    q[3] = 0  # bin 3 has no prompts
    expected = np.append(100 / 120 * q / q.sum(), 20 / 120)
    drawn = []
    for _ in range(400):
        drawn.extend(controller.draw(np.arange(120), 30))
        controller.plan([0])  # the next step
    drawn = np.array(drawn)
    found = [(bins_D[drawn] == b).mean() for b in (0, 1, 2, 3, 4, -1)]
    assert found == pytest.approx(expected, abs=0.015)
    for b in (0, -1):  # and evenly within a bin
        counts = np.bincount(drawn, minlength=120)[bins_D == b]
        assert np.abs(counts - counts.mean()).max() <= 4.5 * np.sqrt(counts.mean())
    # a prompt comes again only when its bin is used up, whatever the order of the data
    shuffled = np.random.default_rng(0).permutation(120)
    drawn = controller.draw(np.arange(120), 110)
    assert drawn.tolist() == shuffled[controller.draw(shuffled, 110)].tolist()
    for b in (0, 1, 2, 4, -1):
        times = np.bincount(drawn, minlength=120)[bins_D == b]
        assert times.max() - times.min() <= 1


def test_what_belongs_to_another_controller_is_refused():
    other = {"seed": 1}, {"method": "prompt"}, {"rollout": {"eta": 1.0}}, {"bins": {"k": 2}}
    for changed in (*other, {"success_threshold": 0.5}):
        state = GDROController(**{"method": "both"} | changed).state_dict()
        with pytest.raises(ValueError, match="settings"):
            GDROController("both").load_state_dict(state)
    with pytest.raises(ValueError, match="method"):
        GDROController(GDROController("both").method)


def test_the_presets_are_as_stated_and_can_be_overridden():
    printed = GDROController("both", preset="paper", prompt={"eta": 2.0})
    prompt = {"eta": 2.0, "gamma": 0.01, "ema": 0.12, "max_weight": 15.0, "debias": False}
    rollout = {"n_min": 2, "n_max": 12, "eta": 0.65, "ema": 0.4, "price_lr": 0.05}
    rollout |= {"utility": "loss", "selection": "argmax", "joint": "bins"}
    for owner, values in (
        (GDROController("both").bins, {"k": 1, "history": 20, "hysteresis": 0.03}),
        (printed.bins, {"k": 8, "history": 50, "hysteresis": 0.03, "estimator": "any_of_k"}),
        (printed.method, {"signal": "surrogate", "averaging": "prompt", "weight_scale": "none"}),
        (printed.method.prompt_adversary, prompt | {"share_floor": 0.05}),
        (printed.method.rollout_adversary, rollout | {"price_driver": "realized"}),
    ):
        assert {name: getattr(owner, name) for name in values} == values


@pytest.mark.parametrize("method", ["both", "dapo"])
def test_gdro_needs_numpy_scipy_and_pydantic_alone(method):
    code = (
        f"import sys; from gdro import *; c = GDROController({method!r});"
        "c.observe(c.plan([1]), [0, 0], [1, 0]); print(*{n.split('.')[0] for n in sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = {"torch", "transformers", "trl", "pandas", "matplotlib", "yaml", "tqdm", "gdro_lab"}
    assert not set(done.stdout.split()) & heavy


def test_a_pool_that_was_drawn_from_before_has_the_counts_of_the_loaded_state():
    pool = np.arange(40)
    old = GDROController("lilo")
    play(old, 0, pool[::-1][:20], np.linspace(0, 1, 20))
    used, fresh = GDROController("lilo"), GDROController("lilo")
    used.draw(pool, 5)
    for controller in (used, fresh):
        controller.load_state_dict(old.state_dict())
    assert used.draw(pool, 5).tolist() == fresh.draw(pool, 5).tolist()


def test_plans_in_flight_and_rounds_have_random_numbers_of_their_own():
    controller = GDROController("rollout", mean_rollouts=2.5)  # who gets the third is random
    plans = {tuple(controller.plan(np.arange(20)).rollouts) for _ in range(3)}
    assert len(plans) == 3

    controller = GDROController("reinforce_ada", mean_rollouts=4)
    numbers = []

    def extend(batch, left, rng):
        numbers.append(rng.random())
        return np.ones(len(batch), int)

    controller.method.extend = extend
    sample_in_rounds(controller, controller.plan([1, 2]), lambda ids: [0.0] * len(ids))
    assert len(set(numbers)) == len(numbers) > 1


@pytest.mark.parametrize("method", ["grpo", "pivotal", "mc_grpo", "maxrl"])
def test_the_clip_of_advantages_bounds_every_method(method):
    told = []
    for clip in (None, 0.3):
        controller = GDROController(method, 4, advantage_clip=clip, seed=0)
        plan = controller.plan([0, 1])
        groups = np.repeat([0, 1], plan.rollouts)
        rewards = np.resize([0.0, 0.0, 0.0, 1.0], len(groups))
        told.append(controller.observe(plan, groups, rewards).advantages)
    assert abs(told[0]).max() > 0.3
    np.testing.assert_allclose(told[1], np.clip(told[0], -0.3, 0.3))


UIDS = np.arange(8)
MEASURED = {uid: [0.5, 0.0, None, 1.0][uid % 4] for uid in range(8)}


def test_the_first_batch_follows_pass_rates_that_were_measured_before():
    drawn = GDROController("lilo", pass_rates=MEASURED).draw(UIDS, 4)
    assert sorted(drawn) == [0, 2, 4, 6]  # p = ½, or unknown, which is ½ too
    controller = GDROController("knapsack", pass_rates=MEASURED, pass_rate_rollouts=16)
    plan = controller.plan(UIDS)
    assert plan.rollouts[[0, 4]].min() > plan.rollouts[[3, 7]].max() == 2
    assert controller.bins.assign(UIDS).tolist() == [5, 0, -1, 9] * 2
    row = controller.observe(plan, *come_back(plan, 0, np.full(8, 0.5))).row
    assert row["unseen"] == 2
    paper = GDROController("rollout", preset="paper", pass_rates=MEASURED, pass_rate_rollouts=8)
    paper.plan(UIDS)
    assert paper.bins.assign(UIDS).tolist() == [9, 0, -1, 9] * 2  # of pass@8


def test_a_wrong_pass_rate_is_outvoted():
    """Said to be .9 and never solved; each visit has half the evidence of the column."""
    controller = GDROController("pivotal", pass_rates={0: 0.9}, pass_rate_rollouts=8)
    rates, visited = [], []
    for seed in range(8):
        plan, _ = play(controller, seed, [0], [0.0])
        rates.append(plan.prompts.rate_P[0])
        visited.append(plan.prompts.visited_P[0])
    assert visited == [False] + [True] * 7
    assert rates[0] > 0.8
    assert rates[2] == pytest.approx(0.45, abs=0.02)
    assert rates[7] == pytest.approx(5.53 / 30.7, abs=0.01)
    assert controller.bins.assign([0]) == 1


def test_pass_rates_are_saved_and_prompts_that_join_later_have_theirs():
    controller = GDROController("pivotal", pass_rates=MEASURED)
    play(controller, 0, UIDS[:4], np.full(4, 0.5))
    state = controller.state_dict()
    for given in ({}, {"pass_rates": MEASURED | {8: 1.0}}):
        again = GDROController("pivotal", **given)
        again.load_state_dict(state)
        np.testing.assert_equal(again.state_dict(), state)
        plans = [c.plan([0, 1, 8]).prompts for c in (controller, again)]
        assert plans[0].rate_P[:2].tolist() == plans[1].rate_P[:2].tolist()
        assert plans[1].bins_P[2] == (9 if given else -1)
