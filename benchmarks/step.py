"""What an optimizer step costs, beside TRL's own way in the same process.

    python benchmarks/step.py grid                      # SmolLM2-135M out of its package
    python benchmarks/step.py grid --model tiny         # tokens alone are worth reading
    python benchmarks/step.py grid --model qwen3-1.7b   # random weights of that shape; needs a GPU
    python benchmarks/step.py training smol --steps 5 --engines vllm --betas 0

`grid` computes the gradient of random texts, without generation: 4 prompts × 4 rollouts, of which a
part of the groups has advantages. Scores of the reference count as well. Everything is over TRL's
way, `trim_batches=False`: tokens through the model, seconds, peak memory, and the distance of the
gradients. On a CPU seconds are those of the processor, on a GPU those of the clock.

`training` trains by a profile, generation included: TRL's GRPOTrainer and GDROTrainer with method
"grpo", each in a process of its own with the same data, seed and settings; the first step, which
warms up, is left out.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from prefix import with_vllm
from transformers import TrainerCallback

PROMPTS = 4
ROLLOUTS = 4  # of each
LENGTHS = ["60/12", "80/40", "200/100", "100/400"]
KINDS = ("ids", "mask")
TOKENS = ("computed_tokens", "batch_tokens")
SHAPES = {  # of Qwen3
    "tiny": (64, 2, 4, 2, 16, 128, 512),
    "qwen3-1.7b": (2048, 28, 16, 8, 128, 6144, 151936),
}
NAMES = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
NAMES += ("head_dim", "intermediate_size", "vocab_size")


def model_of(name: str) -> Any:
    """A model on the device that torch has, in float32: SmolLM2, or random weights of a shape."""
    if name == "smollm2":
        from gdro_lab.experiments.play import open_training
        from gdro_lab.experiments.profile import load_profile
        from gdro_lab.models import load_model

        with tempfile.TemporaryDirectory() as folder:
            training = open_training(load_profile("smol-transformers").run("grpo", 0), folder)
            return load_model(**training.model_options).model
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    config = Qwen3Config(**dict(zip(NAMES, SHAPES[name], strict=True)), tie_word_embeddings=True)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model = Qwen3ForCausalLM(config)
    folder = tempfile.mkdtemp()
    model.save_pretrained(folder)  # TRL reads the reference there
    model.config._name_or_path = folder
    return model


def trainer_of(model: Any, weights: str, beta: float, bf16: bool) -> Any:
    """A GDROTrainer of all weights or an adapter, whose data is never read."""
    from datasets import Dataset
    from peft import LoraConfig

    from gdro.trainer import GDROConfig, GDROTrainer
    from gdro_lab.tasks.embedded import DEFAULT_SPEC

    args = GDROConfig(
        output_dir=tempfile.mkdtemp(),
        gdro_method="grpo",
        beta=beta,
        bf16=bf16,
        per_device_train_batch_size=PROMPTS * ROLLOUTS,
        num_generations=ROLLOUTS,
        gradient_checkpointing=False,
        use_cpu=not torch.cuda.is_available(),
        report_to=[],
    )
    adapter = LoraConfig(r=16, target_modules="all-linear", init_lora_weights=False)
    trainer = GDROTrainer(
        model,
        lambda completions, **columns: [0.0] * len(completions),
        args=args,
        train_dataset=Dataset.from_list([{"prompt": str(n)} for n in range(PROMPTS)]),
        processing_class=DEFAULT_SPEC.draw(0).tokenizer(),
        peft_config=adapter if weights == "LoRA" else None,
    )
    trainer.model.train()
    return trainer


def random_batch(lengths: str, mixed: float, vocabulary: int, device: Any) -> dict[str, Any]:
    """The inputs of TRL's loss: texts of .6 and .4 to 1 times the lengths, shuffled."""
    longest, most = map(int, lengths.split("/"))
    rows = PROMPTS * ROLLOUTS
    made = torch.Generator().manual_seed(0)
    prompt_P = torch.randint(int(longest * 0.6), longest + 1, (PROMPTS,), generator=made)
    text_R = torch.randint(int(most * 0.4), most + 1, (rows,), generator=made)
    ids_PT = torch.randint(5, vocabulary, (PROMPTS, longest), generator=made)
    ids_RT = torch.randint(5, vocabulary, (rows, most), generator=made)
    advantages_R = torch.randn(rows, generator=made)
    advantages_R[int(rows * mixed) :] = 0  # whole groups
    prompt_mask = (torch.arange(longest) >= longest - prompt_P[:, None]).long()
    completion_mask = (torch.arange(most) < text_R[:, None]).long()
    inputs = {
        "prompt_ids": (ids_PT * prompt_mask).repeat_interleave(ROLLOUTS, 0),
        "prompt_mask": prompt_mask.repeat_interleave(ROLLOUTS, 0),
        "completion_ids": ids_RT * completion_mask,
        "completion_mask": completion_mask,
        "advantages": advantages_R,
    }
    shuffled = torch.randperm(rows, generator=made)
    inputs = {name: value[shuffled].to(device) for name, value in inputs.items()}
    return inputs | {"num_items_in_batch": completion_mask.sum().to(device)}


