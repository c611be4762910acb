"""Checkpoints that are resumed from only if complete, with the state of the controller."""

import logging
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate.utils import broadcast_object_list
from torch import nn
from torch.utils.data import Sampler
from transformers import TrainerState
from transformers.trainer_utils import TrainOutput
from trl.trainer.utils import RepeatSampler

from gdro import files
from gdro.checks import Refusal
from gdro.files import LEDGER, fault_of
from gdro.methods.bank import Bank
from gdro.trl.data import UidData, check_prompts
from gdro.trl.logs import Logs

logger = logging.getLogger(__name__)
STATE_FILE = "gdro_state.json"  # of a checkpoint, written first: GRPOTrainer's have none


class WholeCheckpoints(Logs):
    """GRPOTrainer whose checkpoints have the controller's state and a ledger of their files.

    Attributes:
        run_identity: where set, checkpoints of another run are refused.
    """

    run_identity = ""
    _open_checkpoint: Path | None = None  # saved, and without its ledger yet
    bank: Bank
    data: UidData
    _sampler: Sampler | None

    def train(
        self,
        resume_from_checkpoint: str | Path | bool | None = None,
        *args: object,
        **kwargs: object,
    ) -> TrainOutput:
        """Train as TRL does.

        A checkpoint is compared with its ledger before anything of it is loaded. One of GRPOTrainer
        is taken as a start: weights, optimizer and step, with a fresh controller.

        Args:
            resume_from_checkpoint: a folder; or True for the last whole checkpoint of the output
                folder, if there is one.
            *args, **kwargs: as for GRPOTrainer.

        Raises:
            ValueError: if the given checkpoint is broken or, with True, all that were completed
                are; and if `train_dataset` was replaced after the trainer was made.
        """
        if self.data.dataset is not None and self.train_dataset is not self.data.dataset:
            raise Refusal(
                "train_dataset must be what the trainer was made with, got another: make a new "
                "trainer"
            )
        self._start_clock()
        checkpoint: Path | None = None
        if resume_from_checkpoint and self.accelerator.is_main_process:
            folder = self.args.output_dir
            checkpoint = find_checkpoint(folder, resume_from_checkpoint, self.run_identity)
        [checkpoint] = broadcast_object_list([checkpoint])  # the main process chooses for all
        if checkpoint is not None:
            last = self.args.max_steps
            # by its state: another trainer's folder may have any name
            state = TrainerState.load_from_json(str(checkpoint / "trainer_state.json"))
            if 0 < last <= state.global_step:
                # killed after the last step: transformers compares only after another step
                return self._load_finished(checkpoint)
        try:
            output = super().train(checkpoint and str(checkpoint), *args, **kwargs)
        finally:
            self._tick()
        self._close_checkpoint()  # one that was saved on a signal
        return output

    def _load_finished(self, checkpoint: Path) -> TrainOutput:
        """Load the checkpoint of the last step; what `train` would have returned."""
        self._load_from_checkpoint(str(checkpoint))
        self.state = TrainerState.load_from_json(str(checkpoint / "trainer_state.json"))
        self._load_own_state(checkpoint)
        if self.args.load_best_model_at_end and self.state.best_model_checkpoint is not None:
            self._load_best_model()
        losses = [row["loss"] for row in self.state.log_history if "loss" in row]
        loss = float(np.mean(losses)) if losses else math.nan
        return TrainOutput(self.state.global_step, loss, {"train_loss": loss})

    def _save_checkpoint(self, model: nn.Module, trial: object) -> None:
        """Save our state first; the ledger is written by `_close_checkpoint`."""
        name = f"checkpoint-{self.state.global_step}"
        folder = Path(self._get_output_dir(trial=trial)) / name
        if self.args.should_save:
            self._tick()
            files.save_state(folder / STATE_FILE, self._own_state())
        super()._save_checkpoint(model, trial)
        self._open_checkpoint = folder
        # counts from 0 again after a resume, where TRL samples again
        inside = self._step % (self.args.steps_per_generation * self.args.num_iterations)
        if inside and self.args.should_save:
            logger.warning(
                f"{name} lies within a generation batch: resumed from it, a run samples the rest "
                "of the batch again and ends with other weights"
            )

    def _maybe_log_save_evaluate(self, *args: Any, **kwargs: Any) -> None:
        super()._maybe_log_save_evaluate(*args, **kwargs)
        self._close_checkpoint()

    def _close_checkpoint(self) -> None:
        """Write a checkpoint's ledger, last of all: callbacks may add files to it when it is saved.

        A folder without one was not completed.
        """
        if self._open_checkpoint is None:
            return
        self.accelerator.wait_for_everyone()
        if self.args.should_save:
            files.write_ledger(self._open_checkpoint, self.run_identity)
        self._open_checkpoint = None

    def _own_state(self) -> dict[str, Any]:
        prompts = None
        if self.data.uids_D is not None:
            prompts = {"uids": self.data.uids_D.tolist(), "hashes": self.data.hashes_D}
        return {
            "controller": self.controller.state_dict(),
            "data": prompts,
            "bank": self.bank.state_dict(),
            "record": self.record,
            "seconds": self.seconds,
        }

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """Load our state too: here TRL has its own state, and has not drawn a prompt yet."""
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is None:
            return
        self._load_own_state(Path(checkpoint))
        if self.args.sync_ref_model:
            logger.warning(
                "sync_ref_model: the reference model is not in a checkpoint, and starts from the "
                "weights of the first model again"
            )
        if not isinstance(self._sampler, RepeatSampler) or not self._sampler.shuffle:
            return
        # TRL draws the orders of all epochs from one generator, which it starts again
        state = TrainerState.load_from_json(str(Path(checkpoint) / "trainer_state.json"))
        for _ in range(int((state.epoch or 0) + 1e-6)):
            torch.randperm(self._sampler.num_samples, generator=self._sampler.generator)

    def _load_own_state(self, checkpoint: Path) -> None:
        if is_foreign(checkpoint):
            logger.warning(f"{checkpoint} is GRPOTrainer's: the controller starts without history")
            return
        state = files.load_state(checkpoint / STATE_FILE)
        if self.data.uids_D is not None and state["data"] is not None:
            check_prompts(self.data, state["data"])
        self.controller.load_state_dict(state["controller"])
        self.bank.load_state_dict(state["bank"])
        self.record = state["record"]
        self.seconds = state["seconds"]


