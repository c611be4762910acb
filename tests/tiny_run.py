"""A small real training that several tests share, and that the kill test runs in a process."""

import os
import signal

import torch
from datasets import Dataset
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOTrainer

from gdro.files import save_state
from gdro.trainer import GDROConfig, GDROTrainer
from gdro_lab.experiments.records import write_table
from gdro_lab.tasks import embedded
from gdro_lab.tasks.tiny import tiny_base

STEPS = 14
PROMPTS = 48  # three and a half batches an epoch would drop some: 6 steps an epoch


def make_task():
    spec = embedded.EmbeddedSpec(
        embedded.DEFAULT_SPEC.families, n_train=PROMPTS, n_eval_per_family=5
    )
    return spec.draw(0)


def make_base(cache_dir):
    return tiny_base(
        make_task(), seed=0, steps=60, batch_size=32, cache_dir=cache_dir, progress=False
    )


def arguments(config_class, output_dir, **changes):
    settings = {
        "output_dir": str(output_dir),
        "seed": 3,
        "max_steps": STEPS,
        "per_device_train_batch_size": 32,
        "num_generations": 4,
        "max_completion_length": 12,
        "learning_rate": 1e-3,
        "beta": 0.0,
        "report_to": [],
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "disable_tqdm": True,
        "logging_steps": 1,
        "save_strategy": "no",
    }
    if config_class is GDROConfig:
        settings["gdro_method"] = "both"
    return config_class(**(settings | changes))


def watch_sizes(monkeypatch):
    """A list that gets the rows of each loss that TRL computes."""
    sizes = []
    scored = GRPOTrainer._compute_loss

    def counted(self, model, inputs):
        sizes.append(len(inputs["advantages"]))
        return scored(self, model, inputs)

    monkeypatch.setattr(GRPOTrainer, "_compute_loss", counted)
    return sizes


def half_right(completions, answer, **kwargs):
    """A reward that even a poor model earns now and then: the first operand is copied."""
    return [float(text[:1] == right[:1]) for text, right in zip(completions, answer, strict=True)]


def all_right(completions, **columns):
    return [1.0] * len(completions)


def nothing(completions, **columns):
    return [None] * len(completions)


def make_trainer(trainer_class, args, base, rows=None, reward=half_right, **given):
    given.setdefault("processing_class", AutoTokenizer.from_pretrained(base))
    trainer = trainer_class(
        given.pop("model", None) or AutoModelForCausalLM.from_pretrained(base),
        reward,
        args=args,
        train_dataset=Dataset.from_list(list(rows or make_task().train)),
        **given,
    )
    trainer.leaves_page = False  # which takes longer than a small run
    return trainer


def make(base, folder, rows=None, reward=half_right, **changes):
    args = arguments(GDROConfig, folder, **changes)
    return make_trainer(GDROTrainer, args, base, rows, reward)


def trained(base, folder, resume=None, **changes):
    trainer = make(base, folder, **{"max_steps": 5} | changes)
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def same_weights(one, other):
    pairs = zip(one.model.parameters(), other.model.parameters(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


class Recording(GDROTrainer):
    """Keeps its last generation batch."""

    def _generate_and_score_completions(self, inputs):
        self.batch = super()._generate_and_score_completions(inputs)
        return self.batch


def train_one_step(base, folder, **changes):
    """A `Recording` after one step, with the gradient that it took."""
    args = arguments(GDROConfig, folder, max_steps=1, max_grad_norm=1e9, **changes)
    trainer, keep = make_trainer(Recording, args, base), TrainerCallback()

    def on_pre_optimizer_step(*_, model, **given):
        trainer.gradient = gradient(model)

    keep.on_pre_optimizer_step = on_pre_optimizer_step
    trainer.add_callback(keep)
    trainer.train()
    return trainer


def gradient(model):
    return [weight.grad.clone() for weight in model.parameters()]


def assert_gradient(found, expected):
    """Equal but for rounding: it is in proportion to the largest entry, up to a tenth of this."""
    for one, wanted in zip(found, expected, strict=True):
        atol = 1e-5 * float(wanted.abs().max())
        torch.testing.assert_close(one, wanted, rtol=1e-4, atol=atol)


class Killed(TrainerCallback):
    """Kills its process at the end of a step."""

    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


def main(base, output, method, killed_in=None):
    torch.set_num_threads(1)
    changes = {"max_steps": 10, "save_strategy": "steps", "save_steps": 4, "gdro_method": method}
    args = arguments(GDROConfig, output, **changes)
    trainer = make_trainer(GDROTrainer, args, base)
    trainer.add_callback(Killed(killed_in))
    trainer.train(resume_from_checkpoint=True)
    weights = {
        name: tensor.detach().contiguous() for name, tensor in trainer.model.named_parameters()
    }
    save_file(weights, output / "weights.safetensors")
    save_state(output / "controller.json", trainer.controller.state_dict())
    write_table(output / "record.jsonl", trainer.record)
