"""Plays the study on a real model: trains arms on a draw, samples, and writes a file for each.

    python data/measured/smol/play.py --words FOLDER --draw 0 grpo@1e-5 pivotal@2e-5

A draw is a fresh split of the word problems, a fresh cold start and a fresh seed, all from its
number. An arm is a variant of smol-words.yaml beside this file at a learning rate; `base` is the
model before training. Each run leaves runs/WORLD/ARM_drawN.json: scores at two steps, what they
cost, and on what machine they were made; logs/ has the record and TRL's log. What is there is not
played again, so the same command resumes. FOLDER holds local copies of the word problems; without
it they come from the hub. Without arms, tables are made from the rows that are there.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

# before vLLM is imported: two runs share a machine, and each needs a small cache only
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")

import pandas as pd
import torch
from transformers import TrainerCallback

from gdro.files import replace_text
from gdro_lab.experiments.evaluation import evaluate_model
from gdro_lab.experiments.memory import first_of_each_family
from gdro_lab.experiments.parts import load_parts
from gdro_lab.experiments.processes import start_job
from gdro_lab.experiments.profile import Profile, load_trainings
from gdro_lab.experiments.records import write_rows
from gdro_lab.experiments.scores import score_families
from gdro_lab.experiments.table import report, write_scores
from gdro_lab.experiments.training import Training

HERE = Path(__file__).parent
FILES = {
    "asdiv": ["asdiv.jsonl"],
    "gsm8k": ["gsm8k_train.jsonl"],
    "mawps": ["mawps_addsub.jsonl", "mawps_multiarith.jsonl", "mawps_singleop.jsonl"],
    "svamp": ["svamp.jsonl"],
}
STEPS = 36, 60  # where it is evaluated
TRAIN_PROBLEMS = 8  # of each family, whose accuracy at the end, less the held-out one, is memory
TRAINED = "record.json"


def sample_by_sum(logits: torch.Tensor) -> torch.Tensor:
    """A token of each row, from one uniform number each.

    In place of vLLM's function, which draws an exponential number for each of 49,152 tokens: a
    fourth of the time of sampling. The distribution is the same.
    """
    sums_RV = logits.softmax(dim=-1, dtype=torch.float32).cumsum(dim=-1)
    drawn_R = torch.rand(len(sums_RV), 1) * sums_RV[:, -1:]
    return torch.searchsorted(sums_RV, drawn_R, right=True)[:, 0].clamp(max=logits.shape[1] - 1)


class Evaluations(TrainerCallback):
    """Samples from the training's own engine at `STEPS`, and writes the counts by problem."""

    def __init__(self, profile: Profile, variant: str, folder: Path, cache: str) -> None:
        self.choice = profile.evaluation
        self.folder = folder
        self.held_out = load_parts(profile, variant, cache, held_out=True).data
        self.trainer: Any = None
        self.seconds = 0.0

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        step = state.global_step
        if step not in STEPS:
            return
        began = time.perf_counter()
        rows = {"held_out": self.held_out.rows}
        if step == max(STEPS):
            rows["train"] = first_of_each_family(list(self.trainer.train_dataset), TRAIN_PROBLEMS)
        self.trainer.vllm_generation.sync_weights()
        counts = evaluate_model(
            self.choice,
            self.trainer.vllm_generation.llm,
            self.trainer.processing_class,
            [row for part in rows.values() for row in part],
            self.held_out.reward,
            self.held_out.max_completion_tokens,
        )
        size = len(rows["held_out"])
        parts = {"held_out": counts[:size], "train": counts[size:]}
        replace_text(self.folder / f"step{step}.json", json.dumps(parts))
        self.seconds += time.perf_counter() - began


def read_profile(words: Path | None, draw: int, arm: str, train_size: int | None) -> Profile:
    """The profile of an arm on a draw, written to a file of its own because jobs read files."""
    from ruamel.yaml import YAML

    fields = YAML(typ="safe", pure=True).load((HERE / "smol-words.yaml").read_text())
    variant, _, rate = arm.partition("@")
    if variant != "base":
        fields["variants"] = {variant: fields["variants"][variant]}
        fields["train"]["learning_rate"] = float(rate)
    if train_size is not None:
        fields["task"]["train_size"] = train_size
    fields["task"]["seed"] = draw
    fields["cold_start"]["seed"] = draw
    fields["seeds"] = [draw]
    fields["name"] = "smol-words"
    if words is not None:
        fields["task"]["paths"] = {
            name: [str(words / file) for file in files] for name, files in FILES.items()
        }
    target = row_file(arm, draw, train_size)
    file = Path("runs/smol") / target.parent.name / f"{target.stem}.yaml"
    replace_text(file, json.dumps(fields))  # JSON is YAML
    return load_trainings(file)


def train(profile: Profile, variant: str, draw: int, folder: Path, cache: str) -> None:
    """Train, evaluate on the way, and write what the rows need of the record."""
    from vllm.v1.sample.ops import topk_topp_sampler

    topk_topp_sampler.compiled_random_sample = sample_by_sum
    training = Training(profile, variant, draw, folder, cache)
    evaluations = Evaluations(profile, variant, folder, cache)
    trainer = training.make_trainer([evaluations], save_strategy="no")
    evaluations.trainer = trainer
    trainer.train()
    logs = [row for row in trainer.state.log_history if "reward" in row]
    record = {
        "record": trainer.record,
        "logs": logs,
        "seconds": trainer.seconds | {"train": trainer.seconds["train"] - evaluations.seconds},
        "shares": Counter(row["family"] for row in training.data.rows),
    }
    replace_text(folder / TRAINED, json.dumps(record, default=float))


