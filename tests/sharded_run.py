"""Trainings of several processes, with sampling that does not depend on how many share a batch.

    accelerate launch --config_file …/fsdp2.yaml … tests/sharded_run.py train …

is `gdro train …`; the functions are run by `processes.run_ranks`.

Accelerate shards on GPUs alone: on CPU processes it quietly trains each with the whole model.
PyTorch's fully_shard does work on them, so here the processes are told that they are GPUs.
"""

import json
import os
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import peft
import tiny_run
import torch
from accelerate.state import PartialState
from accelerate.utils import DistributedType
from safetensors.torch import save_file
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from transformers import AutoModelForCausalLM
from trl.generation.vllm_generation import VLLMGeneration

import gdro.trainer
import gdro.trl.generation
from gdro.files import save_state
from gdro_lab.cli import main


class SharedSampling(gdro.trainer.GDROTrainer):
    """A completion is correct, or noise, by step and place in the whole batch."""

    die_at = None
    turn = 0, 0  # step, rounds sampled in it
    rows, whole_gradients = (), ()

    def train(self, *args, **kwargs):
        result, rank = super().train(*args, **kwargs), self.accelerator.process_index
        file = Path(self.args.output_dir).parent / f"controller{rank}.json"
        save_state(file, self.controller.state_dict())
        return result

    def compute_loss(self, model, inputs, **kwargs):
        modules = [module for module in model.modules() if isinstance(module, FSDPModule)]
        groups = [group for m in modules for group in m._get_fsdp_state()._fsdp_param_groups]
        weights = [weight for group in groups for weight in group.fsdp_params]
        grads = [w.unsharded_accumulated_grad for w in weights]
        grads += [w._unsharded_param.grad for w in weights if hasattr(w, "_unsharded_param")]
        whole = sum(grad.numel() for grad in grads if grad is not None)
        self.whole_gradients = (*self.whole_gradients, whole)
        return super().compute_loss(model, inputs, **kwargs)

    def _get_per_token_logps_and_entropies(self, model, ids, *args, **kwargs):
        self.rows = (*self.rows, len(ids))
        return super()._get_per_token_logps_and_entropies(model, ids, *args, **kwargs)

    def _generate_single_turn(
        self, prompt_ids, images, multimodal_fields, num_generations, **kwargs
    ):
        rank, last = self.accelerator.process_index, self.accelerator.num_processes - 1
        if self.die_at == str(self.state.global_step) and rank == last:
            os._exit(9)
        step, rounds = self.turn
        self.turn = self.state.global_step, rounds + 1 if step == self.state.global_step else 0
        tokenizer, first = self.processing_class, rank * len(prompt_ids)
        answers = {row["prompt"]: row["answer"] for row in self.train_dataset}
        completions = []
        for place, ids in enumerate(prompt_ids, first):
            rng = np.random.default_rng((*self.turn, place))
            noise = rng.integers(2, len(tokenizer), 8).tolist()
            correct = tokenizer(answers[tokenizer.decode(ids)] + tokenizer.eos_token)["input_ids"]
            completions.append(correct if rng.random() < 0.5 else noise)
        return completions, None


def as_if_gpus(self):
    self.device, self.distributed_type = torch.device("cpu"), DistributedType.MULTI_GPU


def command(arguments, die_at=None):
    """`gdro …` in one of several processes; at `die_at`, a step as text, the last of them dies."""
    if os.environ.get("ACCELERATE_USE_FSDP") == "true":
        PartialState.set_device = as_if_gpus
    gdro.trainer.GDROTrainer = SharedSampling
    SharedSampling.die_at = die_at
    main(args=arguments, standalone_mode=False)


