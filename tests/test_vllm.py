"""Sampling, evaluation and training with the real vLLM, in the environment that has it; refusals without.

Engines are few, since each takes seconds to start: the module's fixtures hold what several tests look at.
"""

import importlib.util
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("trl")

from tiny_models import byte_tokenizer, save_tiny_model  # noqa: E402
from tiny_run import arguments, half_right, make_base, make_task, make_trainer  # noqa: E402

from gdro import vllm_sampling  # noqa: E402
from gdro.evaluate import evaluate, evaluate_with_vllm  # noqa: E402
from gdro.trainer import GDROConfig, GDROTrainer  # noqa: E402
from gdro.vllm_sampling import prompt_ids, sample_with_vllm, stop_tokens  # noqa: E402

REPOSITORY = Path(__file__).parents[1]
OWN_PYTHON = REPOSITORY / ".venv-vllm" / "bin" / "python"
PYTHON = os.environ.get("GDRO_VLLM_PYTHON") or (str(OWN_PYTHON) if OWN_PYTHON.is_file() else None)
needs_vllm = pytest.mark.skipif(
    PYTHON is None, reason="no interpreter with vLLM: make setup-engines, or set GDRO_VLLM_PYTHON"
)
CHAT = [{"role": "user", "content": "Say something."}]
BASICS = {"samples": 2, "max_new_tokens": 4, "temperature": 1.0}


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory):
    """A random Qwen3 with heads of 32, the smallest that vLLM's attention has on a CPU; it knows chats."""
    folder = save_tiny_model("Qwen3", tmp_path_factory.mktemp("qwen3"), head_dim=32)
    model, _ = load(folder)
    with torch.no_grad():  # so that tokens differ in probability by more than rounding does
        model.lm_head.weight *= 12
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """The tiny base with an output matrix of its own: vLLM does not reload one that it shares on a CPU."""
    folder = make_base(tmp_path_factory.mktemp("base"))
    model, _ = load(folder)
    model.config.tie_word_embeddings = False
    model.lm_head.weight = torch.nn.Parameter(model.get_input_embeddings().weight.detach().clone())
    model.save_pretrained(folder)
    return folder


def load(folder):
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype="float32"), tokenizer


@pytest.fixture(scope="module", autouse=True)
def python_with_vllm():
    with pytest.MonkeyPatch.context() as patch:
        if PYTHON is not None:
            patch.setenv("GDRO_VLLM_PYTHON", PYTHON)
        yield


# Sampling

ON_CPU = {"gpu_memory_utilization": 0.1, "dtype": "float32"}
GREEDY = {"samples": 1, "max_new_tokens": 16, "temperature": 1.0, "top_k": 1}
PROMPTS = ["a", "What is 2 + 2?", CHAT, "abc " * 20]


def completions_of_transformers(model, tokenizer, **options):
    """What `evaluate` samples, as the reward sees it, and its numbers of tokens."""
    seen = {}

    def keep(prompts, completions, uid):
        seen["completions"] = completions
        return [0.0] * len(uid)

    rows = [{"prompt": prompt, "uid": number} for number, prompt in enumerate(PROMPTS)]
    table = evaluate(model, tokenizer, rows, keep, progress=False, **options)
    return seen["completions"], [row["tokens"] for row in table]


@needs_vllm
def test_greedy_completions_are_those_of_transformers(model_folder, tmp_path):
    model, tokenizer = load(model_folder)
    # a token in the middle of the second completion ends completions, by the generation config alone
    ids = tokenizer(PROMPTS[1], return_tensors="pt")
    stop = model.generate(**ids, do_sample=False, max_new_tokens=6)[0, -1].item()
    model.generation_config.eos_token_id = [tokenizer.eos_token_id, stop]
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")

    theirs, tokens = completions_of_transformers(model, tokenizer, **GREEDY)
    texts, lengths = sample_with_vllm(tmp_path / "model", PROMPTS, **GREEDY, **ON_CPU)
    assert theirs[2] == [{"role": "assistant", "content": texts[2][0]}]
    theirs[2] = texts[2][0]
    assert [text for (text,) in texts] == theirs
    assert [length for (length,) in lengths] == tokens
    assert len(set(theirs)) > 1
    assert tokens[1] <= 6 < max(tokens)


def rates(table):
    return np.array([row["successes"] / row["trials"] for row in table])


