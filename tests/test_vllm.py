"""Sampling, evaluation and training with the real vLLM, in the environment that has it; refusals without.

Engines are few, since each takes seconds to start: the module's fixtures hold what several tests look at.
"""

import importlib.util
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("trl")

from tiny_models import SIZES, byte_tokenizer  # noqa: E402
from tiny_run import arguments, half_right, make_base, make_task, make_trainer  # noqa: E402

from gdro import vllm_sampling  # noqa: E402
from gdro.evaluate import evaluate, evaluate_with_vllm  # noqa: E402
from gdro.trainer import GDROConfig, GDROTrainer  # noqa: E402
from gdro.vllm_sampling import prompt_ids, sample_with_vllm  # noqa: E402

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
    folder = tmp_path_factory.mktemp("qwen3")
    tokenizer = byte_tokenizer()
    config = transformers.Qwen3Config(
        vocab_size=len(tokenizer),
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        **SIZES | {"head_dim": 32},
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = transformers.Qwen3ForCausalLM(config)
        with torch.no_grad():  # so that tokens differ in probability by more than rounding does
            model.lm_head.weight *= 12
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """The tiny base with an output matrix of its own: vLLM does not reload one that it shares on a CPU."""
    tied = make_base(tmp_path_factory.mktemp("base"))
    model, tokenizer = load(tied)
    model.config.tie_word_embeddings = False
    model.lm_head.weight = torch.nn.Parameter(model.get_input_embeddings().weight.detach().clone())
    folder = tmp_path_factory.mktemp("untied")
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def load(folder):
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype="float32"), tokenizer


def on_cpu(**options):
    return {"gpu_memory_utilization": 0.1, "dtype": "float32", "python": PYTHON, "progress": False} | options


# Sampling


@pytest.fixture(scope="module")
def greedy(model_folder):
    """Greedy completions of prompts of unequal length, texts and a chat, by both engines."""
    prompts = ["a", "What is 2 + 2?", CHAT, "abc " * 20]
    ours = sample_with_vllm(
        model_folder, prompts, samples=1, max_new_tokens=16, temperature=1.0, top_k=1, **on_cpu()
    )
    rows = [{"prompt": prompt, "uid": number} for number, prompt in enumerate(prompts)]
    seen = {}

    def keep(prompts, completions, uid):
        seen["completions"] = completions
        return [0.0] * len(uid)

    model, tokenizer = load(model_folder)
    table = evaluate(
        model, tokenizer, rows, keep, samples=1, max_new_tokens=16, temperature=1.0, top_k=1, progress=False
    )
    return ours, (seen["completions"], [row["tokens"] for row in table])


@needs_vllm
def test_greedy_completions_are_those_of_transformers(greedy):
    (texts, lengths), (completions, tokens) = greedy
    theirs = [
        completion if isinstance(completion, str) else completion[0]["content"] for completion in completions
    ]
    assert [text for (text,) in texts] == theirs
    assert [length for (length,) in lengths] == tokens
    assert len(set(theirs)) > 1
    assert completions[2] == [{"role": "assistant", "content": texts[2][0]}]


@pytest.fixture(scope="module")
def tables(base):
    """Evaluations of the base by both engines, by name, and vLLM's once more with the same seed.

    The engines' seeds differ: on a CPU both use torch's random numbers in the same order, so that with
    equal seeds they may say the same.
    """
    rows = list(make_task().eval)
    options = {"samples": 64, "max_new_tokens": 8, "temperature": 1.0, "seed": 5, "progress": False}
    own = options | {"seed": 6}
    model, tokenizer = load(base)
    found = {}
    for name, cut in {"all": {}, "cut": {"temperature": 1.3, "top_p": 0.8, "top_k": 3}}.items():
        found["transformers", name] = evaluate(model, tokenizer, rows, half_right, **options | cut)
        found["vllm", name] = evaluate_with_vllm(base, rows, half_right, **on_cpu(**own | cut))
    found["vllm again", "all"] = evaluate_with_vllm(base, rows, half_right, **on_cpu(**own))
    return found


def rates(table):
    return np.array([row["successes"] / row["trials"] for row in table])


@needs_vllm
@pytest.mark.parametrize("name", ["all", "cut"])
def test_pass_rates_are_those_of_transformers(tables, name):
    theirs, ours = tables["transformers", name], tables["vllm", name]
    assert [row["uid"] for row in ours] == [row["uid"] for row in theirs]
    assert {row["trials"] for row in ours} == {64}
    gaps = rates(ours) - rates(theirs)
    pooled = (rates(ours) + rates(theirs)) / 2
    errors = np.sqrt(2 * np.maximum(pooled * (1 - pooled), 1 / 64) / 64)
    # 4.5 standard errors for each of 30 prompts: exceeded by chance with fewer than 1 seed in 4,000;
    # leaving out top_p alone shifts the mean by 12 of them, leaving out top_k alone by 19
    assert np.abs(gaps / errors).max() < 4.5
    assert abs(gaps.mean()) < 4.5 * np.sqrt((errors**2).sum()) / len(gaps)


