"""Notebook 05 under papermill for each kind of run: math data, families of models, LoRA, processes, vLLM."""

import os
from pathlib import Path

import pytest
import yaml
from tiny_models import save_tiny_model

from gdro.notebooks import NotebookError, run_notebook
from gdro.profiles import load_profile
from gdro.records import read_manifest, read_table

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning"),
]
REPOSITORY = Path(__file__).parent.parent
FIXTURES = Path(__file__).parent / "fixtures" / "math"
VLLM_PYTHON = Path(os.environ.get("GDRO_VLLM_PYTHON", REPOSITORY / ".venv-vllm" / "bin" / "python"))
needs_vllm = pytest.mark.skipif(
    not VLLM_PYTHON.exists(), reason="no vLLM: `make setup-engines` makes an environment that has it"
)

CHAIN = {
    "seeds": [0],
    "task": {"n_train": 60, "n_eval_per_family": 4},
    "base": {"steps": 60, "batch_size": 32},
    "train": {"steps": 3, "prompts_per_step": 8, "save_steps": 2},
    "evaluation": {"samples": 4, "k": 4},
    "variants": {"both": {"method": "both"}},
}
MATH = {
    "seeds": [0],
    "task": {
        "kind": "math",
        "train": "dapo",
        "evaluate": ["math500", "gpqa"],
        "paths": {name: str(FIXTURES / f"{name}.jsonl") for name in ("dapo", "math500", "gpqa")},
        "max_completion_tokens": 8,
        "verify_workers": 1,
    },
    "train": {"steps": 2, "prompts_per_step": 4, "save_steps": 2, "micro_batch": 8, "beta": 0.001},
    "evaluation": {"samples": 2, "k": 2},
    "variants": {"both": {"method": "both"}},
}


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("bases")


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    return {family: save_tiny_model(family, root / family) for family in ("Llama", "Mistral")}


def train(folder, cache, fields, variant="both"):
    """Run notebook 05 on a profile of these fields: (manifest, record, evaluation), checked for wholeness."""
    path = folder / "profile.yaml"
    path.write_text(yaml.safe_dump(fields))
    manifest = folder / "manifest.json"
    given = {"profile": str(path), "method": variant, "runs_dir": str(folder), "cache_dir": str(cache)}
    run_notebook(
        REPOSITORY / "notebooks" / "05_grpo_training.ipynb",
        folder / "out.ipynb",
        given | {"manifest": str(manifest)},
        manifest=manifest,
    )
    found, run = read_manifest(manifest), folder / variant / "seed0"
    record, evaluation = read_table(run / "record.jsonl"), read_table(run / "evaluation.jsonl")
    settings = load_profile(path).train_of(variant)
    assert found["steps"] == len(record) == settings.steps
    assert found["rollouts"] == settings.steps * settings.prompts_per_step * settings.mean_rollouts
    assert {row["trials"] for row in evaluation} == {fields["evaluation"]["samples"]}
    assert (run / "model" / "tokenizer_config.json").is_file()
    assert not list(run.glob("checkpoints-*")) + list(run.glob("merged"))
    return found, record, evaluation


@pytest.mark.parametrize("family", ["Llama", "Mistral"])
def test_math_with_models_of_other_families(tmp_path, cache, models, family):
    found, record, evaluation = train(tmp_path, cache, MATH | {"model": {"source": str(models[family])}})
    assert {row["family"] for row in evaluation} == {"math500", "gpqa"}
    # every completion was judged, and the manifest says how
    assert sum(v for k, v in found["outcomes"]["train"].items() if k != "seconds") == 2 * 4 * 4
    held_out = found["outcomes"]["held_out"]
    assert sum(v for k, v in held_out.items() if k != "seconds") == 2 * len(evaluation)
    assert record[0]["rollouts_spent"] == 16


def test_math_on_two_processes_counts_the_completions_of_both(tmp_path, cache, models):
    fields = MATH | {"model": {"source": str(models["Llama"])}, "launch": {"processes": 2}}
    fields["train"] = MATH["train"] | {"micro_batch": 4}
    found, _, _ = train(tmp_path, cache, fields)
    assert sum(v for k, v in found["outcomes"]["train"].items() if k != "seconds") == 2 * 4 * 4


def test_lora_on_the_embedded_task(tmp_path, cache):
    found, _, _ = train(tmp_path, cache, CHAIN | {"model": {"kind": "lora", "dtype": "float32"}})
    assert found["settings"]["model"]["kind"] == "lora"
    assert (tmp_path / "both" / "seed0" / "model" / "adapter_config.json").is_file()


def test_two_processes(tmp_path, cache):
    found, record, _ = train(tmp_path, cache, CHAIN | {"launch": {"processes": 2}})
    assert found["processes"] == 2
    assert all(row["rollouts_spent"] == 32 for row in record)
    assert "both, seed 0: step 3/3" in (tmp_path / "out.ipynb").read_text()


def test_a_launched_training_that_fails_ends_the_run(tmp_path, cache):
    fields = CHAIN | {"launch": {"processes": 2}, "train": CHAIN["train"] | {"learning_rate": 1e39}}
    with pytest.raises(NotebookError, match="the launched training failed"):
        train(tmp_path, cache, fields)
    assert not (tmp_path / "manifest.json").exists()


@needs_vllm
@pytest.mark.parametrize("kind", ["full", "lora"])
def test_evaluation_by_vllm(tmp_path, cache, monkeypatch, kind):
    monkeypatch.setenv("GDRO_VLLM_PYTHON", str(VLLM_PYTHON))
    evaluation = {"engine": "vllm", "samples": 4, "k": 4, "temperature": 0.6, "top_p": 0.8, "top_k": 20}
    evaluation["gpu_memory_utilization"] = 0.2  # on a CPU: of the machine's memory
    fields = CHAIN | {"evaluation": evaluation, "model": {"kind": kind, "dtype": "float32"}}
    _, _, rows = train(tmp_path, cache, fields)
    assert len(rows) == 6 * 4
    assert all(0 < row["tokens"] <= 4 * 12 for row in rows)
