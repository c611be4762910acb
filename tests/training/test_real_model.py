"""The profile `smol`, two steps, with vLLM; notebook 08.

The model is real, SmolLM2-135M out of its package, with the cold start that is shipped.
"""

import math
import subprocess
import sys

import nbformat
import papermill
import pytest
import yaml
from conftest import PATIENCE, TRAINS
from helpers import write_lines
from processes import REPOSITORY, needs, run_in
from safetensors.torch import load_file

from gdro_lab.experiments.records import read_table
from gdro_lab.tasks import GymChoice
from gdro_lab.tasks.world import WORLDS

pytestmark = TRAINS

CACHE = REPOSITORY / ".cache" / "bases"
STEPS = 2
BUDGET = 32  # rollouts of a step: 4 for each of 8 prompts
FAMILIES = ("sum-1", "sum-2", "product-1", "equation-1")  # of which most groups are mixed
TRAIN = {
    "max_steps": STEPS,
    "prompts_per_step": 8,
    "num_generations": 4,
    "save_steps": STEPS,
    "logging_steps": 1,
}


@pytest.fixture(scope="module")
def model():
    """The base's folder: the package is downloaded once for the repository."""
    command = [sys.executable, "-m", "gdro_lab", "base", "smol-transformers"]
    command += ["--cache-dir", str(CACHE)]
    run = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=PATIENCE)
    if run.returncode == 2 and "could not download" in run.stderr:
        pytest.skip(run.stderr.strip())
    assert run.returncode == 0, run.stderr[-3000:]
    return run.stdout.splitlines()[-1]


@pytest.fixture
def task(tmp_path):
    """Few questions of the profile's world."""
    world = yaml.safe_load((WORLDS / "smol.yaml").read_text("utf-8"))
    families = [family for family in world["families"] if family["name"] in FAMILIES]
    few = {"name": "few", "families": families, "n_train": 40, "n_eval_per_family": 3}
    path = tmp_path / "few_questions.yaml"
    path.write_text(yaml.safe_dump(world | few))
    return GymChoice(kind="reasoning_gym", world=str(path))


def assert_trained(record, log):
    """All batches, at exactly the budget; losses and gradients are finite, and there are some."""
    assert [row["step"] for row in record] == list(range(STEPS))
    assert [row["rollouts_spent"] for row in record] == [BUDGET] * STEPS
    losses = [row["loss"] for row in log if "loss" in row]
    gradients = [row["grad_norm"] for row in log if "grad_norm" in row]
    assert len(losses) == len(gradients) == STEPS
    assert all(math.isfinite(number) for number in losses + gradients)
    assert max(gradients) > 0


def changed_weights(model, trained):
    """Names of the weights that a training has changed."""
    before = load_file(f"{model}/model.safetensors")
    after = load_file(trained / "model.safetensors")
    assert before.keys() == after.keys()
    return [name for name in before if not before[name].equal(after[name].to(before[name].dtype))]


@needs("vllm")
def test_vllm_samples_for_training(model, task, tmp_path):
    fields = {
        "like": "smol",
        "one_task": True,
        "task": task.model_dump(),
        "model": {"source": model},
        "cold_start": None,  # the source has had it
        # TRL measures the gap for the correction
        "train": TRAIN | {"vllm_importance_sampling_correction": True},
    }
    profile = tmp_path / "few.yaml"
    profile.write_text(yaml.safe_dump(fields))
    run = tmp_path / "run"
    words = [profile, "pivotal", "--folder", run, "--cache-dir", CACHE]
    run_in("vllm", "-m", "gdro_lab", "train", *words)
    log = read_table(run / "log_history.jsonl")
    assert_trained(read_table(run / "record.jsonl"), log)
    assert changed_weights(model, run / "model")

    # |log-probability of a token by vLLM − by the trainer|: the engine computes in bfloat16, whose
    # rounding alone is .04 here, as between transformers in 16 and in 32 bits; an engine with other
    # weights is off by 3
    gaps = [row["sampling/sampling_logp_difference/mean"] for row in log if "loss" in row]
    assert len(gaps) == STEPS
    assert all(0 < gap < 0.3 for gap in gaps)


def test_notebook_08_trains_on_a_file_of_ones_own(model, tmp_path):
    sums = [
        {"question": f"What is {n} + 2?", "answer": f"{n}+2={n + 2}\n#### {n + 2}"}
        for n in range(20)
    ]
    file = write_lines(tmp_path / "sums.jsonl", sums)
    given = {"data": str(file), "method": "pivotal", "steps": 2, "questions": 2}
    given |= {"cache_dir": str(CACHE), "output_dir": str(tmp_path)}
    notebook = REPOSITORY / "notebooks" / "08_a_pretrained_model.ipynb"
    papermill.execute_notebook(notebook, tmp_path / "out.ipynb", given, progress_bar=False)
    cells = nbformat.read(tmp_path / "out.ipynb", as_version=4).cells
    printed = "".join(o.get("text", "") for cell in cells for o in cell.get("outputs", []))
    assert "step 2: reward" in printed
    assert changed_weights(model, tmp_path / "model")
