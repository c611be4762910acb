"""A profile's training for TRL: its GDROConfig, its trainer, and what that prints.

TRL and transformers are imported here, so import this module after Unsloth where that is used.
"""

import os
import time
from pathlib import Path
from typing import Any, get_type_hints

import torch
from pydantic import ConfigDict, TypeAdapter, ValidationError
from transformers import HfArgumentParser, PrinterCallback, TrainerCallback

from gdro.models import load_model
from gdro.profiles import Profile
from gdro.tasks import Task
from gdro.trainer import GDROConfig, GDROTrainer

STRICT = ConfigDict(strict=True, allow_inf_nan=False, arbitrary_types_allowed=True)


def check_training(profile: Profile) -> None:
    """Refuse (ValueError) training options of any variant that TRL's GRPOConfig does not have or refuses."""
    for variant in profile.variants:
        training_arguments(profile, variant, 0, "unused", (1, 1))


def training_arguments(
    profile: Profile, variant: str, seed: int, folder: str | Path, lengths: tuple[int, int], world: int = 1
) -> GDROConfig:
    """Return a variant's GDROConfig, by TRL's own parser.

    lengths: the most tokens of prompt and of completion. world: the processes that train.
    """
    chosen, settings, on_gpu = profile.variants[variant], profile.train_of(variant), torch.cuda.is_available()
    micro_batch, accumulated = settings.local_batch(world)
    ours = {
        "output_dir": str(folder),
        "seed": seed,
        "gradient_accumulation_steps": accumulated,
        "steps_per_generation": accumulated * settings.updates_per_step,
        "max_completion_length": lengths[1],
        "gradient_checkpointing": profile.model_of(variant).gradient_checkpointing,
        "gdro_method": chosen.method,
        "gdro_preset": chosen.preset,
        "gdro_options": chosen.options,
        "group_column": chosen.groups,
        "save_strategy": "steps",
    }
    defaults = {
        "save_total_limit": 2,
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": not on_gpu,
        "bf16": on_gpu,
        "ddp_backend": None if on_gpu or world == 1 else "gloo",
        "ddp_find_unused_parameters": False,
        "vllm_max_model_length": sum(lengths) if settings.use_vllm else None,
    }
    given = settings.model_dump(exclude={"prompts_per_step", "updates_per_step"})
    given["per_device_train_batch_size"] = micro_batch
    types = get_type_hints(GDROConfig)
    try:
        for name, value in given.items():
            if name in ours:
                raise ValueError(f"{name} follows from the rest of the profile; leave it out")
            # TRL's parser checks no types: a text for a number would fail late, or not at all
            TypeAdapter(types.get(name, Any), config=STRICT).validate_python(value)
        (config,) = HfArgumentParser(GDROConfig).parse_dict(defaults | given | ours)
    except ValidationError as error:
        why = error.errors()[0]["msg"]
        raise ValueError(f"train of variant {variant!r}: {name} is {value!r}: {why}") from error
    except (ValueError, TypeError) as error:
        raise ValueError(f"train of variant {variant!r}: {error}") from error
    return config


def make_trainer(
    profile: Profile, variant: str, seed: int, checkpoints: Path, source: str, task: Task
) -> GDROTrainer:
    """Return the trainer of a variant, in this process, which may be one of several."""
    lengths = task.max_prompt_tokens, task.max_completion_tokens
    choice = profile.model_of(variant).model_dump(exclude={"source", "revision"})
    loaded = load_model(source, seed=seed, max_length=sum(lengths), **choice)
    world = int(os.environ.get("WORLD_SIZE", "1"))
    args = training_arguments(profile, variant, seed, checkpoints, lengths, world)
    args._n_gpu = min(args.n_gpu, 1)  # as transformers does itself where one process has one GPU
    trainer = GDROTrainer(
        loaded.model,
        task.reward,
        args=args,
        train_dataset=task.train,
        processing_class=loaded.tokenizer,
        peft_config=loaded.peft_config,
        callbacks=[ProgressLines(f"{variant}, seed {seed}")],
    )
    trainer.remove_callback(PrinterCallback)  # prints numbers that the record has
    return trainer


class ProgressLines(TrainerCallback):
    """A line every few seconds, legible in a log that several runs share: step, time left."""

    def __init__(self, name: str, every_seconds: float = 15.0) -> None:
        self.name, self.every_seconds = name, every_seconds

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.started = self.spoke = time.perf_counter()
        self.first_step = state.global_step
        self._say(state, f"{state.max_steps} steps, from step {self.first_step}")

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        now, step, last = time.perf_counter(), state.global_step, state.max_steps
        if now - self.spoke >= self.every_seconds or step == last:
            self.spoke = now
            left = (now - self.started) / (step - self.first_step) * (last - step)
            self._say(state, f"step {step}/{last}, {left:.0f} s left")

    def _say(self, state: Any, what: str) -> None:
        if state.is_world_process_zero:
            print(f"{self.name}: {what}", flush=True)
