"""A training of a real model on the trainer that Unsloth makes; a process of its own.

python tests/unsloth_real_run.py MODEL_DIR TASK.json OUTPUT_DIR

The model has a LoRA adapter and is transformers' own, as in unsloth_run.py; transformers samples.
Unsloth's environment lacks reasoning-gym, so TASK.json has the rows of a drawn world, and the
world. Writes OUTPUT_DIR/report.json.
"""

# first: it imports Unsloth before TRL, and has it patch TRL
import unsloth_run  # isort: skip

import json
import sys
from pathlib import Path

import peft
import torch
import trl
from datasets import Dataset
from tiny_run import arguments
from transformers import AutoModelForCausalLM, AutoTokenizer

from gdro.trainer import GDROConfig, GDROTrainer
from gdro_lab.tasks.reasoning_gym import GymTask
from gdro_lab.tasks.world import read_world

STEPS = 2


def make_trainer(model_folder, task, output):
    world = read_world(task["world"]).spec
    args = arguments(
        GDROConfig,
        output,
        seed=0,
        max_steps=STEPS,
        max_completion_length=world.max_completion_tokens,
        learning_rate=1e-4,
        gdro_method="pivotal",
    )
    source = AutoModelForCausalLM.from_pretrained(model_folder, dtype="float32")
    lora = peft.LoraConfig(task_type="CAUSAL_LM", r=8, lora_alpha=16, target_modules="all-linear")
    model = peft.get_peft_model(source, lora)
    unsloth_run.add_switches(model)
    return GDROTrainer(
        model,
        GymTask(world, 0, "text", {}, (), (), ()).reward,
        args=args,
        train_dataset=Dataset.from_list(task["rows"]),
        processing_class=AutoTokenizer.from_pretrained(model_folder, padding_side="left"),
    )


def main(model_folder, task_file, output):
    torch.set_num_threads(1)
    trainer = make_trainer(model_folder, json.loads(task_file.read_text()), output)
    before = unsloth_run.weights_of(trainer.model)
    trainer.train()
    after = unsloth_run.weights_of(trainer.model)
    moved = {name: float((after[name] - before[name]).abs().max()) for name in before}
    report = {
        "on_unsloth": isinstance(trainer, trl.GRPOTrainer)
        and "UnslothGRPOTrainer" in [kind.__name__ for kind in type(trainer).__mro__],
        "record": trainer.record,
        "log": [row for row in trainer.state.log_history if "loss" in row],
        "adapter_moved": max(move for name, move in moved.items() if "lora_" in name),
        "base_moved": max(move for name, move in moved.items() if "lora_" not in name),
    }
    (output / "report.json").write_text(json.dumps(report, default=float))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
