"""A profile in, records out: base, train, evaluate.

A profile (profiles/*.yaml) says all of a kind of run: task, base model, training, evaluation, and the
variants to compare. A run is one variant with one seed, in a folder of its own:

    record.jsonl       a row each step: what the controller saw and decided, rollouts, tokens
    evaluation.jsonl   a row each held-out prompt: successes, trials
    manifest.json      settings, seconds by stage, totals, versions; written last, by the notebook

The variant "base" is the model before training. Everything here can be called from a notebook cell.
"""

import hashlib
import json
import shutil
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import yaml
from datasets import Dataset
from pydantic import BaseModel, ConfigDict, Field, model_validator
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback

from gdro.evaluate import evaluate
from gdro.records import read_manifest, read_table, write_table
from gdro.tasks import chain
from gdro.tiny import tiny_base
from gdro.trainer import GDROConfig, GDROTrainer, make_controller, whole_checkpoints

BASE = "base"


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class TaskChoice(_Strict):
    """The embedded task; see gdro.tasks.chain."""

    kind: Literal["chain"] = "chain"
    seed: int = Field(0, ge=0)
    n_train: int = Field(1000, ge=1)
    n_eval_per_family: int = Field(40, ge=1)


class BaseChoice(_Strict):
    """How the tiny base is made; see gdro.tiny.tiny_base."""

    seed: int = Field(0, ge=0)
    steps: int = Field(800, ge=1)
    batch_size: int = Field(96, ge=1)
    threads: int = Field(1, ge=1)


class TrainChoice(_Strict):
    """GRPO's own settings. A step is one generation batch and one optimizer step."""

    steps: int = Field(150, ge=1)
    prompts_per_step: int = Field(32, ge=1)
    mean_rollouts: int = Field(4, ge=2)
    learning_rate: float = Field(1e-4, gt=0)
    beta: float = Field(0.0, ge=0)
    temperature: float = Field(1.0, gt=0)
    loss_type: Literal["grpo", "bnpo", "dr_grpo", "dapo"] = "dapo"
    advantage_std: Literal["sample", "population"] = "sample"
    advantage_clip: float | None = Field(None, gt=0)
    save_steps: int = Field(50, ge=1)


class EvaluationChoice(_Strict):
    """Samples of each held-out prompt."""

    samples: int = Field(8, ge=1)
    k: int = Field(8, ge=1)
    temperature: float = Field(1.0, gt=0)
    batch_size: int = Field(240, ge=1)


class Variant(_Strict):
    """One way to train: the controller's arguments, and what of `train` it changes."""

    method: Literal["grpo", "prompt", "rollout", "both"]
    preset: str = "default"
    options: dict[str, Any] = {}
    train: dict[str, Any] = {}
    label: str = ""


class Profile(_Strict):
    """All of a kind of run; unknown fields are refused."""

    name: str
    title: str = ""
    task: TaskChoice = TaskChoice()
    base: BaseChoice = BaseChoice()
    train: TrainChoice = TrainChoice()
    evaluation: EvaluationChoice = EvaluationChoice()
    variants: dict[str, Variant] = Field(min_length=1)
    seeds: list[int] = Field(min_length=1)

    @model_validator(mode="after")
    def _fits_together(self):
        """Refuse now what would otherwise fail after hours: each variant's controller is made once."""
        if self.evaluation.samples < self.evaluation.k:
            raise ValueError(
                f"evaluation.k={self.evaluation.k} needs as many samples, got {self.evaluation.samples}"
            )
        if len(set(self.seeds)) < len(self.seeds) or min(self.seeds) < 0:
            raise ValueError(f"seeds must differ and be ≥ 0, got {self.seeds}")
        labels = [self.label(variant) for variant in self.variants]
        if len(set(labels)) < len(labels) or {BASE, "results"} & set(self.variants):
            raise ValueError(
                f"variants need labels of their own and may not be called base or results: {labels}"
            )
        for name, variant in self.variants.items():
            train = self.train_of(name)
            if train.steps != self.train.steps or train.prompts_per_step > self.task.n_train:
                raise ValueError(
                    f"variant {name!r} must have the profile's {self.train.steps} steps and at most "
                    f"{self.task.n_train} prompts a step, got {train.steps} and {train.prompts_per_step}"
                )
            make_controller(variant.method, variant.preset, variant.options, train.mean_rollouts)
        return self

    def label(self, variant: str) -> str:
        """What tables and legends call a variant."""
        return "base" if variant == BASE else self.variants[variant].label or variant

    def train_of(self, variant: str) -> TrainChoice:
        """The training settings of a variant."""
        return TrainChoice(**(self.train.model_dump() | self._variant(variant).train))

    def settings_of(self, variant: str) -> dict[str, Any]:
        """All that a run of the variant depends on besides its seed; labels and other variants do not."""
        settings = self.model_dump(include={"task", "base", "evaluation"})
        if variant != BASE:
            chosen = self._variant(variant).model_dump(include={"method", "preset", "options"})
            settings |= chosen | {"train": self.train_of(variant).model_dump()}
        return settings

    def _variant(self, variant):
        if variant not in self.variants:
            raise ValueError(
                f"variant must be one of {[BASE, *self.variants]} of profile {self.name!r}, got {variant!r}"
            )
        return self.variants[variant]


