"""Runs of the loop: a method in a world at a learning rate, on a seed.

A world is a task with its base: a name in gdro_lab/tasks/worlds, or a YAML file. A seed draws a
fresh task, a fresh base and a fresh training. So all methods have the same draws, and differences
between them are paired. The method "base" is the model before training.

The folder of a profile has a file for each finished run (runs/WORLD/…json), so that the same
profile resumes, and what is made from these alone by `gdro_lab.experiments.table`. Scores are of
held-out prompts, 8 samples each at 20, 40, 60 and 80% of the steps, 32 at the end.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from gdro.checks import Refusal
from gdro_lab.experiments.blocks import BASE, Variant
from gdro_lab.experiments.loop_profile import LoopProfile
from gdro_lab.experiments.memory import first_of_each_family, train_scores
from gdro_lab.experiments.oracles import loop_controller, make_oracle
from gdro_lab.experiments.processes import report_progress
from gdro_lab.experiments.records import read_rows, write_rows
from gdro_lab.experiments.scores import score_families
from gdro_lab.experiments.spelling import slug_of
from gdro_lab.experiments.table import SHARED, report, write_runs
from gdro_lab.tasks.base import Task
from gdro_lab.tasks.tiny import tiny_base
from gdro_lab.tasks.world import TaskWorld

if TYPE_CHECKING:
    from gdro.controller import GDROController
    from gdro_lab.loop import Counts

CHECKPOINTS = {0.2: 8, 0.4: 8, 0.6: 8, 0.8: 8, 1.0: 32}
"""Samples a held-out prompt, by part of the steps."""
TRAIN_PROMPTS = 128
"""Training prompts of each family, at most, on which accuracy is measured at the end: see
`gdro_lab.experiments.memory`."""
TRAIN_SAMPLES = 8
"""Samples of each of them."""
SPENT = ("tokens", "trained_tokens", "replayed", "seconds")
"""Columns of the record that rows add up, beside the rollouts."""


@dataclass(frozen=True)
class LoopRun:
    """One training."""

    world: TaskWorld
    method: str
    """The method's spelling, without its rate."""
    variant: Variant | None
    """None of the base, which is not trained."""
    learning_rate: float
    seed: int

    @property
    def title(self) -> str:
        """What the console and the logs call it."""
        return f"{self.world.name} {self.method} {self.learning_rate:g} {self.seed}"

    def file(self, out: Path) -> Path:
        """Where its scores are written."""
        name = f"{slug_of(self.method)}_lr{self.learning_rate!r}_draw{self.seed}.json"
        return out / "runs" / self.world.name / name


def list_runs(profile: LoopProfile) -> list[LoopRun]:
    """All runs of a profile, seed by seed, so that its folder always holds whole pairs."""
    arms: list[tuple[Variant | None, float]] = [*profile.arms(), (None, 0.0)]
    return [
        LoopRun(world, BASE if variant is None else variant.label, variant, rate, seed)
        for seed in profile.seeds
        for world in profile.drawn_worlds
        for variant, rate in arms
    ]


def missing_runs(profile: LoopProfile, out: Path) -> list[LoopRun]:
    """The runs of a profile that its folder does not have."""
    return [run for run in list_runs(profile) if not run.file(out).exists()]


def check_loops(profile: LoopProfile, out: Path) -> None:
    """Refuse (Refusal) a folder of other settings, other worlds or other methods of your own."""
    runs = list_runs(profile)
    run_of = {run.file(out): run for run in runs}
    if len(run_of) < len(runs):
        raise Refusal(
            "methods must still differ where file names have '_' for their signs, "
            f"got {profile.methods}"
        )
    settings_of = {world.name: profile.settings_of(world, None) for world in profile.drawn_worlds}
    any_settings = next(iter(settings_of.values()))
    for file in sorted((out / "runs").glob("*/*.json")):
        before = read_rows(file)["settings"]
        ours = settings_of.get(file.parent.name)
        # a world that this profile does not have must still share train, size and threshold
        names = SHARED if ours is None else (*SHARED, "world")
        for name in names:
            if before.get(name) != (ours or any_settings).get(name):
                raise Refusal(f"runs must have the same {name} settings, got {out}: see {file}")
        run = run_of.get(file)
        if run is None or run.variant is None:
            continue
        if before.get("methods") != profile.methods_hash(run.variant.method):
            raise Refusal(
                f"methods_from must be as it was when {file} was made, "
                f"got {profile.methods_from} with changes: choose another folder"
            )


def draw_base(
    world: TaskWorld, seed: int, cache_dir: str | Path, size: str | None = None
) -> tuple[Task, Path]:
    """The task of a draw and the folder of its base, which is trained if the cache has none."""
    task: Task = world.spec.draw(seed)  # type: ignore[assignment]
    options = world.base.model_dump()
    if size is not None:
        options["size"] = size
    return task, tiny_base(task, seed=seed, cache_dir=cache_dir, progress=False, **options)