def gradient(trainer: Any, inputs: dict[str, Any], micro_batch: int, trims: bool) -> torch.Tensor:
    """The gradient of an optimizer step, scores of the reference included."""
    from trl.trainer.utils import split_tensor_dict, use_adapter

    from gdro.trl.order import order_batches

    trainer.args.trim_batches = trims
    parts = len(inputs["advantages"]) // micro_batch
    trainer.args.gradient_accumulation_steps = parts
    trainer.args.steps_per_generation = parts
    trainer.current_gradient_accumulation_steps = parts
    model = trainer.model
    model.zero_grad(set_to_none=True)
    if trainer.beta:
        texts = [torch.cat([inputs[f"prompt_{k}"], inputs[f"completion_{k}"]], 1) for k in KINDS]
        length = inputs["completion_ids"].size(1)
        reference = trainer.ref_model or model
        with torch.no_grad(), use_adapter(model, None) if reference is model else nullcontext():
            score = trainer._get_per_token_logps_and_entropies
            logps, *_ = score(reference, *texts, length, batch_size=micro_batch)
        inputs = inputs | {"ref_per_token_logps": logps}
    batches = split_tensor_dict(inputs, parts)
    if trims:
        batches = order_batches(trainer, batches)
    for batch in batches:
        trainer.accelerator.backward(trainer.compute_loss(trainer.model_wrapped, batch))
    grads = [weight.grad for weight in model.parameters() if weight.requires_grad]
    return torch.cat([grad.flatten() for grad in grads])


class Meter:
    """Seconds and peak memory of a block."""

    def __enter__(self) -> "Meter":
        self.on_gpu = torch.cuda.is_available()
        if self.on_gpu:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        else:  # from here on, Linux counts the peak anew
            Path("/proc/self/clear_refs").write_text("5")
        self.began = time.perf_counter() if self.on_gpu else time.process_time()
        return self

    def __exit__(self, *error: object) -> None:
        if self.on_gpu:
            torch.cuda.synchronize()
        now = time.perf_counter() if self.on_gpu else time.process_time()
        self.seconds = now - self.began
        if self.on_gpu:
            self.gib = torch.cuda.max_memory_allocated() / 2**30
        else:
            lines = Path("/proc/self/status").read_text().splitlines()
            kib = next(line.split()[1] for line in lines if line.startswith("VmHWM"))
            self.gib = int(kib) / 2**20


