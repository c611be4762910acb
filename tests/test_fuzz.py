"""The short form of `make fuzz`: the same attacks, fewer of them."""

import fuzz
import own_method  # noqa: F401 (its method is registered, and so tested as the others are)
import pytest

from gdro import METHODS, GDROController


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(METHODS))
def test_random_sequences_of_a_controllers_operations(name):
    controller = GDROController(name)
    wanted = {"update", "weights", "advantages", "ready", "report", "all is spent"}
    wanted |= {"draw"} if controller.method.draws else set()
    wanted |= {"allocate"} if controller.method.moves_rollouts else set()
    wanted |= {"extend"} if controller.method.rounds else set()
    for seed in range(400):  # until each function of the method has failed, and nothing had moved
        fuzz.controller(seed, name)
        if seed > 60 and {(name, what) for what in wanted} <= fuzz.SEEN:
            return
    pytest.fail(f"not seen: {wanted - {what for method, what in fuzz.SEEN if method == name}}")


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