def load_profile(name: str | Path) -> Profile:
    """Read profiles/<name>.yaml, or the file itself if a path to one is given.

    Raises ValueError for an unknown profile or one with unknown, missing or unfit fields.
    """
    path = Path(name)
    if path.suffix not in (".yaml", ".yml"):
        path = profiles_dir() / f"{name}.yaml"
    if not path.is_file():
        known = sorted(file.stem for file in profiles_dir().glob("*.yaml"))
        raise ValueError(f"profile must be one of {known} or the path of a .yaml file, got {str(name)!r}")
    fields = yaml.safe_load(path.read_text(encoding="utf-8"))
    return Profile(**{"name": path.stem, **(fields or {})})


def profiles_dir() -> Path:
    """profiles/ of the repository that holds the working directory."""
    for folder in (Path.cwd(), *Path.cwd().parents):
        if (folder / "profiles").is_dir() and (folder / "pyproject.toml").is_file():
            return folder / "profiles"
    raise ValueError(f"no profiles/ above {Path.cwd()}; run from inside the repository")


def make_task(profile: Profile) -> chain.ChainTask:
    """The profile's task: training and evaluation prompts."""
    choice = profile.task
    spec = chain.DEFAULT_SPEC
    spec = chain.ChainSpec(spec.families, n_train=choice.n_train, n_eval_per_family=choice.n_eval_per_family)
    return chain.make_task(spec, np.random.default_rng(choice.seed))


def make_base(profile: Profile, task: chain.ChainTask, cache_dir: str | Path = ".cache/bases") -> Path:
    """The folder of the profile's base model, trained if the cache does not have it."""
    base = profile.base
    return tiny_base(
        task,
        seed=base.seed,
        steps=base.steps,
        batch_size=base.batch_size,
        threads=base.threads,
        cache_dir=cache_dir,
        progress=False,
    )


class Run:
    """One variant with one seed: `train`, then `evaluate`, each leaving its table in `folder`.

    seconds: by stage, filled as the stages end. A run that was stopped goes on from its last whole
    checkpoint; one that was whole and is run again starts anew.
    """

    def __init__(
        self, profile: Profile, variant: str, seed: int, folder: str | Path, cache_dir=".cache/bases"
    ):
        if seed < 0:
            raise ValueError(f"seed must be ≥ 0, got {seed}")
        self.profile, self.variant, self.seed = profile, variant, seed
        self.is_base = variant == BASE
        self.settings = None if self.is_base else profile.train_of(variant)
        self.folder = Path(folder)
        self.seconds: dict[str, float] = {}
        self.task = make_task(profile)
        with self._timed("base"):
            self.base = make_base(profile, self.task, cache_dir)
        self.tokenizer = AutoTokenizer.from_pretrained(self.base)
        self.model = AutoModelForCausalLM.from_pretrained(self.base)
        self.record: list[dict] = []

    def train(self) -> list[dict]:
        """Train, and return the record; for the base, nothing."""
        if self.settings is None:
            return []
        # checkpoints of other settings are never taken up: the folder's name says whose they are
        settings = json.dumps([self.profile.settings_of(self.variant), self.seed], sort_keys=True)
        checkpoints = self.folder / f"checkpoints-{hashlib.sha256(settings.encode()).hexdigest()[:8]}"
        whole = whole_checkpoints(checkpoints)
        trainer = self._trainer(checkpoints)
        with self._timed("train"):
            if whole and whole[-1].name == f"checkpoint-{self.settings.steps}":
                trainer.load_whole(whole[-1])  # the training had ended; what came after it had not
            else:
                trainer.train(resume_from_checkpoint=str(whole[-1]) if whole else None)
        self.record, self.model = trainer.record, trainer.model
        self.seconds |= trainer.seconds
        self._check_budget()
        write_table(self.folder / "record.jsonl", self.record)
        return self.record

    def evaluate(self) -> list[dict]:
        """Evaluate the model as it stands, write and return one row a held-out prompt."""
        choice = self.profile.evaluation
        with self._timed("evaluate"):
            rows = evaluate(
                self.model,
                self.tokenizer,
                list(self.task.eval),
                chain.reward,
                samples=choice.samples,
                max_new_tokens=self.task.spec.max_completion_tokens,
                temperature=choice.temperature,
                batch_size=choice.batch_size,
                seed=self.seed,
                progress=False,
            )
        write_table(self.folder / "evaluation.jsonl", rows)
        return rows

    def manifest(self) -> dict:
        """What the run says of itself, for `gdro.records.write_manifest`."""
        for checkpoints in self.folder.glob("checkpoints-*"):  # a whole run needs none
            shutil.rmtree(checkpoints)
        return {
            "profile": self.profile.name,
            "settings": self.profile.settings_of(self.variant),
            "variant": self.variant,
            "seed": self.seed,
            "steps": len(self.record),
            "rollouts": sum(row["rollouts_spent"] for row in self.record),
            "tokens": sum(row["tokens"] for row in self.record),
            "seconds": {stage: round(seconds, 3) for stage, seconds in self.seconds.items()},
            "threads": torch.get_num_threads(),
        }

    def _trainer(self, checkpoints):
        settings, variant = self.settings, self.profile.variants[self.variant]
        assert settings is not None
        args = GDROConfig(
            output_dir=str(checkpoints),
            seed=self.seed,
            max_steps=settings.steps,
            per_device_train_batch_size=settings.prompts_per_step * settings.mean_rollouts,
            num_generations=settings.mean_rollouts,
            max_completion_length=self.task.spec.max_completion_tokens,
            learning_rate=settings.learning_rate,
            lr_scheduler_type="constant",
            beta=settings.beta,
            temperature=settings.temperature,
            loss_type=settings.loss_type,
            advantage_std=settings.advantage_std,
            advantage_clip=settings.advantage_clip,
            gdro_method=variant.method,
            gdro_preset=variant.preset,
            gdro_options=variant.options,
            save_strategy="steps",
            save_steps=settings.save_steps,
            save_total_limit=2,
            logging_steps=settings.steps,
            report_to=[],
            disable_tqdm=True,
            use_cpu=not torch.cuda.is_available(),
            bf16=torch.cuda.is_available(),
            gradient_checkpointing=False,
        )
        return GDROTrainer(
            self.model,
            chain.reward,
            args=args,
            train_dataset=Dataset.from_list(list(self.task.train)),
            processing_class=self.tokenizer,
            callbacks=[ProgressLines(f"{self.variant}, seed {self.seed}")],
        )

    def _check_budget(self):
        settings = self.settings
        assert settings is not None
        spent = sum(row["rollouts_spent"] for row in self.record)
        wanted = settings.steps * settings.prompts_per_step * settings.mean_rollouts
        if spent != wanted:
            raise RuntimeError(
                f"{self.variant}, seed {self.seed} spent {spent} rollouts, not the {wanted} of its profile; "
                "it cannot be compared at matched rollouts"
            )

    @contextmanager
    def _timed(self, stage):
        start = time.perf_counter()
        yield
        self.seconds[stage] = self.seconds.get(stage, 0.0) + time.perf_counter() - start


