"""The jobs of a profile: make its base, train a variant with a seed, evaluate what was trained.

A run is one variant with one seed, in a folder of its own (runs/PROFILE/VARIANT/seedSEED):

    record.jsonl       a row per generation batch: what the controller saw and decided, what it cost
    log_history.jsonl  what TRL logged: loss, KL, entropy, lengths, importance ratios
    model/             the trained model, or the adapter
    training.json      settings, totals, seconds, hashes; written last: the training is complete
    evaluation.jsonl   a row per held-out prompt: successes, trials
    manifest.json      training.json and the same of the evaluation: the run is complete

A killed training resumes from its last complete checkpoint. Heavy packages are imported where they
are used: Unsloth must be imported before TRL and transformers.
"""

import fcntl
import hashlib
import json
import math
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from packaging.version import Version
from transformers import TrainerCallback

from gdro.checks import need
from gdro.files import difference, file_hash, files_in, replace_text
from gdro.trl.models import load_model
from gdro.trl.unsloth import import_unsloth
from gdro_lab.machine import arithmetic, describe_machine
from gdro_lab.study.config import BASE, Profile, training_arguments
from gdro_lab.study.records import (
    read_manifest,
    read_result,
    read_table,
    write_manifest,
    write_table,
)
from gdro_lab.tasks import Split, draw_task, load_split
from gdro_lab.tasks.cold_start import cold_start
from gdro_lab.tasks.pretrained import find_model, merged_model
from gdro_lab.tasks.solutions import load_solutions
from gdro_lab.tasks.tiny import tiny_base
from gdro_lab.tasks.world import read_world

if TYPE_CHECKING:
    from gdro.trainer import GDROConfig, GDROTrainer

CACHE = ".cache/bases"
# Read once, when huggingface_hub and vLLM are imported. FlashInfer's sampler needs a CUDA toolkit;
# with several processes, equal seeds would not give equal samples.
for _name, _value in {
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
}.items():
    os.environ.setdefault(_name, _value)


def check_machine(profile: Profile, variants: Sequence[str], *, evaluates: bool) -> None:
    """Refuse (ValueError) variants, and the evaluation, whose GPUs or packages are not here."""
    check_installed(profile, variants, evaluates=evaluates)
    here = not profile.gpus or torch.cuda.is_available()
    gpus = "a GPU" if profile.gpus == 1 else f"{profile.gpus} GPUs"
    found = f"torch {torch.__version__} finds none: see docs/gpu-box.md, 1"
    need(here, f"profile {profile.name!r} needs {gpus}, and {found}")


def check_installed(profile: Profile, variants: Sequence[str], *, evaluates: bool) -> None:
    """Refuse (ValueError) variants, and the evaluation, whose packages are not installed."""
    trainings = [profile.train_of(variant) for variant in variants]
    vllm = [train.use_vllm for train in trainings]
    wanted = {
        "unsloth": any(profile.model_of(name).kind.startswith("unsloth") for name in variants),
        "vllm": any(vllm) or (evaluates and profile.evaluation.engine == "vllm"),
        "liger_kernel": any((t.model_extra or {}).get("use_liger_kernel") for t in trainings),
    }
    missing = [name for name, is_used in wanted.items() if is_used and find_spec(name) is None]
    needs = f"profile {profile.name!r} needs"
    need(not missing, f"{needs} {', '.join(missing)}, not installed: see docs/gpu-box.md, 1")
    old = Version(version("trl")) < Version("1.16") and profile.launch.shards and any(vllm)
    need(not old, f"{needs} TRL 1.16 to bring sharded weights to vLLM, got {version('trl')}")