@needs_vllm
def test_cutting_the_tail_changes_the_rates_by_more_than_the_engines_differ(tables):
    within = abs(rates(tables["vllm", "cut"]).mean() - rates(tables["transformers", "cut"]).mean())
    between = abs(rates(tables["vllm", "cut"]).mean() - rates(tables["vllm", "all"]).mean())
    assert between > 3 * within


@needs_vllm
def test_equal_seeds_give_equal_completions(tables):
    assert tables["vllm", "all"] == tables["vllm again", "all"]


@needs_vllm
def test_a_process_that_fails_says_why_and_leaves_nothing(model_folder, tmp_path, monkeypatch):
    broken = tmp_path / "broken"
    broken.mkdir()
    config = json.loads((model_folder / "config.json").read_text())
    (broken / "config.json").write_text(json.dumps(config | {"num_hidden_layers": "two"}))
    monkeypatch.setattr(vllm_sampling.tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    with pytest.raises(RuntimeError, match=r"failed with exit code 1: .*Error: .*\nIt ended with\n"):
        sample_with_vllm(broken, ["a"], **BASICS, **on_cpu())
    assert list((tmp_path / "temporary").iterdir()) == []


# Sampling without an engine


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="this interpreter has vLLM")
def test_an_interpreter_without_vllm_is_named_with_the_remedy(model_folder):
    with pytest.raises(ImportError, match=r"vllm is not installed for .*'gdro\[gpu\]'.*GDRO_VLLM_PYTHON"):
        sample_with_vllm(model_folder, ["a"], python=sys.executable, **BASICS)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"samples": 0}, "samples is 0; give an integer of at least 1"),
        ({"samples": 2.0}, "samples is 2.0; give an integer"),
        ({"max_new_tokens": 0}, "max_new_tokens is 0"),
        ({"max_model_len": 4}, "max_model_len is 4; give an integer of at least 5"),
        ({"temperature": 0.0}, "temperature is 0.0; .*top_k=1"),
        ({"top_p": 0.0}, r"top_p is 0.0; give a number in \(0, 1\]"),
        ({"top_k": -1}, "top_k is -1; give an integer of at least 0"),
        ({"seed": -1}, "seed is -1"),
        ({"tensor_parallel_size": 0}, "tensor_parallel_size is 0"),
        ({"gpu_memory_utilization": 1.5}, "gpu_memory_utilization is 1.5"),
        ({"dtype": "float8"}, "dtype is 'float8'; give one of"),
        ({"python": "/nowhere/python"}, "python is '/nowhere/python', which cannot be run"),
        ({"prompts": []}, "prompts is empty"),
        ({"prompts": ["a", ""]}, "prompt 1 is ''; give a text"),
        ({"prompts": ["a", [{"text": "b"}]]}, "prompt 1 is .*role and content"),
        ({"model_folder": "/nowhere"}, r"model_folder /nowhere holds no model \(config.json\)"),
    ],
)
def test_bad_arguments_are_refused_before_a_process_starts(model_folder, monkeypatch, change, message):
    monkeypatch.setattr(vllm_sampling, "_run", lambda *_: pytest.fail("a process was started"))
    arguments = {"model_folder": model_folder, "prompts": ["a"], **BASICS} | change
    with pytest.raises(ValueError, match=message):
        sample_with_vllm(arguments.pop("model_folder"), arguments.pop("prompts"), **arguments)


def test_an_adapter_is_refused(tmp_path):
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(ValueError, match="holds an adapter; merge it"):
        sample_with_vllm(tmp_path, ["a"], **BASICS)


def test_the_variable_names_the_interpreter(model_folder, monkeypatch):
    monkeypatch.setenv("GDRO_VLLM_PYTHON", "/nowhere/python")
    with pytest.raises(ValueError, match="environment variable GDRO_VLLM_PYTHON is '/nowhere/python'"):
        sample_with_vllm(model_folder, ["a"], **BASICS)


def test_a_chat_needs_a_template():
    tokenizer = byte_tokenizer()
    (ids,) = prompt_ids(tokenizer, [CHAT])
    assert tokenizer.decode(ids) == "user: Say something.\nassistant: "
    tokenizer.chat_template = None
    with pytest.raises(ValueError, match="prompt 1 is a chat and the tokenizer has no chat template"):
        prompt_ids(tokenizer, ["a", CHAT])


def test_the_module_starts_with_the_standard_library_alone():
    code = f"import runpy, sys; runpy.run_path({vllm_sampling.__file__!r}, run_name='x')"
    checks = "; assert not {'torch', 'numpy', 'transformers', 'gdro'} & set(sys.modules)"
    subprocess.run([sys.executable, "-P", "-c", code + checks], check=True)


