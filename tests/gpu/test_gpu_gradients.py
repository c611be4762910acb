"""The savings change no gradient, and rollouts come as planned, without an engine."""

import needs_gpu  # noqa: F401
from watch import check_trimming, make_trainer


def test_rollouts_as_planned_and_advantages_as_numpy(tmp_path):
    trainer, watch = make_trainer(tmp_path, "one-two-three")
    trainer.train()
    watch.check_plans()


def test_rows_without_a_signal_do_not_count(tmp_path):
    check_trimming(tmp_path)
