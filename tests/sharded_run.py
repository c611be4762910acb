"""`gdro work` with sampling that does not depend on how many processes share a batch.

    accelerate launch --config_file configs/accelerate/fsdp2.yaml … tests/sharded_run.py [--die=…] work …

--die=5 ends the last process in step 5.

    … tests/sharded_run.py savings BASE_DIR OUTPUT_DIR

trains twice, with the savings and `sync_each_batch` on and off, and compares.

Accelerate shards on GPUs alone: on CPU processes it quietly trains each with the whole model. PyTorch's
fully_shard does work on them, so here the processes are told that they are GPUs.
"""

import json
import os
import sys
from pathlib import Path

import numpy as np
import torch
from accelerate.state import PartialState
from accelerate.utils import DistributedType
from torch.distributed.fsdp import FSDPModule

import gdro.trainer
from gdro.cli import main
from gdro.training.files import save_state


class SharedSampling(gdro.trainer.GDROTrainer):
    """A completion is correct, or noise, by step and place in the whole batch."""

    die_at = None
    rows, whole_gradients = (), ()

    def train(self, *args, **kwargs):
        result = super().train(*args, **kwargs)
        file = Path(self.args.output_dir).parent / f"controller{self.accelerator.process_index}.json"
        save_state(file, self.controller.state_dict())
        return result

    def compute_loss(self, model, inputs, **kwargs):
        states = [module._get_fsdp_state() for module in model.modules() if isinstance(module, FSDPModule)]
        weights = [w for state in states for group in state._fsdp_param_groups for w in group.fsdp_params]
        grads = [w.unsharded_accumulated_grad for w in weights] + [
            w._unsharded_param.grad for w in weights if hasattr(w, "_unsharded_param")
        ]
        self.whole_gradients = (*self.whole_gradients, sum(g.numel() for g in grads if g is not None))
        return super().compute_loss(model, inputs, **kwargs)

    def _get_per_token_logps_and_entropies(self, model, ids, *args, **kwargs):
        self.rows = (*self.rows, len(ids))
        return super()._get_per_token_logps_and_entropies(model, ids, *args, **kwargs)

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


def compare_savings(base, folder):
    import tiny_run
    from torch.distributed.tensor import DTensor

    def weights_of(trainer):
        return [w.full_tensor() if isinstance(w, DTensor) else w.clone() for w in trainer.model.parameters()]

    trainers = {}
    for name, on in {"on": True, "off": False}.items():
        args = tiny_run.arguments(
            gdro.trainer.GDROConfig, folder, max_steps=4, per_device_train_batch_size=8,
            gradient_accumulation_steps=2, trim_batches=on,
            accelerator_config={"gradient_accumulation_kwargs": {"sync_each_batch": on}},
        )  # fmt: skip
        trainers[name] = tiny_run.make_trainer(SharedSampling, args, base, reward=correct)
        start = [weight.detach().clone() for weight in trainers[name].model.parameters()]
        trainers[name].train()
    on, off = map(weights_of, trainers.values())
    report = {
        "rows": {name: trainer.rows for name, trainer in trainers.items()},
        "whole_gradients": {name: trainer.whole_gradients for name, trainer in trainers.items()},
        "moved": max(float((a - b).abs().max()) for a, b in zip(off, start, strict=True)),
        "difference": max(float((a - b).abs().max()) for a, b in zip(off, on, strict=True)),
    }
    rank = trainers["on"].accelerator.process_index
    (Path(folder) / f"savings{rank}.json").write_text(json.dumps(report))


def correct(completions, answer, **kwargs):
    return [float(text == right) for text, right in zip(completions, answer, strict=True)]


if __name__ == "__main__":
    if os.environ.get("ACCELERATE_USE_FSDP") == "true":
        PartialState.set_device = as_if_gpus
    gdro.trainer.GDROTrainer = SharedSampling
    options = [option for option in sys.argv[1:] if option.startswith("--die=")]
    SharedSampling.die_at = options[0].removeprefix("--die=") if options else None
    if sys.argv[1] == "savings":
        compare_savings(*sys.argv[2:])
    else:
        main(args=[argument for argument in sys.argv[1:] if argument not in options])
