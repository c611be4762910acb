"""The jobs of a profile, each a process of its own, whose end frees the GPU:

    python -m gdro.experiment base PROFILE                              # check the profile, make the base
    python -m gdro.experiment train PROFILE VARIANT SEED [FOLDER]       # what notebook 05 does
    python -m gdro.experiment evaluate PROFILE VARIANT SEED [FOLDER]    # also of the variant "base"

A run is one variant with one seed, in a folder of its own (default: runs/PROFILE/VARIANT/seedSEED):

    record.jsonl       a row each generation batch: what the controller saw and decided, rollouts, tokens
    model/             the trained model, or the adapter
    training.json      settings, totals, seconds; the last that training writes
    evaluation.jsonl   a row each held-out prompt: successes, trials
    manifest.json      training.json, the same of the evaluation, versions; written last of all

A killed training resumes from its last whole checkpoint. Heavy packages are imported where they are used:
Unsloth must come before TRL and transformers.
"""

import argparse
import fcntl
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

# read once, when huggingface_hub and vLLM are imported; FlashInfer's sampler would need a CUDA toolkit
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")

import psutil
import torch

from gdro.models import import_unsloth, merged_model, tiny_base
from gdro.profiles import BASE, Profile, load_profile, run_folder
from gdro.records import read_manifest, read_table, replace_text, write_manifest, write_table
from gdro.tasks import Task, draw_chain, make_task

CACHE = ".cache/bases"


def base(profile: Profile, cache_dir: str | Path = CACHE, *, progress: bool = False) -> str:
    """Return the profile's model: a folder or hub id, or the tiny base, trained if the cache lacks it."""
    source, revision = profile.model.source, profile.model.revision
    if source is not None and revision is not None and not Path(source).is_dir():
        import huggingface_hub

        # a folder, so that TRL's reference model and vLLM get the same revision
        return huggingface_hub.snapshot_download(source, revision=revision)
    if source is not None:
        return source
    assert profile.task.kind == "chain"  # a profile of another task names its model
    choice = profile.base.model_dump()
    return str(tiny_base(draw_chain(profile.task), cache_dir=cache_dir, progress=progress, **choice))


@contextmanager
def _start(profile: Profile, variant: str, cache_dir: str | Path) -> Iterator[tuple[str, Any, Task]]:
    """What training and evaluation start from: the base's folder or hub id, its tokenizer, the task."""
    choice = profile.model_of(variant)
    if choice.is_unsloth and variant != BASE:
        import_unsloth()
    from transformers import AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    source = base(profile.model_copy(update={"model": choice}), cache_dir)
    tokenizer = AutoTokenizer.from_pretrained(source, padding_side="left")
    with closing(make_task(profile.task, tokenizer)) as task:
        yield source, tokenizer, task


def train(
    profile: Profile, variant: str, seed: int, folder: str | Path, cache_dir: str | Path = CACHE
) -> list[dict[str, Any]]:
    """Train one variant with one seed, or find it trained, and return its record.

    Raises:
        ValueError: for options that TRL refuses, and a folder in which another process trains.
        RuntimeError: where launched processes fail, or the record is not that of the profile's budget.
    """
    folder, settings = Path(folder), profile.train_of(variant)
    with _only_training_in(folder), _start(profile, variant, cache_dir) as (source, _, task):
        if _training(folder).get("identity") != _identity(profile, variant, seed, task):
            if profile.launch.processes == 1 and profile.launch.config is None:
                _train_here(profile, variant, seed, folder, source, task)
            else:
                _launch(profile, variant, seed, folder, cache_dir)
    record = read_table(folder / "record.jsonl")
    spent = sum(row["rollouts_spent"] for row in record)
    if (len(record), spent) != (settings.generation_batches, settings.budget):
        raise RuntimeError(
            f"{folder} has {len(record)} batches and {spent} rollouts, not the profile's "
            f"{settings.generation_batches} and {settings.budget}; delete it and train again"
        )
    return record


