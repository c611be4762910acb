"""Notebook 05 under papermill for each kind of run: math data, LoRA, processes, vLLM."""

from pathlib import Path

import nbformat
import pytest
import yaml
from conftest import SMALL_PROFILE, TRAINS
from processes import needs, run_in
from safetensors.torch import load_file
from tiny_models import save_tiny_model
from transformers import AutoTokenizer

from gdro.study import experiment
from gdro.study.notebooks import run_notebook
from gdro.study.profiles import load_profile
from gdro.training.records import read_manifest, read_table

pytestmark = [pytest.mark.slow, *TRAINS]
REPOSITORY = Path(__file__).parents[2]
FIXTURES = Path(__file__).parents[1] / "fixtures" / "math"

CHAIN = SMALL_PROFILE | {
    "seeds": [0],
    "train": {"max_steps": 3, "prompts_per_step": 8, "save_steps": 2},
    "variants": {"both": {"method": "both"}},
}
MATH = {
    "seeds": [0],
    "task": {
        "kind": "math", "train": "dapo", "evaluate": ["math500", "gpqa"], "max_completion_tokens": 8,
        "paths": {name: str(FIXTURES / f"{name}.jsonl") for name in ("dapo", "math500", "gpqa")},
    },
    "train": {"max_steps": 2, "prompts_per_step": 4, "save_steps": 2, "beta": 0.001}
    | {"per_device_train_batch_size": 8},
    "evaluation": {"samples": 2, "k": 2},
    "variants": {"both": {"method": "both"}},
}  # fmt: skip


@pytest.fixture(scope="module")
def cache():
    return REPOSITORY / ".cache" / "bases"  # where the notebooks have theirs


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    folder = save_tiny_model("Llama", tmp_path_factory.mktemp("llama"))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.pad_token = None  # as Llama's own has none
    tokenizer.save_pretrained(folder)
    return folder


def outputs_of(notebook):
    """What the cells of a notebook have shown, by kind."""
    outputs = [out for cell in nbformat.read(notebook, as_version=4).cells for out in cell.get("outputs", [])]
    kinds = {kind for out in outputs for kind in out.get("data", {})}
    return {kind: [out.data[kind] for out in outputs if kind in out.get("data", {})] for kind in kinds}


def in_notebook(profile, cache, folder):
    """Notebook 05 on the profile's variant "both"."""
    given = {"profile": str(folder / "profile.yaml"), "method": "both", "runs_dir": str(folder)}
    notebook, manifest = REPOSITORY / "notebooks" / "05_grpo_training.ipynb", folder / "manifest.json"
    given |= {"cache_dir": str(cache), "manifest": str(manifest)}
    run_notebook(notebook, folder / "out.ipynb", given, manifest=manifest)
    assert read_manifest(manifest)["steps"] == profile.train.max_steps


def in_job(profile, cache, folder):
    """The same in this process."""
    experiment.train_variant(profile, "both", 0, folder / "both" / "seed0", cache)


def train(folder, cache, fields, how=in_job):
    """Train and evaluate a profile of these fields: (manifest, record, evaluation)."""
    path, run = folder / "profile.yaml", folder / "both" / "seed0"
    path.write_text(yaml.safe_dump(fields))
    profile = load_profile(path)
    how(profile, cache, folder)
    if profile.evaluation.engine == "vllm":
        run_in("vllm", "-m", "gdro", "evaluate", path, "both", "--folder", run, "--cache-dir", cache)
    else:
        experiment.evaluate_variant(profile, "both", 0, run, cache)
    evaluation = read_table(run / "evaluation.jsonl")
    found, record = read_manifest(run / "manifest.json"), read_table(run / "record.jsonl")
    assert len(record) == profile.train.max_steps
    assert found["rollouts"] == profile.train.budget
    assert {row["trials"] for row in evaluation} == {fields["evaluation"]["samples"]}
    assert (run / "model" / "tokenizer_config.json").is_file()
    assert not list(run.glob("checkpoints-*"))
    return found, record, evaluation


def test_math_with_two_processes(tmp_path, cache, llama, monkeypatch):
    monkeypatch.delenv("PYTEST_CURRENT_TEST")  # with it, ipykernel does not capture what processes print
    fields = MATH | {"model": {"source": str(llama)}, "launch": {"processes": 2}}
    fields["train"] = MATH["train"] | {"per_device_train_batch_size": 4}
    found, record, evaluation = train(tmp_path, cache, fields, in_notebook)
    assert {row["family"] for row in evaluation} == {"math500", "gpqa"}
    # every completion was judged, in whichever process, and the manifest says how
    assert sum(found["train_data"]["outcomes"].values()) == 2 * 4 * 4
    assert sum(found["held_out_data"]["outcomes"].values()) == 2 * len(evaluation)
    assert (record[0]["rollouts_spent"], found["processes"]) == (16, 2)
    # what launched processes print is in the notebook
    assert "both, seed 0: step 2/2" in (tmp_path / "out.ipynb").read_text()


def test_training_does_not_touch_the_evaluation_sets(tmp_path, cache, llama):
    fields = MATH | {"model": {"source": str(llama)}}
    (tmp_path / "gpqa.jsonl").write_text('{"no": "question"}\n')
    paths = MATH["task"]["paths"] | {"gpqa": str(tmp_path / "gpqa.jsonl")}
    fields["task"] = MATH["task"] | {"paths": paths}
    with pytest.raises(ValueError, match="gpqa"):
        train(tmp_path, cache, fields)  # its evaluation
    assert (tmp_path / "both" / "seed0" / "training.json").exists()


def test_the_cell_trains_as_the_job_does(tmp_path, cache):
    """The trainer that notebook 05 puts together leaves the bits of `train_variant`, of an adapter."""
    fields = CHAIN | {"model": {"kind": "lora", "dtype": "float32"}}
    found, record, _ = train(tmp_path, cache, fields, in_notebook)
    assert found["settings"]["model"]["kind"] == "lora"
    shown = outputs_of(tmp_path / "out.ipynb")
    assert len(shown["image/png"]) == 1  # one picture, drawn anew
    assert "right of 8" in "".join(shown["text/html"])
    job = tmp_path / "job"
    assert experiment.train_variant(load_profile(tmp_path / "profile.yaml"), "both", 0, job, cache) == record
    folders = tmp_path / "both" / "seed0", job
    ours, theirs = (load_file(folder / "model" / "adapter_model.safetensors") for folder in folders)
    assert all(ours[name].equal(theirs[name]) for name in ours | theirs)


@needs("vllm")
def test_evaluation_of_an_adapter_by_two_vllm_processes(tmp_path, cache):
    evaluation = {"engine": "vllm", "samples": 4, "k": 4, "temperature": 0.6, "top_p": 0.8, "top_k": 20}
    evaluation["data_parallel_size"] = 2
    evaluation["gpu_memory_utilization"] = 0.2  # on a CPU: of the machine's memory
    fields = CHAIN | {"evaluation": evaluation, "model": {"kind": "lora", "dtype": "float32"}}
    _, _, rows = train(tmp_path, cache, fields)
    assert len({row["uid"] for row in rows}) == len(rows) == 6 * 4
    assert all(0 < row["tokens"] <= 4 * 12 for row in rows)
