"""Sampling, evaluation and training with the real vLLM, in the environment that has it.

Engines are few, since each takes seconds to start: the module's fixtures hold what several tests
look at.
"""

import json
import os
import subprocess
import time
import urllib.request
from contextlib import contextmanager, suppress

import numpy as np
import pytest
import sharded_run
import torch
import transformers
from conftest import PATIENCE
from processes import free_port, needs, python_of, run_in, run_ranks
from safetensors.torch import load_file
from sharded_run import tied_model
from tiny_models import byte_tokenizer, save_tiny_model
from tiny_run import arguments, half_right, make_base, make_task, make_trainer

from gdro.models import stop_tokens
from gdro.trainer import GDROConfig, GDROTrainer
from gdro_lab.study import evaluate
from gdro_lab.study.config import EvaluationChoice
from gdro_lab.study.evaluate import evaluate_model
from gdro_lab.tasks import prompt_token_ids

needs_vllm = needs("vllm")
CHAT = [{"role": "user", "content": "Say something."}]
SAMPLE = """if True:
    import json, sys
    import gdro_lab.study.jobs  # which sets vLLM's environment, as in a job
    from gdro_lab.study.evaluate import _by_vllm
    from gdro_lab.study.config import EvaluationChoice
    from transformers import AutoTokenizer
    job = json.load(sys.stdin)
    tokenizer = AutoTokenizer.from_pretrained(job["folder"])
    choice = EvaluationChoice(**job["choice"])
    tokens = _by_vllm(choice, job["folder"], tokenizer, job["ids"], job["most"], job["seed"])
    open(job["out"], "w").write(json.dumps(tokens))
"""


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory):
    """A random Qwen3 with heads of 32, the smallest of vLLM's attention on a CPU."""
    folder = save_tiny_model("Qwen3", tmp_path_factory.mktemp("qwen3"), head_dim=32)
    model, _ = load(folder)
    with torch.no_grad():  # so that tokens differ in probability by more than rounding does
        model.lm_head.weight *= 12
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """The tiny base with an untied output matrix: vLLM does not reload a tied one on a CPU."""
    folder = make_base(tmp_path_factory.mktemp("base"))
    model, _ = load(folder)
    model.config.tie_word_embeddings = False
    model.lm_head.weight = torch.nn.Parameter(model.get_input_embeddings().weight.detach().clone())
    model.save_pretrained(folder)
    return folder


def load(folder):
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype="float32"), tokenizer


PROMPTS = ["a", "What is 2 + 2?", CHAT, "abc " * 20]


def sample_with_vllm(out, folder, ids, most, seed=0, **choice):
    """What the real vLLM samples for each prompt from a model, in a process of its own."""
    job = {"folder": str(folder), "out": str(out), "ids": ids, "most": most, "seed": seed}
    job["choice"] = choice | {"gpu_memory_utilization": 0.1}
    run_in("vllm", "-c", SAMPLE, input=json.dumps(job))
    return json.loads(out.read_text())


def sample(folder, tokenizer, ids, most, seed=0, **choice):
    return evaluate._by_transformers(EvaluationChoice(**choice), folder, tokenizer, ids, most, seed)


@needs_vllm
def test_greedy_completions_are_those_of_transformers(model_folder, tmp_path):
    model, tokenizer = load(model_folder)
    # a token in the middle of the second completion ends completions, by the generation config
    # alone
    ids = tokenizer(PROMPTS[1], return_tensors="pt")
    stop = model.generate(**ids, do_sample=False, max_new_tokens=6)[0, -1].item()
    model.generation_config.eos_token_id = [tokenizer.eos_token_id, stop]
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")

    greedy = {"ids": prompt_token_ids(tokenizer, PROMPTS), "most": 16, "samples": 1, "top_k": 1}
    theirs = sample(tmp_path / "model", tokenizer, **greedy)
    ours = sample_with_vllm(tmp_path / "out.json", tmp_path / "model", **greedy)
    assert ours == theirs
    assert len({tuple(row) for [row] in theirs}) > 1
    assert len(theirs[1][0]) <= 6 < max(len(row) for [row] in theirs)


