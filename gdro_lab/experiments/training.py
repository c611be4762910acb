"""Trainings in TRL: one is a variant with a seed, in a folder (runs/PROFILE/VARIANT/seedSEED).

    record.jsonl       a row per generation batch: what the controller saw and decided, what it cost
    log_history.jsonl  what TRL logged: loss, KL, entropy, lengths, importance ratios
    model/             the trained model, or the adapter
    training.json      settings, seconds, hashes, outcomes of the reward since the last resume;
                       written last: the training is complete
    evaluation.jsonl   a row per held-out prompt: successes, trials
    manifest.json      what training.json has, and the same of the evaluation: the run is complete

A killed training resumes from its last complete checkpoint. Heavy packages are imported where they
are used, since Unsloth must be imported before TRL.
"""

import math
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, get_type_hints

import torch
from datasets import Dataset
from transformers import TrainerCallback

from gdro.checks import Refusal, check
from gdro.files import LEDGER, replace_text, write_ledger
from gdro_lab import numerics
from gdro_lab.experiments.callbacks import ProgressLines, StepCosts, used_gib
from gdro_lab.experiments.records import (
    hashes_of,
    identity_of,
    read_table,
    read_training,
    totals,
    write_manifest,
    write_table,
)
from gdro_lab.experiments.run import Parts, Run
from gdro_lab.failures import at_the_door
from gdro_lab.machine import arithmetic, describe_machine, free_port
from gdro_lab.models import load_model
from gdro_lab.tasks import load_split

if TYPE_CHECKING:
    from gdro.trainer import GDROConfig, GDROTrainer

NOT_RESUMED = {"sync_ref_model", "save_only_model", "ignore_data_skip", "auto_find_batch_size"}
"""Options of TRL with which a run that was killed would not resume to the same weights."""
OURS = {"prompts_per_step", "updates_per_step", "eval_prompts"}
"""Fields of `train` that TRL does not know."""


class Lengths(NamedTuple):
    """The most tokens of a training's texts."""

    prompt: int
    completion: int


