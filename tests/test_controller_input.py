"""Wrong input to the controller: a sentence with argument and value, and nothing changes."""

import numpy as np
import pytest
from helpers import state_of

from gdro import GDROController, Method, StaticGroups, sample_in_rounds
from gdro.registry import METHODS
from gdro.rounds import Outcomes

UIDS = [3, 1, 2, 5]
IDS = np.repeat(np.arange(4), 4)
REWARDS = np.ones(16)


def observed_plan(controller):
    plan = controller.plan(UIDS)
    controller.observe(plan, IDS, REWARDS)
    return plan


def cancelled_plan(controller):
    plan = controller.plan(UIDS)
    controller.cancel(plan)
    return plan


def others_plan(controller):
    """Of the same number and the same prompts."""
    return GDROController("pivotal").plan(UIDS)


def older_plan(controller):
    """From before a state was loaded, of the number of one that is in flight."""
    plan = controller.plan(UIDS)
    controller.load_state_dict(GDROController("pivotal").state_dict())
    controller.plan(UIDS)
    return plan


WRONG_UIDS = [
    ("abc", "'abc'"),
    ({1, 2}, "{1, 2}"),  # which has no order
    ([], "none"),
    ([1, "a"], "'a'"),
    ([True], "True"),
    (["a", "b"], "'a'"),  # after integers
]
WRONG_PLANS = [
    (lambda controller: None, "None"),
    (others_plan, "number=0"),
    (older_plan, "number=0"),
    (observed_plan, "[3, 1, 2, 5]"),
    (cancelled_plan, "[3, 1, 2, 5]"),
]
WRONG_RETURNS = [
    ((IDS, REWARDS[:3]), {}, ("rewards", "16", "3")),
    ((IDS, REWARDS * np.nan), {}, ("rewards", "nan")),
    ((IDS, REWARDS), {"correct": [1]}, ("correct", "16", "1")),
    ((IDS, REWARDS), {"correct": [0.4] * 16}, ("correct", "0.4")),
    (([], []), {}, ("group_ids", "(0,)")),
    ((IDS[:, None], REWARDS), {}, ("group_ids", "(16, 1)")),
    (([4], [1]), {}, ("group_ids", "4")),
    (([0] * 9, [1] * 9), {}, ("group_ids", "4", "9")),
]
WRONG_STATES = [
    (lambda state: {}, ("state", "settings")),
    (lambda state: state | {"bins": {}}, ("state", "DifficultyBins")),
    (lambda state: state | {"bins": drop(state["bins"], "uids")}, ("state", "uids")),
    (lambda state: state | {"settings": {}}, ("settings", "pivotal")),
]


def drop(state, name):
    return {key: value for key, value in state.items() if key != name}


def calls():
    """Every wrong call, with what its message must name."""
    for uids, value in WRONG_UIDS:
        yield lambda c, uids=uids: c.plan(uids), ("uids", value)
    yield lambda c: c.draw("abc", 1), ("uids", "'abc'")
    for size in (9, 0, 2.5):
        yield lambda c, size=size: c.draw(np.arange(8), size), ("size", str(size))
    for make, value in WRONG_PLANS:
        yield make, lambda c, plan: c.observe(plan, IDS, REWARDS), ("plan", value)
    yield others_plan, lambda c, plan: c.extend(plan, IDS, REWARDS), ("plan", "number=0")
    yield others_plan, lambda c, plan: c.cancel(plan), ("plan", "number=0")
    for returned, more, parts in WRONG_RETURNS:
        yield (
            lambda c: c.plan(UIDS),
            lambda c, plan, returned=returned, more=more: c.observe(plan, *returned, **more),
            parts,
        )
    for change, parts in WRONG_STATES:
        yield lambda c, change=change: c.load_state_dict(change(c.state_dict())), parts


@pytest.mark.parametrize("case", list(calls()))
def test_wrong_input_is_named_and_moves_nothing(case):
    controller = GDROController("pivotal")
    if len(case) == 3:  # the call takes a plan
        make, call, parts = case
        plan = make(controller)
        arguments = (controller, plan)
    else:
        call, parts = case
        controller.bins.rows([7])  # integers have come before
        arguments = (controller,)
    before = state_of(controller)
    with pytest.raises(ValueError) as raised:
        call(*arguments)
    assert state_of(controller) == before
    assert "\n" not in str(raised.value)
    for part in parts:
        assert part in str(raised.value), raised.value


def test_a_prompt_without_a_group_is_refused():
    controller = GDROController("grpo", bins=StaticGroups([1, 2], ["a", "b"]))
    before = state_of(controller)
    with pytest.raises(ValueError, match=r"uids.*3"):
        controller.plan([1, 3])
    assert state_of(controller) == before
    assert controller.plan([2, 1]).rollouts.tolist() == [4, 4]