@needs_vllm
def test_pass_rates_are_those_of_transformers(base, tmp_path):
    # The engines' seeds differ: on a CPU both use torch's random numbers in the same order, so that
    # with equal seeds they may sample the same.
    rows, (_, tokenizer) = list(make_task().eval), load(base)
    answers = [row["answer"] for row in rows for _ in range(64)]

    def rates(tokens):
        texts = tokenizer.batch_decode(
            [row for rows in tokens for row in rows], skip_special_tokens=True
        )
        return np.reshape(half_right(texts, answers), (len(rows), 64)).mean(axis=1)

    ids = prompt_token_ids(tokenizer, [row["prompt"] for row in rows])
    plain = {"ids": ids, "samples": 64, "most": 8}
    cut = plain | {"temperature": 1.3, "top_p": 0.8, "top_k": 3}
    found = [
        sample_with_vllm(tmp_path / "out.json", base, seed=6, **call)
        for call in (plain, cut, plain)
    ]
    assert found[0] == found[2]  # equal seeds
    for call, tokens in zip((plain, cut), found, strict=False):
        theirs = rates(sample(base, tokenizer, **call, seed=5))
        gaps, pooled = rates(tokens) - theirs, (rates(tokens) + theirs) / 2
        errors = np.sqrt(2 * np.maximum(pooled * (1 - pooled), 1 / 64) / 64)
        # 4.5 standard errors for each of 30 prompts: exceeded with probability below 1 in 4,000;
        # leaving out top_p alone shifts the mean by 12 of them, leaving out top_k alone by 19
        assert np.abs(gaps / errors).max() < 4.5
        assert abs(gaps.mean()) < 4.5 * np.sqrt((errors**2).sum()) / len(gaps)
    # truncation changes the rates by more than the engines differ
    assert abs(rates(found[1]).mean() - rates(found[0]).mean()) > 3 * abs(gaps.mean())


def test_a_chat_is_completed_up_to_its_answer():
    tokenizer = byte_tokenizer()
    (ids,) = prompt_token_ids(tokenizer, [CHAT])
    assert tokenizer.decode(ids) == "user: Say something.\nassistant: "


def test_stop_tokens_are_those_of_tokenizer_generation_config_and_chat_template():
    tokenizer = byte_tokenizer()
    end = tokenizer.eos_token_id
    # the template ends an answer with a line break, which is an ordinary token
    assert stop_tokens(tokenizer, None) == [end]
    assert (
        stop_tokens(tokenizer, end + 7) == stop_tokens(tokenizer, [end, end + 7]) == [end, end + 7]
    )
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    tokenizer.chat_template = tokenizer.chat_template.replace("\n", "<|im_end|>\n")
    assert stop_tokens(tokenizer, end) == [end, tokenizer.convert_tokens_to_ids("<|im_end|>")]


def evaluated(monkeypatch, rows, reward, texts):
    """`evaluate_model` with completions that are given, in bytes."""
    tokenizer = byte_tokenizer()
    monkeypatch.setattr(
        evaluate,
        "_by_vllm",
        lambda *_, **__: [
            [tokenizer(text)["input_ids"] for text in pair]
            for pair in zip(texts[::2], texts[1::2], strict=True)
        ],
    )
    return evaluate_model(
        EvaluationChoice(engine="vllm", samples=2), "folder", tokenizer, rows, reward, 8
    )


def test_counts_and_what_the_reward_receives(monkeypatch):
    rows = [
        {"prompt": "p", "uid": "a", "answer": "x", "level": 3, "dataset": "one"},
        {"prompt": CHAT, "uid": "b", "answer": "y", "dataset": "two", "family": "f"},
    ]
    seen = {}

    def reward(prompts, completions, **columns):
        seen.update(columns, prompts=prompts, completions=completions)
        return [1.0, 0.0, -1.0, 0.0]

    assert evaluated(monkeypatch, rows, reward, ["x", "yy", "x", "z"]) == [
        {"uid": "a", "dataset": "one", "successes": 1, "trials": 2, "tokens": 3},
        {"uid": "b", "family": "f", "dataset": "two", "successes": 0, "trials": 2, "tokens": 2},
    ]
    assert seen["uid"] == ["a", "a", "b", "b"]
    assert seen["answer"] == ["x", "x", "y", "y"]
    assert seen["level"] == [3, 3, None, None]
    assert seen["prompts"] == ["p", "p", CHAT, CHAT]
    assert seen["completions"][:2] == ["x", "yy"]
    assert seen["completions"][3] == [{"role": "assistant", "content": "z"}]
    with pytest.raises(ValueError, match="the reward"):
        evaluated(monkeypatch, rows, lambda **_: [None, 1.0, 1.0, 1.0], ["x"] * 4)


def test_processes_share_the_prompts(model_folder):
    """Each prompt is sampled once, and its completions are its own, whichever process had it."""
    _, tokenizer = load(model_folder)
    rows = [{"prompt": prompt, "uid": uid} for uid, prompt in enumerate([*PROMPTS, "b c"])]
    seen = []

    def reward(prompts, completions, **_):
        seen.append((prompts, completions))
        return [0.0] * len(prompts)

    for processes in (1, 2):
        greedy = EvaluationChoice(samples=2, top_k=1, data_parallel_size=processes)
        evaluate_model(greedy, model_folder, tokenizer, rows, reward, 8)
    assert seen[0] == seen[1]
    assert len(set(map(str, seen[0][1]))) > 2


