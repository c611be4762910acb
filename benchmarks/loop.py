"""A step of gdro.loop beside one of GDROTrainer: same base, prompts, rollouts and method, in turns.

    python benchmarks/loop.py [--steps 20] [--repeats 3]

Printed: milliseconds a step, the fastest of the repeats, and how many times faster the loop is.
"""

import argparse
import logging
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, PrinterCallback
from transformers import logging as transformers_logging

from gdro import GDROController
from gdro.loop import train
from gdro.models import tiny_base
from gdro.tasks import chain
from gdro.trainer import GDROConfig, GDROTrainer

PROMPTS, ROLLOUTS, LEARNING_RATE = 32, 4, 2e-4


def loop_seconds(base: Path, task: chain.ChainTask, steps: int) -> float:
    """Seconds of a step, without making the model."""
    model, tokenizer = AutoModelForCausalLM.from_pretrained(base), AutoTokenizer.from_pretrained(base)
    record = train(
        model,
        tokenizer,
        task.train,
        chain.reward,
        GDROController(method="grpo", mean_rollouts=ROLLOUTS),
        steps=steps,
        prompts=PROMPTS,
        learning_rate=LEARNING_RATE,
        max_new_tokens=task.spec.max_completion_tokens,
        seed=0,
    )
    return sum(row["seconds"] for row in record) / steps


def trainer_seconds(base: Path, task: chain.ChainTask, steps: int, folder: str) -> float:
    """Seconds of a step, without making the trainer."""
    args = GDROConfig(
        output_dir=folder,
        max_steps=steps,
        per_device_train_batch_size=PROMPTS * ROLLOUTS,
        num_generations=ROLLOUTS,
        max_completion_length=task.spec.max_completion_tokens,
        learning_rate=LEARNING_RATE,
        lr_scheduler_type="constant",
        beta=0.0,
        gdro_method="grpo",
        save_strategy="no",
        logging_steps=steps,
        report_to=[],
        disable_tqdm=True,
        use_cpu=not torch.cuda.is_available(),
        bf16=False,
        gradient_checkpointing=False,
    )
    trainer = GDROTrainer(
        AutoModelForCausalLM.from_pretrained(base),
        chain.reward,
        args=args,
        train_dataset=Dataset.from_list(list(task.train)),
        processing_class=AutoTokenizer.from_pretrained(base),
    )
    trainer.remove_callback(PrinterCallback)
    began = time.perf_counter()
    trainer.train()
    return (time.perf_counter() - began) / steps


def main() -> None:
    """Measure both in turns and print the ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--base-steps", type=int, default=800, help="of training the base model")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    transformers_logging.disable_progress_bar()
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    task = chain.make_task(chain.DEFAULT_SPEC, np.random.default_rng(0))
    base = tiny_base(task, seed=0, steps=options.base_steps, cache_dir=".cache/bases")
    loop, trainer = [], []
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(options.repeats):
            loop.append(loop_seconds(base, task, options.steps))
            trainer.append(trainer_seconds(base, task, options.steps, folder))
    ratio = min(trainer) / min(loop)
    print(f"{PROMPTS} prompts × {ROLLOUTS} rollouts, one thread, {options.steps} steps × {options.repeats}")
    print(f"GDROTrainer {1e3 * min(trainer):6.1f} ms a step")
    print(f"gdro.loop   {1e3 * min(loop):6.1f} ms a step: {ratio:.1f} times faster")


if __name__ == "__main__":
    main()