@needs_vllm
def test_pass_rates_are_those_of_transformers(base):
    # The engines' seeds differ: on a CPU both use torch's random numbers in the same order, so that with
    # equal seeds they may sample the same.
    rows = list(make_task().eval)
    options = {"samples": 64, "max_new_tokens": 8, "temperature": 1.0}
    own = options | ON_CPU | {"seed": 6}
    model, tokenizer = load(base)
    tables = {}
    for name, cut in {"all": {}, "cut": {"temperature": 1.3, "top_p": 0.8, "top_k": 3}}.items():
        theirs = evaluate(model, tokenizer, rows, half_right, seed=5, progress=False, **options | cut)
        ours = tables[name] = evaluate_with_vllm(base, rows, half_right, **own | cut)
        assert [row["uid"] for row in ours] == [row["uid"] for row in theirs]
        assert {row["trials"] for row in ours} == {64}
        gaps = rates(ours) - rates(theirs)
        pooled = (rates(ours) + rates(theirs)) / 2
        errors = np.sqrt(2 * np.maximum(pooled * (1 - pooled), 1 / 64) / 64)
        # 4.5 standard errors for each of 30 prompts: exceeded with probability below 1 in 4,000;
        # leaving out top_p alone shifts the mean by 12 of them, leaving out top_k alone by 19
        assert np.abs(gaps / errors).max() < 4.5
        assert abs(gaps.mean()) < 4.5 * np.sqrt((errors**2).sum()) / len(gaps)
    # truncation changes the rates by more than the engines differ
    between = rates(tables["cut"]).mean() - rates(tables["all"]).mean()
    assert abs(between) > 3 * abs(gaps.mean())
    assert evaluate_with_vllm(base, rows, half_right, **own) == tables["all"]  # equal seeds


# Sampling without an engine


@pytest.mark.parametrize(
    ("stub", "message"),
    [
        # FlashInfer's sampler would be compiled when the engine warms up, which takes the CUDA toolkit
        ("import os; raise ValueError(os.environ['VLLM_USE_FLASHINFER_SAMPLER'])", "ValueError: 0\n"),
        (
            "print('EngineError: the cause'); raise RuntimeError('see above')",
            r"failed with exit code 1: EngineError: the cause\n(.*\n)*.*above",
        ),
    ],
)
def test_vllm_gets_its_environment_and_a_failure_names_the_cause(tmp_path, monkeypatch, stub, message):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "stub").mkdir()
    (tmp_path / "stub" / "vllm.py").write_text(stub)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "stub"))
    monkeypatch.setenv("GDRO_VLLM_PYTHON", sys.executable)
    with pytest.raises(RuntimeError, match=message):
        sample_with_vllm("owner/name", ["a"], **BASICS)
    assert [path.name for path in tmp_path.iterdir()] == ["stub"]


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="this interpreter has vLLM")
def test_an_interpreter_without_vllm_is_named_with_the_remedy(model_folder, monkeypatch):
    monkeypatch.delenv("GDRO_VLLM_PYTHON", raising=False)
    with pytest.raises(RuntimeError, match=r"no vllm for .*gdro\[gpu\].*GDRO_VLLM_PYTHON"):
        sample_with_vllm(model_folder, ["a"], **BASICS)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"samples": 0}, "samples must be an integer of at least 1, got 0"),
        ({"temperature": 0.0}, r"temperature must be a number in \(0, inf\), got 0.0"),
        ({"top_p": 0.0}, r"top_p must be a number in \(0, 1\], got 0.0"),
        ({"top_k": -1}, "top_k must be an integer of at least 0"),
        ({"prompts": ["a", ""]}, "prompts must be one or more"),
    ],
)
def test_bad_arguments_are_refused_before_a_process_starts(model_folder, monkeypatch, change, message):
    monkeypatch.setattr(vllm_sampling, "_run", lambda *_: pytest.fail("a process was started"))
    with pytest.raises(ValueError, match=message):
        sample_with_vllm(**{"model": model_folder, "prompts": ["a"], **BASICS} | change)


def test_an_adapter_and_a_missing_interpreter_are_refused(model_folder, tmp_path, monkeypatch):
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(ValueError, match=r"model must be a folder with config.json.*merged_model"):
        sample_with_vllm(tmp_path, ["a"], **BASICS)
    monkeypatch.setenv("GDRO_VLLM_PYTHON", "/nowhere/python")
    with pytest.raises(ValueError, match=r"GDRO_VLLM_PYTHON must be an interpreter .*got '/nowhere/python'"):
        sample_with_vllm(model_folder, ["a"], **BASICS)


