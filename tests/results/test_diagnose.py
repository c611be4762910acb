"""The diagnosis of a GRPO record, against records made by hand and by simulated prompts."""

import numpy as np
import pytest
from click.testing import CliRunner

from gdro import GDROController
from gdro.cli import main
from gdro.results import diagnose
from gdro.training.records import write_table


def row(share, success, hard=(0, 0.0), first=(0, 0)):
    return {"share": share, "success": success, "hard_correct": hard[0], "hard_expected": hard[1]} | {
        "first_rollouts": first[0],
        "first_correct": first[1],
    }


RECORD = [
    row([0.5, 0.5, 0.0], [0.1, 0.9, None], (1, 2.0), (8, 2)),
    row([0.25, 0.75, 0.0], [0.2, 0.7, None], (5, 2.0), (4, 3)),
]


def test_rates_progress_and_signal_by_hand(tmp_path):
    rates = diagnose.pass_rates(RECORD)
    assert rates.share.tolist() == [0.375, 0.625, 0]
    # (.5 · .1 + .25 · .2)/.75 and (.5 · .9 + .75 · .7)/1.25
    np.testing.assert_allclose(rates.success, [0.1 / 0.75, 0.975 / 1.25, np.nan])
    assert diagnose.progress(RECORD) == pytest.approx(6 / 4 - 1)
    assert np.isnan(diagnose.progress([row([1.0], [0.5])]))
    p = np.array([0.1 / 0.75, 0.78])
    both = 1 - p**2 - (1 - p) ** 2
    value = np.array([0.375, 0.625]) * p * (1 - p) ** 2
    wanted = [np.dot([0.375, 0.625], both), value @ both / value.sum()]
    assert diagnose.signal_shares(rates, 2, 3) == pytest.approx(wanted)
    write_table(tmp_path / "record.jsonl", RECORD)
    text = CliRunner().invoke(main, ["diagnose", str(tmp_path / "record.jsonl"), "--rollouts=2"]).output
    assert all(part in text for part in ("1.50 times", "0.25 of 8", "0.75 of 4"))


@pytest.mark.parametrize(("gain", "low", "high"), [(0.0, -0.5, 0.1), (0.1, 0.5, 3.0)])
def test_progress_separates_learning_from_guessing(gain, low, high):
    rates, rng, record = np.full(64, 0.1), np.random.default_rng(0), []
    controller = GDROController("grpo", seed=0)
    for step in range(24):
        drawn = np.arange(64).reshape(4, 16)[step % 4]
        group_ids = np.repeat(np.arange(16), 4)
        correct = rng.random(64) < rates[drawn][group_ids]
        record.append(controller.observe(controller.plan(drawn), group_ids, correct.astype(float)).row)
        rates[drawn] += gain
    assert low < diagnose.progress(record) < high
    assert sum(row["first_rollouts"] for row in record[:4]) == 256
    assert "none" in diagnose.diagnosis(record, 4)  # no first visit in the last quarter
