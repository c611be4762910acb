"""Plays the study on a real model: trains arms on a draw, samples, and writes a file for each.

    python data/studies/smol/play.py --words FOLDER --draw 0 grpo@2.5e-6 both@5e-6

A draw is a fresh split of the word problems, a fresh cold start and a fresh seed, all from its
number. An arm is a variant of smol-words.yaml beside this file at a learning rate; `base` is the
model before training. Each run leaves runs/WORLD/ARM_drawN.json: scores at two steps, what they
cost, and on what machine they were made; logs/ has the record, TRL's log and what the model says to
the problems of own-problems.jsonl. What is there is not played again, so the same command resumes.
FOLDER holds local copies of the word problems; without it they come from the hub. Without arms,
tables are made from the rows that are there.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# before vLLM is imported: two runs share a machine
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")

import pandas as pd
import torch
from transformers import TrainerCallback

from gdro.files import replace_text
from gdro_lab.experiments.evaluation import evaluate_model
from gdro_lab.experiments.memory import accuracy_by_family, first_of_each_family
from gdro_lab.experiments.parts import make_parts
from gdro_lab.experiments.processes import set_up_process
from gdro_lab.experiments.profile import Profile, load_trainings
from gdro_lab.experiments.records import write_rows
from gdro_lab.experiments.scores import score_families
from gdro_lab.experiments.table import report, write_runs
from gdro_lab.experiments.training import Training
from gdro_lab.tasks.answers import style_of
from gdro_lab.tasks.math_data import own_source, read_problems
from gdro_lab.tasks.math_reward import MathReward
from gdro_lab.tasks.math_sets import Schema

HERE = Path(__file__).parent
FILES = {
    "asdiv": ["asdiv.jsonl"],
    "gsm8k": ["gsm8k_train.jsonl"],
    "mawps": ["mawps_addsub.jsonl", "mawps_multiarith.jsonl", "mawps_singleop.jsonl"],
    "svamp": ["svamp.jsonl"],
}
STEPS = 36, 60  # where the main arms are evaluated on fresh draws; all else at the last alone
MAIN_ARMS = {"grpo", "pivotal", "bank", "both"}
MAIN_DRAWS = 4  # of the first plan; the second is evaluated at the last step alone
OWN = HERE / "own-problems.jsonl"  # from easy to hard; no text of the data sets is stored
TRAIN_PROBLEMS = 8  # of each family, whose accuracy at the end, minus the held-out one, is memory


def sample_by_sum(logits: torch.Tensor) -> torch.Tensor:
    """A token of each row, from one uniform number each.

    In place of vLLM's function, which draws an exponential number for each of 49,152 tokens and so
    takes much of the time of a step. The distribution is the same.
    """
    sums_RV = logits.softmax(dim=-1, dtype=torch.float32).cumsum(dim=-1)
    drawn_R = torch.rand(len(sums_RV), 1) * sums_RV[:, -1:]
    return torch.searchsorted(sums_RV, drawn_R, right=True)[:, 0].clamp(max=logits.shape[1] - 1)


class Evaluations(TrainerCallback):
    """Samples from the training's own engine at some steps, and keeps the counts by problem."""

    def __init__(self, problems: "Problems", steps: Sequence[int]) -> None:
        self.problems = problems
        self.steps = steps
        self.counts: dict[int, dict[str, Any]] = {}
        """By step."""
        self.trainer: Any = None
        self.began = 0.0
        self.seconds = 0.0

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.began = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step not in self.steps:
            return
        stopped = time.perf_counter()
        trained = stopped - self.began - self.seconds
        generation = self.trainer.vllm_generation
        generation.sync_weights()
        tokenizer = self.trainer.processing_class
        counts = self.problems.count(generation.llm, tokenizer)
        if state.global_step == max(STEPS):
            counts["own"] = self.problems.count_own(generation.llm, tokenizer)
        self.counts[state.global_step] = counts | {"seconds": trained}
        self.seconds += time.perf_counter() - stopped


