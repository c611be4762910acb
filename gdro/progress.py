"""What a training says while it runs."""

import time

from transformers import TrainerCallback


class ProgressLines(TrainerCallback):
    """A line every few seconds that reads well in a log where several runs speak: step, time left."""

    def __init__(self, name, every_seconds=15.0):
        self.name, self.every_seconds = name, every_seconds

    def on_train_begin(self, args, state, control, **kwargs):
        self.started = self.spoke = time.perf_counter()
        self.first_step = state.global_step
        self._say(state, f"{self.name}: {state.max_steps} steps, from step {self.first_step}")

    def on_step_end(self, args, state, control, **kwargs):
        now = time.perf_counter()
        if now - self.spoke < self.every_seconds and state.global_step < state.max_steps:
            return
        self.spoke = now
        pace = (now - self.started) / (state.global_step - self.first_step)
        left = pace * (state.max_steps - state.global_step)
        self._say(state, f"{self.name}: step {state.global_step}/{state.max_steps}, {left:.0f} s left")

    def _say(self, state, line):
        if state.is_world_process_zero:
            print(line, flush=True)