def evaluate_base(profile: Profile, folder: Path, cache: str) -> None:
    """Sample from the model before training, as after the last step."""
    step = max(STEPS)
    source, tokenizer, held_out = load_parts(profile, "base", cache, held_out=True)
    _, _, training = load_parts(profile, "base", cache)
    seen = first_of_each_family(training.rows, TRAIN_PROBLEMS)
    counts = evaluate_model(
        profile.evaluation,
        source,
        tokenizer,
        [*held_out.rows, *seen],
        held_out.reward,
        held_out.max_completion_tokens,
        seed=step,
    )
    size = len(held_out.rows)
    parts = {"held_out": counts[:size], "train": counts[size:]}
    replace_text(folder / f"step{step}.json", json.dumps(parts))


def row_of(step: int, folder: Path, trained: dict[str, Any], identity: dict) -> dict[str, Any]:
    """Scores of a step, and what was spent until then."""
    parts = json.loads((folder / f"step{step}.json").read_text())
    held_out = pd.DataFrame(parts["held_out"])
    families = held_out.family.tolist()
    shares = pd.Series(trained["shares"]) / sum(trained["shares"].values())
    scores = score_families(
        families, held_out.successes.to_numpy(), held_out.trials.to_numpy(), shares.to_dict()
    )
    spent = pd.DataFrame(trained["record"][:step])
    row = identity | {
        "step": step,
        "rollouts": int(spent.rollouts_spent.sum()) if len(spent) else 0,
        "tokens": int(spent.tokens.sum()) if len(spent) else 0,
        "seconds": trained["seconds"].get("train", 0.0) * step / max(STEPS),
        "trained_tokens": int(spent.trained_tokens.sum()) if len(spent) else 0,
        "distinct": held_out.distinct.groupby(families).mean().mean(),
    }
    row |= scores
    if parts["train"]:
        seen = pd.DataFrame(parts["train"])
        rates = seen.successes / seen.trials
        row["train_mean"] = float(rates.mean())
        row["train_families"] = rates.groupby(seen.family).mean().to_dict()
    return row


def play(words: Path | None, draw: int, arm: str, train_size: int | None, cache: str) -> None:
    """Play one arm on one draw, and write its rows."""
    from gdro_lab.machine import describe_machine

    start_job()
    target = row_file(arm, draw, train_size)
    variant = arm.partition("@")[0]
    folder = Path("runs/smol") / target.parent.name / target.stem
    folder.mkdir(parents=True, exist_ok=True)
    profile = read_profile(words, draw, arm, train_size)
    steps = [max(STEPS)] if variant == "base" else list(STEPS)
    trained = {"record": [], "logs": [], "seconds": {}, "shares": {}}
    if variant == "base":
        evaluate_base(profile, folder, cache)
        _, _, data = load_parts(profile, "base", cache)
        trained["shares"] = Counter(row["family"] for row in data.rows)
    else:
        train(profile, variant, draw, folder, cache)
        trained = json.loads((folder / TRAINED).read_text())
    rate = float(arm.partition("@")[2] or 0)
    world = target.parent.name
    identity = {"world": world, "method": variant, "learning_rate": rate, "draw": draw}
    machine = describe_machine(pretrained=True)
    settings = {
        "world": {"name": world} | profile.task.model_dump(exclude={"paths"}),
        "train": profile.train.model_dump(),
        "size": profile.model.source,
    }
    details = {name: trained[name] for name in ("seconds", "record", "logs")}
    log = HERE / "logs" / world / target.name
    replace_text(log, json.dumps({"machine": machine} | details, default=float) + "\n")
    rows = [row_of(step, folder, trained, identity) for step in steps]
    write_rows(target, settings | {"machine": machine}, rows)
    shutil.rmtree(folder)


def row_file(arm: str, draw: int, train_size: int | None) -> Path:
    """Where the rows of an arm on a draw are; the tuning draw counts as a world of its own."""
    world = "words-tuning" if draw == 0 else "words"
    if train_size is not None:
        world = f"words-{train_size}"
    return HERE / "runs" / world / f"{arm}_draw{draw}.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--words", type=Path)
    parser.add_argument("--draw", type=int, default=0)
    parser.add_argument("--train-size", type=int)
    parser.add_argument("--cache-dir", default=".cache/bases")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("arms", nargs="*")
    given = parser.parse_args()
    if not given.arms:
        write_scores(HERE)
        print(report(HERE))
    for arm in given.arms:
        if row_file(arm, given.draw, given.train_size).is_file():
            continue
        if given.here:
            play(given.words, given.draw, arm, given.train_size, given.cache_dir)
            continue
        # each arm in a process of its own, whose memory its end frees
        command = [sys.executable, __file__, "--here", "--draw", str(given.draw)]
        command += ["--cache-dir", given.cache_dir, arm]
        if given.train_size is not None:
            command += ["--train-size", str(given.train_size)]
        if given.words is not None:
            command += ["--words", str(given.words)]
        subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
