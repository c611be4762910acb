"""`python -m gdro.experiment` with sampling that does not depend on how many processes share a batch.

    accelerate launch --config_file configs/accelerate/fsdp2.yaml … tests/sharded_run.py [--die=…] work …

--die=5 ends the last process in step 5, --die=save each before the trained model is written.

Accelerate shards on GPUs alone: on CPU processes it quietly trains each with the whole model. PyTorch's
fully_shard does work on them, so here the processes are told that they are GPUs.
"""

import os
import sys
from pathlib import Path

import numpy as np
import torch
from accelerate.state import PartialState
from accelerate.utils import DistributedType

import gdro.trainer
from gdro.experiment import main
from gdro.records import save_state


class SharedSampling(gdro.trainer.GDROTrainer):
    """A completion is correct, or noise, by step and place in the whole batch."""

    die_at = None

    def train(self, *args, **kwargs):
        result = super().train(*args, **kwargs)
        file = Path(self.args.output_dir).parent / f"controller{self.accelerator.process_index}.json"
        save_state(file, self.controller.state_dict())
        return result

    def save_model(self, *args, **kwargs):
        if self.die_at == "save" and "checkpoint" not in str(args):
            os._exit(9)
        super().save_model(*args, **kwargs)

    def _generate_single_turn(self, prompt_ids, images, multimodal_fields, num_generations, **kwargs):
        rank = self.accelerator.process_index
        if self.die_at == str(self.state.global_step) and rank == self.accelerator.num_processes - 1:
            os._exit(9)
        tokenizer, first = self.processing_class, rank * len(prompt_ids)
        answers = {row["prompt"]: row["answer"] for row in self.train_dataset}
        completions = []
        for place, ids in enumerate(prompt_ids, first):
            rng = np.random.default_rng((self.state.global_step, place))
            noise = rng.integers(2, len(tokenizer), 8).tolist()
            correct = [*tokenizer(answers[tokenizer.decode(ids)])["input_ids"], tokenizer.eos_token_id]
            completions.append(correct if rng.random() < 0.5 else noise)
        return completions, None


def as_if_gpus(self):
    self.device, self.distributed_type = torch.device("cpu"), DistributedType.MULTI_GPU


if os.environ.get("ACCELERATE_USE_FSDP") == "true":
    PartialState.set_device = as_if_gpus
gdro.trainer.GDROTrainer = SharedSampling

if __name__ == "__main__":
    options = [option for option in sys.argv[1:] if option.startswith("--die=")]
    SharedSampling.die_at = options[0].removeprefix("--die=") if options else None
    main([argument for argument in sys.argv[1:] if argument not in options])
