"""What a training writes down: its record, its times, and what it adds to TRL's log."""

import logging
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from trl import GRPOTrainer

from gdro.controller import GDROController
from gdro.record import numbers_of
from gdro.rounds import Samples
from gdro.trl.config import GDROConfig
from gdro.trl.values import Cost, LossInputs, Signal, learned_mask

logger = logging.getLogger(__name__)
SILENT_BATCHES = 10  # warn if over so many, nearly all rollouts are correct or nearly all wrong
NEARLY_NONE = 0.01


class Logs(GRPOTrainer):
    """GRPOTrainer with a record of its batches and a clock.

    Attributes:
        record: one row a generation batch: what the controller saw and decided, rollouts and
            tokens, and the share of rollouts with an advantage.
        bin_names: what the lists in it are about: the range of pass@k, or the group, of each bin.
        seconds: time of the training, and of generation and controller within it.
    """

    args: GDROConfig
    controller: GDROController
    record: list[dict[str, Any]]
    bin_names: list[str]
    seconds: dict[str, float]
    _logs: dict[str, Any]
    _is_warned = False  # of silence
    _clock = 0.0  # when `seconds` were last added up
    _correct_rates: deque[float]  # of the last batches

    def _start_logs(self) -> None:
        """Make the attributes; the controller is there."""
        self.record = []
        self.bin_names = self.controller.bins.names
        self.seconds = {"train": 0.0, "generate": 0.0, "controller": 0.0}
        self._correct_rates = deque(maxlen=SILENT_BATCHES)

    def _start_clock(self) -> None:
        self._clock = time.perf_counter()

    def _tick(self) -> None:
        """Add the time since the last call to the seconds of the training."""
        now = time.perf_counter()
        self.seconds["train"] += now - self._clock
        self._clock = now

    @contextmanager
    def _timed(self, stage: str) -> Iterator[None]:
        """Add the time of a block to the seconds of a stage."""
        began = time.perf_counter()
        yield
        if self.model.training:  # and not while TRL evaluates
            self.seconds[stage] += time.perf_counter() - began

    def _log_signal(self, signal: Signal) -> None:
        """Replace what TRL has just logged of advantages, as if groups were equally large."""
        metrics = self._metrics["train"]
        metrics["frac_reward_zero_std"][-1] = float(np.mean(signal.is_flat_R))
        # of single rollouts; `Step.group_has_signal_R` is true for all of a group
        metrics["gdro/has_signal"].append(float(np.mean(signal.advantages_R != 0)))
        # a deque of one generation batch, so that these push TRL's own out
        self._logs["advantages"].extend(signal.advantages_R.astype(np.float32).tolist())

    def _note(self, row: dict[str, object], cost: Cost, signal: Signal) -> None:
        """Add a row of the controller to the record and the log, with what its batch has cost."""
        about = {
            "global_step": self.state.global_step,
            "rollouts_spent": cost.rollouts,
            "tokens": cost.tokens,
            "signal": float(np.mean(signal.advantages_R != 0)),
        }
        taken = sorted(row.keys() & {*about, "trained_tokens"})
        if taken:
            raise ValueError(
                f"report of gdro_method={self.controller.name!r} must leave the trainer's entries "
                f"alone, got {taken}; name its own otherwise"
            )
        self.record.append(row | about)
        for name, number in numbers_of(row, self.bin_names).items():
            self._metrics["train"][f"gdro/{name}"].append(number)

    def _note_trained_tokens(self, output: LossInputs) -> None:
        """Add to the record's last row how many tokens have a gradient, kept texts included."""
        trains_R = output["advantages"] != 0
        tokens_R = learned_mask(output).sum(dim=1)
        tokens = self.accelerator.gather((tokens_R * trains_R).sum())
        self.record[-1]["trained_tokens"] = int(tokens.sum())

    def _warn_of_silence(self, scored: Samples) -> None:
        """Warn once if nearly all rollouts of recent batches were correct, or nearly all wrong."""
        self._correct_rates.append(float(scored.correct_R.mean()))
        if self._is_warned:
            return
        rate = float(np.mean(self._correct_rates))
        is_mixed = NEARLY_NONE <= rate <= 1 - NEARLY_NONE
        if is_mixed or len(self._correct_rates) < SILENT_BATCHES:
            return
        self._is_warned = True
        logger.warning(
            f"{rate:.1%} of the rollouts of the last {SILENT_BATCHES} batches were above "
            f"success_threshold={self.controller.success_threshold}, rewards of the last from "
            f"{scored.rewards_R.min():g} to {scored.rewards_R.max():g}. Set success_threshold in "
            "gdro_options, or success_reward, or take other prompts"
        )

    def _warn_of_rewards(self) -> None:
        """Warn where the sum of several rewards says what is correct."""
        is_chosen = "success_threshold" in (self.args.gdro_options or {})
        if len(self.reward_func_names) < 2 or self.args.success_reward or is_chosen:
            return
        if self.controller.name != "grpo":
            logger.warning(
                f"A rollout is correct where the weighted sum of {self.reward_func_names} is above "
                f"0, so a right format alone may do: name the reward of the answer in "
                "success_reward, or set success_threshold in gdro_options"
            )
