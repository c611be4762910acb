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
from processes import needs, python_of, run_in, run_ranks
from safetensors.torch import load_file
from sharded_run import tied_model
from tiny_models import byte_tokenizer, save_tiny_model, untie
from tiny_run import half_right, make_task

from gdro_lab.experiments import evaluation as evaluate
from gdro_lab.experiments.blocks import EvaluationChoice
from gdro_lab.experiments.evaluation import evaluate_model
from gdro_lab.machine import free_port
from gdro_lab.models import stop_tokens
from gdro_lab.tasks import Split, prompt_token_ids

needs_vllm = needs("vllm")
CHAT = [{"role": "user", "content": "Say something."}]
PROMPTS = ["a", "What is 2 + 2?", CHAT, "abc " * 20]
# each engine in a process of its own, since its memory stays; all with the same imports
SAMPLE = """if True:
    import json, sys, multiprocessing
    from gdro_lab import numerics
    numerics.fix_engines()  # as in a job
    from gdro_lab.experiments.evaluation import _by_vllm
    from gdro_lab.experiments.blocks import EvaluationChoice
    from transformers import AutoTokenizer
    from vllm import LLM

    def sample(folder, ids, most, seed, choice):
        choice = EvaluationChoice(gpu_memory_utilization=0.1, **choice)
        return _by_vllm(choice, folder, AutoTokenizer.from_pretrained(folder), ids, most, seed)

    out, *jobs = json.load(sys.stdin)
    with multiprocessing.get_context("fork").Pool(1, maxtasksperchild=1) as pool:
        open(out, "w").write(json.dumps(pool.starmap(sample, jobs, chunksize=1)))
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
def untied(base, tmp_path_factory):
    """The tiny base with an output matrix of its own.

    A vLLM server on a CPU takes new weights of a tied one, and computes with a packed copy of the
    old.
    """
    return untie(base, tmp_path_factory.mktemp("untied"))


def load(folder):
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype="float32"), tokenizer


def sample(folder, tokenizer, ids, most, seed=0, **choice):
    return evaluate._by_transformers(
        EvaluationChoice(**choice), folder, tokenizer, ids, most, seed, "float32"
    )


GREEDY = {"samples": 1, "k": 1, "top_k": 1}
PLAIN = {"samples": 64}
CUT = PLAIN | {"temperature": 1.3, "top_p": 0.8, "top_k": 3}


@pytest.fixture(scope="module")
def sampled(model_folder, untied, tmp_path_factory):
    """What the real vLLM samples, greedily and at random, in one process of its own."""
    folder = tmp_path_factory.mktemp("vllm")
    model, tokenizer = load(model_folder)
    # a token in the middle of the second completion ends completions, by the generation config
    # alone
    ids = tokenizer(PROMPTS[1], return_tensors="pt")
    stop = model.generate(**ids, do_sample=False, max_new_tokens=6)[0, -1].item()
    model.generation_config.eos_token_id = [tokenizer.eos_token_id, stop]
    model.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    asked = prompt_token_ids(load(untied)[1], [row["prompt"] for row in make_task().eval])
    jobs = [[str(folder / "model"), prompt_token_ids(tokenizer, PROMPTS), 16, 0, GREEDY]]
    jobs += [[str(untied), asked, 8, 6, choice] for choice in (PLAIN, CUT, PLAIN)]
    run_in("vllm", "-c", SAMPLE, input=json.dumps([str(folder / "out.json"), *jobs]))
    return folder / "model", asked, json.loads((folder / "out.json").read_text())


@needs_vllm
def test_greedy_completions_are_those_of_transformers(sampled):
    folder, _, (ours, *_) = sampled
    _, tokenizer = load(folder)
    theirs = sample(folder, tokenizer, prompt_token_ids(tokenizer, PROMPTS), 16, **GREEDY)
    assert ours == theirs
    assert len({tuple(row) for [row] in theirs}) > 1
    assert len(theirs[1][0]) <= 6 < max(len(row) for [row] in theirs)


@needs_vllm
def test_pass_rates_are_those_of_transformers(untied, sampled):
    # The engines' seeds differ: on a CPU both use torch's random numbers in the same order, so that
    # with equal seeds they may sample the same.
    _, ids, (_, *found) = sampled
    _, tokenizer = load(untied)
    answers = [row["answer"] for row in make_task().eval for _ in range(64)]

    def rates(tokens):
        texts = [row for rows in tokens for row in rows]
        texts = tokenizer.batch_decode(texts, skip_special_tokens=True)
        return np.reshape(half_right(texts, answers), (len(ids), 64)).mean(axis=1)

    assert found[0] == found[2]  # equal seeds
    for choice, tokens in zip((PLAIN, CUT), found, strict=False):
        theirs = rates(sample(untied, tokenizer, ids, 8, seed=5, **choice))
        gaps, pooled = rates(tokens) - theirs, (rates(tokens) + theirs) / 2
        errors = np.sqrt(2 * np.maximum(pooled * (1 - pooled), 1 / 64) / 64)
        # 4.5 standard errors for each of 30 prompts: exceeded with probability below 1 in 4,000;
        # leaving out top_p alone shifts the mean by 12 of them, leaving out top_k alone by 19
        assert np.abs(gaps / errors).max() < 4.5
        assert abs(gaps.mean()) < 4.5 * np.sqrt((errors**2).sum()) / len(gaps)
    # truncation changes the rates by more than the engines differ
    assert abs(rates(found[1]).mean() - rates(found[0]).mean()) > 3 * abs(gaps.mean())


def test_stop_tokens_are_those_of_tokenizer_generation_config_and_chat_template():
    tokenizer = byte_tokenizer()
    end = tokenizer.eos_token_id
    # the template ends an answer with a line break, which is an ordinary token
    assert stop_tokens(tokenizer, None) == [end]
    for given in (end + 7, [end, end + 7]):
        assert stop_tokens(tokenizer, given) == [end, end + 7]
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    tokenizer.chat_template = tokenizer.chat_template.replace("\n", "<|im_end|>\n")
    assert stop_tokens(tokenizer, end) == [end, tokenizer.convert_tokens_to_ids("<|im_end|>")]


def test_counts_and_what_the_reward_receives(monkeypatch):
    rows = [
        {"prompt": "p", "uid": "a", "level": 3, "dataset": "one"},
        {"prompt": CHAT, "uid": "b", "dataset": "two", "family": "f"},
    ]
    tokenizer, seen = byte_tokenizer(), {}
    texts = [[tokenizer(text)["input_ids"] for text in pair] for pair in (("x", "yy"), ("x", "z"))]
    monkeypatch.setattr(evaluate, "_by_vllm", lambda *_, **__: texts)
    choice = EvaluationChoice(engine="vllm", samples=2, k=2)

    def reward(prompts, completions, **columns):
        seen.update(columns, prompts=prompts, completions=completions)
        return [1.0, 0.0, -1.0, 0.0]

    assert evaluate_model(choice, "folder", tokenizer, Split(rows, reward, 0, 8)) == [
        {"uid": "a", "dataset": "one", "successes": 1, "trials": 2, "distinct": 1, "tokens": 3},
        {
            "uid": "b",
            "family": "f",
            "dataset": "two",
            "successes": 0,
            "trials": 2,
            "distinct": 0,
            "tokens": 2,
        },
    ]
    assert (seen["uid"], seen["level"]) == (["a", "a", "b", "b"], [3, 3, None, None])
    assert seen["prompts"] == ["p", "p", CHAT, CHAT]
    assert seen["completions"][:2] == ["x", "yy"]
    assert seen["completions"][3] == [{"role": "assistant", "content": "z"}]
    with pytest.raises(ValueError, match="reward"):
        evaluate_model(choice, "folder", tokenizer, Split(rows, lambda **_: [None] * 4, 0, 8))


def test_processes_share_the_prompts(model_folder):
    """Each prompt is sampled once, and its completions are its own, whichever process had it."""
    _, tokenizer = load(model_folder)
    rows = [{"prompt": prompt, "uid": uid} for uid, prompt in enumerate([*PROMPTS, "b c"])]
    seen = []

    def reward(prompts, completions, **_):
        seen.append((prompts, completions))
        return [0.0] * len(prompts)

    for processes in (1, 2):
        greedy = EvaluationChoice(samples=2, k=2, top_k=1, data_parallel_size=processes)
        evaluate_model(greedy, model_folder, tokenizer, Split(rows, reward, 0, 8))
    assert seen[0] == seen[1]
    assert len(set(map(str, seen[0][1]))) > 2


def run_training(mode, base, report, *address):
    run_in("vllm", "tests/vllm_run.py", mode, base, report, *address)
    return json.loads(report.read_text())


@contextmanager
def server(base, log):
    """A vLLM server of `base` on a free port, as TRL's client wants it; its address."""
    port = free_port()
    names = "VLLM_SERVER_DEV_MODE", "VLLM_NO_USAGE_STATS", "TORCH_COMPILE_DISABLE"
    environment = os.environ | dict.fromkeys(names, "1")
    options = "--enforce-eager --host 127.0.0.1 --max-model-len 64 --gpu-memory-utilization 0.1"
    command = [python_of("vllm"), "-m", "vllm.entrypoints.openai.api_server", *options.split()]
    command += ["--model", base, "--port", str(port), "--logprobs-mode", "processed_logprobs"]
    with log.open("w") as stream:
        pipes = {"stdout": stream, "stderr": stream, "start_new_session": True}
        process = subprocess.Popen(command, env=environment, **pipes)
    address = f"http://127.0.0.1:{port}"
    try:
        while True:  # until pytest's own limit
            assert process.poll() is None, log.read_text()[-3000:]
            time.sleep(0.5)
            with suppress(OSError):
                urllib.request.urlopen(f"{address}/health", timeout=60).close()
                break
        yield address
    finally:
        process.terminate()
        process.wait(PATIENCE)


