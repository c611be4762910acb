"""The short form of `make fuzz`: the same attacks, fewer of them."""

import fuzz
import pytest


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 2000, 250))
def test_random_sequences_of_a_controllers_operations(first):
    outcomes = [fuzz.controller(seed) for seed in range(first, first + 250)]
    assert outcomes.count("held") > 150  # not most of the settings refused


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