def _train_here(profile: Profile, variant: str, seed: int, folder: Path, source: str, task: Task) -> None:
    """Train in this process, which may be one of several that a launcher started."""
    from accelerate.utils import gather_object

    from gdro.trainer import whole_checkpoints
    from gdro.training import make_trainer

    identity = _identity(profile, variant, seed, task)
    # the name says whose checkpoints these are: those of other settings or data are never resumed
    checkpoints = folder / f"checkpoints-{identity[:8]}"
    trainer = make_trainer(profile, variant, seed, checkpoints, source, task)
    if len(set(gather_object([identity]))) > 1:
        remedy = "clean the data set once and give that copy (task.paths)"
        raise RuntimeError(f"the processes have dropped different rows of the training data; {remedy}")
    whole = whole_checkpoints(checkpoints)
    if whole and whole[-1].name == f"checkpoint-{trainer.args.max_steps}":
        trainer.load_whole(whole[-1])  # killed after the last step
    else:
        trainer.train(resume_from_checkpoint=str(whole[-1]) if whole else None)
    is_main, model = trainer.accelerator.is_main_process, folder / "model"
    if is_main:
        (folder / "training.json").unlink(missing_ok=True)
        shutil.rmtree(model, ignore_errors=True)  # of another training
    trainer.accelerator.wait_for_everyone()
    trainer.save_model(str(model))  # all processes take part where weights are sharded
    memory = torch.cuda.max_memory_allocated() / 2**30 if torch.cuda.is_available() else 0.0
    of_all = gather_object([(memory, task.report()["outcomes"].get("train", {}))])
    if is_main:
        write_table(folder / "record.jsonl", trainer.record)
        memories, outcomes = zip(*of_all, strict=True)
        report = {
            "identity": identity,
            "settings": profile.settings_of(variant, evaluated=False),
            "steps": trainer.args.max_steps,
            "rollouts": sum(row["rollouts_spent"] for row in trainer.record),
            "tokens": sum(row["tokens"] for row in trainer.record),
            "seconds": trainer.seconds,
            "processes": trainer.accelerator.num_processes,
            "peak_memory_gib": max(memories) or None,
            "outcomes": {name: sum(counts[name] for counts in outcomes) for name in outcomes[0]},
        }
        report |= {part: task.report()[part] for part in ("rows", "dropped")}
        replace_text(folder / "training.json", json.dumps(report | _machine()))
        for leftover in folder.glob("checkpoints-*"):
            shutil.rmtree(leftover, ignore_errors=True)


def _launch(profile: Profile, variant: str, seed: int, folder: Path, cache_dir: str | Path) -> None:
    """Train on the processes that the profile asks for, and print what they print (also into a notebook)."""
    launch, profile_file, last = profile.launch, folder / "profile.yaml", deque[str](maxlen=30)
    replace_text(profile_file, profile.model_dump_json())  # JSON is YAML
    launcher = ["torch.distributed.run", "--standalone", "--nproc-per-node", launch.processes]
    if launch.config is not None:
        launcher = ["accelerate.commands.launch", "--config_file", launch.config_path]
        launcher += ["--num_processes", launch.processes]
    work = ["-m", "gdro.experiment", "work", profile_file, variant, seed, folder, "--cache-dir", cache_dir]
    command = [sys.executable, "-m", *map(str, launcher + work)]
    with subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                print(line, end="", flush=True)
                last.append(line)
        except BaseException:  # interrupted: launchers do not always end what they started
            for member in [*psutil.Process(process.pid).children(recursive=True), process]:
                with suppress(psutil.NoSuchProcess):
                    member.kill()
            raise
    if process.returncode:
        lines = "".join(last)
        raise RuntimeError(f"the launched training failed with exit code {process.returncode}:\n{lines}")


def _identity(profile: Profile, variant: str, seed: int, task: Task) -> str:
    """A hash of everything that the trained weights depend on."""
    depends_on = [profile.settings_of(variant, evaluated=False), seed, list(task.train["uid"])]
    return hashlib.sha256(json.dumps(depends_on, sort_keys=True).encode()).hexdigest()


def _training(folder: Path) -> dict[str, Any]:
    """training.json, or nothing where the training has not ended."""
    path = folder / "training.json"
    return read_manifest(path) if path.is_file() else {}