@pytest.mark.parametrize("kind", ["full", "lora"])
def test_two_shards_of_a_tied_model_send_each_weight_once(base, tmp_path, kind):
    """vLLM refuses an output matrix tied to the embedding (TRL 1.14 sends both, 1.16 one)."""
    model = tied_model(base, kind)
    whole = model.merge_and_unload() if kind == "lora" else model
    assert whole.config.tie_word_embeddings
    run_ranks(2, sharded_run.what_vllm_is_sent, base, tmp_path, kind)
    weights = dict(whole.named_parameters())
    for rank in range(2):
        sent = load_file(tmp_path / f"sent{rank}.safetensors")
        assert sent.keys() == weights.keys()
        assert "lm_head.weight" not in sent
        atol = 1e-6 if kind == "lora" else 0
        for name, weight in weights.items():
            torch.testing.assert_close(sent[name], weight.data, rtol=0, atol=atol)


def group_sizes(prompts):
    changes = [place for place in range(1, len(prompts)) if prompts[place] != prompts[place - 1]]
    return np.diff([0, *changes, len(prompts)]).tolist()


@needs_vllm
@pytest.mark.parametrize("mode", ["colocate", "server"])
def test_vllm_samples_every_row_of_unequal_groups_with_the_weights_of_the_step(
    mode, base, untied, tmp_path
):
    if mode == "colocate":
        training = run_training(mode, base, tmp_path / "report.json")
    else:
        with server(untied, tmp_path / "server.log") as address:
            training = run_training(mode, untied, tmp_path / "report.json", address)
    assert training["vllm_is_as_it_was"]
    sizes = [group_sizes(call["prompts"]) for call in training["calls"]]
    assert any(len(set(groups)) > 1 for groups in sizes)
    assert training["spent"] == [32] * 9
    assert training["stops"] == [1]  # sent to vLLM: the model's files may lack them
    for call in training["calls"]:
        assert call["num_generations"] == 1
        assert len(call["prompts"]) == len(call["completions"]) == 32
        assert call["returned_prompts"] == call["prompts"]
    # rollouts of one prompt are drawn apart, not copied
    call = training["calls"][0]
    assert len({json.dumps(ids) for ids in call["completions"]}) > 16

    # |log-probability by vLLM in 16 bits − by the trained model in 32|: a mean of 1.5 without
    # synchronization, from the second step on, and of 0.1 where the output matrix alone is left out
    assert len(training["mean_gaps"]) == 9
    assert max(training["mean_gaps"]) < 0.02
    # one token of thousands, not seeded in a server: twice bfloat16's spacing at logits from 32 on
    assert max(training["largest_gaps"]) < 1.0
    assert max(training["mean_gaps"]) > 0  # two engines, not one
