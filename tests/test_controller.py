"""The controller: one step's way from uids to weights, its budget, its draws, its state, its refusals."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gdro import DifficultyBins, GDROController, PromptGDRO, RolloutGDRO
from gdro.controller import METHODS, PRESETS
from gdro.records import load_state, save_state

EDGES = (0.2, 0.4, 0.6, 0.8)
SHARP = {"k": 1, "history": 1, "estimator": "unbiased", "hysteresis": 0.0, "edges": EDGES}


def play(controller, seed, uids, rates, losses=True):
    """One step on prompts that succeed at the given rates. Returns (rollouts, record)."""
    rng = np.random.default_rng(seed)
    rollouts = controller.plan(uids)
    group_ids = np.repeat(np.arange(len(uids)), rollouts)
    rewards = (rng.random(len(group_ids)) < np.asarray(rates)[group_ids]).astype(float)
    return rollouts, controller.observe(
        uids, group_ids, rewards, losses=rng.normal(size=len(rewards)) if losses else None
    )


def book(controller, uids, successes, trials=10):
    """Give prompts a record, without a step."""
    controller.bins.update(uids, np.asarray(successes), np.full(len(successes), trials))


def trained(steps=6, prompts=40, batch=16, kind=int, **arguments):
    controller, rng = GDROController(**arguments), np.random.default_rng(0)
    rates = np.linspace(0.02, 0.98, prompts)
    for step in range(steps):
        chosen = rng.choice(prompts, batch, replace=False)
        play(controller, step, [kind(u) for u in chosen], rates[chosen])
    return controller


# Plan

settings_of_controller = st.fixed_dictionaries(
    {
        "method": st.sampled_from(METHODS),
        "preset": st.sampled_from(sorted(PRESETS)),
        "averaging": st.sampled_from(["prompt", "rollout"]),
        "unseen": st.sampled_from(["neutral", 0, 9]),
        "seed": st.integers(0, 99),
    }
)


@given(settings_of_controller, st.sampled_from([2, 4, 4.5, 7.25, 12]), st.integers(0, 99))
def test_every_plan_spends_the_budget_and_keeps_the_bounds(settings, mean, seed):
    controller = GDROController(rollout={"mean_rollouts": mean}, **settings)
    rng, rates = np.random.default_rng(seed), np.random.default_rng(1).random(30)
    for step in range(4):  # from all unseen to mostly seen
        chosen = rng.choice(30, 12, replace=False)
        rollouts, _ = play(controller, step, chosen, rates[chosen])
        assert rollouts.sum() == 12 * mean
        assert rollouts.min() >= 2
        assert rollouts.max() <= 12


def test_one_seen_prompt_among_many_does_not_pay_for_the_fraction():
    controller = GDROController("rollout", rollout={"mean_rollouts": 4.5})
    play(controller, 0, [0, 1], [0.5, 0.5])
    rollouts = controller.plan(list(range(1, 257)))
    assert rollouts.sum() == 1152
    assert sorted(set(rollouts[1:].tolist())) == [4, 5]


def test_a_mean_that_rounds_badly_is_still_spent_exactly():
    # 4.1 × 30 is 122.99999999999999 in floating point
    assert GDROController(rollout={"mean_rollouts": 4.1}).plan(list(range(30))).sum() == 123


@pytest.mark.parametrize("method", ["grpo", "prompt"])
def test_without_the_compute_adversary_all_prompts_get_the_mean(method):
    controller = trained(method=method)
    assert controller.plan(list(range(40))).tolist() == [4] * 40


def test_prompts_not_seen_get_the_mean_or_what_their_bin_gets():
    neutral, as_hard = (
        GDROController("rollout", bins=SHARP, unseen=unseen, rollout={"gamma": 0.0})
        for unseen in ("neutral", 0)
    )
    for controller in (neutral, as_hard):
        book(controller, [0, 1, 2, 3], [0, 0, 10, 10])
        controller.rollout.update([2, 0, 0, 0, 2], [4, 0, 0, 0, 4], [0.25, np.nan, np.nan, np.nan, 0.01])
    assert neutral.plan([0, 1, 2, 3, 8, 9])[4:].tolist() == [4, 4]
    planned = as_hard.plan([0, 1, 2, 3, 8, 9])
    assert planned[0] == planned[1] == planned[4] == planned[5] > planned[2]


def infeasible_controller(seed=0):
    """Two bins of three prompts each: every choice of arms spends a multiple of three."""
    controller = GDROController("rollout", bins=SHARP, seed=seed, rollout={"mean_rollouts": 25 / 6})
    book(controller, [0, 1, 2, 3, 4, 5], [0, 0, 0, 10, 10, 10])
    return controller


def test_an_infeasible_budget_is_met_by_single_prompts_and_counted():
    controller = infeasible_controller()
    rollouts = controller.plan([0, 1, 2, 3, 4, 5])
    assert rollouts.sum() == 25
    assert controller.rollout.infeasible_steps == 1
    assert sorted(rollouts - rollouts.min())[-1] >= 1


def test_the_lot_hangs_on_the_uid_and_moves_with_the_seed():
    order = [3, 1, 5, 0, 4, 2]
    for seed in range(5):
        straight = infeasible_controller(seed).plan([0, 1, 2, 3, 4, 5])
        shuffled = infeasible_controller(seed).plan(order)
        assert straight[order].tolist() == shuffled.tolist()
    assert len({tuple(infeasible_controller(seed).plan([0, 1, 2, 3, 4, 5])) for seed in range(8)}) > 1


@given(st.permutations(range(16)), settings_of_controller, st.sampled_from([int, str]))
def test_order_of_the_batch_changes_nothing_but_order(order, settings, kind):
    rates, order = np.linspace(0.05, 0.95, 16), np.array(order)
    uids = np.array([kind(100 + u) for u in range(16)])
    straight, shuffled = (GDROController(**settings) for _ in range(2))
    for step in range(3):
        rng = np.random.default_rng(step)
        rollouts, other = straight.plan(uids), shuffled.plan(uids[order])
        assert rollouts[order].tolist() == other.tolist()
        group_ids = np.repeat(np.arange(16), rollouts)
        rewards, losses = rng.random(64) < rates[group_ids], rng.normal(size=64)
        # the same rollouts, told in the other order
        place = np.argsort(order)[group_ids]
        first = straight.observe(uids, group_ids, rewards, losses=losses)
        second = shuffled.observe(uids[order], place, rewards, losses=losses)
        for name, value in first.items():
            assert second[name] == pytest.approx(value) or (value is None and second[name] is None)
        assert straight.weights(uids)[order] == pytest.approx(shuffled.weights(uids[order]))


# Observe


def test_the_record_of_a_step_by_hand():
    controller = GDROController(
        "prompt", bins=SHARP, prompt={"ema": 1.0, "gamma": 0.0, "eta": 1.0}, averaging="prompt"
    )
    book(controller, ["hard", "easy"], [0, 10])
    uids, group_ids = ["easy", "hard", "new"], [0, 0, 0, 1, 1, 1, 1, 2, 2]
    rewards = [1, 1, 0, 0, 0, 1, 0, 1, 1]
    row = controller.observe(uids, group_ids, rewards)
    # "new" is booked in the bin it has just earned, the last, beside "easy"; "hard" in the first
    assert row["share"] == pytest.approx([1 / 3, 0, 0, 0, 2 / 3])
    assert row["success"][0] == pytest.approx(1 / 4)
    assert row["success"][4] == pytest.approx((2 / 3 + 1) / 2)
    assert row["success"][1:4] == [None] * 3
    assert row["rollouts"][0] == 4
    assert row["rollouts"][4] == pytest.approx(2.5)
    assert row["deviation"][0] == pytest.approx(0.5)
    assert row["deviation"][4] == pytest.approx(np.sqrt((1 / 3 + 0) / 2))
    assert row["mean_reward"] == pytest.approx(5 / 9)
    # failure rates .75 and 1/6, other bins at their mean
    middle = (0.75 + 1 / 6) / 2
    assert row["weight"] == pytest.approx(np.exp([0.75, middle, middle, middle, 1 / 6]).tolist())
    assert (row["step"], row["unseen"], row["demand"], row["price"]) == (0, 0, None, 0.0)


@pytest.mark.parametrize(
    ("signal", "averaging", "expected"),
    [
        ("failure_rate", "prompt", (1 / 4 + 1) / 2),
        ("failure_rate", "rollout", (1 + 2) / 6),
        ("spread", "prompt", (1 / 4 + 0) / 2),
        ("spread", "rollout", (4 * 1 / 4 + 0) / 6),
        ("surrogate", "prompt", (2.5 + 10) / 2),
        ("surrogate", "rollout", (10 + 20) / 6),
    ],
)
def test_signals_and_averages_by_hand(signal, averaging, expected):
    controller = GDROController("prompt", bins=SHARP, prompt={"ema": 1.0}, signal=signal, averaging=averaging)
    book(controller, [0, 1], [0, 0])
    controller.observe([0, 1], [0, 0, 0, 0, 1, 1], [1, 1, 0, 1, 0, 0], losses=[1, 2, 3, 4, 10, 10])
    assert controller.prompt.scores()[0] == pytest.approx(expected)


def test_rewards_of_plus_and_minus_one_serve_as_well():
    zero_one, signed = GDROController("prompt"), GDROController("prompt")
    rewards = np.array([1, 0, 0, 1, 0, 0])
    zero_one.observe([0, 1], [0, 0, 0, 1, 1, 1], rewards)
    signed.observe([0, 1], [0, 0, 0, 1, 1, 1], 2 * rewards - 1)
    assert zero_one.prompt.weights().tolist() == signed.prompt.weights().tolist()


def test_arm_losses_come_from_prompts_that_played_the_arm():
    """A first visit gets n̄ whatever arm its bin plays, so its loss says nothing of that arm."""
    rollout = {"utility": "loss", "ema": 1.0, "bonus": 0.0, "price_lr": 0.0}
    controller = GDROController("rollout", bins=SHARP, rollout=rollout)
    play(controller, 0, [0, 1, 2, 3], [0.5] * 4)
    assert not controller.rollout.state_dict()["visits"].any()

    book(controller, [4, 5, 6], [0, 0, 10])
    rollouts = controller.plan([4, 5, 6, 7])
    chances = controller.rollout.state_dict()["chances"][0]
    arm = rollouts[0] - 2
    assert 0 < chances[arm] < 1
    group_ids = np.repeat(np.arange(4), rollouts)
    losses = np.array([0.5, 0.5, 0.1, 99.0])[group_ids]
    controller.observe([4, 5, 6, 7], group_ids, np.zeros(16), losses=losses)  # 7 earns the hardest bin
    assert controller.bins.assign([7]).tolist() == [0]
    assert controller.rollout.losses()[0, arm] == pytest.approx(0.5 / chances[arm])


@pytest.mark.parametrize("utility", ["variance", "loss"])
@pytest.mark.parametrize("mean", [4, 4.5])
def test_the_printed_price_never_moves_even_with_prompts_not_seen(utility, mean):
    controller = GDROController(
        "rollout", rollout={"utility": utility, "price_driver": "realized", "mean_rollouts": mean}
    )
    rng, rates = np.random.default_rng(0), np.linspace(0.02, 0.98, 60)
    for step in range(10):
        chosen = rng.choice(60, 14, replace=False)
        play(controller, step, chosen, rates[chosen])
    assert controller.rollout.price == 0.0


def test_the_live_price_moves():
    assert trained(method="rollout").rollout.price != 0.0


def test_all_unseen_leave_no_trace_in_the_games_until_they_have_an_estimate():
    controller = GDROController(bins={"estimator": "unbiased", "k": 8})
    _, row = play(controller, 0, [0, 1], [0.5, 0.5])  # four rollouts each, and k = 8 of them are needed
    assert row["unseen"] == 2
    assert row["share"] == [0.0] * 10
    assert not controller.prompt.state_dict()["visits"].any()


# Weights


def test_weights_are_those_of_the_bins():
    controller = GDROController("prompt", bins=SHARP, prompt={"ema": 1.0}, weight_scale="none")
    controller.averaging = "prompt"
    book(controller, [0, 1], [0, 10])
    controller.prompt.update([0, 4], [1.0, 0.0])
    omega = controller.prompt.weights()
    assert controller.weights([1, 0, 99]) == pytest.approx([omega[4], omega[0], (omega[0] + omega[4]) / 2])
    # (17): n̄/n_i, so that a prompt with many rollouts counts as one
    assert controller.weights([1, 0], [2, 8]) == pytest.approx([2 * omega[4], omega[0] / 2])
    controller.averaging = "rollout"
    assert controller.weights([1, 0], [2, 8]) == pytest.approx([omega[4], omega[0]])


def test_scaled_weights_have_mean_one_over_the_batch():
    controller = trained(method="prompt")
    for uids in ([0, 1, 2, 39, 38, 999], [0, 0, 5], [39]):
        assert controller.weights(uids).mean() == pytest.approx(1)


@pytest.mark.parametrize("settings", [{"method": "grpo"}, {"method": "rollout"}, {"action": "resample"}])
def test_without_reweighting_all_weights_are_one(settings):
    assert trained(**settings).weights(list(range(50))).tolist() == [1.0] * 50


# Draw


def drawing_controller(seed=0, **prompt):
    """Bins of 10, 20, 30 and 40 prompts and 20 not seen, with q far from the shares."""
    controller = GDROController("prompt", bins=SHARP, action="resample", seed=seed, prompt=prompt)
    successes = [0] * 10 + [3] * 20 + [5] * 30 + [10] * 40
    book(controller, list(range(100)), successes)
    controller.prompt.update([0, 1, 2, 4], [2.0, 1.0, 0.5, 0.0])
    return controller


BIN_OF = np.repeat([0, 1, 2, 4, -1], [10, 20, 30, 40, 20])


def frequencies(drawn):
    return np.array([(BIN_OF[drawn] == b).mean() for b in (0, 1, 2, 3, 4, -1)])


def drawn_many(controller, rounds=400, size=30):
    found = []
    for step in range(rounds):
        controller.step = step
        found.append(controller.draw(list(range(120)), size))
    return np.concatenate(found)


def test_draws_follow_the_bin_probabilities_and_unseen_keep_their_share():
    controller = drawing_controller()
    q = controller.prompt.probabilities()
    expected = 100 / 120 * q / (1 - q[3])  # bin 3 has no prompts
    expected[3] = 0
    found = frequencies(drawn_many(controller))
    assert found[:5] == pytest.approx(expected, abs=0.015)
    assert found[5] == pytest.approx(20 / 120, abs=0.015)


def test_draws_leave_excluded_bins_their_share():
    controller = drawing_controller(exclude=(0, 4))
    q = controller.prompt.probabilities()
    found = frequencies(drawn_many(controller))
    assert found[[0, 4, 5]] == pytest.approx([10 / 120, 40 / 120, 20 / 120], abs=0.015)
    assert found[1] / found[2] == pytest.approx(q[1] / q[2], rel=0.15)


def test_draws_are_even_within_a_bin():
    drawn = drawn_many(drawing_controller(), rounds=600)
    counts = np.bincount(drawn[BIN_OF[drawn] == 0], minlength=10)[:10]
    assert np.abs(counts - counts.mean()).max() <= 4.5 * np.sqrt(counts.mean())


@given(st.integers(0, 30), st.integers(1, 200), st.randoms(use_true_random=False))
def test_draws_do_not_depend_on_the_order_of_the_data_and_repeat_only_what_is_used_up(seed, size, random):
    uids = list(range(120))
    random.shuffle(uids)
    controller = drawing_controller(seed)
    drawn = [uids[i] for i in controller.draw(uids, size)]
    assert drawn == drawing_controller(seed).draw(list(range(120)), size).tolist()
    for b in (0, 1, 2, 4, -1):
        mine = [u for u in drawn if BIN_OF[u] == b]
        times = np.bincount(mine, minlength=120)[b == BIN_OF]
        assert times.max() - times.min() <= 1


def test_draws_are_seeded():
    first, again, other = (drawing_controller(s).draw(list(range(120)), 40).tolist() for s in (0, 0, 1))
    assert first == again != other
    moved = drawing_controller(0)
    moved.step = 1
    assert moved.draw(list(range(120)), 40).tolist() != first


# State


@pytest.mark.parametrize("through_file", [False, True])
@pytest.mark.parametrize("kind", [int, str])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"preset": "paper"},
        {"rollout": {"utility": "loss"}, "bins": {"estimator": "any_of_k", "k": 4}},
        {"prompt": {"clip": np.inf, "exclude": (0,)}, "unseen": 3, "rollout": {"mean_rollouts": 4.5}},
    ],
)
def test_a_run_that_is_stopped_goes_on_bit_for_bit(settings, kind, through_file, tmp_path):
    went_on, rates = trained(kind=kind, **settings), np.linspace(0.02, 0.98, 60)
    state = went_on.state_dict()
    if through_file:
        save_state(tmp_path / "state.safetensors", state)
        state = load_state(tmp_path / "state.safetensors")
    restored = GDROController(**settings)
    restored.load_state_dict(state)
    for step in range(5):
        chosen = np.random.default_rng(step).choice(60, 16, replace=False)
        uids = [kind(u) for u in chosen]
        (first, row), (second, other) = (play(c, step, uids, rates[chosen]) for c in (went_on, restored))
        assert first.tolist() == second.tolist()
        assert row == other
        assert went_on.weights(uids, first).tobytes() == restored.weights(uids, second).tobytes()
        drawn = [c.draw([kind(u) for u in range(60)], 16).tolist() for c in (went_on, restored)]
        assert drawn[0] == drawn[1]


def test_state_of_other_settings_is_refused():
    state = GDROController(seed=1).state_dict()
    with pytest.raises(
        ValueError, match=r"GDROController has other settings .*'seed': \(1, 0\).*resume with"
    ):
        GDROController().load_state_dict(state)
    other_part = GDROController(rollout={"n_max": 8}).state_dict()
    with pytest.raises(ValueError, match=r"RolloutGDRO has other settings .*'n_max': \(8, 12\)"):
        GDROController().load_state_dict(other_part)


# Construction


def test_the_bare_controller_has_the_defaults_of_the_paper():
    controller = GDROController()
    assert (controller.method, controller.num_bins, controller.mean_rollouts) == ("both", 10, 4)
    bins, prompt, rollout = controller.bins, controller.prompt, controller.rollout
    assert (bins.k, bins.history, bins.hysteresis) == (8, 50, 0.03)
    assert (prompt.eta, prompt.gamma, prompt.ema, prompt.max_weight) == (0.65, 0.01, 0.12, 15.0)
    assert (rollout.n_min, rollout.n_max, rollout.eta, rollout.gamma) == (2, 12, 0.65, 0.01)
    assert (rollout.price_lr, rollout.ema) == (0.05, 0.4)


def test_the_paper_preset_is_as_printed_and_can_be_overridden():
    printed = GDROController(preset="paper", prompt={"eta": 2.0})
    assert (printed.signal, printed.averaging, printed.weight_scale) == ("surrogate", "prompt", "none")
    assert printed.bins.estimator == "any_of_k"
    assert not printed.prompt.debias
    assert printed.prompt.share_floor is not None
    assert printed.prompt.eta == 2.0
    rollout = printed.rollout
    assert (rollout.utility, rollout.selection, rollout.joint) == ("loss", "argmax", "bins")
    assert rollout.price_driver == "realized"
    assert printed.needs_losses
    assert not GDROController().needs_losses


def test_parts_can_be_given_made():
    bins, prompt, rollout = DifficultyBins(edges=EDGES), PromptGDRO(5), RolloutGDRO(5)
    controller = GDROController(bins=bins, prompt=prompt, rollout=rollout)
    assert (controller.bins, controller.prompt, controller.rollout) == (bins, prompt, rollout)
    assert GDROController(bins={"edges": EDGES}).prompt.num_bins == 5


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"method": "ppo"}, r"method must be one of \('grpo', 'prompt', 'rollout', 'both'\), got 'ppo'"),
        ({"preset": "papers"}, r"preset must be one of .*got 'papers'"),
        ({"signal": "loss"}, r"signal must be one of .*got 'loss'"),
        ({"action": "drop"}, r"action must be one of .*got 'drop'"),
        ({"averaging": "token"}, r"averaging must be one of .*got 'token'"),
        ({"weight_scale": "sum"}, r"weight_scale must be one of .*got 'sum'"),
        ({"unseen": "hardest"}, r"unseen must be one of \('neutral', 0, .*got 'hardest'"),
        ({"unseen": 10}, r"unseen must be one of"),
        ({"prompt": PromptGDRO(6)}, r"prompt has 6 bins, but bins has 10; give both the same number"),
        ({"rollout": {"num_bins": 3}}, r"rollout has 3 bins, but bins has 10"),
        ({"bins": 10}, r"expected a DifficultyBins or its arguments, got 10"),
        ({"bins": {"k": 0}}, r"k must be an integer of at least 1, got 0"),
        ({"prompt": {"gamma": 1.5}}, r"gamma must lie in \[0, 1\], got 1.5"),
        ({"rollout": {"n_min": 6, "n_max": 5}}, r"n_min must not exceed n_max"),
        ({"rollout": {"mean_rollouts": 1}}, r"mean_rollouts must lie"),
    ],
)
def test_unknown_choices_are_refused(arguments, words):
    with pytest.raises(ValueError, match=words):
        GDROController(**arguments)


# Batches that cannot be


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        (
            ([0, 1], [0, 0, 1], [1, 0]),
            r"group_ids and rewards must be one per rollout, got shapes \(3,\) and",
        ),
        (([0, 1], [], []), r"group_ids and rewards must be one per rollout"),
        (([0, 1], [[0, 1]], [[1, 0]]), r"one per rollout"),
        (([0, 1], [0, 2], [1, 0]), r"group_ids must be positions in uids, integers in \[0, 2\), got \[0 2\]"),
        (([0, 1], [-1, 0], [1, 0]), r"group_ids must be positions"),
        (([0, 1], [0.0, 1.0], [1, 0]), r"group_ids must be positions"),
        (([0, 1], [0, 1], [1, np.nan]), r"rewards must be finite, got nan for rollout 1 \(1 of 2\); mend"),
        (([0, 1], [0, 1], [1, None]), r"rewards must be finite"),
        (([0, 1], [0, 1], [np.inf, 0]), r"rewards must be finite, got inf for rollout 0"),
        (([0, 1, 2], [0, 0, 2], [1, 0, 0]), r"prompts \[1\] of the batch have no rollouts; give group_ids"),
        (([0, "a"], [0, 1], [1, 0]), r"uids must be all integers"),
        (([True, False], [0, 1], [1, 0]), r"uids must be all integers"),
    ],
)
def test_observations_that_cannot_be_are_refused_and_not_booked(batch, words):
    controller = GDROController("prompt")
    with pytest.raises(ValueError, match=words):
        controller.observe(*batch)
    assert controller.step == len(controller.bins) == 0


@pytest.mark.parametrize(
    ("losses", "words"),
    [
        (None, r"losses are needed by signal 'surrogate' .*; give one surrogate loss \(6\) per rollout"),
        ([0.1], r"losses must be one per rollout, got shape \(1,\) for 2 rollouts"),
        ([0.1, np.nan], r"losses must be finite, got nan for rollout 1"),
    ],
)
def test_losses_that_are_needed_are_asked_for(losses, words):
    with pytest.raises(ValueError, match=words):
        GDROController("prompt", signal="surrogate").observe([0, 1], [0, 1], [1, 0], losses=losses)


@pytest.mark.parametrize("method", ["rollout", "both"])
def test_what_was_not_planned_is_refused(method):
    controller, words = (
        GDROController(method),
        "other prompts or rollout counts than the last plan; call plan",
    )
    uids, whole = [0, 1], np.repeat([0, 1], 4)
    with pytest.raises(ValueError, match=words):
        controller.observe(uids, whole, np.ones(8))
    controller.plan(uids)
    for other in (([1, 0], whole), ([0, 1], np.repeat([0, 1], [3, 5])), ([0, 2], whole)):
        with pytest.raises(ValueError, match=words):
            controller.observe(*other, np.ones(8))
    controller.observe(uids, whole, np.ones(8))
    with pytest.raises(ValueError, match=words):  # a plan serves once
        controller.observe(uids, whole, np.ones(8))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda c: c.plan([]), r"mean_rollouts × prompts must be a whole number above 0, got 4.5 × 0"),
        (lambda c: c.plan([1, 2, 3]), r"got 4.5 × 3; change mean_rollouts or the number of prompts"),
        (lambda c: c.plan([[1, 2]]), r"uids must be a flat sequence"),
        (lambda c: c.draw([], 4), r"size must be at least 1 and uids not empty, got 4 of 0 uids; give"),
        (lambda c: c.draw([1], 0), r"size must be at least 1"),
    ],
)
def test_plans_that_cannot_be_are_refused(call, words):
    with pytest.raises(ValueError, match=words):
        call(GDROController(rollout={"mean_rollouts": 4.5}))


def test_importing_the_controllers_brings_in_nothing_heavy():
    code = (
        "import sys, gdro; "
        "print(sorted({'torch', 'transformers', 'pandas', 'matplotlib', 'trl'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
