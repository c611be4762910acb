"""Evaluation: sample held-out prompts by an engine, and count what is correct.

The engines "hf" (transformers) and "vllm" divide logits by the temperature, then apply top-k, then
top-p. vLLM keeps the GPU's memory until its process ends, so use it in a process of its own.
"""

import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from gdro.checks import check_array
from gdro.metrics import count_distinct, is_correct
from gdro_lab import numerics
from gdro_lab.experiments.blocks import EvaluationChoice
from gdro_lab.experiments.records import (
    EVALUATION,
    hashes_of,
    identity_of,
    read_manifest,
    read_result,
    totals,
    write_manifest,
    write_table,
)
from gdro_lab.experiments.run import Parts, Run
from gdro_lab.experiments.scores import first_of_each_family, places_in_family
from gdro_lab.loop import Reward, Rows, call_reward
from gdro_lab.machine import (
    Arithmetic,
    arithmetic,
    describe_machine,
    own_processes,
)
from gdro_lab.models import Tokenizer, stop_tokens
from gdro_lab.tasks import Split, load_split, prompt_token_ids
from gdro_lab.tasks.pretrained import merged_model

Tokens = list[list[int]]
KEPT = ("uid", "family", "dataset", "trained_on")
"""Columns of a prompt that its counts keep, where it has them."""
UNTRAINED = {"steps": 0, "processes": 1, "peak_memory_gib": None} | totals([])
"""What the manifest of the base, which is not trained, has in place of a training's fields."""


def evaluate_saved(
    run: Run, parts: Parts, folder: Path, trained: dict[str, Any]
) -> list[dict[str, Any]]:
    """Evaluate the base, or the model in `folder`, unless that is done; the counts of each prompt.

    trained: what training.json says, {} of the base.
    """
    path = folder / "manifest.json"
    data = with_training_rows(run, parts.tokenizer, parts.data)
    identity = identity_of(run.settings, run.replicate, data.rows, parts.start)
    if path.is_file() and read_manifest(path)["evaluation_identity"] == identity:
        return read_result(folder)["evaluation"]
    began = time.perf_counter()
    evaluation = _sample_saved(run, parts, data, folder / "model" if trained else None)
    seconds = time.perf_counter() - began
    path.unlink(missing_ok=True)  # it has the hash of the evaluation before
    write_table(folder / EVALUATION, evaluation)
    machine = describe_machine(pretrained=run.model.source is not None)
    evaluated = {
        "settings": run.settings,
        "evaluation_identity": identity,
        "seconds": trained.get("seconds", {}) | {"evaluate": seconds},
        "evaluated_on": machine,
        **run.place,
        "start": parts.start,
        "held_out_data": data.report(),
        "files": trained.get("files", {}) | hashes_of(folder, [EVALUATION]),
    }
    # a training names the machine that it was made on; the base has only this one
    write_manifest(path, (trained or UNTRAINED | machine) | evaluated)
    return read_result(folder)["evaluation"]


def _sample_saved(run: Run, parts: Parts, data: Split, trained: Path | None) -> list[dict]:
    """Evaluate a trained model or adapter in its folder, or the base."""
    model = str(trained or parts.source)
    dtype = arithmetic(pretrained=run.model.source is not None)
    # an adapter is merged into its base, because both engines sample from whole models
    with tempfile.TemporaryDirectory() as merged:
        if trained is not None and run.model.kind.endswith("lora"):
            # where it samples in float32: bfloat16 is too coarse for the steps of an adapter
            merged_dtype = "float32" if dtype == "float32" else "auto"
            model = str(merged_model(parts.source, model, merged, dtype=merged_dtype))
        return evaluate_model(
            run.evaluation,
            model,
            parts.tokenizer,
            data,
            run.replicate,
            run.train.template,
            success_threshold=run.success_threshold,
            dtype=dtype,
        )


def with_training_rows(run: Run, tokenizer: Any, held_out: Split) -> Split:
    """The held-out prompts, then the training prompts that are sampled for the memorization gap."""
    most = run.evaluation.train_prompts
    if most == 0:
        return held_out
    training = load_split(run.task, tokenizer, held_out=False, template=run.train.template)
    seen = [{**row, "trained_on": 1} for row in first_of_each_family(training.rows, most)]
    return replace(held_out, rows=held_out.rows + seen)


