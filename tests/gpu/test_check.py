"""`gdro check`: what of it a CPU can run, with the real vLLM where it is installed; that checks can fail."""

import json
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
import transformers
import yaml
from click.testing import CliRunner
from processes import needs, run_in
from tiny_models import save_tiny_model

from gdro.cli import main
from gdro.gpu import check, size
from gdro.gpu.bench import Bench, verdict
from gdro.study.profiles import load_profile
from gdro.tasks import draw_task
from gdro.tasks.settings import ChainChoice
from gdro.training.models import tiny_base
from gdro.training.records import read_manifest

REPOSITORY = Path(__file__).parents[2]


def statuses(results):
    return {result.check: result.status for result in results}


@pytest.fixture
def bench(base, tmp_path, one_thread):
    return Bench(tmp_path, source=str(base))


def in_processes(monkeypatch, answers):
    monkeypatch.setattr(check, "_in_a_process", lambda name, *_: answers[name])


def test_results_are_printed_and_written(monkeypatch, tmp_path, capsys):
    good, bad = verdict("disk", True, "3 GiB", "2 GiB"), verdict("GPU", False, "1 GiB", "20 GiB")
    skipped = check.CheckResult("uneven", "SKIP", why="needs a GPU")
    in_processes(monkeypatch, {"machine": [good, bad], "uneven": [skipped]})
    results = check.run_checks(out=tmp_path / "check.json", names=("uneven", "machine"))
    assert [result.status for result in results] == ["PASS", "FAIL", "SKIP"]
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["PASS", "disk", "3", "GiB", "(allowed:", "2", "GiB)"]
    assert lines[2].split() == ["SKIP", "uneven", "needs", "a", "GPU"]
    manifest = read_manifest(tmp_path / "check.json")
    assert [row["status"] for row in manifest["checks"]] == ["PASS", "FAIL", "SKIP"]
    assert "torch" in manifest["packages"]


@pytest.mark.parametrize(("status", "code"), [("SKIP", 0), ("PASS", 0), ("FAIL", 1)])
def test_the_exit_code_says_whether_a_check_failed(monkeypatch, tmp_path, status, code):
    monkeypatch.setattr(check, "_in_a_process", lambda name, *_: [check.CheckResult(name, status)])
    ended = CliRunner().invoke(main, ["check", "tiny", "--out", str(tmp_path / "check.json")])
    assert ended.exit_code == code
    rows = read_manifest(tmp_path / "check.json")["checks"]
    assert [(row["check"], row["status"]) for row in rows] == [(c.__name__, status) for c in check.CHECKS]


def test_a_wrong_profile_is_refused_before_anything_runs(monkeypatch):
    in_processes(monkeypatch, {})
    with pytest.raises(ValueError, match="profile must be one of"):
        check.run_checks("gpu-2b")


def test_an_error_is_a_fail_and_what_is_missing_a_skip(monkeypatch, bench, capsys):
    def breaks(bench):
        yield verdict("first", True, "1", "1")
        raise RuntimeError("no kernel image")

    monkeypatch.setattr(check, "CHECKS", (breaks, check.unsloth_lora, check.several_gpus))
    results = check.run_check("breaks", bench)
    assert statuses(results) == {"first": "PASS", "breaks": "FAIL"}
    assert results[1].why == "RuntimeError: no kernel image"
    [result] = check.run_check("unsloth_lora", bench)
    assert result.status == "SKIP"
    assert "not installed here" in result.why


def test_a_check_that_takes_too_long_is_a_fail(monkeypatch):
    monkeypatch.setattr(check, "PATIENCE_S", 0.05)
    [result] = check.run_checks(names=("uneven",))
    assert result.status == "FAIL"
    assert result.why.startswith("took more than")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", ["uneven", "gradients", "resuming"])
def test_on_a_cpu_it_passes(bench, name):
    results = check.run_check(name, bench)
    assert {result.status for result in results} == {"PASS"}, results
    assert len(results) == {"uneven": 2, "gradients": 4, "resuming": 2}[name]


@pytest.mark.slow
def test_a_wrong_gradient_and_wrong_rollouts_are_found(monkeypatch, bench):
    import gdro.trainer

    right = gdro.trainer.trimmed
    monkeypatch.setattr(gdro.trainer, "trimmed", lambda *args: (right(*args)[0], 0.9))
    monkeypatch.setattr(check, "gradient_by_ranks", lambda bench, source, inputs, ranks: torch.zeros(1))
    found = statuses(check.run_check("gradients", bench))
    assert len(found) == 4
    assert set(found.values()) == {"FAIL"}
    monkeypatch.undo()

    trainer = bench.trainer("uneven", "one-two-three")
    trainer.train()
    watch = trainer.watch
    watch.planned[1][0] += 1
    watch.errors[2] = 0.01
    assert statuses(check.counts_of(watch)) == {"rollouts as planned": "FAIL", "advantages": "FAIL"}


def size_of(tmp_path, **fields):
    file = tmp_path / "own.yaml"
    file.write_text(yaml.safe_dump(fields))
    return {one.check: one for one in size.size_of_profile(load_profile(file), tmp_path, str(tmp_path))}