def test_padding_that_is_also_the_end_is_not_counted(model_folder, tmp_path):
    model, tokenizer = load(model_folder)
    with torch.no_grad():
        model.lm_head.weight[tokenizer.eos_token_id] = 0  # ends now and then
    model.save_pretrained(tmp_path)
    tokens = []
    for pad in ("<pad>", "<eos>"):
        tokenizer.pad_token = pad
        ids = prompt_token_ids(tokenizer, PROMPTS)
        sampled = sample(tmp_path, tokenizer, ids, 30, samples=20, temperature=5.0)
        tokens.append([row for rows in sampled for row in rows])
    assert tokens[0] == tokens[1]
    assert min(map(len, tokens[0])) < 30  # some ended


@pytest.mark.parametrize(
    ("mode", "method"), [("colocate", "grpo"), ("colocate", "both"), ("server", "both")]
)
def test_a_seed_for_each_rollout_is_refused(base, tmp_path, mode, method):
    changes = {
        "use_vllm": True,
        "vllm_mode": mode,
        "gdro_method": method,
        "generation_kwargs": {"seed": 1},
    }
    with pytest.raises(ValueError, match="generation_kwargs has the seed 1"):
        make_trainer(GDROTrainer, arguments(GDROConfig, tmp_path, **changes), base)


def run_training(mode, base, report, *address):
    run_in("vllm", "tests/vllm_run.py", mode, base, report, *address)
    return json.loads(report.read_text())


@contextmanager
def server(base, log):
    """A vLLM server of `base` on a free port, as TRL's client wants it; its address."""
    port = free_port()
    settings = {
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "TORCH_COMPILE_DISABLE": "1",
    }
    options = "--enforce-eager --host 127.0.0.1 --max-model-len 64 --gpu-memory-utilization 0.1"
    command = [python_of("vllm"), "-m", "vllm.entrypoints.openai.api_server", *options.split()]
    command += ["--model", base, "--port", str(port), "--logprobs-mode", "processed_logprobs"]
    with log.open("w") as stream:
        process = subprocess.Popen(
            command, env=os.environ | settings, stdout=stream, stderr=stream, start_new_session=True
        )
    try:
        for _ in range(360):
            assert process.poll() is None, log.read_text()[-3000:]
            with (
                suppress(OSError),
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2),
            ):
                break
            time.sleep(0.5)
        else:
            pytest.fail(f"the server does not answer: {log.read_text()[-3000:]}")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(PATIENCE)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["full", "lora"])
def test_two_shards_of_a_tied_model_send_each_weight_once(tmp_path, kind):
    """vLLM refuses an output matrix tied to the embedding (TRL 1.14 sends both, 1.16 one)."""
    base = make_base(tmp_path / "bases")
    model = tied_model(base, kind)
    whole = model.merge_and_unload() if kind == "lora" else model
    assert whole.config.tie_word_embeddings
    run_ranks(2, sharded_run.what_vllm_is_sent, base, tmp_path, kind)
    weights = dict(whole.named_parameters())
    for rank in range(2):
        sent = load_file(tmp_path / f"sent{rank}.safetensors")
        assert sent.keys() == weights.keys()
        assert "lm_head.weight" not in sent
        for name, weight in weights.items():
            torch.testing.assert_close(
                sent[name], weight.data, rtol=0, atol=1e-6 if kind == "lora" else 0
            )


def group_sizes(prompts):
    changes = [place for place in range(1, len(prompts)) if prompts[place] != prompts[place - 1]]
    return np.diff([0, *changes, len(prompts)]).tolist()


@needs_vllm
@pytest.mark.slow
@pytest.mark.parametrize("mode", ["colocate", "server"])
def test_vllm_samples_every_row_of_unequal_groups_with_the_weights_of_the_step(
    mode, base, tmp_path
):
    if mode == "colocate":
        training = run_training(mode, base, tmp_path / "report.json")
    else:
        with server(base, tmp_path / "server.log") as address:
            training = run_training(mode, base, tmp_path / "report.json", address)
    sizes = [group_sizes(call["prompts"]) for call in training["calls"]]
    assert any(len(set(groups)) > 1 for groups in sizes)
    assert training["spent"] == [32] * 9
    assert training["stops"] == [
        1
    ]  # sent to vLLM: the model's files may lack what `load_model` adds
    for call in training["calls"]:
        assert call["num_generations"] == 1
        assert len(call["prompts"]) == len(call["completions"]) == 32
        assert call["returned_prompts"] == call["prompts"]
    # rollouts of one prompt are drawn apart, not copied
    call = training["calls"][0]
    assert len({json.dumps(ids) for ids in call["completions"]}) > 16

    # |log-probability by vLLM in 16 bits − by the trained model in 32|; without synchronization it
    # has a mean of 1.5 from the second step on, with the output matrix alone left out of it one of
    # 0.1
    assert len(training["mean_gaps"]) == 9
    assert max(training["mean_gaps"]) < 0.02
    # one token of thousands, not seeded in a server: twice the spacing of bfloat16 at a logit of 32
    # to 64
    assert max(training["largest_gaps"]) < 1.0
    assert max(training["mean_gaps"]) > 0  # two engines, not one
