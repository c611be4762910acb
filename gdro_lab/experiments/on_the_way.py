"""Evaluations in the middle of a training, by the engine that it samples with.

They do not change the training: random numbers are put back, and its seconds are without them.
"""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from gdro_lab.experiments.evaluation import evaluate_model, with_training_rows
from gdro_lab.experiments.profile import Profile
from gdro_lab.experiments.records import ON_THE_WAY, write_table
from gdro_lab.tasks import load_split

if TYPE_CHECKING:  # Unsloth comes before TRL
    from gdro.trainer import GDROTrainer


class Evaluations(TrainerCallback):
    """Samples and counts at the steps that `evaluation.at` names, and writes a table of each.

    Args:
        trainer: of the training.
        profile: of the training, whose seed has drawn the task.
        variant: that is trained.
        seed: of the samples.
        folder: where the tables are kept until the training is complete.
    """

    def __init__(
        self, trainer: "GDROTrainer", profile: Profile, variant: str, seed: int, folder: Path
    ) -> None:
        train = profile.train_of(variant)
        self.choice = profile.evaluation
        self.success_threshold = profile.success_threshold
        self.template: Mapping[str, Any] = train.template
        self.seed = seed
        self.trainer = trainer
        self.tokenizer: Any = trainer.processing_class
        self.folder = folder
        self.steps = self.choice.steps(train.max_steps)
        self.uses_vllm = train.use_vllm
        held_out = load_split(profile.task, self.tokenizer, held_out=True, template=self.template)
        self.data = with_training_rows(profile, self.tokenizer, held_out, self.template)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if state.global_step not in self.steps:
            return
        began = time.perf_counter()
        with torch.random.fork_rng():
            torch.manual_seed(self.seed)  # vLLM's engine of a training samples by these numbers
            counts = evaluate_model(
                self.choice,
                self._engine(),
                self.tokenizer,
                self.data,
                self.seed,
                self.template,
                success_threshold=self.success_threshold,
            )
        self.trainer.model.train()
        write_table(self.folder / ON_THE_WAY.format(state.global_step), counts)
        self.trainer.seconds["train"] -= time.perf_counter() - began

    def _engine(self) -> Any:
        """The model with its weights of now, or vLLM's engine that holds them."""
        if not self.uses_vllm:
            return self.trainer.model.eval()
        generation = self.trainer.vllm_generation
        generation.sync_weights()
        return generation.llm