def evaluate_model(
    choice: EvaluationChoice,
    model: str | Path,
    tokenizer: Tokenizer,
    data: Split,
    seed: int = 0,
    template: Mapping[str, Any] | None = None,
    *,
    success_threshold: float = 0.0,
    dtype: Arithmetic | None = None,
) -> list[dict[str, Any]]:
    """Sample from a model, and return the counts of each prompt, as `count_correct` does.

    The first prompts of each family, as many as `choice.texts`, have their question and texts too.

    Args:
        choice: engine and sampling.
        model: folder or hub id of a whole model.
        tokenizer: the model's.
        data: prompts, their reward and how many tokens a completion has.
        seed: of the sampling.
        template: arguments of the chat template.
        success_threshold: the reward above which a completion is correct.
        dtype: of the weights that the engine "hf" samples from; None for `arithmetic` of a model
            that is not pretrained. vLLM chooses for itself.
    """
    rows = data.rows
    longest = data.max_completion_tokens
    ids = prompt_token_ids(tokenizer, [row["prompt"] for row in rows], template)
    by = {"hf": partial(_by_transformers, dtype=dtype or arithmetic(pretrained=False))}
    engine = by.get(choice.engine, _by_vllm)
    sample = partial(engine, choice, model, tokenizer, max_new_tokens=longest)
    processes = min(choice.data_parallel_size, len(rows))
    if processes == 1:
        tokens_PS = sample(ids, seed=seed)
    else:
        tokens_PS = _in_processes(sample, ids, seed, processes)
    texts_PS = [
        tokenizer.batch_decode(tokens_S, skip_special_tokens=True) for tokens_S in tokens_PS
    ]
    counts = count_correct(rows, texts_PS, data.reward, success_threshold)
    places_P = places_in_family([row.get("family", "") for row in rows])
    parts = zip(rows, counts, tokens_PS, texts_PS, places_P, strict=True)
    for row, count, tokens_S, texts_S, place in parts:
        count["tokens"] = sum(map(len, tokens_S))
        if place < choice.texts:
            prompt = row["prompt"]
            count["question"] = prompt if isinstance(prompt, str) else prompt[-1]["content"]
            count["texts"] = texts_S
    return counts


def count_correct(
    rows: Rows,
    texts_PS: Sequence[Sequence[str]],
    reward: Reward,
    success_threshold: float = 0.0,
) -> list[dict[str, Any]]:
    """A row a prompt: uid, family, dataset where it has one, and what is correct.

    Args:
        rows: prompts with the columns prompt and those of the reward. A column that one lacks is
            None.
        texts_PS: equally many samples of each prompt.
        reward: as TRL calls it.
        success_threshold: a sample is correct where its reward is greater.

    Returns:
        successes, trials, and distinct, the number of different texts among the correct ones.
    """
    samples = len(texts_PS[0])
    rows_R = [row for row in rows for _ in range(samples)]
    texts_R = [text for texts_S in texts_PS for text in texts_S]
    completions_R = [
        text if isinstance(row["prompt"], str) else [{"role": "assistant", "content": text}]
        for row, text in zip(rows_R, texts_R, strict=True)
    ]
    rewards_R = call_reward(rows_R, completions_R, reward)
    correct_R = is_correct(check_array("the reward", rewards_R), success_threshold)
    correct_PS = correct_R.reshape(len(rows), samples)
    counts = []
    for row, correct_S, texts_S in zip(rows, correct_PS, texts_PS, strict=True):
        count = {name: row[name] for name in KEPT if name in row}
        count["successes"] = int(correct_S.sum())
        count["trials"] = samples
        count["distinct"] = count_distinct(texts_S, correct_S)
        counts.append(count)
    return counts


def _in_processes(
    sample: Callable[..., list[Tokens]], ids: Tokens, seed: int, processes: int
) -> list[Tokens]:
    """Tokens of the samples of each prompt, from processes with a GPU each."""
    tokens_PS: list[Tokens] = [[]] * len(ids)
    share = partial(_sample_share, sample, ids, seed, processes)
    with own_processes(processes) as pool:
        for rank, tokens in enumerate(pool.map(share, range(processes))):
            tokens_PS[rank::processes] = tokens
    return tokens_PS