@contextmanager
def only_process_in(folder: Path, name: str = ".lock") -> Iterator[None]:
    """Refuse (ValueError) a second process that holds this folder. The lock ends with the process.

    It is a lock of the process, not of the open file, which workers of a data loader would inherit.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / name).open("w") as lock:
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ValueError(f"another process works in {folder}") from error
        yield


class ProgressLines(TrainerCallback):
    """A line every few seconds, legible in a log that several runs share: step, time left."""

    def __init__(self, name: str) -> None:
        self.name = name

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.began = self.last_line = time.perf_counter()
        self.first_step = state.global_step
        if state.is_world_process_zero:
            print(f"{self.name}: {state.max_steps} steps, from step {self.first_step}", flush=True)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        now, step, last = time.perf_counter(), state.global_step, state.max_steps
        if state.is_world_process_zero and (now - self.last_line >= 5 or step == last):
            self.last_line = now
            left = (now - self.began) / (step - self.first_step) * (last - step)
            print(f"{self.name}: step {step}/{last}, {left:.0f} s left", flush=True)


class Stopwatch(TrainerCallback):
    """When each step ended, and the most memory that this process held at the end of one."""

    def __init__(self) -> None:
        self.ends, self.peak = list[float](), 0.0

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.ends.append(time.perf_counter())
        self.peak = max(self.peak, _memory())


def make_base(profile: Profile, cache_dir: str | Path = CACHE, *, progress: bool = False) -> str:
    """The profile's model, a folder or hub id, made if the cache lacks it.

    Without model.source it is the tiny base; with cold_start, the source that was taught solutions.
    """
    if profile.model.source is not None:
        return _pretrained_base(profile, profile.model.source, cache_dir, progress)
    assert profile.task.kind != "math"  # its profiles name their model
    choice = profile.base.model_dump()
    if profile.task.kind == "reasoning_gym":
        choice |= read_world(profile.task.world).base.options()
    return str(tiny_base(draw_task(profile.task), cache_dir=cache_dir, progress=progress, **choice))


def _pretrained_base(profile: Profile, source: str, cache_dir: str | Path, progress: bool) -> str:
    """The source itself as a folder or hub id, or the model that was taught solutions."""
    folder = find_model(source, cache_dir)
    if profile.cold_start is None:
        return folder
    assert profile.task.kind != "embedded"  # such profiles have no cold start
    choice = profile.cold_start
    template = profile.train.template
    solutions = load_solutions(
        profile.task, load_tokenizer(folder), choice.examples, choice.seed, template
    )
    taught = cold_start(
        source, solutions, choice, cache_dir=cache_dir, template=template, progress=progress
    )
    return str(taught)


def load_tokenizer(source: str) -> Any:
    """The tokenizer of a folder or hub id, which pads on the left; ValueError if it has none."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(source, padding_side="left")
    except Exception as error:  # transformers raises what it stumbles over
        reason = str(error).strip().split("\n")[0]
        raise ValueError(f"model.source {str(source)!r} cannot be loaded ({reason})") from error
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token  # Llama has none; as TRL does
    return tokenizer


def prepare(profile: Profile, cache_dir: str | Path = CACHE) -> None:
    """Check packages and all training arguments; make the base, print where it is."""
    check_installed(profile, list(profile.variants), evaluates=True)
    for variant in profile.variants:
        training_arguments(profile, variant, 0, "unused", (1, 1))
    print(make_base(profile, cache_dir, progress=True))


def load_parts(
    profile: Profile, variant: str, cache_dir: str | Path, *, held_out: bool = False
) -> tuple[str, Any, Split]:
    """What a job needs first: the base's folder or hub id, its tokenizer, the data."""
    choice = profile.model_of(variant)
    # Unsloth patches transformers and TRL, so it comes first. Evaluation uses plain transformers.
    if choice.kind.startswith("unsloth") and not held_out:
        import_unsloth(choice.standby)
    from transformers.utils import logging

    logging.disable_progress_bar()
    # a variant may train another model than the profile's other ones
    source = make_base(profile.model_copy(update={"model": choice}), cache_dir)
    tokenizer = load_tokenizer(source)
    template = profile.train_of(variant).template
    data = load_split(profile.task, tokenizer, held_out=held_out, template=template)
    return source, tokenizer, data


