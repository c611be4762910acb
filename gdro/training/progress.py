"""What a training prints."""

import time
from typing import Any

from transformers import TrainerCallback


class ProgressLines(TrainerCallback):
    """A line every few seconds, legible in a log that several runs share: step, time left."""

    def __init__(self, name: str) -> None:
        self.name = name

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.began = self.last_line = time.perf_counter()
        self.first_step = state.global_step
        if state.is_world_process_zero:
            print(f"{self.name}: {state.max_steps} steps, from step {self.first_step}", flush=True)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        now, step, last = time.perf_counter(), state.global_step, state.max_steps
        if state.is_world_process_zero and (now - self.last_line >= 15 or step == last):
            self.last_line = now
            left = (now - self.began) / (step - self.first_step) * (last - step)
            print(f"{self.name}: step {step}/{last}, {left:.0f} s left", flush=True)
