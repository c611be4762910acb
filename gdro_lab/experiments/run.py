"""A run: a method on a seed, in TRL or in a world of the loop. `play` makes its rows of scores.

A seed is a replicate: it draws a fresh task, a fresh base and a fresh training, so that all methods
have the same draws, and differences between them are paired. The method "base" is the model before
training. What a run leaves is written whole, and what is there is not played again.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gdro_lab.experiments.blocks import BASE, Variant
from gdro_lab.experiments.processes import own_processes
from gdro_lab.experiments.profile import LOOP_TRAIN, Configuration, Profile, run_folder
from gdro_lab.experiments.spelling import slug_of
from gdro_lab.tasks.world import TaskWorld


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
        """What it leaves when it is complete."""
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


def play(run: Run, out: Path, cache_dir: str) -> list[dict[str, Any]]:
    """Train a run, unless that is done, and evaluate it; write and return what it scored.

    Args:
        run: of either backend.
        out: folder of the profile's runs.
        cache_dir: where bases are kept.
    """
    if run.world is not None:
        from gdro_lab.experiments.loop_runs import play_in_loop

        return play_in_loop(run, run.world, out, cache_dir)
    folder = run.file(out).parent
    where = (run.profile, run.method, run.seed, folder, cache_dir)
    if run.variant is not None:
        model = run.profile.model_of(run.method)
        uses_vllm = run.profile.train_of(run.method).use_vllm
        if run.profile.gpus or uses_vllm or model.kind.startswith("unsloth"):
            # memory of a GPU and of vLLM is free when a process ends; Unsloth changes transformers
            with own_processes(1) as pool:
                pool.submit(_train, *where).result()
        else:
            _train(*where)
    from gdro_lab.experiments.evaluation import evaluate_variant

    return evaluate_variant(*where)


def _train(profile: Profile, *where: Any) -> None:
    """Train in this process, which may be one of its own."""
    profile.import_methods()
    from gdro_lab.experiments.training import train_variant

    train_variant(profile, *where)