def train_variant(
    profile: Profile, variant: str, seed: int, folder: str | Path, cache_dir: str | Path = CACHE
) -> list[dict[str, Any]]:
    """Train one variant with one seed, unless that is done, and return its record.

    With several machines (`launch`), each must call it. All but the first return an empty record.
    ValueError for a folder in which another process trains.
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
        launched: whether the profile asks for several processes, or a configuration of accelerate.
    """

    def __init__(
        self, profile: Profile, variant: str, seed: int, folder: Path, cache_dir: str | Path = CACHE
    ) -> None:
        need(variant != BASE, "variant must be one that is trained, got 'base'")
        check_machine(profile, [variant], evaluates=False)
        self.profile, self.variant, self.seed = profile, variant, seed
        self.folder, self.cache_dir, self.settings = folder, cache_dir, profile.train_of(variant)
        self.source, self.tokenizer, self.data = load_parts(profile, variant, cache_dir)
        longest, self.eval_dataset = self.data.max_prompt_tokens, None
        if self.settings.eval_strategy != "no":
            from datasets import Dataset

            template = self.settings.template
            held_out = load_split(profile.task, self.tokenizer, held_out=True, template=template)
            every = -(-len(held_out.rows) // self.settings.eval_prompts)  # evenly from all of them
            self.eval_dataset = Dataset.from_list(held_out.rows[::every])
            longest = max(longest, held_out.max_prompt_tokens)
        self._lengths = longest, self.data.max_completion_tokens
        self.model_options = profile.model_of(variant).model_dump(exclude={"source"})
        self.model_options |= {"seed": seed, "max_length": sum(self._lengths)}
        self.launched = profile.launch.processes > 1 or profile.launch.config is not None
        # a hash of all that the weights depend on; which rows there are depends on the tokenizer
        depends_on = [profile.settings_of(variant, evaluated=False), seed, self.data.rows]
        text = json.dumps(depends_on, sort_keys=True, default=str)
        self.identity = hashlib.sha256(text.encode()).hexdigest()

    @property
    def done(self) -> bool:
        """Whether the folder holds this very training; ValueError if a file was altered since."""
        training = _training(self.folder)
        if training.get("identity") != self.identity:
            return False
        _check_files(self.folder, training)
        return True

    def arguments(self, **changes: Any) -> "GDROConfig":
        """The profile's `train:` block as a GDROConfig, with these changes."""
        # named after the identity, so checkpoints of other settings or data are never resumed
        checkpoints = self.folder / f"checkpoints-{self.identity[:8]}"
        others = {found.parent for found in self.folder.glob("checkpoints-*/checkpoint-*")}
        for other in sorted(others - {checkpoints}) if os.environ.get("RANK", "0") == "0" else ():
            print(f"{other} is of other settings or data and is not resumed from", flush=True)
        world, run = int(os.environ.get("WORLD_SIZE", "1")), (self.profile, self.variant, self.seed)
        return training_arguments(*run, checkpoints, self._lengths, world, **changes)

    def make_trainer(
        self, callbacks: Sequence[TrainerCallback] = (), **changes: Any
    ) -> "GDROTrainer":
        """The GDROTrainer of this training: model, reward, arguments, data. Loads the model."""
        loaded = load_model(self.source, **self.model_options)  # Unsloth comes before TRL
        from datasets import Dataset
        from transformers import PrinterCallback

        from gdro.trainer import GDROTrainer

        lines = ProgressLines(f"{self.variant}, seed {self.seed}")
        trainer = GDROTrainer(
            loaded.model, self.data.reward, args=self.arguments(**changes),
            train_dataset=Dataset.from_list(self.data.rows), eval_dataset=self.eval_dataset,
            processing_class=loaded.tokenizer, peft_config=loaded.peft_config,
            callbacks=[lines, *callbacks],
        )  # fmt: skip
        trainer.remove_callback(PrinterCallback)  # it would print each row of the log
        trainer.run_identity = self.identity
        return trainer

    def run(self, callbacks: Sequence[TrainerCallback] = ()) -> None:
        """Train in this process, which may be one of several that a launcher started, and save."""
        trainer = self.make_trainer(callbacks)
        from accelerate.utils import gather_object

        same = len(set(gather_object([self.identity]))) == 1
        need(same, "the processes have dropped different rows of the training data")
        if trainer.accelerator.is_main_process:
            print(f"{self.variant}, seed {self.seed}: {self.data.summary()}", flush=True)
        trainer.train(resume_from_checkpoint=True)
        self.save(trainer)

    def try_steps(self, batches: int) -> None:
        """Train some generation batches after one that warms up, print what one took, save none."""
        updates = self.settings.updates_per_step * self.settings.num_iterations
        watch, steps = Stopwatch(), (batches + 1) * updates
        none = {"save_strategy": "no", "eval_strategy": "no", "max_steps": steps}
        trainer = self.make_trainer([watch], **none)
        trainer.train()
        if trainer.accelerator.is_main_process:
            seconds = (watch.ends[-1] - watch.ends[updates - 1]) / batches
            took = f"{seconds:.2f} s a generation batch, {watch.peak:.1f} GiB"
            total = f"{self.settings.generation_batches} of them in a training"
            print(f"{self.variant}: {took}; {total}", flush=True)

    def save(self, trainer: "GDROTrainer") -> None:
        """Write model, record and report of a training that has ended; remove its checkpoints."""
        from accelerate.utils import gather_object

        is_main, model = trainer.accelerator.is_main_process, self.folder / "model"
        # training.json goes first and comes back last: without it, the folder is not complete
        if is_main:
            (self.folder / "training.json").unlink(missing_ok=True)
            shutil.rmtree(model, ignore_errors=True)  # of another training
        trainer.accelerator.wait_for_everyone()
        trainer.save_model(str(model))  # all processes take part where weights are sharded
        # each process has its own GPU, and has rewarded its own part of the completions
        parts = gather_object([(_memory(), self.data.report()["outcomes"])])
        if not is_main:
            return
        write_table(self.folder / "record.jsonl", trainer.record)
        write_table(self.folder / "log_history.jsonl", map(_finite, trainer.state.log_history))
        outcomes = [counts for _, counts in parts]
        totals = {name: sum(counts[name] for counts in outcomes) for name in outcomes[0]}
        report = {
            "identity": self.identity,
            "settings": self.profile.settings_of(self.variant, evaluated=False),
            "steps": trainer.args.max_steps,
            "rollouts": sum(row["rollouts_spent"] for row in trainer.record),
            "tokens": sum(row["tokens"] for row in trainer.record),
            "seconds": trainer.seconds,
            "processes": trainer.accelerator.num_processes,
            "peak_memory_gib": max(memory for memory, _ in parts),
            "evaluations": [
                {"step": row["step"], "reward": row["eval_reward"], "seconds": row["eval_runtime"]}
                for row in trainer.state.log_history
                if "eval_reward" in row
            ],
            "train_data": self.data.report() | {"outcomes": totals},
            "files": {"model": files_in(model), "record": file_hash(self.folder / "record.jsonl")},
        }
        is_pretrained = self.profile.model_of(self.variant).source is not None
        machine = describe_machine(pretrained=is_pretrained)
        # `train` may say otherwise than the machine's own choice
        machine["arithmetic"] = "bfloat16" if trainer.args.bf16 else "float32"
        replace_text(self.folder / "training.json", json.dumps(report | machine))
        self.remove_checkpoints()

    def remove_checkpoints(self) -> None:
        """Remove the checkpoints of a training that has ended; TRL's logs and completions stay."""
        for checkpoints in self.folder.glob("checkpoints-*"):
            for leftover in checkpoints.glob("checkpoint-*"):
                shutil.rmtree(leftover, ignore_errors=True)
            (checkpoints / "README.md").unlink(missing_ok=True)  # TRL's card of a model
            if not any(checkpoints.iterdir()):
                checkpoints.rmdir()

    def command(self, *options: str) -> list[str]:
        """What `launch` runs."""
        launch = self.profile.launch
        file = self.folder / f"profile{launch.machine}.yaml"
        # only what was set: a world refuses the defaults of `base`; JSON is YAML
        replace_text(file, self.profile.model_dump_json(exclude_unset=True))
        launcher = ["torch.distributed.run", "--standalone", "--nproc-per-node", launch.processes]
        if launch.file is not None:
            unset = [f"{name}: {value}" for name, value in launch.options.items() if "$" in value]
            need(not unset, f"launch has variables that are not set: {unset}")
            launcher = ["accelerate.commands.launch", "--config_file", launch.file]
            launcher += ["--num_processes", launch.processes]
            launcher += [f"--{name}={value}" for name, value in launch.options.items()]
        train = ["-m", "gdro_lab", "train", file, self.variant, "--launched", "--seed", self.seed]
        train += ["--folder", self.folder, "--cache-dir", self.cache_dir, *options]
        return [sys.executable, "-m", *map(str, launcher + train)]

    def launch(self, *options: str) -> None:
        """Train in the processes that the profile asks for; with several machines, in our part."""
        # its output appears in Jupyter, and it ends if this process is interrupted
        code = subprocess.run(self.command(*options), check=False).returncode
        if code:
            raise RuntimeError(f"the launched training failed with exit code {code}")

    def record(self) -> list[dict[str, Any]]:
        """The record of the training in the folder, one row per generation batch."""
        return read_table(self.folder / "record.jsonl")


def _training(folder: Path) -> dict[str, Any]:
    """The content of training.json; empty while the training is not complete."""
    path = folder / "training.json"
    return read_manifest(path) if path.is_file() else {}


def _check_files(folder: Path, training: Mapping[str, Any]) -> None:
    """Refuse (ValueError) a model or a record that was altered after the training."""
    files = training.get("files", {})
    fault = difference(folder / "model", files.get("model", {}))
    if fault is None and file_hash(folder / "record.jsonl") != files.get("record"):
        fault = f"{folder / 'record.jsonl'} is not as it was written"
    need(fault is None, f"{fault}: put it back, or use another folder")


def evaluate_variant(
    profile: Profile, variant: str, seed: int, folder: str | Path, cache_dir: str | Path = CACHE
) -> list[dict[str, Any]]:
    """Evaluate the base, or the model that `train_variant` left in `folder`, unless that is done.

    ValueError if the training is not complete.
    """
    from gdro_lab.study.evaluate import evaluate_model

    folder, trained = Path(folder), {} if variant == BASE else _training(Path(folder))
    if variant != BASE:
        same = trained.get("settings") == profile.settings_of(variant, evaluated=False)
        need(same, f"{folder} holds no training with the settings of profile {profile.name!r}")
        _check_files(folder, trained)
    settings = profile.settings_of(variant)
    if (folder / "manifest.json").is_file():
        before = read_manifest(folder / "manifest.json")
        if (before["settings"], before.get("identity")) == (settings, trained.get("identity")):
            return read_result(folder, trained=variant != BASE)["evaluation"]
    check_machine(profile, [], evaluates=True)
    source, tokenizer, data = load_parts(profile, variant, cache_dir, held_out=True)
    is_pretrained = profile.model_of(variant).source is not None
    began, model = time.perf_counter(), source if variant == BASE else str(folder / "model")
    # an adapter is merged into its base, because both engines sample from whole models
    with tempfile.TemporaryDirectory() as merged:
        if variant != BASE and profile.model_of(variant).kind.endswith("lora"):
            model = str(merged_model(source, model, merged))
        given = tokenizer, data.rows, data.reward, data.max_completion_tokens, seed
        template = profile.train_of(variant).template
        dtype = arithmetic(pretrained=is_pretrained)
        evaluation = evaluate_model(profile.evaluation, model, *given, template, dtype=dtype)
    write_table(folder / "evaluation.jsonl", evaluation)
    seconds = trained.get("seconds", {}) | {"evaluate": time.perf_counter() - began}
    files = {"evaluation": file_hash(folder / "evaluation.jsonl")}
    empty = {"steps": 0, "rollouts": 0, "tokens": 0, "processes": 1, "peak_memory_gib": None}
    machine = describe_machine(pretrained=is_pretrained)
    whole = empty | machine | trained | {"settings": settings, "seconds": seconds}
    whole |= {"evaluated_on": machine}
    whole |= {"profile": profile.name, "variant": variant, "seed": seed}
    whole |= {"held_out_data": data.report(), "files": trained.get("files", {}) | files}
    write_manifest(folder / "manifest.json", whole)
    return evaluation


def _finite(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of TRL's log with None for each number that is not finite, which JSON cannot hold."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in row.items()
    }


def _memory() -> float:
    """GiB that this process's GPU holds, vLLM's included; without one, the most of the process."""
    if torch.cuda.is_available():
        free, total = torch.cuda.mem_get_info()
        return max(total - free, torch.cuda.max_memory_reserved()) / 2**30
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # in KiB on Linux


def start_job() -> None:
    """Set up a process that trains or evaluates: few threads, a clean end on SIGTERM."""
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that launched processes end too
    # transformers restores a second process's optimizer to "cpu:1", unknown to torch.load
    torch.serialization.register_package(
        1, lambda storage: None, lambda storage, place: storage if place.startswith("cpu") else None
    )
