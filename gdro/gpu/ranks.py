"""Check 6 on several processes: the gradient of one step, each process with its part of the batch.

    torchrun --nproc-per-node N -m gdro.gpu.ranks FOLDER SOURCE CACHE_DIR

FOLDER has inputs.pt, what TRL's loss takes for the whole batch; the first process writes gradient.pt there.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from gdro.gpu.bench import Bench, Skipped


def gradient_by_ranks(bench: Bench, source: str, inputs: dict[str, Any], ranks: int) -> Any:
    """The gradient of a batch by `ranks` processes under DDP, as one vector."""
    import torch

    if 0 < bench.devices < ranks:
        raise Skipped(f"{ranks} processes need as many GPUs, there is one")
    torch.save(inputs, bench.folder / "inputs.pt")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    command += ["-m", "gdro.gpu.ranks", str(bench.folder), source, bench.cache_dir]
    use_cpu = {} if bench.devices else {"ACCELERATE_USE_CPU": "true"}
    subprocess.run(command, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"} | use_cpu)
    return torch.load(bench.folder / "gradient.pt")


def flat_gradient(model: Any) -> Any:
    """The gradients of all weights that have one, one after another."""
    import torch

    found = [w.grad.detach().float().flatten() for w in model.parameters() if w.grad is not None]
    return torch.cat(found).cpu()


def main() -> None:
    """One step of a training whose batch is given, in a process of several."""
    import torch
    from transformers import TrainerCallback

    from gdro.study.experiment import Training, start_job

    folder, source, cache_dir = sys.argv[1:]
    start_job()
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    profile = Bench(Path(folder), source=source).small_profile("both", max_steps=1, max_grad_norm=0.0)
    trainer = Training(profile, "check", 0, Path(folder) / f"rank{rank}", cache_dir).make_trainer()
    whole = torch.load(Path(folder) / "inputs.pt", map_location=trainer.accelerator.device)
    size = len(whole["advantages"]) // ranks
    mine = slice(rank * size, (rank + 1) * size)
    part = {
        name: value[mine] if torch.is_tensor(value) and value.dim() else value
        for name, value in whole.items()
    }

    class Keep(TrainerCallback):
        def on_pre_optimizer_step(self, args, state, control, **kwargs):
            if rank == 0:
                torch.save(flat_gradient(trainer.model), Path(folder) / "gradient.pt")

    loss = trainer.compute_loss
    trainer.compute_loss = lambda model, inputs, *args, **given: loss(  # type: ignore[method-assign]
        model, dict(part), *args, **given
    )
    trainer.add_callback(Keep())
    trainer.train()


if __name__ == "__main__":
    main()
