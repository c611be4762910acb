"""GDROTrainer on the trainer that the real Unsloth writes and installs, in an environment that has it."""

import json
import os
import subprocess
from pathlib import Path

import pytest
import tiny_run
import torch
from safetensors.torch import load_file

REPOSITORY = Path(__file__).parent.parent
PYTHON = REPOSITORY / ".venv-unsloth" / "bin" / "python"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PYTHON.exists(), reason="no Unsloth: `make setup-engines` brings it"),
    pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning"),
]

SIGNATURES = """
from gdro.models import import_unsloth
import_unsloth()
import inspect
from unsloth import FastLanguageModel
calls = {
    FastLanguageModel.from_pretrained: ["model_name", "max_seq_length", "dtype", "load_in_4bit",
        "full_finetuning", "use_gradient_checkpointing", "random_state"],
    FastLanguageModel.get_peft_model: ["r", "lora_alpha", "lora_dropout", "random_state",
        "use_gradient_checkpointing"],
}
for call, arguments in calls.items():
    assert set(arguments) <= set(inspect.signature(call).parameters), call
"""


def in_unsloth(folder, *arguments):
    """Run Unsloth's Python in `folder`, into which Unsloth writes the trainer it has made."""
    paths = os.pathsep.join(map(str, [REPOSITORY, REPOSITORY / "tests"]))
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": paths, "UNSLOTH_ALLOW_CPU": "1"}
    result = subprocess.run(
        [PYTHON, *map(str, arguments)],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr[-3000:]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """method → (report, weights) of a small training on Unsloth's trainer."""
    base = tiny_run.make_base(tmp_path_factory.mktemp("base"))
    found = {}
    for method in ("stock", "grpo", "both"):
        folder = tmp_path_factory.mktemp(method)
        in_unsloth(folder, REPOSITORY / "tests" / "unsloth_run.py", method, base, folder)
        report = json.loads((folder / "report.json").read_text())
        found[method] = report, load_file(folder / "weights.safetensors")
    return found


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


def test_unsloth_takes_what_load_model_gives_it(tmp_path):
    in_unsloth(tmp_path, "-c", SIGNATURES)
