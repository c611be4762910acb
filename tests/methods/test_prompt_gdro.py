"""The data adversary: equations (12)–(16) by hand, and what must hold for any input."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from gdro import PromptAdversary


@st.composite
def batches(draw):
    size = draw(st.integers(1, 20))
    bin_ids = draw(arrays(np.int64, size, elements=st.integers(-1, 4)))
    return bin_ids, draw(arrays(float, size, elements=st.floats(-10, 10)))


def test_scores_weights_and_probabilities_by_hand():
    prompt = PromptAdversary(
        3, eta=2.0, gamma=0.1, ema=0.25, clip=1.0, max_weight=5.0, debias=False
    )
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


settings_of_prompt = st.fixed_dictionaries(
    {
        "eta": st.floats(0, 3),
        "gamma": st.floats(0, 1),
        "ema": st.floats(0.01, 1),
        "clip": st.floats(0.1, 10),
        "max_weight": st.floats(0.5, 50),
        "share_floor": st.none() | st.floats(0.01, 1),
        "debias": st.booleans(),
    }
)


@given(settings_of_prompt, st.lists(batches(), max_size=4), st.permutations(range(5)))
def test_probabilities_are_on_the_simplex_and_bins_may_be_renumbered(settings, played, number):
    prompt, other = PromptAdversary(5, **settings), PromptAdversary(5, **settings)
    for bin_ids, losses in played:
        prompt.update(bin_ids, losses)
        other.update(np.where(bin_ids >= 0, np.array(number)[bin_ids], -1), losses)
    assert other.weights()[number] == pytest.approx(prompt.weights())
    assert other.probabilities()[number] == pytest.approx(prompt.probabilities())
    q = prompt.probabilities()
    assert q.sum() == pytest.approx(1)
    assert (q >= settings["gamma"] / 5 - 1e-12).all()
    weights = prompt.weights()
    assert (weights > 0).all()
    assert (weights <= settings["max_weight"]).all()


@pytest.mark.parametrize("eta", [1000.0, 1e6])
@pytest.mark.parametrize("loss", [1.0, -1.0, 300.0])
def test_large_steps_without_clip_or_cap_stay_finite(eta, loss):
    prompt = PromptAdversary(3, eta=eta, clip=np.inf, max_weight=np.inf)
    prompt.update([0, 1, 2], [loss, loss / 2, 0.0])
    assert np.isfinite(prompt.weights()).all()
    assert (prompt.weights() > 0).all()
    assert prompt.probabilities().sum() == pytest.approx(1)
    assert prompt.probabilities().argmax() == (0 if loss > 0 else 2)
