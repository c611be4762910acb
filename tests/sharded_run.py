"""`python -m gdro.experiment` with sampling that does not depend on how many processes share a batch.

    accelerate launch --config_file configs/accelerate/fsdp2.yaml … tests/sharded_run.py train PROFILE …

Accelerate shards on GPUs alone: on CPU processes it quietly trains each with the whole model. PyTorch's
fully_shard does work on them, so here the processes are told that they are GPUs.
"""

import os
import sys

import numpy as np
import torch
from accelerate.state import PartialState
from accelerate.utils import DistributedType

import gdro.trainer
from gdro.experiment import main


class SharedSampling(gdro.trainer.GDROTrainer):
    """A completion is right, or noise, by step and place in the whole batch."""

    def _generate_single_turn(self, prompt_ids, images, multimodal_fields, num_generations, **kwargs):
        tokenizer, first = self.processing_class, self.accelerator.process_index * len(prompt_ids)
        answers = {row["prompt"]: row["answer"] for row in self.train_dataset}
        completions = []
        for place, ids in enumerate(prompt_ids, first):
            rng = np.random.default_rng((self.state.global_step, place))
            noise = rng.integers(2, len(tokenizer), 8).tolist()
            right = [*tokenizer(answers[tokenizer.decode(ids)])["input_ids"], tokenizer.eos_token_id]
            completions.append(right if rng.random() < 0.5 else noise)
        return completions, None


def as_if_gpus(self):
    self.device, self.distributed_type = torch.device("cpu"), DistributedType.MULTI_GPU


if os.environ.get("ACCELERATE_USE_FSDP") == "true":
    PartialState.set_device = as_if_gpus
gdro.trainer.GDROTrainer = SharedSampling

if __name__ == "__main__":
    main(sys.argv[1:])