@contextmanager
def _only_training_in(folder: Path) -> Iterator[None]:
    """Refuse a second training in a folder. The lock ends with the process, however that ends."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ValueError(f"another process trains in {folder}; wait for it, or end it") from error
        yield


def evaluate(
    profile: Profile, variant: str, seed: int, folder: str | Path, cache_dir: str | Path = CACHE
) -> list[dict[str, Any]]:
    """Evaluate the base, or what `train` left in `folder` (ValueError where that is not complete)."""
    from gdro import evaluate as engines

    folder, choice = Path(folder), profile.evaluation
    trained = {} if variant == BASE else _training(folder)
    if variant != BASE and trained.get("settings") != profile.settings_of(variant, evaluated=False):
        name = profile.name
        raise ValueError(f"{folder} holds no training with the settings of profile {name!r}; train first")
    with _start(profile, variant, cache_dir) as started, tempfile.TemporaryDirectory() as merged:
        source, tokenizer, task = started
        model = source if variant == BASE else str(folder / "model")
        if variant != BASE and profile.model_of(variant).kind.endswith("lora"):
            model = str(merged_model(source, model, merged))
        began, rows, reward = time.perf_counter(), task.held_out, task.held_out_reward
        options = choice.model_dump(include={"samples", "temperature", "top_p", "top_k"})
        options |= {"max_new_tokens": task.max_completion_tokens, "seed": seed}
        if choice.engine == "vllm":
            options |= choice.model_dump(include={"gpu_memory_utilization", "tensor_parallel_size"})
            evaluation = engines.evaluate_with_vllm(model, rows, reward, **options)
        else:
            options["batch_size"] = choice.batch_size
            evaluation = engines.evaluate(_loaded(model), tokenizer, rows, reward, **options)
        seconds, report = time.perf_counter() - began, task.report()
    write_table(folder / "evaluation.jsonl", evaluation)
    settings = profile.settings_of(variant)
    whole = {"steps": 0, "rollouts": 0, "tokens": 0, "processes": 1, "peak_memory_gib": None} | _machine()
    whole |= trained | {"profile": profile.name, "variant": variant, "seed": seed, "settings": settings}
    whole["seconds"] = trained.get("seconds", {}) | {"evaluate": seconds}
    whole |= {part: trained.get(part, {}) | report[part] for part in ("rows", "dropped")}
    whole["outcomes"] = report["outcomes"] | {"train": trained.get("outcomes", {})}
    if not profile.keep_models and trained:
        (folder / "training.json").unlink()  # without its model, a training is not complete
        shutil.rmtree(folder / "model")
    write_manifest(folder / "manifest.json", whole)
    return evaluation


def _loaded(model: str) -> Any:
    """The model in this process; in 16 bits on a GPU, as vLLM has it."""
    from transformers import AutoModelForCausalLM

    device, dtype = ("cuda", torch.bfloat16) if torch.cuda.is_available() else ("cpu", torch.float32)
    return AutoModelForCausalLM.from_pretrained(model, dtype=dtype).to(device)


def _machine() -> dict[str, Any]:
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    return {"device": device, "threads": torch.get_num_threads()}


def know_cpu_by_rank() -> None:
    """Let torch.load restore to "cpu:1": transformers sends a second process's optimizer there."""
    torch.serialization.register_package(
        1, lambda storage: None, lambda storage, place: storage if place.startswith("cpu") else None
    )


def main(arguments: list[str] | None = None) -> None:
    """Do one job; "work" is training in one of the processes that a launcher started."""
    parser = argparse.ArgumentParser(prog="python -m gdro.experiment")
    parser.add_argument("job", choices=("base", "train", "work", "evaluate"))
    parser.add_argument("profile")
    parser.add_argument("variant", nargs="?", default=BASE)
    parser.add_argument("seed", nargs="?", type=int, default=0)
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--cache-dir", type=Path, default=CACHE)
    given = parser.parse_args(arguments)
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that launched processes are ended too
    know_cpu_by_rank()
    profile = load_profile(given.profile)
    run = profile, given.variant, given.seed
    folder = given.folder or run_folder(f"runs/{profile.name}", given.variant, given.seed)
    if given.job == "base":
        from gdro.training import check_training

        check_training(profile)
        print(base(profile, given.cache_dir, progress=True))
    elif given.job == "work":
        with _start(profile, given.variant, given.cache_dir) as (source, _, task):
            _train_here(*run, folder, source, task)
    else:
        (train if given.job == "train" else evaluate)(*run, folder, given.cache_dir)


if __name__ == "__main__":
    main()
