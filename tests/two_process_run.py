"""A training whose completions are the same however many processes share it.

    accelerate launch --cpu --num_processes 2 tests/two_process_run.py BASE_DIR OUTPUT_DIR
    python tests/two_process_run.py BASE_DIR OUTPUT_DIR [die | resume]

Only sampling is replaced: a completion is drawn by step and place in the whole batch, instead of by each
process's own random state. With "die", the second process ends in the midst of the training.
"""

import os
import sys
from pathlib import Path

import numpy as np
import tiny_run
import torch
from safetensors.torch import save_file

from gdro.experiment import know_cpu_by_rank
from gdro.records import save_state, write_table
from gdro.trainer import GDROConfig, GDROTrainer, whole_checkpoints

know_cpu_by_rank()


class SharedSampling(GDROTrainer):
    die_at = None

    def _generate_single_turn(self, prompt_ids, images, multimodal_fields, num_generations, **kwargs):
        rank, step = self.accelerator.process_index, self.state.global_step
        if step == self.die_at and rank == 1:
            os._exit(17)
        places = range(rank * len(prompt_ids), (rank + 1) * len(prompt_ids))
        vocabulary = len(self.processing_class)
        completions = []
        for ids, place in zip(prompt_ids, places, strict=True):
            rng = np.random.default_rng((step, place))
            first = ids[0] if rng.random() < 0.2 + 0.6 * (sum(ids) % 7) / 7 else 2
            completions.append([int(first), *rng.integers(2, vocabulary, 5).tolist()])
        return completions, None


def main(base, output, *options):
    torch.set_num_threads(1)
    world = int(os.environ.get("WORLD_SIZE", "1"))
    args = tiny_run.arguments(
        GDROConfig, output, max_steps=10, gdro_method="both", save_strategy="steps", save_steps=4,
        per_device_train_batch_size=32 // world, ddp_backend="gloo" if world > 1 else None,
    )  # fmt: skip
    trainer = tiny_run.make_trainer(SharedSampling, args, base)
    trainer.die_at = 4 if "die" in options else None
    whole = whole_checkpoints(output) if "resume" in options else []
    trainer.train(resume_from_checkpoint=str(whole[-1]) if whole else None)
    rank = trainer.accelerator.process_index
    output = Path(output)
    model = trainer.accelerator.unwrap_model(trainer.model)
    weights = {name: tensor.detach().contiguous() for name, tensor in model.named_parameters()}
    save_file(weights, output / f"weights{rank}.safetensors")
    save_state(output / f"controller{rank}.safetensors", trainer.controller.state_dict())
    write_table(output / f"record{rank}.jsonl", trainer.record)


if __name__ == "__main__":
    main(*sys.argv[1:])