class Problems:
    """What a model is evaluated on: the held-out problems, and some of those it trains on."""

    def __init__(self, profile: Profile, variant: str, cache: str) -> None:
        self.choice = profile.evaluation
        self.task = profile.task
        self.held_out = make_parts(profile, variant, cache, held_out=True).data
        self.training = make_parts(profile, variant, cache)
        self.seen = first_of_each_family(self.training.data.rows, TRAIN_PROBLEMS)
        families = pd.Series([row["family"] for row in self.training.data.rows])
        self.shares = families.value_counts(normalize=True)
        """Each family's share of the training problems."""

    def count(self, model: Any, tokenizer: Any) -> dict[str, Any]:
        """Correct samples of each problem, of a folder's or an engine's model."""
        rows = [*self.held_out.rows, *self.seen]
        counts = evaluate_model(
            self.choice,
            model,
            tokenizer,
            rows,
            self.held_out.reward,
            self.held_out.max_completion_tokens,
            seed=max(STEPS),
        )
        size = len(self.held_out.rows)
        return {"held_out": counts[:size], "train": counts[size:]}

    def count_own(self, model: Any, tokenizer: Any) -> list[dict[str, Any]]:
        """Texts and correct samples of our own ten problems; no other texts are kept."""
        source = own_source(str(OWN), Schema(("question",), "answer"))
        problems, _ = read_problems(source)
        style = style_of(tokenizer)
        rows = [problem.row(style, self.task.request, self.task.completion) for problem in problems]
        # transformers for the base: vLLM starts only once a process
        engine = "hf" if isinstance(model, str | Path) else "vllm"
        choice = self.choice.model_copy(update={"texts": len(rows), "engine": engine})
        reward = MathReward(completion=self.task.completion)
        longest = self.held_out.max_completion_tokens
        return evaluate_model(choice, model, tokenizer, rows, reward, longest, seed=max(STEPS))


def read_profile(words: Path | None, draw: int, arm: str, train_size: int | None) -> Profile:
    """The profile of an arm on a draw."""
    fields = load_trainings(HERE / "smol-words.yaml").model_dump()
    variant, _, rate = arm.partition("@")
    if variant != "base":
        fields["variants"] = {variant: fields["variants"][variant]}
        fields["train"]["learning_rate"] = float(rate)
    if train_size is not None:
        fields["task"]["train_size"] = train_size
    fields["task"]["seed"] = draw
    fields["cold_start"]["seed"] = draw
    fields["seeds"] = [draw]
    if words is not None:
        fields["task"]["paths"] = {
            name: [str(words / file) for file in files] for name, files in FILES.items()
        }
    return Profile.model_validate(fields)


def train(
    profile: Profile, variant: str, draw: int, folder: Path, problems: Problems, cache: str
) -> tuple[dict[int, dict[str, Any]], dict[str, Any]]:
    """Train and evaluate on the way; counts by step, and what the rows need of the record."""
    from vllm.v1.sample.ops import topk_topp_sampler

    topk_topp_sampler.compiled_random_sample = sample_by_sum
    training = Training(profile, variant, draw, folder, cache)
    evaluations = Evaluations(problems, steps_of(variant, draw))
    trainer = training.make_trainer([evaluations], save_strategy="no")
    evaluations.trainer = trainer
    trainer.train()
    logs = [row for row in trainer.state.log_history if "reward" in row]
    seconds = trainer.seconds | {"train": trainer.seconds["train"] - evaluations.seconds}
    return evaluations.counts, {"seconds": seconds, "record": trainer.record, "logs": logs}


def steps_of(variant: str, draw: int) -> list[int]:
    """Where a run is evaluated."""
    return list(STEPS) if variant in MAIN_ARMS and 0 < draw <= MAIN_DRAWS else [max(STEPS)]


