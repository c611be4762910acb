"""Checkpoints that are resumed from only if complete, with the state of the controller."""

import logging
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list
from torch.utils.data import Sampler
from transformers import TrainerState
from transformers.trainer_utils import TrainOutput
from trl import GRPOTrainer
from trl.trainer.utils import RepeatSampler

from gdro import files
from gdro.checks import Refusal
from gdro.files import LEDGER, fault_of
from gdro.inspect import Groups
from gdro.trl.config import GDROConfig, options_of
from gdro.trl.inspection import joined
from gdro.uids import check_prompts

logger = logging.getLogger(__name__)
STATE_FILE = "gdro_state.json"  # of a checkpoint, written first: GRPOTrainer's have none


def choose_checkpoint(
    output_dir: str, given: str | Path | bool | None, run: str, accelerator: Accelerator
) -> Path | None:
    """The checkpoint to resume from, chosen by the main process for all; see `find_checkpoint`."""
    chosen: Path | None = None
    if given and accelerator.is_main_process:
        chosen = find_checkpoint(output_dir, given, run)
    [chosen] = broadcast_object_list([chosen])
    return chosen


def state_of(checkpoint: Path) -> TrainerState:
    """Load what transformers has saved of a training; a folder's name may not say its step."""
    return TrainerState.load_from_json(str(checkpoint / "trainer_state.json"))


def is_finished(checkpoint: Path, max_steps: int) -> bool:
    """Whether all steps were done before: transformers would do another one before it compares."""
    return 0 < max_steps <= state_of(checkpoint).global_step


def load_finished(trainer: GRPOTrainer, checkpoint: Path) -> TrainOutput:
    """Load the checkpoint of the last step; what `train` would have returned."""
    trainer._load_from_checkpoint(str(checkpoint))
    trainer.state = state_of(checkpoint)
    load_own_state(trainer, checkpoint)
    if trainer.args.load_best_model_at_end and trainer.state.best_model_checkpoint is not None:
        trainer._load_best_model()
    losses = [row["loss"] for row in trainer.state.log_history if "loss" in row]
    loss = float(np.mean(losses)) if losses else math.nan
    return TrainOutput(trainer.state.global_step, loss, {"train_loss": loss})


def warn_within_batch(name: str, step: int, args: GDROConfig) -> None:
    """Warn of a checkpoint between the micro-batches of a generation batch."""
    # `step` counts from the last start of the training, at which TRL samples a new batch
    if step % (args.steps_per_generation * args.num_iterations):
        logger.warning(
            f"{name} lies within a generation batch: resumed from it, a run samples the rest "
            "of the batch again and ends with other weights"
        )


def save_own_state(trainer: GRPOTrainer, checkpoint: Path) -> None:
    """Write what a GDROTrainer knows, beside what TRL will save."""
    prompts = None
    if trainer.data.uids_D is not None:
        prompts = {"uids": trainer.data.uids_D.tolist(), "hashes": trainer.data.hashes_D}
    state = {
        "controller": trainer.controller.state_dict(),
        "data": prompts,
        "order": order_of(trainer),
        "record": trainer.record,
        "groups": vars(joined(trainer.groups)),
        "seconds": trainer.seconds,
    }
    files.save_state(checkpoint / STATE_FILE, state)


def order_of(trainer: GRPOTrainer) -> dict[str, Any]:
    """The settings by which prompts come, which a resumed run must share."""
    args = trainer.args
    step = args.train_batch_size * args.gradient_accumulation_steps * args.world_size
    return {
        "num_generations": trainer.num_generations,
        "generation_batch_size": args.generation_batch_size,
        "num_iterations": trainer.num_iterations,
        "the rollouts of an optimizer step": step,
        "shuffle_dataset": trainer.shuffle_dataset,
        "seed": args.seed,
    }


def close_checkpoint(trainer: GRPOTrainer) -> None:
    """Write the ledger of a checkpoint that is open; a folder without one was not completed."""
    if trainer._open_checkpoint is None:
        return
    trainer.accelerator.wait_for_everyone()
    if trainer.args.should_save:
        files.write_ledger(trainer._open_checkpoint, trainer.run_identity)
    trainer._open_checkpoint = None


def load_own_state(trainer: GRPOTrainer, checkpoint: Path) -> None:
    """Take up what `save_own_state` has written.

    Refusal where the prompts of the data set, or settings by which they come, have changed.
    """
    if trainer.args.sync_ref_model:
        logger.warning(
            "sync_ref_model: the reference model is not in a checkpoint, and starts from the "
            "weights of the first model again"
        )
    if is_foreign(checkpoint):
        logger.warning(f"{checkpoint} is GRPOTrainer's: the controller starts without history")
        return
    state = files.load_state(checkpoint / STATE_FILE)
    for name, value in order_of(trainer).items():
        if state["order"][name] != value:
            raise Refusal(
                f"{name} is {value}, and was {state['order'][name]} when {checkpoint} was saved: "
                "other prompts would come"
            )
    if trainer.data.uids_D is not None and state["data"] is not None:
        check_prompts(trainer.data.uids_D, trainer.data.hashes_D, state["data"])
    if "scale_rewards" not in options_of(trainer.args):  # read anew in each step
        state["controller"]["settings"]["scale_rewards"] = trainer.controller.run.scale_rewards
    trainer.controller.load_state_dict(state["controller"])
    trainer.record = state["record"]
    trainer.groups = [Groups(**state["groups"])]
    trainer.seconds.update(state["seconds"])


def advance(sampler: Sampler | None, checkpoint: Path) -> None:
    """Advance TRL's sampler by the epochs before a checkpoint."""
    if not isinstance(sampler, RepeatSampler) or not sampler.shuffle:
        return
    # one generator draws the orders of all epochs, and a resumed training seeds it anew
    for _ in range(int((state_of(checkpoint).epoch or 0) + 1e-6)):
        torch.randperm(sampler.num_samples, generator=sampler.generator)


def find_checkpoint(
    output_dir: str | Path, given: str | Path | bool = True, run: str = ""
) -> Path | None:
    """The checkpoint to resume from. Prints which ones are passed over, and why.

    Args:
        output_dir: folder of the run.
        given: a checkpoint's folder, or True for the newest in `output_dir` that is whole.
        run: the run that it must belong to; "" for any, and for GRPOTrainer's, without a ledger.

    Returns:
        Its folder; None where no checkpoint was completed. Refusal if the given one is broken, or
        all that were completed are.
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