def test_a_cancelled_plan_is_forgotten_and_others_stay_in_flight():
    controller, twin = GDROController("both"), GDROController("both")
    lost, kept = controller.plan(UIDS), controller.plan(UIDS)
    controller.cancel(lost)
    controller.observe(kept, IDS, REWARDS)
    twin.plan(UIDS)
    twin.observe(twin.plan(UIDS), IDS, REWARDS)
    assert state_of(controller) == state_of(twin)


class Misspelt(Method):
    def alocate(self, prompts, budget, rng):
        return np.ones(len(prompts))


class Renamed(Method):
    def compute_weights(self, batch):
        return np.ones(len(batch.uids))


class SomeRounds(Method):
    """Its first round has too few rollouts of each prompt."""

    def allocate(self, prompts, budget, rng):
        return np.ones(len(prompts))

    def extend(self, batch, left, rng):
        return None


class NeedsNoLosses(Method):
    need_losses = True


class Draws(Method):
    def draws(self, pool, size, rng):
        return np.arange(size)


class Forgetful(Method):
    state = ("x",)

    def draw(self, pool, size, rng):
        return np.arange(size)


class Tupled(Method):
    state = ("kept",)
    kept = (1,)  # of which JSON makes a list


class Overwriting(Method):
    def report(self):
        return {"share": 1}


def test_what_a_method_does_wrong_is_said_early(monkeypatch):
    monkeypatch.setitem(METHODS, "Forgetful", Forgetful)  # other tests do not meet it
    with pytest.raises(ValueError, match=r"Misspelt.*'alocate'.*'allocate'"):
        GDROController(Misspelt())
    with pytest.raises(ValueError, match=r"Renamed.*'compute_weights'"):
        GDROController(Renamed())
    with pytest.raises(ValueError, match=r"allocate.*\(2, 12\).*16"):
        GDROController(SomeRounds()).plan(UIDS)
    with pytest.raises(ValueError, match=r"NeedsNoLosses.*'need_losses'.*'needs_losses'"):
        GDROController(NeedsNoLosses())
    with pytest.raises(ValueError, match=r"Draws.*'draws'.*'draw'"):
        GDROController(Draws())
    with pytest.raises(ValueError, match=r"'Forgetful'.*start.*'x'"):
        GDROController("Forgetful")
    with pytest.raises(ValueError, match="kept"):
        GDROController(Tupled())
    controller = GDROController(Overwriting())
    with pytest.raises(ValueError, match=r"report.*'share'"):
        controller.observe(controller.plan([1]), [0], [1])


def test_rounds_leave_out_what_has_no_reward():
    """None and NaN are not observed, and are spent all the same."""
    controller = GDROController("dars", 4, seed=1)
    plan = controller.plan(UIDS)
    sampled = []

    def sample_and_reward(group_ids):
        sampled.extend(group_ids.tolist())
        return [None if group == 0 else float(group == 1) for group in group_ids]

    samples = sample_in_rounds(controller, plan, sample_and_reward)
    assert samples.group_ids_R.tolist() == sampled
    assert len(sampled) == 16
    assert np.isnan(samples.rewards_R).tolist() == [group == 0 for group in sampled]
    scored = samples.scored()
    assert 0 not in scored.group_ids_R
    observed = controller.observe(
        plan, scored.group_ids_R, scored.rewards_R, correct=scored.correct_R
    )
    assert len(observed.advantages) == len(scored.rewards_R) < 16
    plan = controller.plan(UIDS)
    assert not sample_in_rounds(controller, plan, lambda ids: [None] * len(ids)).is_scored_R.any()
    with pytest.raises(ValueError, match=r"rewards.*8"):
        sample_in_rounds(controller, plan, lambda ids: [1.0])
    with pytest.raises(ValueError, match=r"correct.*0\.4"):
        sample_in_rounds(controller, plan, lambda ids: Outcomes([1.0] * 8, [0.4] * 8))


@pytest.mark.parametrize("rewards", [["1"] * 16, [np.inf] * 16])
def test_rewards_are_checked_in_rounds_as_they_are_when_observed(rewards):
    controller = GDROController("grpo", 4)
    plan = controller.plan(UIDS)
    with pytest.raises(ValueError, match="rewards"):
        controller.observe(plan, IDS, rewards)
    with pytest.raises(ValueError, match="rewards"):
        sample_in_rounds(controller, plan, lambda ids: rewards)


def test_pass_rates_of_other_uids_are_refused():
    with pytest.raises(ValueError, match=r"uids.*strings.*1"):  # as JSON makes them
        GDROController("grpo", pass_rates={"1": 0.5}).plan([1])
    with pytest.raises(ValueError, match=r"uids of pass_rates.*integers.*'1'"):
        GDROController("grpo", pass_rates={"1": 0.5}, bins=StaticGroups([1], ["a"]))