class Training:
    """One training: its parts, as notebook 05 uses them one by one, and `train`, which does all."""

    def __init__(self, run: Run, parts: Parts, folder: Path, cache_dir: str | Path) -> None:
        self.run = run
        self.folder = folder
        self.cache_dir = cache_dir
        self.settings = run.train
        self.source = parts.source
        """The model to train, a folder or hub id."""
        self.start = parts.start
        self.tokenizer = parts.tokenizer
        self.data = parts.data
        """Prompts and reward."""
        self.eval_dataset: Dataset | None = None
        """Held-out prompts, evenly from all of them, where train.eval_strategy asks for them."""
        longest = self.data.max_prompt_tokens
        if self.settings.eval_strategy != "no":
            held_out = load_split(
                run.task, parts.tokenizer, held_out=True, template=self.settings.template
            )
            every = math.ceil(len(held_out.rows) / self.settings.eval_prompts)
            self.eval_dataset = Dataset.from_list(held_out.rows[::every])
            longest = max(longest, held_out.max_prompt_tokens)
        self.lengths = Lengths(longest, self.data.max_completion_tokens)
        self.model_options: dict[str, Any] = {
            **asdict(run.model),
            "source": parts.source,
            "seed": run.replicate,
            "max_length": sum(self.lengths),
        }
        """Arguments of `load_model`."""
        self.needs_launcher = run.launch.processes > 1 or run.launch.config is not None
        """Whether the profile asks for several processes, or a configuration of accelerate."""
        self.identity = identity_of(run.of_training, run.replicate, self.data.rows, parts.start)
        """A hash of settings, seed, training rows and the model to start from."""
        self.name = f"{run.configuration}, seed {run.replicate}"

    @property
    def done(self) -> bool:
        """Whether the folder holds this very training.

        Refusal if a file was altered since, if it is a copy of another run, or if the base was
        changed under it.
        """
        training = read_training(self.folder)
        is_same = training.get("settings") == self.run.of_training
        if is_same and training["start"] != self.start:
            raise Refusal(
                f"{self.folder} was trained from another base than {self.source} is now: put that "
                "back, or delete the folder to train again"
            )
        return training.get("identity") == self.identity

    @property
    def checkpoints(self) -> Path:
        """Their folder, named after the identity: those of other settings are never resumed."""
        return self.folder / f"checkpoints-{self.identity[:8]}"

    def arguments(self, **changes: Any) -> "GDROConfig":
        """The profile's `train:` block as a GDROConfig, with these changes."""
        return training_arguments(self.run, self.checkpoints, self.lengths, **changes)

    def make_trainer(
        self, callbacks: Sequence[TrainerCallback] = (), **changes: Any
    ) -> "GDROTrainer":
        """The GDROTrainer of this training: model, reward, arguments, data. Loads the model."""
        numerics.fix_engines()
        if self.settings.use_vllm and not self.needs_launcher:
            # accelerate takes port 29500 for the engine's group, and two trainings cannot share it
            os.environ.setdefault("MASTER_PORT", str(free_port()))
        loaded = load_model(**self.model_options)  # Unsloth comes before TRL
        from transformers import PrinterCallback

        from gdro.trainer import GDROTrainer
        from gdro_lab.cpu_engine import reloadable

        args = self.arguments(**changes)
        with reloadable(args):
            trainer = GDROTrainer(
                loaded.model,
                self.data.reward,
                args=args,
                train_dataset=Dataset.from_list(self.data.rows),
                eval_dataset=self.eval_dataset,
                processing_class=loaded.tokenizer,
                peft_config=loaded.peft_config,
                callbacks=[ProgressLines(self.name), *callbacks],
            )
        trainer.remove_callback(PrinterCallback)  # it would print each row of the log
        trainer.run_identity = self.identity
        return trainer

    def train(self, callbacks: Sequence[TrainerCallback] = ()) -> None:
        """Train in this process, which may be one of several that a launcher started, and save."""
        trainer = self.make_trainer(callbacks)
        if trainer.accelerator.is_main_process:
            others = {path.parent for path in self.folder.glob("checkpoints-*/checkpoint-*")}
            for other in sorted(others - {self.checkpoints}):
                print(f"{other} has other settings or data and is not resumed from", flush=True)
            print(f"{self.name}: {self.data.summary()}", flush=True)
        trainer.train(resume_from_checkpoint=True)
        self.save(trainer)

    def try_steps(self, batches: int) -> None:
        """Train some generation batches after one that warms up, print what one took, save none."""
        updates = self.settings.updates_per_step * self.settings.num_iterations
        costs = StepCosts()
        trainer = self.make_trainer(
            [costs], save_strategy="no", eval_strategy="no", max_steps=(batches + 1) * updates
        )
        trainer.leaves_page = False
        trainer.train()
        if trainer.accelerator.is_main_process:
            seconds = (costs.ends[-1] - costs.ends[updates - 1]) / batches
            print(
                f"{self.name}: {seconds:.2f} s a generation batch, {costs.peak:.1f} GiB; "
                f"{self.settings.generation_batches} of them in a training",
                flush=True,
            )

    def save(self, trainer: "GDROTrainer") -> None:
        """Write model, record and report of a training that has ended; remove its checkpoints."""
        from accelerate.utils import gather_object

        is_main = trainer.accelerator.is_main_process
        model = self.folder / "model"
        # training.json goes first and comes back last: without it, the folder is not complete
        if is_main:
            for name in ("manifest.json", "training.json"):
                (self.folder / name).unlink(missing_ok=True)
            shutil.rmtree(model, ignore_errors=True)  # of another training
        trainer.accelerator.wait_for_everyone()
        trainer.save_model(str(model))  # all processes take part where weights are sharded
        # each process has its own GPU, and has rewarded its own part of the completions
        parts = gather_object([(used_gib(), self.data.report()["outcomes"])])
        if not is_main:
            return
        write_ledger(model, self.identity)
        write_table(self.folder / "record.jsonl", trainer.record)
        for page in self.checkpoints.glob("inspect.*"):
            page.replace(self.folder / page.name)
        write_table(self.folder / "log_history.jsonl", map(_finite, trainer.state.log_history))
        write_manifest(self.folder / "training.json", self._report(trainer, parts))
        self.remove_checkpoints()

    def _report(
        self, trainer: "GDROTrainer", parts: Sequence[tuple[float, Mapping[str, int]]]
    ) -> dict[str, Any]:
        """What training.json says. parts: memory and outcomes of each process."""
        outcomes = [counts for _, counts in parts]
        all_outcomes = {name: sum(counts[name] for counts in outcomes) for name in outcomes[0]}
        machine = describe_machine(pretrained=self.run.model.source is not None)
        # `train` may say otherwise than the machine's own choice
        machine["arithmetic"] = "bfloat16" if trainer.args.bf16 else "float32"
        names = [f"model/{LEDGER}", "record.jsonl", "log_history.jsonl"]
        report = {
            **self.run.place,
            "identity": self.identity,
            "start": self.start,
            "settings": self.run.of_training,
            "steps": trainer.args.max_steps,
            "seconds": trainer.seconds,
            "processes": trainer.accelerator.num_processes,
            "peak_memory_gib": max(memory for memory, _ in parts),
            "train_data": self.data.report() | {"outcomes": all_outcomes},
            "families": Counter(str(row.get("family", "")) for row in self.data.rows),
            "files": hashes_of(self.folder, names),
        }
        return report | totals(trainer.record) | machine

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
        launch = self.run.launch
        launcher = ["torch.distributed.run", "--standalone", "--nproc-per-node", launch.processes]
        if launch.file is not None:
            launcher = ["accelerate.commands.launch", "--config_file", launch.file]
            launcher += ["--num_processes", launch.processes]
        file = self.folder / "profile.yaml"
        replace_text(file, self.run.written)
        train = ["-m", "gdro_lab", "train", file, self.run.configuration, "--launched"]
        train += ["--seed", self.run.replicate, "--folder", self.folder]
        train += ["--cache-dir", self.cache_dir, *options]
        return [sys.executable, "-m", *map(str, launcher + train)]

    def launch(self, *options: str) -> None:
        """Start the processes that the profile asks for."""
        # its output appears in Jupyter, and it ends if this process is interrupted
        code = subprocess.run(self.command(*options), check=False).returncode
        if code:
            raise RuntimeError(f"the launched training failed with exit code {code}")

    def record(self) -> list[dict[str, Any]]:
        """The record of the training in the folder, one row per generation batch."""
        return read_table(self.folder / "record.jsonl")