@pytest.mark.slow
def test_memory_and_seconds_of_a_math_profile_are_measured_without_its_weights_or_data(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    folder = save_tiny_model("Qwen3", tmp_path / "source")
    task = {"kind": "math", "max_prompt_tokens": 400, "max_completion_tokens": 6}
    fields = {"seeds": [0, 1], "task": task, "model": {"source": str(folder)}, "hours": 1e-6}
    fields["train"] = {"prompts_per_step": 8, "per_device_train_batch_size": 4, "max_steps": 10}
    variants = {
        "a": {"method": "grpo"},
        "b": {"method": "both"},
        "c": {"method": "both", "model": {"kind": "lora"}},
    }
    found = size_of(tmp_path, **fields, variants=variants)
    assert list(found) == ["a: memory", "a: time", "c: memory", "c: time"]
    memory, time = found["a: memory"], found["a: time"]
    assert memory.status == "PASS"
    assert 0.1 < float(memory.measured.split()[0]) < float(memory.allowed.split()[0])
    assert time.status == "FAIL"  # of so few hours
    seconds, hours = (float(time.measured.split()[place]) for place in (0, 5))
    assert seconds > 0
    assert hours == pytest.approx(10 * seconds / 3600, abs=0.02)
    assert "4 like it" in time.measured  # two variants, two seeds
    record = [json.loads(line) for line in (tmp_path / "a" / "record.jsonl").read_text().splitlines()]
    assert {row["rollouts_spent"] for row in record} == {8}  # two micro-batches of 4
    assert all(row["tokens"] >= 8 * (240 + 5) for row in record)  # nearly full length
    log = (tmp_path / "a" / "log_history.jsonl").read_text().splitlines()
    assert {"entropy", "completions/mean_length"} <= set(json.loads(log[0]))


def test_without_the_hub_our_profiles_models_have_known_shapes():
    for source, billions in {"1.7B-Base": 1.72, "4B-Base": 4.02, "8B-Base": 8.19}.items():
        with torch.device("meta"):
            model = transformers.AutoModelForCausalLM.from_config(size.qwen3(f"Qwen/Qwen3-{source}"))
        assert model.num_parameters() / 1e9 == pytest.approx(billions, abs=0.01)
        assert model.config.vocab_size == 151_936
    named = {load_profile(file).model.source for file in (REPOSITORY / "profiles").glob("*.yaml")}
    assert named - {None} == set(size.QWEN3)


def test_without_the_hub_a_model_is_made_or_the_check_is_skipped(tmp_path, monkeypatch):
    offline = Mock(side_effect=OSError("offline"))
    small = size.QWEN3["Qwen/Qwen3-1.7B"] | {"num_hidden_layers": 1, "hidden_size": 64}
    monkeypatch.setitem(size.QWEN3, "small", small)
    with monkeypatch.context() as patch:
        patch.setattr(transformers.AutoConfig, "from_pretrained", offline)
        folder = size.random_model("small", tmp_path / "model")
        file = tmp_path / "unknown.yaml"
        fields = {"seeds": [0], "task": {"kind": "math"}, "model": {"source": "none/such"}}
        file.write_text(yaml.safe_dump(fields | {"variants": {"grpo": {"method": "grpo"}}}))
        [result] = check.run_check("size", Bench(tmp_path, profile=str(file)))
    assert result.status == "SKIP"
    assert "no hub, no local copy and no known shape of 'none/such'" in result.why
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    assert model.get_input_embeddings().num_embeddings == len(tokenizer) == 151_936
    assert model.config.tie_word_embeddings
    assert tokenizer.decode(tokenizer("1 + é")["input_ids"]) == "1 + é"
    assert tokenizer.decode([151_935]) == "word151935"


def test_what_a_profile_costs_is_said():
    assert load_profile("gpu-1.7b-day").cost.startswith(
        "6 trainings (6 variants, 1 seeds): up to 24 GPU-hours"
    )
    assert load_profile("tiny").cost == "8 trainings (4 variants, 2 seeds)"


@pytest.fixture(scope="module")
def solving(tmp_path_factory):
    """A base that solves some of the check's task, with an output matrix of its own."""
    folder = tmp_path_factory.mktemp("solving")
    task = draw_task(ChainChoice(n_train=48, n_eval_per_family=6))  # as the check's own profile has it
    base = tiny_base(task, seed=0, cache_dir=folder, steps=400, progress=False)
    return check.untied(str(base), folder / "base")  # a CPU's vLLM does not reload a shared matrix


@needs("vllm")
@pytest.mark.slow
@pytest.mark.parametrize(("name", "found"), [("engine", 4), ("engine_lora", 5), ("evaluation", 1)])
def test_with_vllm_it_passes(solving, tmp_path, name, found):
    run_in("vllm", "tests/vllm_run.py", "check", solving, tmp_path / "results.json", name)
    results = json.loads((tmp_path / "results.json").read_text())
    assert {result["status"] for result in results} == {"PASS"}, results
    assert len(results) == found
