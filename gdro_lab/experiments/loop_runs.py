"""A run of the loop: a method in a world at a learning rate, on a replicate.

A world is a task with its base: a name in gdro_lab/tasks/worlds, or a YAML file. The folder of a
profile has a file for each finished run (runs/WORLD/…json), so that the same profile resumes, and
what is made from these alone by `gdro_lab.experiments.table`. Scores are of held-out prompts, 8
samples each at 20, 40, 60 and 80% of the steps, 32 at the end.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import transformers

from gdro_lab import loop
from gdro_lab.experiments.oracles import loop_controller, make_oracle
from gdro_lab.experiments.records import write_rows
from gdro_lab.experiments.run import Run
from gdro_lab.experiments.scores import first_of_each_family, score_families, train_scores
from gdro_lab.tasks.tiny import tiny_base
from gdro_lab.tasks.world import Task, TaskWorld

CHECKPOINTS = (0.2, 0.4, 0.6, 0.8)
"""Parts of the steps after which scores are taken as well, where `evaluation.at` names none."""
SAMPLES = 8
"""Of a held-out prompt at these."""
FINAL_SAMPLES = 32
"""Of a held-out prompt at the end."""
TRAIN_PROMPTS = 128
"""Training prompts of each family, at most, on which accuracy is measured at the end: see
`gdro_lab.experiments.scores`."""
TRAIN_SAMPLES = 8
"""Samples of each of them."""
SPENT = ("tokens", "trained_tokens", "replayed", "seconds", "controller_seconds", "mixed")
"""Columns of the record that rows add up, beside the rollouts."""


def draw_base(world: TaskWorld, seed: int, cache_dir: str | Path) -> tuple[Task, Path]:
    """The task of a replicate, and the folder of its base, made if the cache has none."""
    task = world.spec.draw(seed)
    options = world.base.model_dump()
    return task, tiny_base(task, seed=seed, cache_dir=cache_dir, progress=False, **options)


class Scorer:
    """Takes the scores of a run at its checkpoints."""

    def __init__(self, run: Run, task: Task, model: Any, tokenizer: Any) -> None:
        self.run = run
        self.task = task
        self.model = model
        self.tokenizer = tokenizer
        self.steps = run.train.max_steps
        parts = run.evaluation.at or CHECKPOINTS
        self.samples = {max(1, round(part * self.steps)): SAMPLES for part in parts}
        """Of each held-out prompt, by step."""
        self.samples[self.steps] = FINAL_SAMPLES
        self.spent = dict.fromkeys((*SPENT, "rollouts"), 0.0)
        """So far."""
        self.rows: list[dict[str, Any]] = []

    def on_step(self, step: int, record: dict[str, Any]) -> None:
        """Add up what a step spent; take scores where they are due."""
        for name in SPENT:
            self.spent[name] += record[name]
        self.spent["rollouts"] += record["rollouts_spent"]
        if step in self.samples:
            self.score(step)

    def score(self, step: int) -> None:
        """Add the row of a checkpoint."""
        samples = self.samples[step]
        counts = self._sample(self.task.eval, samples, step)
        families_P = [row["family"] for row in self.task.eval]
        spent = self.spent | {"step": step}
        if self.run.variant is not None:
            spent["mixed"] /= step  # a share is not a sum
        scores = score_families(
            families_P, counts.successes_P, np.full(len(families_P), samples), self.task.shares
        )
        self.rows.append(self.run.columns | spent | scores)
        if step == self.steps:
            self.rows[-1] |= _breadth(families_P, counts) | self._train_scores(step)

    def _train_scores(self, step: int) -> dict[str, Any]:
        """Accuracy on training prompts, and different correct texts of such a prompt."""
        prompts = first_of_each_family(self.task.train, TRAIN_PROMPTS)
        counts = self._sample(prompts, TRAIN_SAMPLES, step)
        distinct = _breadth([row["family"] for row in prompts], counts)["distinct"]
        scores = train_scores(prompts, counts.successes_P, TRAIN_SAMPLES, self.task.shares)
        return scores | {"train_distinct": distinct}

    def _sample(self, rows: Sequence[Mapping[str, Any]], samples: int, step: int) -> loop.Counts:
        """What is correct of so many samples of each prompt."""
        return loop.evaluate(
            self.model,
            self.tokenizer,
            rows,
            self.task.reward,
            samples,
            self.task.max_completion_tokens,
            step,  # as the seed, so all methods are scored with the same random numbers
            self.run.success_threshold,
        )


def _breadth(families_P: Sequence[str], counts: loop.Counts) -> dict[str, float]:
    """Different correct texts a prompt, and the share of prompts with any: means over families."""
    prompts = pd.DataFrame({"distinct": counts.distinct_P, "any_of_32": counts.successes_P > 0})
    return prompts.groupby(list(families_P)).mean().mean().to_dict()


def play_in_loop(
    run: Run, world: TaskWorld, file: Path, cache_dir: str | Path
) -> list[dict[str, Any]]:
    """Train one run; write a row of scores for each checkpoint.

    The base, which is not trained, has one row, as of the last step.
    """
    transformers.logging.disable_progress_bar()
    task, base = draw_base(world, run.replicate, cache_dir)
    model = transformers.AutoModelForCausalLM.from_pretrained(base)
    tokenizer = transformers.AutoTokenizer.from_pretrained(base)
    scorer = Scorer(run, task, model, tokenizer)
    if run.variant is None:
        scorer.score(scorer.steps)
    else:
        oracle = make_oracle(task, model, tokenizer)
        loop.train(
            model,
            tokenizer,
            task.train,
            task.reward,
            loop_controller(run.variant, run.mean_rollouts, run.replicate, oracle),
            prompts=run.prompts,
            seed=run.replicate,
            steps=scorer.steps,
            learning_rate=run.learning_rate,
            schedule=run.train.lr_scheduler_type,
            max_new_tokens=task.max_completion_tokens,
            on_step=scorer.on_step,
        )
    write_rows(file, run.settings, scorer.rows)
    return scorer.rows
