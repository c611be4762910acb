"""A run: a method on a seed, in TRL or in a world of the loop.

`play_run` in `gdro_lab.experiments.runner` makes its rows of scores. A seed is a replicate: it
draws a fresh task, a fresh base and a fresh training, so that all methods have the same draws, and
differences between them are paired. The method "base" is the model before training. The file of a
run is written whole when the run is complete, and such a run is not played again.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gdro.checks import Refusal
from gdro_lab.experiments.blocks import BASE, Variant
from gdro_lab.experiments.profile import Configuration, Profile, run_folder
from gdro_lab.experiments.profile_checks import LOOP_TRAIN
from gdro_lab.experiments.records import read_rows
from gdro_lab.experiments.spelling import slug_of
from gdro_lab.tasks.world import TaskWorld

SHARED = ("train", "size", "success_threshold")
"""Settings that all runs of a folder have in common, besides each world's."""


@dataclass(frozen=True)
class Run:
    """One training, or the base."""

    profile: Profile
    method: str
    """The variant's name; in the loop the method's spelling, without its rate."""
    seed: int
    variant: Variant | None
    """None of the base, which is not trained."""
    learning_rate: float
    """0 of the base."""
    world: TaskWorld | None = None
    """The loop's."""

    @property
    def title(self) -> str:
        """What the console and the logs call it."""
        if self.world is None:
            return f"{self.method} {self.seed}"
        return f"{self.world.name} {self.method} {self.learning_rate:g} {self.seed}"

    @property
    def base(self) -> str:
        """Title of the job that makes its base; runs with equal titles start from one model."""
        if self.world is not None:
            return f"base {self.world.name} {self.seed}"
        source = self.profile.model_of(self.method).source or "tiny"
        seed = self.profile.seeds[0] if self.profile.one_task else self.seed
        return f"base {source} {seed}"

    @property
    def settings(self) -> dict[str, Any]:
        """What it depends on besides method, learning rate and seed."""
        if self.world is None:
            return self.profile.drawn(self.seed).settings_of(self.method)
        settings: dict[str, Any] = {
            "world": self.world.model_dump(mode="json"),
            "train": self.profile.train.model_dump(include=set(LOOP_TRAIN)),
            "size": self.profile.size,
            "success_threshold": self.profile.success_threshold,
        }
        if self.variant is not None:
            settings["methods_from"] = self.profile.methods_hash(self.variant.method)
        return settings

    @property
    def columns(self) -> dict[str, Any]:
        """What its rows of scores have in common."""
        return {
            "world": self.profile.name if self.world is None else self.world.name,
            "method": self.method,
            "learning_rate": self.learning_rate,
            "draw": self.seed,
        }

    def file(self, out: Path) -> Path:
        """The file that it leaves when it is complete."""
        if self.world is None:
            return run_folder(out, self.method, self.seed) / "manifest.json"
        name = f"{slug_of(self.method)}_lr{self.learning_rate!r}_draw{self.seed}.json"
        return out / "runs" / self.world.name / name


def list_runs(profile: Profile) -> list[Run]:
    """All runs of a profile, seed by seed, so that its folder always holds whole pairs."""
    runs = []
    worlds: list[TaskWorld | None] = [*profile.drawn_worlds]
    for seed in profile.seeds:
        for world in worlds or [None]:
            configurations: list[Configuration | None] = [*profile.configurations()]
            if not profile.one_task or seed == profile.seeds[0]:
                configurations.append(None)  # the base
            for configuration in configurations:
                method, variant, rate = configuration or (BASE, None, 0.0)
                runs.append(Run(profile, method, seed, variant, rate, world))
    return runs


def check_loops(profile: Profile, out: Path) -> None:
    """Refuse (Refusal) a folder of other settings, other worlds or other methods of your own."""
    runs = list_runs(profile)
    run_of = {run.file(out): run for run in runs}
    if len(run_of) < len(runs):
        raise Refusal(
            "methods must still differ where file names have '_' for their signs, "
            f"got {profile.methods}"
        )
    shared = {name: runs[0].settings[name] for name in SHARED}
    of_world = {run.columns["world"]: shared | {"world": run.settings["world"]} for run in runs}
    for file in sorted((out / "runs").glob("*/*.json")):
        before = read_rows(file)["settings"]
        run = run_of.get(file)
        # a run that this profile does not have is still in the same table
        theirs = shared | {"world": before.get("world")}
        ours = run.settings if run else of_world.setdefault(file.parent.name, theirs)
        for name, value in ours.items():
            if before.get(name) != value:
                raise Refusal(
                    f"runs must have the same {name} settings, got others in {file}: choose "
                    "another folder"
                )