def compare_savings(base, folder, beta=0.0):
    """Two trainings, with the savings and `sync_each_batch` on and off.

    By SGD: a step of Adam divides rounding by the gradient, however small that is.
    """
    if os.environ.get("ACCELERATE_USE_FSDP") == "true":
        PartialState.set_device = as_if_gpus

    def weights_of(trainer):
        return [
            w.full_tensor() if isinstance(w, DTensor) else w.clone()
            for w in trainer.model.parameters()
        ]

    trainers = {}
    for name, on in {"on": True, "off": False}.items():
        args = tiny_run.arguments(
            gdro.trainer.GDROConfig,
            folder,
            max_steps=4,
            per_device_train_batch_size=8,
            gradient_accumulation_steps=2,
            trim_batches=on,
            beta=beta,
            optim="sgd",
            learning_rate=0.1,
            accelerator_config={"gradient_accumulation_kwargs": {"sync_each_batch": on}},
        )
        trainers[name] = tiny_run.make_trainer(SharedSampling, args, base, reward=correct)
        start = [weight.detach().clone() for weight in trainers[name].model.parameters()]
        trainers[name].train()
    on, off = map(weights_of, trainers.values())
    report = {
        "rows": {name: trainer.rows for name, trainer in trainers.items()},
        "whole_gradients": {name: trainer.whole_gradients for name, trainer in trainers.items()},
        "moved": max(float((a - b).abs().max()) for a, b in zip(off, start, strict=True)),
        "tokens": [
            row["gdro/computed_tokens"] / row["gdro/batch_tokens"]
            for row in trainers["on"].state.log_history
            if "gdro/batch_tokens" in row
        ],
        "said": sorted(trainers["on"].savings.said),
        "difference": max(float((a - b).abs().max()) for a, b in zip(off, on, strict=True)),
    }
    rank = trainers["on"].accelerator.process_index
    (Path(folder) / f"savings{rank}.json").write_text(json.dumps(report))


def train_in_rounds(base, folder, method):
    """A method that samples in rounds, each round with completions of its own."""
    processes = int(os.environ["WORLD_SIZE"])
    args = tiny_run.arguments(
        gdro.trainer.GDROConfig,
        folder,
        max_steps=5,
        per_device_train_batch_size=32 // processes,
        gdro_method=method,
        beta=0.01,
        optim="sgd",
        learning_rate=0.1,
        gdro_options={"n_max": 5} if method == "pilot_commit" else {},
    )
    trainer = tiny_run.make_trainer(SharedSampling, args, base, reward=correct)
    trainer.train()
    if trainer.accelerator.is_main_process:
        trainer.save_model(str(Path(folder) / "model"))
        save_state(Path(folder) / "state.json", {"record": trainer.record})


def what_vllm_is_sent(base, folder, kind):
    """Write down what TRL would send to vLLM of a sharded model."""
    torch.distributed.init_process_group("gloo")
    generation = object.__new__(VLLMGeneration)  # without an engine
    generation.model, generation.accelerator = tied_model(base, kind), PartialState()
    whole = {"is_fsdp": True, "fsdp_version": 2, "gather_params": lambda _: nullcontext()}
    generation._dist = SimpleNamespace(**whole)  # as for FSDP2
    for module in (*generation.model.get_submodule(LAYERS[kind]), generation.model):
        fully_shard(module)
    with torch.no_grad():  # as in an evaluation: it leaves the root's weights gathered
        generation.model(torch.ones(1, 4, dtype=torch.int64))
    gdro.trl.generation.reshard(generation.model)
    sent = {}
    for name, weight in generation._iter_named_params():
        assert name not in sent
        sent[name] = weight.detach().clone().contiguous()
    save_file(sent, Path(folder) / f"sent{torch.distributed.get_rank()}.safetensors")
    torch.distributed.destroy_process_group()


LAYERS = {"full": "model.layers", "lora": "base_model.model.model.layers"}


def tied_model(base, kind):
    """The base; for "lora" with an adapter that changes it."""
    model = AutoModelForCausalLM.from_pretrained(base)
    if kind == "full":
        return model
    torch.manual_seed(0)
    adapter = peft.LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False)
    return peft.get_peft_model(model, adapter)


def correct(completions, answer, **kwargs):
    return [float(text == right) for text, right in zip(completions, answer, strict=True)]


if __name__ == "__main__":
    command(sys.argv[1:])
