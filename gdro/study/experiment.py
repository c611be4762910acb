"""The jobs of a profile: make its base, train a variant with a seed, evaluate what was trained.

Each job is a process of its own (`gdro base`, `gdro train`, `gdro evaluate`), which frees the GPU at its end.
A run is one variant with one seed, in a folder of its own (default: runs/PROFILE/VARIANT/seedSEED):

    record.jsonl       one row per generation batch: what the controller saw and decided, rollouts, tokens
    log_history.jsonl  what TRL logged: loss, KL, entropy, lengths, importance ratios
    model/             the trained model, or the adapter
    training.json      settings, totals, seconds; written last, so it says that the training is complete
    evaluation.jsonl   one row per held-out prompt: successes, trials
    manifest.json      training.json, the same of the evaluation, versions; written when the run is complete

A killed training resumes from its last complete checkpoint. Heavy packages are imported where they are used:
Unsloth must be imported before TRL and transformers.
"""

import hashlib
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

# These are read once, when huggingface_hub and vLLM are imported. FlashInfer's sampler needs a CUDA toolkit.
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")  # or equal seeds would not give equal samples

import torch

from gdro.study.arguments import training_arguments
from gdro.study.profiles import BASE, Profile
from gdro.tasks import Split, draw_task, load_split
from gdro.tasks.world import read_world
from gdro.training.checkpoints import difference, file_hash, files_in
from gdro.training.files import replace_text, repository, written
from gdro.training.lifetime import only_process_in
from gdro.training.models import load_model, merged_model, tiny_base
from gdro.training.records import read_manifest, read_table, write_manifest, write_table
from gdro.training.unsloth import import_unsloth

if TYPE_CHECKING:
    from transformers import TrainerCallback

    from gdro.trainer import GDROConfig, GDROTrainer

CACHE = ".cache/bases"


def make_base(profile: Profile, cache_dir: str | Path = CACHE, *, progress: bool = False) -> str:
    """Return the profile's model: a folder or hub id, or the tiny base, trained if the cache lacks it."""
    if profile.model.source is not None:
        return profile.model.source
    assert profile.task.kind != "math"  # its profiles name their model
    choice = profile.base.model_dump()
    if profile.task.kind == "reasoning_gym":
        choice |= read_world(profile.task.world).base.options()
    return str(tiny_base(draw_task(profile.task), cache_dir=cache_dir, progress=progress, **choice))


def _start(
    profile: Profile, variant: str, cache_dir: str | Path, *, held_out: bool = False
) -> tuple[str, Any, Split]:
    """What training and evaluation need first: the base's folder or hub id, its tokenizer, the data."""
    choice = profile.model_of(variant)
    # Unsloth patches transformers and TRL, so it must come before them. Evaluation uses plain transformers.
    if choice.kind.startswith("unsloth") and not held_out:
        import_unsloth(choice.standby)
    from transformers import AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    # a variant may train another model than the profile's other ones
    source = make_base(profile.model_copy(update={"model": choice}), cache_dir)
    try:
        tokenizer = AutoTokenizer.from_pretrained(source, padding_side="left")
    except Exception as error:  # transformers raises what it stumbles over
        why = str(error).strip().split("\n")[0]
        remedy = "give the folder of a model with its tokenizer, or the hub id of one that can be downloaded"
        raise ValueError(f"model.source {str(source)!r} cannot be loaded ({why}); {remedy}") from error
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token  # Llama has none; TRL does the same
    return source, tokenizer, load_split(profile.task, tokenizer, held_out=held_out)


def train_variant(
    profile: Profile, variant: str, seed: int, folder: str | Path, cache_dir: str | Path = CACHE
) -> list[dict[str, Any]]:
    """Train one variant with one seed, unless that is done, and return its record.

    With several machines (`launch`), each must call it. All but the first return an empty record.

    Raises:
        ValueError: for options that TRL refuses, and a folder in which another process trains.
        RuntimeError: where launched processes fail.
    """
    # one lock for each machine: several write into one folder on a shared disk
    machine = profile.launch.machine
    with only_process_in(Path(folder), f".lock{machine or ''}"):
        training = Training(profile, variant, seed, Path(folder), cache_dir)
        if training.done:
            training.remove_checkpoints()  # a kill just before the end leaves them
        else:
            (training.launch if training.launched else training.run)()
    return training.record() if machine == 0 else []


