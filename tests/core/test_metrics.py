"""Metrics against enumeration, hand-worked numbers and resampling written out."""

from itertools import combinations

import numpy as np
import pytest

from gdro import metrics
from gdro_lab.intervals import bootstrap_interval


@pytest.mark.parametrize("k", [1, 2, 5])
def test_pass_at_k_is_the_share_of_subsets_with_a_correct_one(k):
    for n in range(k, 8):
        for c in range(n + 1):
            subsets = list(combinations([True] * c + [False] * (n - c), k))
            share = np.mean([any(s) for s in subsets])
            assert metrics.pass_at_k([c], [n], k)[0] == pytest.approx(share)


def test_mean_bin_and_effective_number_by_hand():
    shares = np.array([[0.5, 0.0, 0.5], [0.2, 0.3, 0.5]])
    assert metrics.mean_bin_index(shares) == pytest.approx([1.0, 1.3])
    assert metrics.effective_number(shares)[0] == pytest.approx(2)


def test_weighted_standard_error_by_hand_and_without_absent_bins():
    # .5·.4/√4 + .5·.2/√16 = .1 + .025; the third bin has no share: its NaN and 0 are not looked at
    found = metrics.weighted_standard_error([0.4, 0.2, np.nan], [0.5, 0.5, 0.0], [4, 16, 0])
    assert found == pytest.approx(0.125)


def test_bootstrap_interval_is_the_two_way_resampling_written_out():
    values = np.random.default_rng(2).random((3, 7))
    rng = np.random.default_rng(3)
    seed_draws, prompt_draws = rng.integers(3, size=(500, 3)), rng.integers(7, size=(500, 7))
    means_S = values.mean(axis=1, keepdims=True)
    spread = values.mean() + (means_S - values.mean()) * np.sqrt(3 / 2) + values - means_S
    overall = [
        spread[np.ix_(seeds, prompts)].mean()
        for seeds, prompts in zip(seed_draws, prompt_draws, strict=True)
    ]
    found = bootstrap_interval(values, np.random.default_rng(3), 500)
    assert found == pytest.approx(np.quantile(overall, [0.025, 0.975]))