def test_a_chat_needs_a_template():
    tokenizer = byte_tokenizer()
    (ids,) = prompt_ids(tokenizer, [CHAT])
    assert tokenizer.decode(ids) == "user: Say something.\nassistant: "
    assert ids == tokenizer.apply_chat_template(CHAT, add_generation_prompt=True)["input_ids"]
    tokenizer.chat_template = None
    with pytest.raises(ValueError, match="texts for a tokenizer without chat template"):
        prompt_ids(tokenizer, ["a", CHAT])


def test_stop_tokens_are_those_of_tokenizer_generation_config_and_chat_template():
    tokenizer = byte_tokenizer()
    end = tokenizer.eos_token_id
    # the template ends an answer with a line break, which is an ordinary token
    assert stop_tokens(tokenizer, None) == [end]
    assert stop_tokens(tokenizer, end + 7) == stop_tokens(tokenizer, [end, end + 7]) == [end, end + 7]
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    tokenizer.chat_template = tokenizer.chat_template.replace("\n", "<|im_end|>\n")
    assert stop_tokens(tokenizer, end) == [end, tokenizer.convert_tokens_to_ids("<|im_end|>")]


def test_the_module_starts_with_the_standard_library_alone():
    code = f"import runpy, sys; runpy.run_path({vllm_sampling.__file__!r}, run_name='x')"
    checks = "; assert not {'torch', 'numpy', 'transformers', 'gdro'} & set(sys.modules)"
    subprocess.run([sys.executable, "-P", "-c", code + checks], check=True)


# Evaluation: what both engines share


def evaluated(monkeypatch, rows, reward, texts):
    """`evaluate_with_vllm` with completions that are given."""
    lengths = [[len(text) for text in row] for row in texts]
    monkeypatch.setattr("gdro.evaluate.sample_with_vllm", lambda *_, **__: (texts, lengths))
    return evaluate_with_vllm("folder", rows, reward, samples=2, max_new_tokens=4, temperature=1.0)


def test_counts_and_what_the_reward_receives(monkeypatch):
    rows = [
        {"prompt": "p", "uid": "a", "answer": "x", "level": 3, "dataset": "one"},
        {"prompt": CHAT, "uid": "b", "answer": "y", "dataset": "two", "family": "f", "subject": "s"},
    ]
    seen = {}

    def reward(prompts, completions, **columns):
        seen.update(columns, prompts=prompts, completions=completions)
        return [1.0, 0.0, -1.0, 0.0]

    counts = {
        "uid": "a",
        "family": "",
        "dataset": "one",
        "level": 3,
        "successes": 1,
        "trials": 2,
        "tokens": 3,
    }
    others = {
        "uid": "b",
        "family": "f",
        "dataset": "two",
        "subject": "s",
        "successes": 0,
        "trials": 2,
        "tokens": 2,
    }
    assert evaluated(monkeypatch, rows, reward, [["x", "yy"], ["x", "z"]]) == [counts, others]
    assert seen["uid"] == ["a", "a", "b", "b"]
    assert seen["answer"] == ["x", "x", "y", "y"]
    assert seen["level"] == [3, 3, None, None]
    assert seen["prompts"] == ["p", "p", CHAT, CHAT]
    assert seen["completions"][:2] == ["x", "yy"]
    assert seen["completions"][3] == [{"role": "assistant", "content": "z"}]


@pytest.mark.parametrize(
    ("rows", "scores", "message"),
    [
        ([{"prompt": "p", "uid": "a"}], [1.0], "reward must return 2 numbers, .* got 1"),
        ([{"prompt": "p", "uid": "a"}], [1.0, None], "got None for prompt 'a'"),
        ([{"prompt": "p", "uid": "a"}], [float("nan"), 1.0], "got nan for prompt 'a'"),
        ([{"prompt": "p"}], [1.0, 1.0], "row 0 must have a column 'uid'"),
        ([], [], "rows must hold at least one"),
    ],
)
def test_bad_rows_and_rewards_are_refused(monkeypatch, rows, scores, message):
    with pytest.raises(ValueError, match=message):
        evaluated(monkeypatch, rows, lambda **_: scores, [["x", "y"]])


