"""Where a training step of a pretrained model spends its time, beside stock TRL in the same run.

    python benchmarks/real_model.py                    # profile smol, 20 steps an arm
    python benchmarks/real_model.py smol --steps 5 --engines vllm --betas 0

Each arm trains in a process of its own with the same data, seed and settings: TRL's GRPOTrainer,
and GDROTrainer with method "grpo", which learns the same and leaves out what has no gradient.
Seconds are those of the processor, one thread; the first step, which warms up, is left out.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pandas as pd
import torch
from prefix import with_vllm
from transformers import TrainerCallback

PARTS = ("generate", "score", "forward", "backward", "optimizer")


class PartsClock(TrainerCallback):
    """Seconds of the processor by part of a step; what is in no part is "other"."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self.rows: list[dict[str, float]] = []

    def timed(self, part: str, function: Callable) -> Callable:
        """The function, whose seconds count for a part."""

        def call(*args: Any, **named: Any) -> Any:
            began = time.process_time()
            try:
                return function(*args, **named)
            finally:
                self.seconds[part] += time.process_time() - began

        return call

    def watch(self, trainer: Any) -> None:
        """Time the parts of a trainer."""
        score = trainer._get_per_token_logps_and_entropies

        def scored(*args: Any, **named: Any) -> Any:
            # with gradients it is a part of the loss, whose seconds are counted there
            if torch.is_grad_enabled():
                return score(*args, **named)
            return self.timed("score", score)(*args, **named)

        trainer._get_per_token_logps_and_entropies = scored
        trainer._generate_single_turn = self.timed("generate", trainer._generate_single_turn)
        trainer.compute_loss = self.timed("forward", trainer.compute_loss)
        trainer.accelerator.backward = self.timed("backward", trainer.accelerator.backward)
        trainer.add_callback(self)

    def on_step_begin(self, *args: Any, **named: Any) -> None:
        self.seconds.clear()
        self.began = time.process_time()

    def on_pre_optimizer_step(self, *args: Any, **named: Any) -> None:
        self.update_began = time.process_time()

    def on_optimizer_step(self, *args: Any, **named: Any) -> None:
        self.seconds["optimizer"] += time.process_time() - self.update_began

    def on_step_end(self, *args: Any, **named: Any) -> None:
        whole = time.process_time() - self.began
        row = {part: self.seconds[part] for part in PARTS}
        self.rows.append(row | {"other": whole - sum(row.values()), "step": whole})


def play_arm(profile_name: str, arm: str, engine: str, beta: float, steps: int) -> None:
    """Train one arm and print its mean seconds as JSON."""
    from datasets import Dataset
    from trl import GRPOTrainer

    from gdro.trainer import GDROTrainer
    from gdro.trl.models import load_model
    from gdro_lab.cpu_engine import reloadable
    from gdro_lab.experiments.play import open_training
    from gdro_lab.experiments.profile import load_profile
    from gdro_lab.machine import set_up_process

    set_up_process()
    with tempfile.TemporaryDirectory() as folder:
        training = open_training(load_profile(profile_name).run("grpo", 0), folder)
        loaded = load_model(**training.model_options)
        args = training.arguments(
            max_steps=steps + 1,
            beta=beta,
            use_vllm=engine == "vllm",
            save_strategy="no",
            logging_steps=1,
            trim_batches=arm == "gdro",
        )
        kind = GDROTrainer if arm == "gdro" else GRPOTrainer
        with reloadable(args):
            trainer = kind(
                loaded.model,
                training.data.reward,
                args=args,
                train_dataset=Dataset.from_list(training.data.rows),
                processing_class=loaded.tokenizer,
                peft_config=loaded.peft_config,
            )
        clock = PartsClock()
        clock.watch(trainer)
        trainer.train()
    logs = [row for row in trainer.state.log_history if "frac_reward_zero_std" in row]
    row = pd.DataFrame(clock.rows[1:]).mean().to_dict()
    row["flat groups"] = float(pd.DataFrame(logs)["frac_reward_zero_std"].mean())
    row["tokens a completion"] = float(pd.DataFrame(logs)["completions/mean_length"].mean())
    row["gradient norm of step 1"] = float(logs[0]["grad_norm"])
    print(json.dumps(row))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("profile", nargs="?", default="smol")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--engines", nargs="+", default=["vllm", "transformers"])
    parser.add_argument("--betas", nargs="+", type=float, default=[0.0, 0.04])
    parser.add_argument("--arm", choices=["trl", "gdro"], help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.arm:
        play_arm(args.profile, args.arm, args.engines[0], args.betas[0], args.steps)
        return
    if not with_vllm():  # the profile's engine; "transformers" alone runs with it too
        return
    rows = []
    for engine in args.engines:
        for beta in args.betas:
            for arm in ("trl", "gdro"):
                command = [sys.executable, __file__, args.profile, "--steps", str(args.steps)]
                command += ["--engines", engine, "--betas", str(beta), "--arm", arm]
                output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
                row = json.loads(output.stdout.splitlines()[-1])
                rows.append({"engine": engine, "β": beta, "trainer": arm} | row)
                print(f"{engine}, β {beta:g}, {arm}: {row['step']:.1f} s a step", flush=True)
    table = pd.DataFrame(rows)
    whole = table.set_index(["engine", "β", "trainer"])["step"].unstack()
    print(table.round(2).to_markdown(index=False))
    print(
        (whole["gdro"] / whole["trl"]).rename("step of gdro / step of TRL").round(2).to_markdown()
    )


if __name__ == "__main__":
    main()
