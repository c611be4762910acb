"""GDROTrainer on the trainer that the real Unsloth writes and installs, in an environment that has it."""

import json
import os
import subprocess
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

REPOSITORY = Path(__file__).parents[2]
PYTHON = REPOSITORY / ".venv-unsloth" / "bin" / "python"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PYTHON.exists(), reason="no Unsloth: `make setup-engines` brings it"),
    pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning"),
]

ARGUMENTS = {  # that `load_model` gives
    "from_pretrained": ["model_name", "max_seq_length", "dtype", "load_in_4bit", "full_finetuning",
        "use_gradient_checkpointing", "random_state"],
    "get_peft_model": ["r", "lora_alpha", "lora_dropout", "random_state", "use_gradient_checkpointing"],
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(base, tmp_path_factory):
    """What unsloth_run.py leaves; Unsloth writes the trainer it has made into it."""
    folder = tmp_path_factory.mktemp("unsloth")
    paths = os.pathsep.join(map(str, [REPOSITORY, REPOSITORY / "tests"]))
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": paths, "UNSLOTH_ALLOW_CPU": "1"}
    result = subprocess.run(
        [str(PYTHON), str(REPOSITORY / "tests" / "unsloth_run.py"), str(base), str(folder)],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr[-3000:]
    return folder


@pytest.fixture(scope="module")
def runs(folder):
    """method → (report, weights) of a small training on Unsloth's trainer."""
    return {
        method: (
            json.loads((folder / method / "report.json").read_text()),
            load_file(folder / method / "weights.safetensors"),
        )
        for method in ("stock", "grpo", "both")
    }


def test_it_is_built_on_unsloths_trainer(runs):
    assert runs["stock"][0]["classes"][0] == "UnslothGRPOTrainer"
    assert runs["both"][0]["classes"][:2] == ["GDROTrainer", "UnslothGRPOTrainer"]


def test_method_grpo_is_unsloths_own_training_bit_for_bit(runs):
    (stock, stock_weights), (report, weights) = runs["stock"], runs["grpo"]
    assert report["losses"] == stock["losses"]
    assert any(loss != 0 for loss in stock["losses"])
    assert all(torch.equal(weights[name], stock_weights[name]) for name in stock_weights)
    assert [row["rollouts_spent"] for row in report["record"]] == [32] * 9


def test_both_games_move_rollouts_and_weights(runs):
    (_, plain_weights), (report, weights) = runs["grpo"], runs["both"]
    planned = [n for row in report["record"] for n in row["rollouts"] if n is not None]
    assert min(planned) < 4 < max(planned)
    assert {row["rollouts_spent"] for row in report["record"]} == {32}
    assert any(not torch.equal(weights[name], plain_weights[name]) for name in weights)


@pytest.mark.parametrize("call", ARGUMENTS)
def test_unsloth_takes_what_load_model_gives_it(folder, call):
    assert set(ARGUMENTS[call]) <= set(json.loads((folder / "signatures.json").read_text())[call])