def find_checkpoint(
    output_dir: str | Path, given: str | Path | bool = True, run: str = ""
) -> Path | None:
    """The checkpoint to resume from. Prints which ones are passed over, and why.

    Args:
        output_dir: folder of the run.
        given: a checkpoint's folder, or True for the newest in `output_dir` that is whole.
        run: the run that it must belong to; "" for any, and for GRPOTrainer's, without a ledger.

    Returns:
        Its folder; None where no checkpoint was completed.

    Raises:
        ValueError: if the given one is broken, or all that were completed are.
    """
    if isinstance(given, bool):  # other names, such as checkpoint-4.bak, are people's own
        folders = [f for f in Path(output_dir).glob("checkpoint-*") if step_of(f) is not None]
        folders.sort(key=step_of, reverse=True)  # type: ignore[arg-type]
    else:
        folders = [Path(given)]
    faults = []
    for folder in folders:
        fault = None if is_foreign(folder) and not run else fault_of(folder, run)
        if fault is None:
            return folder
        print(f"{fault}; it is passed over", flush=True)
        faults.append(fault)
    # one without a ledger was killed while it was written
    is_damaged = any((folder / LEDGER).is_file() for folder in folders)
    if is_damaged or not isinstance(given, bool):
        raise Refusal(f"resume_from_checkpoint has no whole checkpoint: {'; '.join(faults)}")
    return None


def is_foreign(folder: Path) -> bool:
    """Whether a checkpoint was written by GRPOTrainer."""
    is_ours = (folder / STATE_FILE).is_file() or (folder / LEDGER).is_file()
    return not is_ours and (folder / "trainer_state.json").is_file()


def step_of(folder: str | Path) -> int | None:
    """The step that a checkpoint was saved after, by its name; None for other names."""
    name, _, step = Path(folder).name.partition("-")
    return int(step) if name == "checkpoint" and step.isdecimal() else None
