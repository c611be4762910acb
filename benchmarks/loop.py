"""A step of TRL's GRPOTrainer, and of GDROTrainer with no savings, each one alone, and all.

    python benchmarks/loop.py [--steps 8] [--repeats 3]

Completions are of unequal length, as real ones are: lognormal with median 12, at most 64 tokens.
Rewards are random, with a success rate of its own for each prompt, uniform in [0, 1]. Same base,
prompts and budget for all. Printed: milliseconds of processor time a step without its generation,
which is the same for all, the fastest of the repeats, and the ratio to TRL's.

Measured on one thread of a busy machine (ratios are good to some 5%), as parts of TRL's step:

    micro-batches            1           16
    β                     0    .04     0    .04
    savings off          .99   .94    .99  1.00
    rows                 .61   .94    .49   .78
    by length             –    .95     –    .86
    all                  .57  1.06    .49   .68

At β > 0 all rows stay, and in one micro-batch all are as wide as the longest: nothing is saved
there.
"""

import argparse
import logging
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

from gdro_lab import numerics

numerics.fix()  # before torch and numpy are imported

import numpy as np
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, PrinterCallback
from transformers import logging as transformers_logging
from trl import GRPOConfig, GRPOTrainer

from gdro.trainer import GDROConfig, GDROTrainer
from gdro_lab.tasks import embedded
from gdro_lab.tasks.tiny import tiny_base

PROMPTS = 32
ROLLOUTS = 4
LEARNING_RATE = 2e-4
# of the completions, in tokens
MEDIAN = 12
SPREAD = 0.8
LONGEST = 64


def unequal_completions(end: int, vocabulary: int) -> Callable:
    """A stand-in for TRL's generation: random tokens, of lognormal lengths."""
    rng = np.random.default_rng(0)

    def generate(trainer: GRPOTrainer, prompt_ids: list, *_: object, **__: object) -> tuple:
        lengths = np.exp(rng.normal(np.log(MEDIAN), SPREAD, len(prompt_ids))).round()
        texts = [rng.integers(end + 1, vocabulary, int(n) - 1) for n in lengths.clip(1, LONGEST)]
        return [[*text.tolist(), end] for text in texts], None

    return generate


def random_reward(rows: list[dict]) -> Callable:
    """0 or 1, by a success rate of its own for each prompt."""
    rng = np.random.default_rng(0)
    rates = dict(zip([row["uid"] for row in rows], rng.random(len(rows)), strict=True))

    def reward(completions: list[str], uid: list, **_: object) -> list[float]:
        return [float(rng.random() < rates[name]) for name in uid]

    return reward


def time_training(
    base: Path,
    task: embedded.EmbeddedTask,
    steps: int,
    folder: str,
    micro_batches: int = 1,
    unequal: bool = False,
    **choices: object,
) -> tuple[float, GRPOTrainer]:
    """Seconds of a step, and the trainer: TRL's own without a `gdro_method`.

    unequal: random completions of unequal length with random rewards, in place of generation.
    """
    ours = "gdro_method" in choices
    trainer_class, config = (GDROTrainer, GDROConfig) if ours else (GRPOTrainer, GRPOConfig)
    model = AutoModelForCausalLM.from_pretrained(base)
    rows = list(task.train)
    args = config(
        output_dir=folder,
        max_steps=steps,
        per_device_train_batch_size=PROMPTS * ROLLOUTS // micro_batches,
        gradient_accumulation_steps=micro_batches,
        num_generations=ROLLOUTS,
        max_completion_length=LONGEST if unequal else task.spec.max_completion_tokens,
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
        model,
        random_reward(rows) if unequal else embedded.reward,
        args=args,
        train_dataset=Dataset.from_list(rows),
        processing_class=AutoTokenizer.from_pretrained(base),
    )
    trainer.remove_callback(PrinterCallback)
    sample: Any = nullcontext()
    if unequal:
        completions = unequal_completions(
            model.generation_config.eos_token_id, model.config.vocab_size
        )
        sample = patch.object(GRPOTrainer, "_generate_single_turn", completions)
    with sample:
        began = time.process_time()
        trainer.train()
        return (time.process_time() - began) / steps, trainer


def quiet_base(task: embedded.EmbeddedTask, steps: int, batch_size: int = 96) -> Path:
    """The base of a task after `steps` steps, with one thread and without warnings from here on."""
    warnings.simplefilter("ignore")
    transformers_logging.disable_progress_bar()
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    return tiny_base(task, seed=0, steps=steps, batch_size=batch_size, cache_dir=".cache/bases")


SAVINGS = {"rows": "_compute_loss", "by length": "_get_per_token_logps_and_entropies"}


@contextmanager
def savings(*wanted: str) -> Iterator[None]:
    """GDROTrainer with these of its savings, and TRL's own way in place of the others."""
    with ExitStack() as stack:
        for name, method in SAVINGS.items():
            if name not in wanted:
                trls = getattr(GRPOTrainer, method)
                stack.enter_context(patch.object(GDROTrainer, method, trls))
        yield


def main() -> None:
    """Measure all in turns and print their ratios."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--base-steps", type=int, default=60)
    args = parser.parse_args()
    task = embedded.DEFAULT_SPEC.draw(0)
    base = quiet_base(task, args.base_steps)
    steps = args.steps
    kinds = {"TRL": None, "off": (), "all": tuple(SAVINGS)}
    kinds |= {name: (name,) for name in SAVINGS}
    print(f"{PROMPTS} prompts × {ROLLOUTS} rollouts, one thread, {steps} steps × {args.repeats}")
    for beta, parts in ((0.0, 1), (0.0, 16), (0.04, 1), (0.04, 16)):
        seconds: dict[str, list[float]] = {name: [] for name in kinds}
        given = {"beta": beta, "micro_batches": parts, "unequal": True}
        with tempfile.TemporaryDirectory() as folder:
            for _ in range(args.repeats):
                for name, wanted in kinds.items():
                    method = {} if wanted is None else {"gdro_method": "rollout"}
                    with savings(*wanted or ()):
                        taken, _ = time_training(base, task, steps, folder, **given, **method)
                    seconds[name].append(taken)
        stock = min(seconds["TRL"])
        for name, measured in seconds.items():
            line = f"{1e3 * min(measured):7.0f} ms a step, {min(measured) / stock:.2f} of TRL's"
            print(f"β = {beta:<5}{parts:2} micro-batches  {name:10}{line}", flush=True)


if __name__ == "__main__":
    main()
