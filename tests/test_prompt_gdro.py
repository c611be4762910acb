"""The data adversary: equations (12)–(16) by hand, and what must hold for any input."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from gdro import PromptGDRO
from gdro.prompt_gdro import bin_means, debiased, ema_scores, exponential_weights, mixed_probabilities
from gdro.records import load_state, save_state

PRINTED = {"debias": False}


@st.composite
def batches(draw, num_bins=5):
    size = draw(st.integers(1, 20))
    bin_ids = draw(arrays(np.int64, size, elements=st.integers(-1, num_bins - 1)))
    return bin_ids, draw(arrays(float, size, elements=st.floats(-10, 10)))


# The equations


def test_bin_means_by_hand():
    means, counts = bin_means([0, 2, 2, -1, 0, 3], [1.0, 2.0, 4.0, 99.0, np.nan, np.nan], 4)
    assert np.array_equal(means, [1.0, np.nan, 3.0, np.nan], equal_nan=True)
    assert counts.tolist() == [1, 0, 2, 0]
    means, counts = bin_means([0, 0, 1], [1.0, 4.0, 7.0], 2, [1, 2, 5])
    assert means.tolist() == [3.0, 7.0]
    assert counts.tolist() == [2, 1]


@given(batches())
def test_bin_means_are_the_means(batch):
    bin_ids, values = batch
    means, counts = bin_means(bin_ids, values, 5)
    for b in range(5):
        mine = values[bin_ids == b]
        assert counts[b] == len(mine)
        assert means[b] == pytest.approx(mine.mean() if len(mine) else np.nan, nan_ok=True)


def test_scores_weights_and_probabilities_by_hand():
    prompt = PromptGDRO(3, eta=2.0, gamma=0.1, ema=0.25, clip=1.0, max_weight=5.0, **PRINTED)
    prompt.update([0, 0, 1], [2.0, 4.0, 1.0])
    # (12): .25·3, .25·1, untouched
    assert prompt.scores() == pytest.approx([0.75, 0.25, 0.0])
    prompt.update([0], [8.0])
    # .75·.75 + .25·8 = 2.5625, clipped to 1 by (14): ω = e², e^.5, 1; e² = 7.39 capped at 5 by (16)
    assert prompt.scores() == pytest.approx([2.5625, 0.25, 0.0])
    omega = np.exp([2.0, 0.5, 0.0])
    assert prompt.weights() == pytest.approx([5.0, np.exp(0.5), 1.0])
    # (15) is of ω, not of what the cap leaves of it
    assert prompt.probabilities() == pytest.approx(0.9 * omega / omega.sum() + 0.1 / 3)


def test_clip_works_on_both_sides():
    assert exponential_weights(np.array([-9.0, 9.0]), 0.5, 2.0) == pytest.approx([np.exp(-1), np.exp(1)])


def test_probabilities_without_exploration_maximize_the_regularized_game():
    from gdro.theory import soft_worst_case

    prompt = PromptGDRO(4, eta=3.0, gamma=0.0, ema=1.0, clip=np.inf, max_weight=np.inf)
    losses = np.array([0.1, 0.9, 0.4, 0.3])
    prompt.update(np.arange(4), losses)
    assert prompt.probabilities() == pytest.approx(soft_worst_case(losses, 3.0)[1])


def test_division_by_the_share_has_a_floor():
    prompt = PromptGDRO(3, ema=1.0, share_floor=0.2, **PRINTED)
    prompt.update([0] * 5 + [1] * 4 + [2], np.ones(10))
    assert prompt.scores() == pytest.approx([1 / 0.5, 1 / 0.4, 1 / 0.2])


def test_prompts_can_weigh_by_their_rollouts():
    prompt = PromptGDRO(1, ema=1.0)
    prompt.update([0, 0], [1.0, 4.0], [8, 4])
    assert prompt.scores() == pytest.approx([2.0])


def test_debiased_scores_are_weighted_means_of_what_was_seen():
    prompt, losses = PromptGDRO(2, ema=0.3), [0.9, 0.1, 0.4]
    for loss in losses:
        prompt.update([0], [loss])
    weights = 0.7 ** np.arange(2, -1, -1)
    expected = (weights * losses).sum() / weights.sum()
    # the bin never seen stands at the mean of the others
    assert prompt.scores() == pytest.approx([expected, expected])
    assert PromptGDRO(3).scores().tolist() == [0.0, 0.0, 0.0]


def test_debiased_takes_bins_along_any_axis():
    scores, visits = np.random.default_rng(0).random((4, 3)), np.array([[0, 1, 2]] * 2 + [[0, 0, 3]] * 2)
    rows = np.array([debiased(s, v, 0.3) for s, v in zip(scores, visits, strict=True)])
    assert debiased(scores, visits, 0.3, bin_axis=1) == pytest.approx(rows)


def test_pure_functions_take_leading_axes():
    rng = np.random.default_rng(1)
    scores, means = rng.normal(size=(3, 2, 5)), rng.normal(size=(3, 2, 5))
    means[0, 1, 2] = np.nan
    new = ema_scores(scores, means, 0.2)
    q = mixed_probabilities(exponential_weights(new, 0.65, 5.0), 0.05)
    for index in np.ndindex(3, 2):
        one = ema_scores(scores[index], means[index], 0.2)
        assert new[index] == pytest.approx(one)
        assert q[index] == pytest.approx(mixed_probabilities(exponential_weights(one, 0.65, 5.0), 0.05))
    assert new[0, 1, 2] == scores[0, 1, 2]


# What must hold for any input

settings_of_prompt = st.fixed_dictionaries(
    {
        "eta": st.floats(0, 3),
        "gamma": st.floats(0, 1),
        "ema": st.floats(0.01, 1),
        "clip": st.floats(0.1, 10),
        "max_weight": st.floats(0.5, 50),
        "share_floor": st.none() | st.floats(0.01, 1),
        "debias": st.booleans(),
        "exclude": st.sets(st.integers(0, 4), max_size=4).map(tuple),
    }
)


@given(settings_of_prompt, st.lists(batches(), max_size=4))
def test_probabilities_are_a_point_of_the_simplex(settings, played):
    prompt = PromptGDRO(5, **settings)
    for batch in played:
        prompt.update(*batch)
    q, included = prompt.probabilities(), 5 - len(prompt.exclude)
    assert q.sum() == pytest.approx(1)
    assert (q[list(prompt.exclude)] == 0).all()
    assert (np.delete(q, prompt.exclude) >= settings["gamma"] / included - 1e-12).all()
    weights = prompt.weights()
    assert (weights > 0).all()
    assert (np.delete(weights, prompt.exclude) <= settings["max_weight"]).all()
    assert (weights[list(prompt.exclude)] == 1).all()


@given(
    st.lists(arrays(np.int64, st.integers(1, 30), elements=st.integers(-1, 4)), min_size=1, max_size=5),
    st.floats(-3, 3),
)
def test_equal_losses_give_equal_weights_whatever_the_shares(visits, loss):
    prompt = PromptGDRO(5)
    for bin_ids in visits:
        prompt.update(bin_ids, np.full(len(bin_ids), loss))
    assert prompt.weights() == pytest.approx(np.full(5, prompt.weights()[0]))
    assert prompt.probabilities() == pytest.approx(np.full(5, 0.2))


@given(batches(), st.randoms(use_true_random=False))
def test_order_of_the_prompts_changes_nothing(batch, random):
    bin_ids, losses = batch
    order = list(range(len(bin_ids)))
    random.shuffle(order)
    straight, shuffled = PromptGDRO(5), PromptGDRO(5)
    straight.update(bin_ids, losses)
    shuffled.update(bin_ids[order], losses[order])
    assert straight.weights() == pytest.approx(shuffled.weights(), rel=1e-12)


@given(settings_of_prompt, st.lists(batches(), max_size=4), st.permutations(range(5)))
def test_numbering_of_the_bins_changes_nothing(settings, played, number):
    number = np.array(number)
    renumbered = settings | {"exclude": tuple(int(number[b]) for b in settings["exclude"])}
    straight, other = PromptGDRO(5, **settings), PromptGDRO(5, **renumbered)
    for bin_ids, losses in played:
        straight.update(bin_ids, losses)
        other.update(np.where(bin_ids >= 0, number[bin_ids], -1), losses)
    assert other.weights()[number] == pytest.approx(straight.weights())
    assert other.probabilities()[number] == pytest.approx(straight.probabilities())


def test_a_higher_loss_never_gets_a_smaller_weight():
    prompt = PromptGDRO(5)
    for _ in range(30):
        prompt.update(np.arange(5), [0.9, 0.7, 0.5, 0.3, 0.1])
    assert (np.diff(prompt.weights()) < 0).all()
    assert (np.diff(prompt.probabilities()) < 0).all()


def test_no_prompts_are_no_news():
    prompt = PromptGDRO(3, share_floor=0.1)
    prompt.update([], [])
    prompt.update([-1, -1], [1.0, 2.0])
    assert prompt.probabilities() == pytest.approx([1 / 3] * 3)


# State


@pytest.mark.parametrize("extra", [{}, {"clip": np.inf, "max_weight": np.inf}, {"exclude": (2,)}])
@pytest.mark.parametrize("through_file", [False, True])
def test_state_comes_back_bit_for_bit(extra, through_file, tmp_path):
    rng = np.random.default_rng(0)
    went_on, restored = PromptGDRO(4, **extra), PromptGDRO(4, **extra)
    for _ in range(5):
        went_on.update(rng.integers(-1, 3, 9), rng.normal(size=9))
    state = went_on.state_dict()
    if through_file:
        save_state(tmp_path / "state.safetensors", state)
        state = load_state(tmp_path / "state.safetensors")
    restored.load_state_dict(state)
    batch = rng.integers(-1, 4, 9), rng.normal(size=9)
    for prompt in (went_on, restored):
        prompt.update(*batch)
    assert went_on.weights().tobytes() == restored.weights().tobytes()
    assert went_on.probabilities().tobytes() == restored.probabilities().tobytes()


def test_state_of_other_settings_is_refused():
    with pytest.raises(ValueError, match=r"PromptGDRO has other settings .*'eta': \(0.65, 1.0\).*; resume"):
        PromptGDRO(eta=1.0).load_state_dict(PromptGDRO().state_dict())


# Arguments


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"num_bins": 0}, r"num_bins must be an integer of at least 1, got 0; it is len\(edges\)"),
        ({"num_bins": 2.5}, r"num_bins must be"),
        ({"eta": -1}, r"eta must be ≥ 0 and finite, got -1; 0 switches"),
        ({"eta": np.nan}, r"eta must be"),
        ({"gamma": 1.01}, r"gamma must lie in \[0, 1\], got 1.01; it is the uniform share"),
        ({"gamma": -0.01}, r"gamma"),
        ({"ema": 0}, r"ema must lie in \(0, 1\], got 0; 1 looks at the last batch alone"),
        ({"ema": 1.5}, r"ema"),
        ({"clip": 0}, r"clip must be positive, got 0; float\('inf'\) switches it off"),
        ({"max_weight": -1}, r"max_weight must be positive, got -1"),
        ({"share_floor": 0}, r"share_floor must be None or lie in \(0, 1\], got 0; None does not divide"),
        ({"exclude": (10,)}, r"exclude must name bins in \[0, 10\), .*got \(10,\); to play no bin"),
        ({"num_bins": 2, "exclude": (0, 1)}, r"exclude must name .* not all of them"),
    ],
)
def test_settings_outside_their_domain_are_refused(arguments, words):
    with pytest.raises(ValueError, match=words):
        PromptGDRO(**arguments)


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        (([0, 1], [0.5]), r"bin_ids and values must be one per prompt, got \(2,\) and \(1,\)"),
        (([[0]], [[0.5]]), r"one per prompt"),
        (([3], [0.5]), r"bin_ids must lie in \[-1, 3\), got \[3\]; make PromptGDRO"),
        (([-2], [0.5]), r"bin_ids must lie in"),
        (([0.5], [0.5]), r"bin_ids must be integers, got dtype float64; see DifficultyBins.assign"),
    ],
)
def test_batches_that_cannot_be_are_refused_and_not_booked(batch, words):
    prompt = PromptGDRO(3)
    with pytest.raises(ValueError, match=words):
        prompt.update(*batch)
    assert not prompt.state_dict()["visits"].any()