def row_of(
    step: int, counts: dict[str, Any], record: list[dict], shares: pd.Series, identity: dict
) -> dict[str, Any]:
    """Scores of a step, and what was spent until then."""
    held_out = pd.DataFrame(counts["held_out"])
    families = held_out.family.tolist()
    scores = score_families(
        families, held_out.successes.to_numpy(), held_out.trials.to_numpy(), shares.to_dict()
    )
    seen = pd.DataFrame(counts["train"])
    on_train = accuracy_by_family(counts["train"], seen.successes.to_numpy(), seen.trials[0])
    spent = pd.DataFrame(record[:step], columns=["rollouts_spent", "tokens", "trained_tokens"])
    row = identity | {
        "step": step,
        "rollouts": int(spent.rollouts_spent.sum()),
        "tokens": int(spent.tokens.sum()),
        "seconds": counts.get("seconds", 0.0),
        "trained_tokens": int(spent.trained_tokens.sum()),
        "distinct": held_out.distinct.groupby(families).mean().mean(),
        "train_mean": float((on_train * shares).sum()),
        "train_families": on_train.to_dict(),
    }
    return row | scores


def play(
    words: Path | None, draw: int, arm: str, train_size: int | None, cache: str, out: Path
) -> None:
    """Play one arm on one draw, and write its rows."""
    from gdro_lab.machine import describe_machine

    set_up_process()
    target = out / row_file(arm, draw, train_size)
    world = target.parent.name
    variant = arm.partition("@")[0]
    profile = read_profile(words, draw, arm, train_size)
    problems = Problems(profile, variant, cache)
    if variant == "base":
        base = problems.training
        own = {"own": problems.count_own(base.source, base.tokenizer)}
        by_step = {max(STEPS): problems.count(base.source, base.tokenizer) | own}
        trained: dict[str, Any] = {"seconds": {}, "record": [], "logs": []}
    else:
        # TRL's own files, of no use afterwards
        with tempfile.TemporaryDirectory() as folder:
            by_step, trained = train(profile, variant, draw, Path(folder), problems, cache)
    machine = describe_machine(pretrained=True)
    settings = {
        "world": {"name": world} | profile.task.model_dump(exclude={"paths"}),
        "train": profile.train.model_dump(exclude={"learning_rate"}),
        "size": profile.model.source,
        "cold_start": profile.cold_start.model_dump(),
        "machine": machine,
    }
    if variant != "base":
        settings["variant"] = profile.variants[variant].model_dump()
    rate = float(arm.partition("@")[2] or 0)
    identity = {"world": world, "method": variant, "learning_rate": rate, "draw": draw}
    rows = [
        row_of(step, counts, trained["record"], problems.shares, identity)
        for step, counts in by_step.items()
    ]
    log = out / "logs" / world / target.name
    texts = {"own": by_step[max(STEPS)]["own"]}
    replace_text(log, json.dumps({"machine": machine} | trained | texts, default=float) + "\n")
    write_rows(target, settings, rows)


def row_file(arm: str, draw: int, train_size: int | None) -> Path:
    """Where a folder has the rows of an arm on a draw; the tuning draw is a world of its own."""
    world = "words-tuning" if draw == 0 else "words"
    if train_size is not None:
        world = f"words-{train_size}"
    return Path("runs") / world / f"{arm}_draw{draw}.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--words", type=Path)
    parser.add_argument("--draw", type=int, default=0)
    parser.add_argument("--train-size", type=int)
    parser.add_argument("--cache-dir", default=".cache/bases")
    parser.add_argument("--out", type=Path, default=HERE, help="folder of runs, logs and tables")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("arms", nargs="*")
    args = parser.parse_args()
    if not args.arms:
        write_runs(args.out)
        print(report(args.out))
    for arm in args.arms:
        if (args.out / row_file(arm, args.draw, args.train_size)).is_file():
            continue
        if args.here:
            play(args.words, args.draw, arm, args.train_size, args.cache_dir, args.out)
            continue
        # each arm in a process of its own, whose memory its end frees
        command = [sys.executable, __file__, "--here", "--draw", str(args.draw)]
        command += ["--cache-dir", args.cache_dir, "--out", str(args.out), arm]
        if args.train_size is not None:
            command += ["--train-size", str(args.train_size)]
        if args.words is not None:
            command += ["--words", str(args.words)]
        subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
