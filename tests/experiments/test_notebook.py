"""Notebook 05 under papermill, and other kinds of run: math data, LoRA, processes, vLLM."""

import nbformat
import papermill
import pytest
import yaml
from conftest import SMALL_PROFILE, TRAINS
from processes import REPOSITORY, needs, run_in
from safetensors.torch import load_file
from tiny_models import save_tiny_model
from transformers import AutoTokenizer

from gdro_lab.experiments.play import evaluate_run, train_run
from gdro_lab.experiments.profile import load_profile
from gdro_lab.experiments.records import read_result

pytestmark = TRAINS
FIXTURES = REPOSITORY / "tests" / "fixtures" / "math"
CACHE = REPOSITORY / ".cache" / "bases"  # where the notebooks have theirs

SMALL = SMALL_PROFILE | {
    "seeds": [0],
    "train": {"max_steps": 3, "prompts_per_step": 8, "save_steps": 2},
    "model": {"kind": "lora", "dtype": "float32"},
    "variants": {"both": {"method": "both"}},
}
MATH = SMALL | {
    "task": {
        "kind": "math",
        "train": "dapo",
        "evaluate": ["math500", "gpqa"],
        "max_completion_tokens": 8,
        "paths": {name: str(FIXTURES / f"{name}.jsonl") for name in ("dapo", "math500", "gpqa")},
    },
    "train": {"max_steps": 2, "prompts_per_step": 4, "save_steps": 2, "beta": 0.001},
    "evaluation": {"samples": 2, "k": 2},
}


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    folder = save_tiny_model("Llama", tmp_path_factory.mktemp("llama"))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.pad_token = None  # as Llama's own has none
    tokenizer.save_pretrained(folder)
    return folder


def write_profile(folder, fields):
    (folder / "profile.yaml").write_text(yaml.safe_dump(fields))
    return load_profile(folder / "profile.yaml")


def run_notebook(folder):
    """Notebook 05 on the variant "both" of the folder's profile: what its cells have shown."""
    given = {"profile": str(folder / "profile.yaml"), "method": "both", "runs_dir": str(folder)}
    given["cache_dir"] = str(CACHE)
    notebook = REPOSITORY / "notebooks" / "05_grpo_training.ipynb"
    papermill.execute_notebook(notebook, folder / "out.ipynb", given, progress_bar=False)
    cells = nbformat.read(folder / "out.ipynb", as_version=4).cells
    return [output for cell in cells for output in cell.get("outputs", [])]


def test_math_with_two_processes(tmp_path, llama, monkeypatch):
    monkeypatch.delenv("PYTEST_CURRENT_TEST")  # or ipykernel does not capture what processes print
    model = {"source": str(llama), "kind": "full"}
    profile = write_profile(tmp_path, MATH | {"model": model, "launch": {"processes": 2}})
    outputs = run_notebook(tmp_path)
    assert "both, seed 0: step 2/2" in str(outputs)
    run = tmp_path / "both" / "seed0"
    evaluate_run(profile.run("both", 0), run, CACHE)
    result = read_result(run)
    manifest, evaluation = result["manifest"], result["evaluation"]
    assert {row["family"] for row in evaluation} == {"math500", "gpqa"}
    # every completion was judged, in whichever process, and the manifest says how
    assert sum(manifest["train_data"]["outcomes"].values()) == 2 * 4 * 4 == manifest["rollouts"]
    assert sum(manifest["held_out_data"]["outcomes"].values()) == 2 * len(evaluation)
    assert [row["rollouts_spent"] for row in result["record"]] == [4 * 4] * 2
    assert (manifest["steps"], manifest["processes"]) == (2, 2)


def test_the_cell_trains_as_the_job_does(tmp_path):
    """The trainer that notebook 05 puts together leaves the bits of `train_run`."""
    profile = write_profile(tmp_path, SMALL)
    run, job = tmp_path / "both" / "seed0", tmp_path / "job"
    shown = [output.get("data", {}) for output in run_notebook(tmp_path)]
    assert any("image/png" in data for data in shown)
    record = train_run(profile.run("both", 0), job, CACHE)
    evaluate_run(profile.run("both", 0), run, CACHE)
    assert read_result(run)["record"] == record
    ours, theirs = (load_file(f / "model" / "adapter_model.safetensors") for f in (run, job))
    assert all(ours[name].equal(theirs[name]) for name in ours | theirs)


@needs("vllm")
def test_evaluation_of_an_adapter_by_two_vllm_processes(tmp_path):
    evaluation = {"engine": "vllm", "samples": 4, "k": 4, "temperature": 0.6, "top_p": 0.8}
    # of the machine's memory, on a CPU
    evaluation |= {"top_k": 20, "data_parallel_size": 2, "gpu_memory_utilization": 0.2}
    profile, run = write_profile(tmp_path, SMALL | {"evaluation": evaluation}), tmp_path / "run"
    train_run(profile.run("both", 0), run, CACHE)
    words = ["-m", "gdro_lab", "evaluate", tmp_path / "profile.yaml", "both"]
    run_in("vllm", *words, "--folder", run, "--cache-dir", CACHE)
    rows = read_result(run)["evaluation"]
    assert len({row["uid"] for row in rows}) == len(rows) == 6 * 4
    assert {row["trials"] for row in rows} == {4}
    assert all(0 < row["tokens"] <= 4 * 12 for row in rows)