class Training:
    """One training: its parts, as notebook 05 uses them one by one, and `run`, which does all.

    Attributes:
        source: the model to train, a folder or hub id.
        tokenizer: the model's.
        data: prompts and reward.
        eval_dataset: held-out prompts, where train.eval_strategy asks for them.
        model_options: arguments of `load_model`, the profile's `model:` block.
        launched: whether the profile asks for several processes, or for a configuration of accelerate.
    """

    def __init__(
        self, profile: Profile, variant: str, seed: int, folder: Path, cache_dir: str | Path = CACHE
    ) -> None:
        self.profile, self.variant, self.seed = profile, variant, seed
        self.folder, self.cache_dir, self._settings = folder, cache_dir, profile.train_of(variant)
        self.source, self.tokenizer, self.data = _start(profile, variant, cache_dir)
        longest, self.eval_dataset = self.data.max_prompt_tokens, None
        if self._settings.eval_strategy != "no":
            from datasets import Dataset

            held_out = load_split(profile.task, self.tokenizer, held_out=True)
            every = -(-len(held_out.rows) // self._settings.eval_prompts)  # evenly from all of them
            self.eval_dataset = Dataset.from_list(held_out.rows[::every])
            longest = max(longest, held_out.max_prompt_tokens)
        self._lengths = longest, self.data.max_completion_tokens
        self.model_options = profile.model_of(variant).model_dump(exclude={"source"})
        self.model_options |= {"seed": seed, "max_length": sum(self._lengths)}
        self._profile_file = folder / f"profile{profile.launch.machine or ''}.yaml"
        self.launched = profile.launch.processes > 1 or profile.launch.config is not None
        self._identity = _identity(profile, variant, seed, self.data)

    @property
    def done(self) -> bool:
        """Whether the folder holds this very training, complete; ValueError if a file was altered since."""
        training = _training(self.folder)
        if training.get("identity") != self._identity:
            return False
        _check_files(self.folder, training)
        return True

    def arguments(self) -> "GDROConfig":
        """The profile's `train:` block, as a GDROConfig."""
        # The folder is named after the identity, so checkpoints of other settings or data are never resumed.
        checkpoints = self.folder / f"checkpoints-{self._identity[:8]}"
        others = {found.parent for found in self.folder.glob("checkpoints-*/checkpoint-*")} - {checkpoints}
        for other in sorted(others) if os.environ.get("RANK", "0") == "0" else ():
            print(f"{other} is of other settings or data and is not resumed from", flush=True)
        world = int(os.environ.get("WORLD_SIZE", "1"))
        return training_arguments(self.profile, self.variant, self.seed, checkpoints, self._lengths, world)

    def make_trainer(self, callbacks: Sequence["TrainerCallback"] = ()) -> "GDROTrainer":
        """The GDROTrainer of this training: model, reward, arguments, data. Loads the model."""
        loaded = load_model(self.source, **self.model_options)  # Unsloth, if asked for, comes before TRL
        from datasets import Dataset
        from transformers import PrinterCallback

        from gdro.trainer import GDROTrainer
        from gdro.training.progress import ProgressLines

        trainer = GDROTrainer(
            loaded.model,
            self.data.reward,
            args=self.arguments(),
            train_dataset=Dataset.from_list(self.data.rows),
            eval_dataset=self.eval_dataset,
            processing_class=loaded.tokenizer,
            peft_config=loaded.peft_config,
            callbacks=[ProgressLines(f"{self.variant}, seed {self.seed}"), *callbacks],
        )
        trainer.remove_callback(PrinterCallback)  # it would print each row of the log
        trainer.run_identity = self._identity
        return trainer

    def run(self, callbacks: Sequence["TrainerCallback"] = ()) -> None:
        """Train in this process, which may be one of several that a launcher started, and save."""
        trainer = self.make_trainer(callbacks)
        from accelerate.utils import gather_object

        if len(set(gather_object([self._identity]))) > 1:
            remedy = "clean the data set once and give that copy (task.paths)"
            raise RuntimeError(f"the processes have dropped different rows of the training data; {remedy}")
        trainer.train(resume_from_checkpoint=True)
        self.save(trainer)

    def save(self, trainer: "GDROTrainer") -> None:
        """Write model, record and report of a training that has ended, and remove its checkpoints."""
        from accelerate.utils import gather_object

        is_main, model = trainer.accelerator.is_main_process, self.folder / "model"
        # training.json goes first and comes back last: without it, what is in the folder is not complete
        if is_main:
            (self.folder / "training.json").unlink(missing_ok=True)
            shutil.rmtree(model, ignore_errors=True)  # of another training
        trainer.accelerator.wait_for_everyone()
        with written(str(model)):
            trainer.save_model(str(model))  # all processes take part where weights are sharded
        memory = torch.cuda.max_memory_allocated() / 2**30 if torch.cuda.is_available() else 0.0
        # each process has its own GPU, and has rewarded its own part of the completions
        memories, outcomes = zip(*gather_object([(memory, self.data.report()["outcomes"])]), strict=True)
        if not is_main:
            return
        write_table(self.folder / "record.jsonl", trainer.record)
        write_table(self.folder / "log_history.jsonl", map(_finite, trainer.state.log_history))
        totals = {name: sum(counts[name] for counts in outcomes) for name in outcomes[0]}
        report = {
            "identity": self._identity,
            "settings": self.profile.settings_of(self.variant, evaluated=False),
            "steps": trainer.args.max_steps,
            "rollouts": sum(row["rollouts_spent"] for row in trainer.record),
            "tokens": sum(row["tokens"] for row in trainer.record),
            "seconds": trainer.seconds,
            "processes": trainer.accelerator.num_processes,
            "peak_memory_gib": max(memories) or None,
            "evaluations": [
                {"step": row["step"], "reward": row["eval_reward"], "seconds": row["eval_runtime"]}
                for row in trainer.state.log_history
                if "eval_reward" in row
            ],
            "train_data": self.data.report() | {"outcomes": totals},
            "files": {"model": files_in(model), "record": file_hash(self.folder / "record.jsonl")},
        }
        replace_text(self.folder / "training.json", json.dumps(report | _machine()))
        self.remove_checkpoints()

    def remove_checkpoints(self) -> None:
        """Remove the checkpoints of a training that has ended; TRL's logs and completions stay."""
        for checkpoints in self.folder.glob("checkpoints-*"):
            for leftover in checkpoints.glob("checkpoint-*"):
                shutil.rmtree(leftover, ignore_errors=True)
            (checkpoints / "README.md").unlink(missing_ok=True)  # TRL's card of a model
            if not any(checkpoints.iterdir()):
                checkpoints.rmdir()

    def command(self) -> list[str]:
        """What `launch` runs."""
        launch = self.profile.launch
        launcher = ["torch.distributed.run", "--standalone", "--nproc-per-node", launch.processes]
        if launch.config is not None:
            launcher = ["accelerate.commands.launch", "--config_file", repository() / launch.config]
            launcher += ["--num_processes", launch.processes]
            if unset := [f"{name}: {value}" for name, value in launch.options.items() if "$" in value]:
                raise ValueError(f"launch has variables that are not set: {unset}; set them on each machine")
            launcher += [f"--{name}={value}" for name, value in launch.options.items()]
        train = ["-m", "gdro", "train", self._profile_file, self.variant, "--launched", "--seed", self.seed]
        train += ["--folder", self.folder, "--cache-dir", self.cache_dir]
        return [sys.executable, "-m", *map(str, launcher + train)]

    def launch(self) -> None:
        """Train in the processes that the profile asks for; with several machines, in this one's part."""
        replace_text(self._profile_file, self.profile.model_dump_json())  # JSON is YAML
        # its output appears in Jupyter; it ends if this process is interrupted, and its processes with it
        run = subprocess.run(self.command(), check=False)
        if run.returncode:
            raise RuntimeError(
                f"the launched training failed with exit code {run.returncode}; it says why above"
            )

    def record(self) -> list[dict[str, Any]]:
        """The record of the training in the folder, one row per generation batch."""
        return read_table(self.folder / "record.jsonl")


def _identity(profile: Profile, variant: str, seed: int, data: Split) -> str:
    """A hash of everything that the trained weights depend on."""
    # the uids too: which rows are dropped depends on the tokenizer and the copy of the data set
    uids = [row["uid"] for row in data.rows]
    depends_on = [profile.settings_of(variant, evaluated=False), seed, uids]
    return hashlib.sha256(json.dumps(depends_on, sort_keys=True).encode()).hexdigest()


def _training(folder: Path) -> dict[str, Any]:
    """The content of training.json; empty while the training is not complete."""
    path = folder / "training.json"
    return read_manifest(path) if path.is_file() else {}


def _check_files(folder: Path, training: Mapping[str, Any]) -> None:
    """Refuse (ValueError) a model or a record that was changed after the training."""
    model, record = training["files"]["model"], training["files"]["record"]
    fault = difference(folder / "model", model)
    if fault is None and file_hash(folder / "record.jsonl") != record:
        fault = f"{folder / 'record.jsonl'} is not as it was written"
    if fault is not None:
        raise ValueError(f"{fault}; put it back, or delete {folder} to train again")


def evaluate_variant(
    profile: Profile, variant: str, seed: int, folder: str | Path, cache_dir: str | Path = CACHE
) -> list[dict[str, Any]]:
    """Evaluate the base, or the model that `train` left in `folder`; ValueError if that is not complete."""
    from gdro.study.evaluate import evaluate_model

    folder = Path(folder)
    trained = {} if variant == BASE else _training(folder)
    if variant != BASE and trained.get("settings") != profile.settings_of(variant, evaluated=False):
        name = profile.name
        raise ValueError(f"{folder} holds no training with the settings of profile {name!r}; train first")
    if trained:
        _check_files(folder, trained)
    source, tokenizer, data = _start(profile, variant, cache_dir, held_out=True)
    began, model = time.perf_counter(), source if variant == BASE else str(folder / "model")
    # an adapter is merged into its base, because both engines sample from whole models
    with tempfile.TemporaryDirectory() as merged:
        if variant != BASE and profile.model_of(variant).kind.endswith("lora"):
            model = str(merged_model(source, model, merged))
        given = profile.evaluation, model, tokenizer, data.rows, data.reward, data.max_completion_tokens
        evaluation = evaluate_model(*given, seed)
    write_table(folder / "evaluation.jsonl", evaluation)
    settings, seconds = profile.settings_of(variant), {"evaluate": time.perf_counter() - began}
    whole = {"steps": 0, "rollouts": 0, "tokens": 0, "processes": 1, "peak_memory_gib": None} | _machine()
    whole |= trained | {"profile": profile.name, "variant": variant, "seed": seed, "settings": settings}
    whole |= {"seconds": trained.get("seconds", {}) | seconds, "held_out_data": data.report()}
    whole["files"] = trained.get("files", {}) | {"evaluation": file_hash(folder / "evaluation.jsonl")}
    write_manifest(folder / "manifest.json", whole)
    return evaluation


def _finite(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of TRL's log with None for each number that is not finite, which JSON cannot hold."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in row.items()
    }


def _machine() -> dict[str, Any]:
    """The device and the threads, for the manifest."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    return {"device": device, "threads": torch.get_num_threads()}


def start_job() -> None:
    """Set up a process that trains or evaluates: few threads, a clean end on SIGTERM."""
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that launched processes are ended too
    # transformers restores a second process's optimizer to "cpu:1", a place that torch.load does not know
    torch.serialization.register_package(
        1, lambda storage: None, lambda storage, place: storage if place.startswith("cpu") else None
    )