# Evaluation: what both engines share


def told(monkeypatch, rows, reward, texts):
    """`evaluate_with_vllm` with completions that are given."""
    lengths = [[len(text) for text in row] for row in texts]
    monkeypatch.setattr("gdro.evaluate.sample_with_vllm", lambda *_, **__: (texts, lengths))
    return evaluate_with_vllm("folder", rows, reward, samples=2, max_new_tokens=4, temperature=1.0)


def test_counts_and_what_the_reward_is_told(monkeypatch):
    rows = [
        {"prompt": "p", "uid": "a", "answer": "x", "level": 3, "dataset": "one"},
        {"prompt": CHAT, "uid": "b", "answer": "y", "dataset": "two", "family": "f", "subject": "s"},
    ]
    seen = {}

    def reward(prompts, completions, **columns):
        seen.update(columns, prompts=prompts, completions=completions)
        return [1.0, 0.0, -1.0, 0.0]

    table = told(monkeypatch, rows, reward, [["x", "yy"], ["x", "z"]])
    counts = {"trials": 2}
    assert table == [
        {"uid": "a", "family": "", "dataset": "one", "level": 3, "successes": 1, "tokens": 3, **counts},
        {"uid": "b", "family": "f", "dataset": "two", "subject": "s", "successes": 0, "tokens": 2, **counts},
    ]
    assert seen["uid"] == ["a", "a", "b", "b"]
    assert seen["answer"] == ["x", "x", "y", "y"]
    assert seen["level"] == [3, 3, None, None]
    assert seen["prompts"] == ["p", "p", CHAT, CHAT]
    assert seen["completions"][:2] == ["x", "yy"]
    assert seen["completions"][3] == [{"role": "assistant", "content": "z"}]


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        ([1.0], "reward gave 1 numbers for 2 completions"),
        ([1.0, None], "reward gave None for a completion of 'a'"),
        ([float("nan"), 1.0], "reward gave nan for a completion of 'a'"),
    ],
)
def test_a_reward_must_judge_every_completion(monkeypatch, scores, message):
    with pytest.raises(ValueError, match=message):
        told(monkeypatch, [{"prompt": "p", "uid": "a"}], lambda **_: scores, [["x", "y"]])


def test_rows_need_a_prompt_and_a_uid(monkeypatch):
    with pytest.raises(ValueError, match="row 0 has no column 'uid'"):
        told(monkeypatch, [{"prompt": "p"}], lambda **_: [1.0, 1.0], [["x", "y"]])


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
    """TRL's generation server of `base` on a free port; its address. Ended on leaving."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    settings = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_NO_USAGE_STATS": "1", "TORCH_COMPILE_DISABLE": "1"}
    command = [PYTHON, "-m", "vllm.entrypoints.openai.api_server", "--model", str(base), "--enforce-eager"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--max-model-len", "64"]
    command += ["--gpu-memory-utilization", "0.1", "--logprobs-mode", "processed_logprobs"]
    address = f"http://127.0.0.1:{port}"
    with log.open("w") as stream:
        process = subprocess.Popen(
            command, env=os.environ | settings, stdout=stream, stderr=stream, start_new_session=True
        )
    try:
        wait_for(f"{address}/health", process, log)
        yield address
    finally:
        process.terminate()
        process.wait(60)


def wait_for(address, process, log, seconds=180):
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        assert process.poll() is None, log.read_text()[-3000:]
        try:
            with urllib.request.urlopen(address, timeout=2):
                return
        except OSError:
            time.sleep(0.5)
    pytest.fail(f"the server is not up after {seconds} s: {log.read_text()[-3000:]}")


@pytest.fixture(scope="module", params=["colocate", "server"])
def training(request, base, tmp_path_factory):
    """The report of a training whose rollouts vLLM samples; see vllm_run.py."""
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "colocate":
        return run_training("colocate", base, folder / "report.json")
    with server(base, folder / "server.log") as address:
        return run_training("server", base, folder / "report.json", address)


def group_sizes(prompts):
    changes = [place for place in range(1, len(prompts)) if prompts[place] != prompts[place - 1]]
    return np.diff([0, *changes, len(prompts)]).tolist()


@needs_vllm
@pytest.mark.slow
def test_vllm_samples_every_row_of_unequal_groups(training):
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


@needs_vllm
@pytest.mark.slow
def test_vllm_samples_with_the_weights_of_the_step(training):
    # |log-probability by vLLM in 16 bits − by the trained model in 32|; without synchronization it has a
    # mean of 1.5 from the second step on, with the output matrix alone left out of it one of 0.1
    assert len(training["mean_gaps"]) == 9
    assert max(training["mean_gaps"]) < 0.02
    assert max(training["largest_gaps"]) < 0.4
    assert max(training["mean_gaps"]) > 0  # two engines, not one