class ProgressLines(TrainerCallback):
    """A line every few seconds that reads well in a log where several runs speak: step, time left."""

    def __init__(self, name, every_seconds=15.0):
        self.name, self.every_seconds = name, every_seconds

    def on_train_begin(self, args, state, control, **kwargs):
        self.started = self.spoke = time.perf_counter()
        self.first_step = state.global_step
        print(f"{self.name}: {state.max_steps} steps, from step {self.first_step}", flush=True)

    def on_step_end(self, args, state, control, **kwargs):
        now = time.perf_counter()
        if now - self.spoke < self.every_seconds and state.global_step < state.max_steps:
            return
        self.spoke = now
        pace = (now - self.started) / (state.global_step - self.first_step)
        left = pace * (state.max_steps - state.global_step)
        print(f"{self.name}: step {state.global_step}/{state.max_steps}, {left:.0f} s left", flush=True)


def run_folder(runs_dir: str | Path, variant: str, seed: int) -> Path:
    """Where a run's records lie."""
    return Path(runs_dir) / variant / f"seed{seed}"


def read_runs(profile: Profile, runs_dir: str | Path) -> list[dict]:
    """All runs of a profile, the base first: variant, seed, manifest, record, evaluation.

    Raises ValueError if one is missing or was made with other settings.
    """
    wanted = [(BASE, profile.seeds[0])]
    wanted += [(variant, seed) for variant in profile.variants for seed in profile.seeds]
    runs = []
    for variant, seed in wanted:
        folder = run_folder(runs_dir, variant, seed)
        manifest = read_manifest(folder / "manifest.json")
        if manifest.get("settings") != profile.settings_of(variant):
            raise ValueError(
                f"the run in {folder} was made with other settings than profile {profile.name!r} has now; "
                "delete the folder and run it again"
            )
        runs.append(
            {
                "variant": variant,
                "seed": seed,
                "manifest": manifest,
                "record": [] if variant == BASE else read_table(folder / "record.jsonl"),
                "evaluation": read_table(folder / "evaluation.jsonl"),
            }
        )
    return runs


def main(arguments: list[str]) -> None:
    """`python -m gdro.experiment show PROFILE`: print the table and where the pictures are."""
    if len(arguments) != 2 or arguments[0] != "show":
        raise SystemExit("usage: python -m gdro.experiment show PROFILE")
    manifest = read_manifest(Path("runs") / arguments[1] / "results" / "manifest.json")
    print("\n" + manifest["table"])
    print("figures:  " + "\n          ".join(manifest["figures"]))
    print(f"records:  runs/{arguments[1]}/")


if __name__ == "__main__":
    main(sys.argv[1:])
