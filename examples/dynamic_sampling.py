"""Dynamic sampling in TRL: every step trains on groups that hold a correct and a wrong rollout.

python examples/dynamic_sampling.py [STEPS]

Runs on a CPU in about a minute. To a training with GRPOTrainer it adds the two marked lines.
"""

import sys
import tempfile

from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer

from gdro.trainer import GDROConfig, GDROTrainer  # 1. in place of GRPOConfig and GRPOTrainer
from gdro_lab.tasks import embedded
from gdro_lab.tasks.tiny import tiny_base


def main(steps: int, folder: str) -> list[dict]:
    """Train on the task of `gdro_lab.tasks.embedded`; return what was logged at each step."""
    task = embedded.DEFAULT_SPEC.draw(0)
    base = tiny_base(task, seed=0, steps=100, cache_dir=folder, progress=False)
    args = GDROConfig(
        gdro_method="dapo",  # 2. or "reinforce_ada", "dars", "pilot_commit"
        output_dir=folder,
        max_steps=steps,
        per_device_train_batch_size=32,
        num_generations=4,
        max_completion_length=task.spec.max_completion_tokens,
        learning_rate=2e-4,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        disable_tqdm=True,
    )
    trainer = GDROTrainer(
        AutoModelForCausalLM.from_pretrained(base),
        embedded.reward,
        args=args,
        train_dataset=Dataset.from_list(list(task.train)),
        processing_class=AutoTokenizer.from_pretrained(base),
    )
    trainer.train()
    return [row for row in trainer.state.log_history if "reward" in row]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        logged = main(int(sys.argv[1]) if len(sys.argv) > 1 else 5, folder)
    for step, row in enumerate(logged, 1):
        sampled = row["gdro/rollouts_spent"]
        signal = row["gdro/has_signal"]
        print(
            f"step {step}: {sampled:.0f} rollouts sampled, {signal:.0%} of those trained on have "
            "a signal"
        )