def _sample_share(
    sample: Callable[..., list[Tokens]],
    ids: Tokens,
    seed: int,
    processes: int,
    rank: int,
) -> list[Tokens]:
    """What the process `rank` does: every n-th prompt, with a GPU and a seed of its own."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    # before CUDA starts
    os.environ["CUDA_VISIBLE_DEVICES"] = str(rank) if visible is None else visible.split(",")[rank]
    # a seed that no other rank has, whatever the evaluation's seed
    return sample(ids[rank::processes], seed=seed * processes + rank)


def _by_transformers(
    choice: EvaluationChoice,
    source: str | Path,
    tokenizer: Any,
    ids: Tokens,
    max_new_tokens: int,
    seed: int,
    dtype: Arithmetic,
) -> list[Tokens]:
    """Tokens of the samples of each prompt, up to the one that ends them: a list for each."""
    from transformers import AutoModelForCausalLM, GenerationConfig

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = AutoModelForCausalLM.from_pretrained(source, dtype=dtype).to(device)
    stops = stop_tokens(tokenizer, model.generation_config.eos_token_id)
    # in place of the model's own, of which vLLM does not apply all
    model.generation_config = GenerationConfig(
        do_sample=True,
        max_new_tokens=max_new_tokens,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=stops,
        **choice.model_dump(include={"temperature", "top_p", "top_k"}),
    )
    ids_R = [row for row in ids for _ in range(choice.samples)]
    tokens_R = []
    torch.manual_seed(seed)
    for start in range(0, len(ids_R), choice.batch_size):
        texts = {"input_ids": ids_R[start : start + choice.batch_size]}
        batch = tokenizer.pad(texts, padding_side="left", return_tensors="pt").to(device)
        output = model.generate(**batch)
        for row in output[:, batch["input_ids"].shape[1] :].tolist():
            # cut here: what follows the end is padding, which may be an ordinary token
            end = next((place for place, token in enumerate(row) if token in stops), len(row))
            tokens_R.append(row[: end + 1])
    places = range(0, len(ids_R), choice.samples)
    return [tokens_R[place : place + choice.samples] for place in places]


def _by_vllm(
    choice: EvaluationChoice,
    model: str | Path,
    tokenizer: Any,
    ids: Tokens,
    max_new_tokens: int,
    seed: int,
) -> list[Tokens]:
    """Tokens of each prompt's samples, as `_by_transformers` gives them, sampled by vLLM."""
    numerics.fix_engines()
    import vllm

    engine = _start_vllm(choice, str(model), max(map(len, ids)) + max_new_tokens, seed)
    sampling = vllm.SamplingParams(
        n=choice.samples,
        max_tokens=max_new_tokens,
        stop_token_ids=stop_tokens(tokenizer, None),  # vLLM adds those of the generation config
        detokenize=False,
        **choice.model_dump(include={"temperature", "top_p", "top_k"}),
    )
    prompts = [{"prompt_token_ids": row} for row in ids]
    outputs = engine.generate(prompts, sampling, use_tqdm=False)
    return [[list(sample.token_ids) for sample in output.outputs] for output in outputs]


def _start_vllm(choice: EvaluationChoice, folder: str, longest: int, seed: int) -> Any:
    """vLLM's engine of a model, for texts of at most `longest` tokens."""
    import vllm

    # it imports TRL, which must come after Unsloth
    from gdro_lab.cpu_engine import BLOCK_SIZE, is_on_cpu

    on_cpu = is_on_cpu()
    options: dict[str, Any] = {}
    if on_cpu:
        torch.compiler.set_stance("force_eager")  # compiling would take longer than it saves
        options["block_size"] = BLOCK_SIZE
    return vllm.LLM(
        folder,
        max_model_len=longest,
        enforce_eager=on_cpu,
        disable_log_stats=True,
        seed=seed,
        **options,
        **choice.model_dump(include={"gpu_memory_utilization"}),
    )
