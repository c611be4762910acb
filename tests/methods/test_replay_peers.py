"""The peers that keep successes: what they replay, with which weight, and what they train on."""

import numpy as np
from helpers import visit

from gdro import GDROController


def test_raft_trains_on_kept_texts_with_weight_one_and_on_nothing_else():
    controller = GDROController("raft", replayed=3, seed=0)
    assert controller.method.kept_texts == 1
    advantages = visit(controller, np.arange(5), [0, 1, 2, 3, 4])
    assert not advantages.any()
    positions, weights = controller.replay(np.arange(1, 5))
    assert len(set(positions.tolist())) == 3
    assert (weights == 1).all()


def test_raft_without_replay_trains_on_its_correct_rollouts():
    controller = GDROController("raft", replayed=0, seed=0)
    advantages = visit(controller, np.arange(3), [0, 1, 4])
    assert advantages.tolist() == [[0, 0, 0, 0], [1, 0, 0, 0], [1, 1, 1, 1]]
    assert controller.replay(np.arange(1, 3)) is None
    assert not controller.method.replays


def test_exgrpo_waits_until_enough_prompts_are_solved():
    controller = GDROController("exgrpo", seed=0)
    hits = np.zeros(20, int)
    for solved, started in [(7, False), (8, True)]:  # of 20: .35 is not above .35
        hits[:solved] = 2
        visit(controller, np.arange(20), hits)
        assert controller.method.started == started


def test_exgrpo_puts_the_kept_success_into_its_prompts_group():
    """Half of a batch has kept successes; a group of n rollouts and one success has GRPO's (3)."""
    uids = np.arange(40)
    controller = GDROController("exgrpo", seed=0)
    visit(controller, uids, np.where(uids < 8, 1, np.where(uids < 20, 4, 0)))  # 20: half solved
    drawn = controller.draw(uids, 16)
    again = drawn[drawn < 8]  # 8 to 19 are retired, and the others have nothing to keep
    assert len(again) == 8
    assert len(set(drawn.tolist())) == 16
    # one of four is correct, so with the kept one two of five
    advantages = visit(controller, drawn, np.ones(16, int))
    plain = np.isin(drawn, again, invert=True)
    two_of_five = np.array([1, 1, 0, 0, 0]) - 0.4
    expected = two_of_five / np.sqrt(0.4 * 0.6)
    np.testing.assert_allclose(advantages[~plain], np.tile(expected[1:], (8, 1)))
    one_of_four = (np.array([1, 0, 0, 0]) - 0.25) / np.sqrt(0.25 * 0.75)
    np.testing.assert_allclose(advantages[plain], np.tile(one_of_four, (8, 1)), rtol=1e-3)
    buffer = np.arange(20)
    positions, weights = controller.replay(buffer)
    assert sorted(buffer[positions].tolist()) == sorted(again.tolist())
    np.testing.assert_allclose(weights, expected[0] / 1.1)


def test_exgrpo_replays_nothing_for_a_batch_without_rewards():
    uids = np.arange(20)
    controller = GDROController("exgrpo", seed=0)
    visit(controller, uids, uids * 0 + 1)
    drawn = controller.draw(uids, 10)
    visit(controller, drawn, drawn * 0 + 1)
    assert controller.replay(uids) is not None
    controller.cancel(controller.plan(uids[controller.draw(uids, 10)]))
    assert controller.replay(uids) is None


def test_exgrpo_knows_the_kept_successes_of_each_plan_in_flight():
    """A batch that is drawn before another is observed does not change its groups."""
    uids = np.arange(40)
    told = []
    for draws_ahead in (False, True):
        controller = GDROController("exgrpo", seed=0)
        visit(controller, uids, uids * 0 + 1)
        drawn = controller.draw(uids, 16)
        plan = controller.plan(uids[drawn])
        if draws_ahead:
            controller.plan(uids[controller.draw(uids, 16)])
        groups = np.repeat(np.arange(16), plan.rollouts)
        rewards = np.tile([1.0, 0.0, 0.0, 0.0], 16)
        observed = controller.observe(plan, groups, rewards)
        positions, weights = controller.replay(uids)
        told.append([observed.advantages.tolist(), sorted(positions), sorted(weights)])
    assert told[0] == told[1]