def measure_cells(args: argparse.Namespace) -> Iterable[dict[str, Any]]:
    """A row for each cell of the grid; TRL's way is computed anew wherever it may differ."""
    for weights, beta in product(args.weights, args.betas):
        trainer = trainer_of(model_of(args.model), weights, beta, args.bf16)
        vocabulary = trainer.model.config.vocab_size
        for lengths, micro_batch in product(args.lengths, args.micro_batches):
            # with β > 0 every row has a gradient, whatever its advantage
            for mixed in args.mixed[:1] if beta else args.mixed:
                inputs = random_batch(lengths, mixed, vocabulary, trainer.accelerator.device)
                if not trainer.savings.compared:  # which is done once in a training
                    small = random_batch("8/4", 1, vocabulary, trainer.accelerator.device)
                    gradient(trainer, small, PROMPTS * ROLLOUTS, True)
                with Meter() as trl:
                    wanted = gradient(trainer, inputs, micro_batch, False)
                trainer._metrics["train"].clear()
                with Meter() as ours:
                    found = gradient(trainer, inputs, micro_batch, True)
                tokens = {k: sum(trainer._metrics["train"][f"gdro/{k}"]) for k in TOKENS}
                yield {
                    "prompt / completion": lengths,
                    "weights": weights,
                    "β": beta,
                    "mixed": mixed,
                    "micro-batch": micro_batch,
                    "tokens": tokens["computed_tokens"] / tokens["batch_tokens"],
                    "seconds": ours.seconds / trl.seconds,
                    "of TRL": trl.seconds,
                    "GiB": ours.gib,
                    "TRL's GiB": trl.gib,
                    "gradient's distance": float((found - wanted).norm() / wanted.norm()),
                }


def print_grid(args: argparse.Namespace) -> None:
    """Measure the cells and print their table."""
    torch.set_num_threads(1)
    rows = []
    for row in measure_cells(args):
        rows.append(row)
        print({k: f"{v:.3g}" if isinstance(v, float) else v for k, v in row.items()}, flush=True)
    table = pd.DataFrame(rows)
    print(table.to_markdown(index=False, floatfmt=".3g"))


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
    from gdro_lab.cpu_engine import reloadable
    from gdro_lab.experiments.play import open_training
    from gdro_lab.experiments.profile import load_profile
    from gdro_lab.machine import set_up_process
    from gdro_lab.models import load_model

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


def print_training(args: argparse.Namespace) -> None:
    """Train each arm in a process of its own and print its seconds by part of a step."""
    if args.arm:
        play_arm(args.profile, args.arm, args.engines[0], args.betas[0], args.steps)
        return
    if not with_vllm():  # the profile's engine; "transformers" alone runs with it too
        return
    rows = []
    for engine in args.engines:
        for beta in args.betas:
            for arm in ("trl", "gdro"):
                command = [
                    sys.executable,
                    __file__,
                    "training",
                    args.profile,
                    "--steps",
                    str(args.steps),
                ]
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


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    grid = commands.add_parser("grid")
    grid.set_defaults(run=print_grid)
    grid.add_argument("--model", choices=["smollm2", *SHAPES], default="smollm2")
    grid.add_argument("--lengths", nargs="+", default=LENGTHS)
    grid.add_argument("--weights", nargs="+", choices=["all", "LoRA"], default=["all", "LoRA"])
    grid.add_argument("--betas", nargs="+", type=float, default=[0.0, 0.04])
    grid.add_argument("--mixed", nargs="+", type=float, default=[0.25, 0.5, 1.0])
    grid.add_argument("--micro-batches", nargs="+", type=int, default=[4, 16])
    grid.add_argument("--bf16", action="store_true", help="autocast, as on a GPU")
    training = commands.add_parser("training")
    training.set_defaults(run=print_training)
    training.add_argument("profile", nargs="?", default="smol")
    training.add_argument("--steps", type=int, default=20)
    training.add_argument("--engines", nargs="+", default=["vllm", "transformers"])
    training.add_argument("--betas", nargs="+", type=float, default=[0.0, 0.04])
    training.add_argument("--arm", choices=["trl", "gdro"], help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