def make_run_base(profile: LoopProfile, run: LoopRun, cache_dir: str) -> None:
    """Make the base of a run's draw, if the cache lacks it."""
    draw_base(run.world, run.seed, cache_dir, profile.size)


@dataclass
class Scorer:
    """Takes the scores of a run at its checkpoints."""

    run: LoopRun
    task: Task
    model: Any
    tokenizer: Any
    steps: int
    """Steps of the whole training."""
    success_threshold: float
    """A completion is correct where its reward is greater."""
    spent: dict[str, float] = field(
        default_factory=lambda: dict.fromkeys((*SPENT, "rollouts"), 0.0)
    )
    """So far."""
    rows: list[dict[str, Any]] = field(default_factory=list)

    def on_step(self, step: int, record: dict[str, Any]) -> None:
        """Add up what a step spent; take scores where they are due."""
        report_progress(step, self.steps)
        for name in SPENT:
            self.spent[name] += record[name]
        self.spent["rollouts"] += record["rollouts_spent"]
        samples = {round(part * self.steps): count for part, count in CHECKPOINTS.items()}
        if step in samples:
            self.score(step, samples[step])

    def score(self, step: int, samples: int) -> None:
        """Add the row of a checkpoint."""
        # the step is the seed, so all methods are scored with the same random numbers
        counts = self._sample(self.task.eval, samples, step)
        families_P = [row["family"] for row in self.task.eval]
        identity = {
            "world": self.run.world.name,
            "method": self.run.method,
            "learning_rate": self.run.learning_rate,
            "draw": self.run.seed,
            "step": step,
        }
        scores = score_families(
            families_P, counts.successes_P, np.full(len(families_P), samples), self.task.shares
        )
        self.rows.append(identity | self.spent | scores)
        if step == self.steps:
            self.rows[-1] |= _breadth(families_P, counts) | self._train_scores(step)

    def _train_scores(self, step: int) -> dict[str, Any]:
        """Accuracy on training prompts, and different correct texts of such a prompt."""
        prompts = first_of_each_family(self.task.train, TRAIN_PROMPTS)
        counts = self._sample(prompts, TRAIN_SAMPLES, step)
        distinct = _breadth([row["family"] for row in prompts], counts)["distinct"]
        scores = train_scores(prompts, counts.successes_P, TRAIN_SAMPLES, self.task.shares)
        return scores | {"train_distinct": distinct}

    def _sample(self, rows: Sequence[Mapping[str, Any]], samples: int, seed: int) -> "Counts":
        """What is correct of so many samples of each prompt."""
        from gdro_lab import loop

        return loop.evaluate(
            self.model,
            self.tokenizer,
            rows,
            self.task.reward,
            samples,
            self.task.max_completion_tokens,
            seed,
            self.success_threshold,
        )


def _breadth(families_P: Sequence[str], counts: "Counts") -> dict[str, float]:
    """Different correct texts of a prompt, share of prompts with any; means over families."""
    prompts = pd.DataFrame({"distinct": counts.distinct_P, "any_of_32": counts.successes_P > 0})
    return prompts.groupby(list(families_P)).mean().mean().to_dict()


def play_run(profile: LoopProfile, run: LoopRun, out: Path, cache_dir: str) -> None:
    """Train one run; write a row of scores for each checkpoint.

    The base, which is not trained, has one row, as of the last step.
    """
    import transformers

    transformers.logging.disable_progress_bar()
    task, base = draw_base(run.world, run.seed, cache_dir, profile.size)
    model = transformers.AutoModelForCausalLM.from_pretrained(base)
    tokenizer = transformers.AutoTokenizer.from_pretrained(base)
    steps = profile.train.max_steps
    scorer = Scorer(run, task, model, tokenizer, steps, profile.success_threshold)
    if run.variant is None:
        scorer.score(steps, CHECKPOINTS[1.0])
    else:
        prompts, mean_rollouts = profile.batch_shape(run.variant)
        oracle = make_oracle(task, model, tokenizer)
        controller = loop_controller(run.variant, mean_rollouts, run.seed, oracle)
        _train(profile, scorer, controller, prompts)
    write_rows(run.file(out), profile.settings_of(run.world, run.variant), scorer.rows)


def _train(
    profile: LoopProfile, scorer: Scorer, controller: "GDROController", prompts: int
) -> None:
    """Train the scorer's run."""
    from gdro_lab import loop

    run = scorer.run
    loop.train(
        scorer.model,
        scorer.tokenizer,
        scorer.task.train,
        scorer.task.reward,
        controller,
        prompts=prompts,
        seed=run.seed,
        steps=scorer.steps,
        learning_rate=run.learning_rate,
        schedule=profile.train.lr_scheduler_type,
        stream=run.world.spec.n_train == 0,
        max_new_tokens=scorer.task.max_completion_tokens,
        on_step=scorer.on_step,
    )


def write_loop_report(profile: LoopProfile, out: Path) -> str:
    """Write runs.csv from the files of the runs, and from it tables and the figure."""
    write_runs(out, profile.baseline)
    return report(out, profile.baseline)