def test_padding_that_is_also_the_end_is_not_counted(model_folder):
    model, tokenizer = load(model_folder)
    rows = [{"prompt": prompt, "uid": prompt} for prompt in ("a", "What is 2 + 2?")]
    tokens = {}
    for pad in ("<pad>", "<eos>"):
        tokenizer.pad_token = pad
        with torch.no_grad():
            model.lm_head.weight[tokenizer.eos_token_id] = 0  # ends now and then
        options = {"samples": 40, "max_new_tokens": 30, "temperature": 5.0, "progress": False}
        table = evaluate(model, tokenizer, rows, lambda completions, **_: [0.0] * len(completions), **options)
        tokens[pad] = [row["tokens"] for row in table]
    assert tokens["<pad>"] == tokens["<eos>"]
    assert max(tokens["<pad>"]) < 40 * 30  # some ended


# Training through TRL


@pytest.mark.parametrize(("mode", "method"), [("colocate", "grpo"), ("colocate", "both"), ("server", "both")])
def test_a_seed_for_each_rollout_is_refused(base, tmp_path, mode, method):
    changes = {"use_vllm": True, "vllm_mode": mode, "gdro_method": method, "generation_kwargs": {"seed": 1}}
    with pytest.raises(ValueError, match=r"generation_kwargs has the seed 1, .*leave it out"):
        make_trainer(GDROTrainer, arguments(GDROConfig, tmp_path, **changes), base)


def run_training(mode, base, report, *address):
    command = [PYTHON, str(REPOSITORY / "tests" / "vllm_run.py"), mode, str(base), str(report), *address]
    run = subprocess.run(command, text=True, capture_output=True, timeout=300, check=False)
    assert run.returncode == 0, run.stderr[-3000:]
    return json.loads(report.read_text())


@contextmanager
def server(base, log):
    """A vLLM server of `base` on a free port, as TRL's client wants it; its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    settings = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_NO_USAGE_STATS": "1", "TORCH_COMPILE_DISABLE": "1"}
    command = [PYTHON, "-m", "vllm.entrypoints.openai.api_server", "--model", str(base), "--enforce-eager"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--max-model-len", "64"]
    command += ["--gpu-memory-utilization", "0.1", "--logprobs-mode", "processed_logprobs"]
    with log.open("w") as stream:
        process = subprocess.Popen(
            command, env=os.environ | settings, stdout=stream, stderr=stream, start_new_session=True
        )
    try:
        for _ in range(360):
            assert process.poll() is None, log.read_text()[-3000:]
            with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2):
                break
            time.sleep(0.5)
        else:
            pytest.fail(f"the server does not answer: {log.read_text()[-3000:]}")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(60)


def group_sizes(prompts):
    changes = [place for place in range(1, len(prompts)) if prompts[place] != prompts[place - 1]]
    return np.diff([0, *changes, len(prompts)]).tolist()


@needs_vllm
@pytest.mark.slow
@pytest.mark.parametrize("mode", ["colocate", "server"])
def test_vllm_samples_every_row_of_unequal_groups_with_the_weights_of_the_step(mode, base, tmp_path):
    if mode == "colocate":
        training = run_training(mode, base, tmp_path / "report.json")
    else:
        with server(base, tmp_path / "server.log") as address:
            training = run_training(mode, base, tmp_path / "report.json", address)
    sizes = [group_sizes(call["prompts"]) for call in training["calls"]]
    assert any(len(set(groups)) > 1 for groups in sizes)
    assert training["spent"] == [32] * 9
    for call in training["calls"]:
        assert call["num_generations"] == 1
        assert len(call["prompts"]) == len(call["completions"]) == 32
        assert call["returned_prompts"] == call["prompts"]
    # rollouts of one prompt are drawn apart, not copied
    call = training["calls"][0]
    assert len({json.dumps(ids) for ids in call["completions"]}) > 16

    # |log-probability by vLLM in 16 bits − by the trained model in 32|; without synchronization it has a
    # mean of 1.5 from the second step on, with the output matrix alone left out of it one of 0.1
    assert len(training["mean_gaps"]) == 9
    assert max(training["mean_gaps"]) < 0.02
    assert max(training["largest_gaps"]) < 0.4
    assert max(training["mean_gaps"]) > 0  # two engines, not one
