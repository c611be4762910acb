"""What a training writes down: its record, its times, and what it adds to TRL's log."""

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import numpy as np
from trl import GRPOTrainer

from gdro.bins import DifficultyBins
from gdro.controller import GDROController
from gdro.groups import StaticGroups
from gdro.rounds import Samples
from gdro.trl.config import GDROConfig
from gdro.trl.values import Cost, Signal

logger = logging.getLogger(__name__)
SILENT_BATCHES = 10  # all correct or all wrong, until a warning


class Logs(GRPOTrainer):
    """GRPOTrainer with a record of its batches and a clock.

    Attributes:
        record: one row a generation batch: what the controller saw and decided, rollouts and
            tokens, and the share of rollouts with an advantage.
        bin_names: of the lists in it, the range of pass@k or the group of each bin.
        seconds: of the training, and in it of generation and controller.
    """

    args: GDROConfig
    controller: GDROController
    record: list[dict[str, Any]]
    bin_names: list[str]
    seconds: dict[str, float]
    _logs: dict[str, Any]
    _clock = 0.0  # when `seconds` were last added up
    _silent_batches = 0  # in a row

    def _start_logs(self) -> None:
        """Make the attributes; the controller is there."""
        self.record = []
        self.bin_names = bin_names(self.controller.bins)
        self.seconds = {"train": 0.0, "generate": 0.0, "controller": 0.0}

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
        # it holds one generation batch
        self._logs["advantages"].extend(signal.advantages_R.astype(np.float32).tolist())

    def _note(self, row: dict[str, object], cost: Cost, signal: Signal) -> None:
        """Add a row of the controller to the record and the log, with what its batch has cost."""
        about = {
            "global_step": self.state.global_step,
            "rollouts_spent": cost.rollouts,
            "tokens": cost.tokens,
            "signal": float(np.mean(signal.advantages_R != 0)),
        }
        self.record.append(row | about)
        for name, number in numbers_of(row, self.bin_names).items():
            self._metrics["train"][f"gdro/{name}"].append(number)

    def _warn_of_silence(self, scored: Samples) -> None:
        """Warn where rollouts were all correct or all wrong for many batches in a row."""
        rewards_R = scored.rewards_R
        is_mixed = scored.correct_R.any() and not scored.correct_R.all()
        self._silent_batches = 0 if is_mixed else self._silent_batches + 1
        if self._silent_batches == SILENT_BATCHES:
            logger.warning(
                f"For {SILENT_BATCHES} batches no reward, or every one, was above success_threshold"
                f"={self.controller.success_threshold}; the last went from "
                f"{rewards_R.min():g} to {rewards_R.max():g}. Set it in gdro_options, or set "
                f"success_reward"
            )


def numbers_of(row: Mapping[str, object], names: Sequence[str]) -> dict[str, float]:
    """Every number of a row of the record but its step; lists by the names of the bins."""
    numbers: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, list):
            places = names if len(value) == len(names) else range(len(value))
            numbers |= {f"{name}/{p}": v for p, v in zip(places, value, strict=True)}
        elif name != "step":
            numbers[name] = value
    return {name: number for name, number in numbers.items() if isinstance(number, int | float)}


def bin_names(bins: DifficultyBins) -> list[str]:
    """A name for each bin: its range of pass@k, or its group."""
    if isinstance(bins, StaticGroups):
        return [str(group) for group in bins.groups]
    return [f"{low:g}-{high:g}" for low, high in pairwise([0.0, *bins.edges, 1.0])]
