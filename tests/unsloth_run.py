"""Small real trainings on the trainer that Unsloth makes; a process of its own.

python tests/unsloth_run.py BASE_DIR OUTPUT_DIR     # writes OUTPUT_DIR/stock, grpo and both

"stock" is Unsloth's GRPOTrainer itself; the others are GDROTrainer with that method. It needs unsloth and
no GPU. Real are Unsloth's patches of TRL, the trainer class that it writes and installs, and its way to
advantages, loss and step. Unsloth's own model classes need a GPU: the model is transformers', given the
two switches that the trainer asks of a model.
"""

import os
import sys

os.environ["UNSLOTH_ALLOW_CPU"] = "1"
os.environ["TORCHDYNAMO_DISABLE"] = "1"  # compiling its loss takes minutes on a CPU

from gdro.training.models import import_unsloth

import_unsloth()
# without a GPU, unsloth leaves TRL alone unless asked
from unsloth import FastLanguageModel
from unsloth.models.rl import _patch_trl_rl_trainers

_patch_trl_rl_trainers("grpo_trainer")

import inspect
import json
from pathlib import Path

import tiny_run
import torch
import trl
from safetensors.torch import save_file

from gdro.trainer import GDROConfig, GDROTrainer


def main(method, base, output):
    shared = {"max_steps": 9, "learning_rate": 2e-4, "lr_scheduler_type": "constant"}
    shared["gdro_options"] = {"bins": {"k": 1}}  # bins on pass@1 tell this poor model's prompts apart
    shared["gdro_method"] = "grpo" if method == "stock" else method
    args = tiny_run.arguments(GDROConfig, output, **shared)
    trainer = tiny_run.make_trainer(trl.GRPOTrainer if method == "stock" else GDROTrainer, args, base)
    trainer.model.for_training = lambda use_gradient_checkpointing=False: trainer.model.train()
    trainer.model.for_inference = lambda: trainer.model.eval()
    trainer.train()
    weights = {name: tensor.detach().contiguous() for name, tensor in trainer.model.named_parameters()}
    save_file(weights, output / "weights.safetensors")
    report = {
        "classes": [base.__name__ for base in type(trainer).__mro__],
        "record": getattr(trainer, "record", []),
        "losses": [row["loss"] for row in trainer.state.log_history if "loss" in row],
    }
    (output / "report.json").write_text(json.dumps(report))


torch.set_num_threads(1)
for method in ("stock", "grpo", "both"):
    (output := Path(sys.argv[2]) / method).mkdir()
    main(method, sys.argv[1], output)
calls = FastLanguageModel.from_pretrained, FastLanguageModel.get_peft_model
signatures = {call.__name__: list(inspect.signature(call).parameters) for call in calls}
(Path(sys.argv[2]) / "signatures.json").write_text(json.dumps(signatures))
