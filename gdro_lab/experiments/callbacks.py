"""Callbacks of a training: its progress lines, and what its steps took."""

import resource
import time
from typing import Any

import torch
from transformers import TrainerCallback


class ProgressLines(TrainerCallback):
    """A line every few seconds, legible in a log: step, time left."""

    def __init__(self, name: str) -> None:
        self.name = name

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.began = time.perf_counter()
        self.last_line = self.began
        self.first_step = state.global_step
        if state.is_world_process_zero:
            print(f"{self.name}: {state.max_steps} steps, from step {self.first_step}", flush=True)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if not state.is_world_process_zero:
            return
        now = time.perf_counter()
        step = state.global_step
        last = state.max_steps
        if now - self.last_line >= 5 or step == last:
            self.last_line = now
            left = (now - self.began) / (step - self.first_step) * (last - step)
            print(f"{self.name}: step {step}/{last}, {left:.0f} s left", flush=True)


class StepCosts(TrainerCallback):
    """When each step ended, and the most GiB in use at the end of one."""

    def __init__(self) -> None:
        self.ends: list[float] = []
        self.peak = 0.0

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.ends.append(time.perf_counter())
        self.peak = max(self.peak, used_gib())


def used_gib() -> float:
    """GiB in use on this process's GPU, vLLM's included; without a GPU, the process's peak."""
    if torch.cuda.is_available():
        free, total = torch.cuda.mem_get_info()
        return max(total - free, torch.cuda.max_memory_reserved()) / 2**30
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # in KiB on Linux
