"""A run: a configuration on a replicate, in TRL or in a world of the loop.

A configuration is a method with its options, in TRL a variant of the profile. A replicate is a
number that draws a fresh task, a fresh base and a fresh training, so that all configurations have
the same, and differences between them are paired. The configuration "base" is the model before
training. The file of a run is written whole when the run is complete, and such a run is not played
again.
"""

import hashlib
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from gdro.registry import find_method
from gdro_lab.experiments.blocks import (
    BaseChoice,
    EvaluationChoice,
    LaunchChoice,
    ModelChoice,
    TrainChoice,
    Variant,
)
from gdro_lab.experiments.spelling import slug_of
from gdro_lab.tasks import EmbeddedChoice, GymChoice, MathChoice, Split
from gdro_lab.tasks.cold_start import ColdStart
from gdro_lab.tasks.world import TaskWorld, read_world

LOOP_TRAIN = ("max_steps", "prompts_per_step", "num_generations", "lr_scheduler_type")
"""The fields of `train` that the loop knows."""
# How a machine computes, and not what: these may change between two starts of one run.
MACHINE = {
    "vllm_gpu_memory_utilization",
    "vllm_enable_sleep_mode",
    "vllm_server_base_url",
    "vllm_server_host",
    "vllm_server_port",
    "vllm_server_timeout",
    "vllm_group_port",
    "gpu_memory_utilization",
    "standby",
    "report_to",
    "run_name",
    "log_completions",
    "logging_steps",
    "disable_tqdm",
    "save_total_limit",
}


class Parts(NamedTuple):
    """What a run in TRL needs first: the base, its tokenizer, and the data."""

    source: str
    """The base, a folder or hub id."""
    tokenizer: Any
    data: Split
    start: str
    """What tells the base from another: equal on all machines for the same one."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Run:
    """One training, or the base: all of the profile that it depends on, as plain values."""

    profile: str
    """The profile's name."""
    configuration: str
    """The variant's name; in the loop the method's spelling, without its rate."""
    replicate: int
    """The seed."""
    variant: Variant | None
    """None of the base, which is not trained."""
    learning_rate: float
    """0 of the base."""
    train: TrainChoice
    """With the variant's changes."""
    success_threshold: float
    methods_from: str | None
    start_title: str
    """Names what it starts from: runs of equal ones share it."""

    # of the backend "trl"
    model: ModelChoice = field(default_factory=ModelChoice)
    task: EmbeddedChoice | GymChoice | MathChoice = field(default_factory=EmbeddedChoice)
    base: BaseChoice = field(default_factory=BaseChoice)
    cold_start: ColdStart | None = None
    taught_template: dict[str, Any] = field(default_factory=dict)
    """Arguments of the chat template in the cold start: the profile's, without the variant's."""
    evaluation: EvaluationChoice = field(default_factory=EvaluationChoice)
    launch: LaunchChoice = field(default_factory=LaunchChoice)
    gpus: int = 0
    written: str = ""
    """The profile in JSON, which is YAML, for the processes of a launcher."""

    # of the backend "loop"
    world: TaskWorld | None = None
    prompts: int = 0
    """Of a step."""
    mean_rollouts: float = 0

    @property
    def title(self) -> str:
        """What the console and the logs call it."""
        if self.world is None:
            return f"{self.configuration} {self.replicate}"
        return f"{self.world.name} {self.configuration} {self.learning_rate:g} {self.replicate}"

    @property
    def place(self) -> dict[str, Any]:
        """Written into the files of a run in TRL: a copy in another run's folder is refused."""
        return {"profile": self.profile, "variant": self.configuration, "seed": self.replicate}

    @property
    def columns(self) -> dict[str, Any]:
        """What its rows of scores have in common."""
        return {
            "world": self.profile if self.world is None else self.world.name,
            "configuration": self.configuration,
            "learning_rate": self.learning_rate,
            "replicate": self.replicate,
        }

    def file(self, out: Path) -> Path:
        """The file that it leaves in the profile's folder when it is complete."""
        if self.world is None:
            return run_folder(out, self.configuration, self.replicate) / "manifest.json"
        name = f"{slug_of(self.configuration)}_lr{self.learning_rate!r}_replicate{self.replicate}"
        return out / "runs" / self.world.name / f"{name}.json"

    @cached_property
    def settings(self) -> dict[str, Any]:
        """What its scores depend on besides configuration, learning rate and replicate."""
        if self.world is not None:
            settings: dict[str, Any] = {
                "world": self.world.model_dump(mode="json"),
                "train": self.train.model_dump(include=set(LOOP_TRAIN)),
                "success_threshold": self.success_threshold,
                "at": self.evaluation.at or None,
            }
            if self.variant is not None:
                settings["methods_from"] = self._methods_hash(self.variant.method)
            return settings
        settings = {
            "task": self.task.model_dump(),
            "base": self.base.model_dump(),
            "cold_start": self.cold_start and self.cold_start.model_dump(),
            "evaluation": self.evaluation.model_dump(),
            "model": asdict(self.model),
            "template": self.train.template,
            "success_threshold": self.success_threshold,
        }
        if self.task.kind == "reasoning_gym":
            settings["world"] = read_world(self.task.world).model_dump(mode="json")
        if self.variant is not None:
            settings |= self.variant.model_dump(exclude={"label", "baseline", "train", "model"})
            settings["train"] = self.train.model_dump()
            settings["methods_from"] = self._methods_hash(self.variant.method)
        for block in ("model", "train", "evaluation"):
            for name in MACHINE & set(settings.get(block, ())):
                del settings[block][name]
        return settings

    @cached_property
    def of_training(self) -> dict[str, Any]:
        """Those that a training depends on: nothing of the evaluation after it."""
        settings = dict(self.settings)
        del settings["evaluation"]
        # what is evaluated changes a training only by the problems that it takes out, and the
        # identity holds the rows that are left
        if self.variant is None or self.train.eval_strategy == "no":
            settings["task"] = {k: v for k, v in settings["task"].items() if k != "evaluate"}
        return settings

    def _methods_hash(self, method: str) -> str | None:
        """Hash of `methods_from` if the method is from it: a changed file makes another run."""
        package = find_method(method).__module__.partition(".")[0]
        if self.methods_from is None or package in ("gdro", "gdro_lab"):
            return None
        return hashlib.sha256(Path(self.methods_from).read_bytes()).hexdigest()


def run_folder(runs_dir: str | Path, configuration: str, replicate: int) -> Path:
    """Where the records of a run in TRL are."""
    return Path(runs_dir) / configuration / f"seed{replicate}"
