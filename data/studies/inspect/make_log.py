"""Train a tiny model with TRL's own GRPOTrainer, and keep the completions that it logs.

    python data/studies/inspect/make_log.py OUTPUT

OUTPUT/completions is what `log_completions=True` writes: a file for each step.
"""

import argparse

from gdro_lab import numerics

numerics.fix()  # before torch and numpy are imported

from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

from gdro_lab.tasks import embedded
from gdro_lab.tasks.tiny import tiny_base

PROMPTS = 96
STEPS = 30


def right_answer(completions: list[str], answer: list[str], **others: object) -> list[float]:
    """1 for the correct text, 0 for any other."""
    return [float(text == right) for text, right in zip(completions, answer, strict=True)]


def main(output: str) -> None:
    """Train, and leave the completions in the output folder."""
    task = embedded.DEFAULT_SPEC.draw(0)
    base = tiny_base(task, seed=0, cache_dir=".cache/bases", progress=False)
    args = GRPOConfig(
        output_dir=output,
        max_steps=STEPS,
        per_device_train_batch_size=64,
        num_generations=4,
        max_completion_length=task.max_completion_tokens,
        learning_rate=2e-4,
        log_completions=True,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        seed=0,
    )
    trainer = GRPOTrainer(
        AutoModelForCausalLM.from_pretrained(base),
        right_answer,
        args=args,
        train_dataset=Dataset.from_list(list(task.train[:PROMPTS])),
        processing_class=AutoTokenizer.from_pretrained(base),
    )
    trainer.train()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("output")
    main(parser.parse_args().output)
