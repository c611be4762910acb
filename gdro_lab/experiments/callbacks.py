"""Callbacks of a training: its progress lines, what its steps took, evaluations on the way.

Evaluations do not change the training: random numbers are put back, and its seconds are without
them.
"""

import resource
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from gdro_lab.experiments.evaluation import evaluate_model, with_training_rows
from gdro_lab.experiments.records import ON_THE_WAY, write_table
from gdro_lab.experiments.run import Run
from gdro_lab.machine import report_progress
from gdro_lab.tasks import load_split

if TYPE_CHECKING:  # Unsloth comes before TRL
    from gdro.trainer import GDROTrainer


class ProgressLines(TrainerCallback):
    """A line every few seconds, legible in a log: step, time left."""

    def __init__(self, name: str) -> None:
        self.name = name

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.began = time.perf_counter()
        self.last_line = self.began
        self.first_step = state.global_step
        if state.is_world_process_zero:
            print(f"{self.name}: {state.max_steps} steps, from step {self.first_step}", flush=True)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if not state.is_world_process_zero:
            return
        now = time.perf_counter()
        step = state.global_step
        last = state.max_steps
        if now - self.last_line >= 5 or step == last:
            self.last_line = now
            left = (now - self.began) / (step - self.first_step) * (last - step)
            print(f"{self.name}: step {step}/{last}, {left:.0f} s left", flush=True)
            report_progress(step, last)


class StepCosts(TrainerCallback):
    """When each step ended, and the most GiB in use at the end of one."""

    def __init__(self) -> None:
        self.ends: list[float] = []
        self.peak = 0.0

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.ends.append(time.perf_counter())
        self.peak = max(self.peak, used_gib())


def used_gib() -> float:
    """GiB in use on this process's GPU, vLLM's included; without a GPU, the process's peak."""
    if torch.cuda.is_available():
        free, total = torch.cuda.mem_get_info()
        return max(total - free, torch.cuda.max_memory_reserved()) / 2**30
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # in KiB on Linux


class Evaluations(TrainerCallback):
    """Samples and counts at the steps that `evaluation.at` names, and writes a table of each.

    Args:
        trainer: of the training.
        run: that is trained.
        folder: where the tables are kept until the training is complete.
    """

    def __init__(self, trainer: "GDROTrainer", run: Run, folder: Path) -> None:
        self.trainer = trainer
        self.run = run
        self.folder = folder
        self.tokenizer: Any = trainer.processing_class
        self.steps = run.evaluation.steps(run.train.max_steps)
        held_out = load_split(run.task, self.tokenizer, held_out=True, template=run.train.template)
        self.data = with_training_rows(run, self.tokenizer, held_out)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if state.global_step not in self.steps:
            return
        began = time.perf_counter()
        seed = self.run.replicate
        with torch.random.fork_rng():
            torch.manual_seed(seed)  # vLLM's engine of a training samples by these numbers
            counts = evaluate_model(
                self.run.evaluation,
                self._engine(),
                self.tokenizer,
                self.data,
                seed,
                self.run.train.template,
                success_threshold=self.run.success_threshold,
            )
        self.trainer.model.train()
        write_table(self.folder / ON_THE_WAY.format(state.global_step), counts)
        self.trainer.seconds["train"] -= time.perf_counter() - began

    def _engine(self) -> Any:
        """The model with its weights of now, or vLLM's engine that holds them."""
        if not self.run.train.use_vllm:
            return self.trainer.model.eval()
        generation = self.trainer.vllm_generation
        generation.sync_weights()
        return generation.llm
