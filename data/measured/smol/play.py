"""Plays the study on a real model: trains arms on a draw, samples, and writes a file for each.

    python data/measured/smol/play.py --words FOLDER --draw 0 grpo@1e-5 pivotal@2e-5

A draw is a fresh split of the word problems, a fresh cold start and a fresh seed, all from its
number. An arm is a variant of smol-words.yaml beside this file at a learning rate; `base` is the
model before training. Each run leaves rows/ARM_drawN.json: scores at three steps, what they cost,
and on what they were made. What is there is not played again, so the same command resumes. FOLDER
holds local copies of the word problems; without it they come from the hub.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

# before vLLM is imported: two runs share a machine, and each needs a small cache only
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")

import pandas as pd
from transformers import TrainerCallback

from gdro.files import replace_text
from gdro_lab.experiments.evaluation import evaluate_model
from gdro_lab.experiments.parts import load_parts
from gdro_lab.experiments.processes import start_job
from gdro_lab.experiments.profile import Profile, load_trainings
from gdro_lab.experiments.scores import score_families
from gdro_lab.experiments.training import Training

HERE = Path(__file__).parent
FILES = {
    "asdiv": ["asdiv.jsonl"],
    "gsm8k": ["gsm8k_train.jsonl"],
    "mawps": ["mawps_addsub.jsonl", "mawps_multiarith.jsonl", "mawps_singleop.jsonl"],
    "svamp": ["svamp.jsonl"],
}
STEPS = {24: 2, 48: 2, 80: 1}  # where it is evaluated, on each n-th held-out problem
TRAIN_PROBLEMS = 128  # whose accuracy at the end, less the held-out one, is memory
TRAINED = "record.json"


class Snapshots(TrainerCallback):
    """Keeps the weights of the steps that are evaluated, in bfloat16, as the engine has them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any, **kwargs: Any) -> None:
        if state.global_step in STEPS:
            import copy

            import torch

            whole = copy.deepcopy(model).to(torch.bfloat16)
            whole.save_pretrained(self.folder / f"step{state.global_step}")


def read_profile(words: Path | None, draw: int, arm: str) -> Profile:
    """The profile of an arm on a draw, written to a file of its own because jobs read files."""
    from ruamel.yaml import YAML

    fields = YAML(typ="safe", pure=True).load((HERE / "smol-words.yaml").read_text())
    variant, _, rate = arm.partition("@")
    if variant != "base":
        fields["variants"] = {variant: fields["variants"][variant]}
        fields["train"]["learning_rate"] = float(rate)
    fields["task"]["seed"] = draw
    fields["cold_start"]["seed"] = draw
    fields["seeds"] = [draw]
    if words is not None:
        fields["task"]["paths"] = {
            name: [str(words / file) for file in files] for name, files in FILES.items()
        }
    file = Path("runs/smol") / f"{arm}_draw{draw}.yaml"
    replace_text(file, json.dumps(fields))  # JSON is YAML
    return load_trainings(file)


def train(profile: Profile, variant: str, draw: int, folder: Path, cache: str) -> None:
    """Train, and keep the weights of `STEPS` and what the rows need of the record."""
    start_job()
    training = Training(profile, variant, draw, folder, cache)
    trainer = training.make_trainer([Snapshots(folder)])
    trainer.train(resume_from_checkpoint=True)
    logs = [row for row in trainer.state.log_history if "reward" in row]
    record = {
        "record": trainer.record,
        "logs": logs,
        "seconds": trainer.seconds,
        "shares": Counter(row["family"] for row in training.data.rows),
    }
    replace_text(folder / TRAINED, json.dumps(record, default=float))
    training.remove_checkpoints()


def evaluate(
    profile: Profile, variant: str, draw: int, folder: Path, cache: str, step: int
) -> None:
    """Sample from the model of a step, and write the counts of right samples by problem."""
    start_job()
    source, tokenizer, held_out = load_parts(profile, variant, cache, held_out=True)
    _, _, training = load_parts(profile, variant, cache)
    model = source if variant == "base" else str(folder / f"step{step}")
    rows = {"held_out": held_out.rows[:: STEPS[step]]}
    if step == max(STEPS):
        rows["train"] = training.rows[:: max(1, len(training.rows) // TRAIN_PROBLEMS)]
    both = [row for part in rows.values() for row in part]
    counts = evaluate_model(
        profile.evaluation,
        model,
        tokenizer,
        both,
        held_out.reward,
        held_out.max_completion_tokens,
        seed=step,
    )
    size = len(rows["held_out"])
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
        "distinct": held_out.distinct.groupby(families).mean().mean(),
    }
    row |= scores
    if parts["train"]:
        seen = pd.DataFrame(parts["train"])
        rates = seen.successes / seen.trials
        row["train_mean"] = float(rates.mean())
        row["train_families"] = rates.groupby(seen.family).mean().to_dict()
    return row


def play(words: Path | None, draw: int, arm: str, cache: str) -> None:
    """Play one arm on one draw: each part in a process of its own, whose memory its end frees."""
    name = f"{arm}_draw{draw}"
    target = HERE / "rows" / f"{name}.json"
    if target.is_file():
        return
    variant = arm.partition("@")[0]
    folder = Path("runs/smol") / name
    steps = [max(STEPS)] if variant == "base" else list(STEPS)
    common = ["--draw", str(draw), "--cache-dir", cache, arm]
    if words is not None:
        common = ["--words", str(words), *common]
    if variant != "base" and not (folder / TRAINED).is_file():
        subprocess.run([sys.executable, __file__, "--part", "train", *common], check=True)
    for step in steps:
        if not (folder / f"step{step}.json").is_file():
            part = ["--part", "evaluate", "--step", str(step)]
            subprocess.run([sys.executable, __file__, *part, *common], check=True)
    from gdro_lab.machine import describe_machine

    trained = {"record": [], "logs": [], "seconds": {}, "shares": {}}
    if variant == "base":
        _, _, data = load_parts(read_profile(words, draw, arm), "base", cache)
        trained["shares"] = Counter(row["family"] for row in data.rows)
    else:
        trained = json.loads((folder / TRAINED).read_text())
    rate = float(arm.partition("@")[2] or 0)
    identity = {"world": "words", "method": variant, "learning_rate": rate, "draw": draw}
    rows = [row_of(step, folder, trained, identity) for step in steps]
    content = {
        "rows": rows,
        "record": trained["record"],
        "logs": trained["logs"],
        "seconds": trained["seconds"],
        "machine": describe_machine(pretrained=True),
    }
    replace_text(target, json.dumps(content, default=float) + "\n")
    for step in steps:
        shutil.rmtree(folder / f"step{step}", ignore_errors=True)
    shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--words", type=Path)
    parser.add_argument("--draw", type=int, required=True)
    parser.add_argument("--cache-dir", default=".cache/bases")
    parser.add_argument("--part", choices=["train", "evaluate"])
    parser.add_argument("--step", type=int, default=max(STEPS))
    parser.add_argument("arms", nargs="+")
    given = parser.parse_args()
    for arm in given.arms:
        if given.part is None:
            play(given.words, given.draw, arm, given.cache_dir)
            continue
        profile = read_profile(given.words, given.draw, arm)
        variant = arm.partition("@")[0]
        folder = Path("runs/smol") / f"{arm}_draw{given.draw}"
        if given.part == "train":
            train(profile, variant, given.draw, folder, given.cache_dir)
        else:
            evaluate(profile, variant, given.draw, folder, given.cache_dir, given.step)


if __name__ == "__main__":
    main()
