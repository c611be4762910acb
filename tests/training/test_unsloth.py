"""GDROTrainer on the trainer that the real Unsloth writes, in an environment that has it."""

import json
from collections import Counter

import numpy as np
import pytest
import torch
from conftest import TRAINS
from processes import REPOSITORY, needs, run_in
from safetensors.torch import load_file

pytestmark = [needs("unsloth"), *TRAINS]


@pytest.fixture(scope="module")
def folder(base, tmp_path_factory):
    """What unsloth_run.py leaves; Unsloth writes the trainer it has made into it."""
    folder = tmp_path_factory.mktemp("unsloth")
    run_in("unsloth", REPOSITORY / "tests" / "unsloth_run.py", base, folder, cwd=folder)
    return folder


@pytest.fixture(scope="module")
def report(folder):
    return json.loads((folder / "report.json").read_text())


def test_method_grpo_is_unsloths_own_training_bit_for_bit(folder, report):
    stock, grpo = (load_file(folder / f"{name}.safetensors") for name in ("stock", "grpo"))
    runs = report["trainings"]
    assert runs["stock"]["classes"][0] == "UnslothGRPOTrainer"
    assert {"GDROTrainer", "UnslothGRPOTrainer"} < set(runs["both"]["classes"])
    assert runs["grpo"]["losses"] == runs["stock"]["losses"]
    assert any(loss != 0 for loss in runs["stock"]["losses"])
    assert all(torch.equal(grpo[name], stock[name]) for name in stock)
    assert [row["rollouts_spent"] for row in runs["grpo"]["record"]] == [32] * 9


def test_both_games_move_rollouts_and_weights(folder, report):
    grpo, both = (load_file(folder / f"{name}.safetensors") for name in ("grpo", "both"))
    record = report["trainings"]["both"]["record"]
    planned = [n for row in record for n in row["rollouts"] if n is not None]
    assert min(planned) < 4 < max(planned)
    assert {row["rollouts_spent"] for row in record} == {32}
    assert any(not torch.equal(both[name], grpo[name]) for name in both)


@pytest.mark.parametrize(
    "loss", ["grpo", "bnpo", "dr_grpo", "dapo", "cispo", "luspo", "sapo", "vespo"]
)
def test_rows_without_a_signal_leave_the_gradient_as_it_is(report, loss):
    found = report["gradients"][loss]
    with_signal, again, without = found["rows"]  # of 16; where no row has a signal, one is left
    assert 1 < with_signal == again < 16
    assert without == 1
    assert found["difference"] < 1e-4  # of rounding: up to 1.2e-5 without AVX
    assert found["without_a_signal"] == 0
    # why advantages are scaled, and never the loss: its backward ignores a factor
    assert found["of_a_halved_loss"] == 0


def test_a_stopped_training_resumes_to_the_same_weights_and_record(report):
    assert report["resumed"] == {"difference": 0.0, "same_record": True}


def test_each_generation_has_the_adapter_of_its_step(report):
    engine = report["engine"]
    assert engine["is_the_engine"]
    assert engine["adapter_of_the_step"] == [True] * 9
    assert engine["adapter_moved"] > 1e-3
    assert engine["base_moved"] == 0
    # |log-probability by the engine − by the trainer|, with the adapter, and where it would be lost
    assert max(engine["gaps"]) < 1e-5
    assert min(engine["gap_without_adapter"]) > 0.1
    np.testing.assert_allclose(engine["ratios"], 1, atol=1e-5)


def test_uneven_rollouts_go_through_the_engine_row_by_row(report):
    engine = report["engine"]
    assert engine["n"] == [1]
    assert engine["spent"] == [32] * 9
    sizes = [Counter(map(str, prompts)) for prompts in engine["prompts"]]
    assert {counts.total() for counts in sizes} == {32}
    assert any(len(set(counts.values())) > 1 for counts in sizes)


def test_what_would_be_wrong_in_silence_is_refused(report):
    assert [named for named, words in report["refusals"].items() if named not in words] == []
