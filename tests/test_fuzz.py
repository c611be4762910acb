"""The short form of `make fuzz`: the same attacks, fewer of them."""

import fuzz
import pytest

from gdro import METHODS, GDROController


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(METHODS))
def test_random_sequences_of_a_controllers_operations(name):
    controller, hooks = GDROController(name), {"update", "weights", "advantages", "ready", "report"}
    hooks |= {"draw"} if controller.draws else set()
    hooks |= {"allocate"} if controller.moves_rollouts else set()
    hooks |= {"extend"} if controller.method.rounds else set()
    for seed in range(400):  # until each function of the method has failed, and nothing had moved
        fuzz.controller(seed, name)
        if seed > 60 and {(name, hook) for hook in hooks} <= fuzz.FAILED:
            return
    pytest.fail(f"not refused: {hooks - {hook for method, hook in fuzz.FAILED if method == name}}")


@pytest.mark.slow
def test_threads_that_share_a_controller():
    assert {fuzz.threads(seed) for seed in range(20)} == {"held", "settings refused"}
    assert {fuzz.threads(1, method) for method in ("both", "greso", "reinforce_ada")} == {"held"}


@pytest.mark.slow
def test_worlds_changed_at_random():
    assert {fuzz.worlds(seed) for seed in range(60)} == {"held", "refused"}


@pytest.mark.slow
def test_hostile_answers():
    assert {fuzz.answers(seed) for seed in range(12)} == {"held", "gold refused"}


@pytest.mark.slow
def test_verdicts_by_rules():
    assert {fuzz.verdicts(seed) for seed in range(2)} == {"held"}


@pytest.mark.slow
def test_records_are_whole_whenever_their_writer_is_killed():
    assert fuzz.records(0) == "held after 4 kills"
