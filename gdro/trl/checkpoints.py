"""The checkpoints of a training: which of them is whole, and the newest to resume from."""

from pathlib import Path

from gdro.checks import need
from gdro.files import LEDGER, fault_of

STATE_FILE = "gdro_state.json"  # of a checkpoint, written first: GRPOTrainer's have none


def find_checkpoint(
    output_dir: str | Path, given: str | Path | bool = True, run: str = ""
) -> Path | None:
    """The checkpoint to resume from: the given one, or the newest in `output_dir` that is whole.

    One that GRPOTrainer wrote has no ledger and passes, unless `run` says whose it must be. Prints
    which ones are passed over, and why. None where no checkpoint was completed; ValueError if the
    given one is broken, or all that were completed are.
    """
    faults = list[str]()
    if isinstance(given, bool):  # other names, such as checkpoint-4.bak, are people's own
        found = [f for f in Path(output_dir).glob("checkpoint-*") if step_of(f) is not None]
        found.sort(key=step_of, reverse=True)  # type: ignore[arg-type]
    else:
        found = [Path(given)]
    for folder in found:
        fault = None if is_foreign(folder) and not run else fault_of(folder, run)
        if fault is None:
            return folder
        print(f"{fault}; it is passed over", flush=True)
        faults.append(fault)
    # one without a ledger was killed while it was written
    damaged = any((folder / LEDGER).is_file() for folder in found) or not isinstance(given, bool)
    need(not damaged, f"resume_from_checkpoint has no whole checkpoint: {'; '.join(faults)}")
    return None


def is_foreign(folder: Path) -> bool:
    """Whether a checkpoint was written by GRPOTrainer."""
    ours = (folder / STATE_FILE).is_file() or (folder / LEDGER).is_file()
    return not ours and (folder / "trainer_state.json").is_file()


def step_of(folder: str | Path) -> int | None:
    """The step that a checkpoint was saved after, by its name; None for other names."""
    name, _, step = Path(folder).name.partition("-")
    return int(step) if name == "checkpoint" and step.isdigit() else None