def _finite(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of TRL's log with None for each number that is not finite, which JSON cannot hold."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in row.items()
    }


def training_arguments(
    run: Run, folder: str | Path, lengths: Lengths, **changes: Any
) -> "GDROConfig":
    """A run's GDROConfig, with `changes`; Refusal for unknown fields and other types.

    Of a launched process, it is that of one of them.
    """
    from gdro.trainer import GDROConfig

    processes = int(os.environ.get("WORLD_SIZE", "1"))  # set by a launcher
    chosen = run.train.model_dump(exclude=OURS)
    fixed = _fixed_arguments(run, folder, lengths, processes)
    # a profile may name this one itself; `local_batch` has used its value already
    chosen["per_device_train_batch_size"] = fixed.pop("per_device_train_batch_size")
    types = get_type_hints(GDROConfig)
    for name, value in chosen.items():
        if name in {*fixed, *NOT_RESUMED}:
            why = "the rest of the profile determines it, or it would not resume"
            raise Refusal(f"{name} must be left out: {why}, got {value!r}")
        if name in types:  # TRL's parser checks no types: a text for a number would fail late
            check(name, value, types[name])
    options = _default_arguments(run, lengths, processes) | chosen | fixed | changes
    args = GDROConfig(**options)
    args._n_gpu = min(args.n_gpu, 1)  # as transformers does where one process has one GPU
    return args


def _fixed_arguments(
    run: Run, folder: str | Path, lengths: Lengths, processes: int
) -> dict[str, Any]:
    """What the rest of the profile determines: `train` may not name these."""
    assert run.variant is not None
    micro_batch, accumulated = run.train.local_batch(processes)
    return {
        "output_dir": str(folder),
        "seed": run.replicate,
        "per_device_train_batch_size": micro_batch,
        "gradient_accumulation_steps": accumulated,
        "steps_per_generation": accumulated * run.train.updates_per_step,
        "max_completion_length": lengths.completion,
        "gradient_checkpointing": run.model.gradient_checkpointing,
        "gdro_method": run.variant.method,
        "gdro_preset": run.variant.preset,
        "gdro_options": run.variant.options,
        "group_column": run.variant.groups,
        "pass_rate_column": None,  # only the columns that `task` names are read
        "save_strategy": "steps",
        # the last checkpoint is evaluated: the best of noisy ones looks too good
        "load_best_model_at_end": False,
    }


def _default_arguments(run: Run, lengths: Lengths, processes: int) -> dict[str, Any]:
    """What `train` may override."""
    on_gpu = torch.cuda.is_available()
    return {
        "save_total_limit": 2,
        "report_to": "none",
        "trim_batches": True,  # the same savings for every method, so that their seconds compare
        "disable_tqdm": True,
        "use_cpu": not on_gpu,
        "bf16": arithmetic(pretrained=run.model.source is not None) == "bfloat16",
        "ddp_backend": None if on_gpu or processes == 1 else "gloo",
        "ddp_find_unused_parameters": False,
        "vllm_max_model_length": sum(lengths) if run.train.use_vllm else None,
    }


def check_arguments(runs: Sequence[Run]) -> None:
    """Refuse (Refusal) options that TRL or a method refuses, before a base is made for them."""
    from gdro.trl.config import check_training, make_controller

    for run in runs:
        with at_the_door(f"variant {run.configuration!r}"):
            args = training_arguments(run, "unused", Lengths(1, 1))
            args.group_column = None  # the data is not read yet; bins change nothing checked here
            check_training(args, make_controller(args))
