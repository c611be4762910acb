"""A step of TRL's GRPOTrainer, of GDROTrainer without and with its savings, and of gdro.loop, in turns.

    python benchmarks/loop.py [--steps 60] [--repeats 3]

Same base, prompts and budget. Printed: milliseconds of processor time a step, the fastest of the repeats.
"""

import argparse
import logging
import tempfile
import time
import warnings
from pathlib import Path

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, PrinterCallback
from transformers import logging as transformers_logging
from trl import GRPOConfig, GRPOTrainer

from gdro import GDROController
from gdro.loop import train
from gdro.tasks import chain
from gdro.trainer import GDROConfig, GDROTrainer
from gdro.training.models import tiny_base

PROMPTS, ROLLOUTS, LEARNING_RATE = 32, 4, 2e-4


def loop_seconds(base: Path, task: chain.ChainTask, steps: int) -> float:
    """Seconds of a step, without making the model."""
    model, tokenizer = AutoModelForCausalLM.from_pretrained(base), AutoTokenizer.from_pretrained(base)
    began = time.process_time()
    train(
        model,
        tokenizer,
        task.train,
        chain.reward,
        GDROController(method="rollout", mean_rollouts=ROLLOUTS),
        steps=steps,
        prompts=PROMPTS,
        learning_rate=LEARNING_RATE,
        max_new_tokens=task.spec.max_completion_tokens,
        seed=0,
    )
    return (time.process_time() - began) / steps


def trained(
    base: Path, task: chain.ChainTask, steps: int, folder: str, micro_batches: int = 1, **choices
) -> tuple[float, GRPOTrainer]:
    """Seconds of a step, without making the trainer, and the trainer: TRL's own without a `gdro_method`."""
    ours = "gdro_method" in choices
    trainer_class, config = (GDROTrainer, GDROConfig) if ours else (GRPOTrainer, GRPOConfig)
    args = config(
        output_dir=folder,
        max_steps=steps,
        per_device_train_batch_size=PROMPTS * ROLLOUTS // micro_batches,
        gradient_accumulation_steps=micro_batches,
        num_generations=ROLLOUTS,
        max_completion_length=task.spec.max_completion_tokens,
        learning_rate=LEARNING_RATE,
        lr_scheduler_type="constant",
        save_strategy="no",
        logging_steps=steps,
        report_to=[],
        disable_tqdm=True,
        use_cpu=not torch.cuda.is_available(),
        bf16=False,
        gradient_checkpointing=False,
        **choices,
    )
    trainer = trainer_class(
        AutoModelForCausalLM.from_pretrained(base),
        chain.reward,
        args=args,
        train_dataset=Dataset.from_list(list(task.train)),
        processing_class=AutoTokenizer.from_pretrained(base),
    )
    trainer.remove_callback(PrinterCallback)
    began = time.process_time()
    trainer.train()
    return (time.process_time() - began) / steps, trainer


def quiet_base(task: chain.ChainTask, steps: int, batch_size: int = 96) -> Path:
    """The base of a task after `steps` steps, with one thread and without warnings from here on."""
    warnings.simplefilter("ignore")
    transformers_logging.disable_progress_bar()
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    return tiny_base(task, seed=0, steps=steps, batch_size=batch_size, cache_dir=".cache/bases")


def main() -> None:
    """Measure all in turns and print their ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--base-steps", type=int, default=800)
    options = parser.parse_args()
    task = chain.DEFAULT_SPEC.draw(0)
    base = quiet_base(task, options.base_steps)
    print(f"{PROMPTS} prompts × {ROLLOUTS} rollouts, one thread, {options.steps} steps × {options.repeats}")
    # gdro.loop has no KL term; in micro-batches, as on a GPU, scoring pads to the longest of each
    for beta, parts in ((0.0, 1), (0.04, 1), (0.04, 16)):
        kinds: dict[str, dict] = {
            "TRL's GRPOTrainer": {},
            "GDROTrainer, savings off": {"gdro_method": "rollout", "trim_batches": False},
            "GDROTrainer": {"gdro_method": "rollout"},
        } | ({} if beta else {"gdro.loop": {}})
        seconds: dict[str, list[float]] = {name: [] for name in kinds}
        with tempfile.TemporaryDirectory() as folder:
            for _ in range(options.repeats):
                for name, choices in kinds.items():
                    if name == "gdro.loop":
                        seconds[name].append(loop_seconds(base, task, options.steps))
                    else:
                        choices = choices | {"beta": beta, "micro_batches": parts}
                        taken, _ = trained(base, task, options.steps, folder, **choices)
                        seconds[name].append(taken)
        stock = min(seconds["TRL's GRPOTrainer"])
        for name, measured in seconds.items():
            best = min(measured)
            line = f"{name:26}{1e3 * best:7.1f} ms a step, {best / stock:.2f} of TRL's"
            print(f"β = {beta:<5}{parts:2} micro-batches  {line}")


if __name__ == "__main__":
    main()
