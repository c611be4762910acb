"""A TRL that lacks what the trainer needs is refused with its name, its version and the remedy."""

import pytest
from trl import GRPOTrainer

from gdro.training.trl_names import check_attributes, check_calls


def test_another_trl_is_refused():
    check_calls(GRPOTrainer)

    class Renamed(GRPOTrainer):
        def _calculate_rewards(self, samples):
            return samples

    with pytest.raises(
        ImportError, match=r"_calculate_rewards\(self, samples\): .*TRL >=1.14.2.* install 'trl"
    ):
        check_calls(Renamed)
    with pytest.raises(
        ImportError, match=r"GRPOTrainer has no _generate_and_score_completions: .* this is \d"
    ):
        check_calls(object)
    with pytest.raises(ImportError, match="GRPOTrainer has no _metrics"):
        check_attributes(object())
