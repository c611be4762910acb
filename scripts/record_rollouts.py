"""Where the rollouts of GRPO and pivotal go, by pass rate, each step: for notebook 07's picture.

    python scripts/record_rollouts.py data/greeting/rollouts.csv --replicates 300 301

Each run is one of the arena's: same task, base, seed and settings. A prompt's pass rate is exact:
it is the probability of its correct texts under the model, at most five steps ago. A row is a step;
a column counts the rollouts of the prompts whose pass rate lies between its two numbers.
"""

import argparse
import itertools
from pathlib import Path

from gdro_lab import numerics

numerics.fix()  # before torch and numpy are imported

import numpy as np
import pandas as pd
from transformers import AutoModelForCausalLM, AutoTokenizer

from gdro.files import replace_text
from gdro.uids import as_uids
from gdro_lab import loop
from gdro_lab.experiments.loop_runs import draw_base
from gdro_lab.experiments.oracles import PassRates, loop_controller
from gdro_lab.experiments.profile import Profile
from gdro_lab.experiments.spelling import read_spelling

EDGES = (0.0, 0.02, 0.3, 0.9, 1.0)  # the classes of notebook 07


def rollouts_by_pass_rate(name: str, spelled: str, draw: int, bases: Path) -> pd.DataFrame:
    """Train one run of the arena in a world, by its name or file; a row per step."""
    profile = Profile(
        name="greeting", backend="loop", worlds=[name], methods=[spelled], seeds=[draw]
    )
    [world] = profile.drawn_worlds
    variant = read_spelling(spelled)
    rate = variant.train["learning_rate"]
    prompts, mean_rollouts = profile.batch_shape(variant)
    task, base = draw_base(world, draw, bases)
    model = AutoModelForCausalLM.from_pretrained(base)
    tokenizer = AutoTokenizer.from_pretrained(base)
    pass_rates = PassRates(task, model, tokenizer)
    controller = loop_controller(variant, mean_rollouts, draw)
    counts = []
    plan_batch = controller.plan

    def plan_and_count(uids):
        plan = plan_batch(uids)
        counts.append(np.histogram(pass_rates(as_uids(uids)), EDGES, weights=plan.rollouts)[0])
        return plan

    controller.plan = plan_and_count
    loop.train(
        model,
        tokenizer,
        task.train,
        task.reward,
        controller,
        steps=profile.train.max_steps,
        prompts=prompts,
        learning_rate=rate,
        max_new_tokens=task.max_completion_tokens,
        seed=draw,
    )
    columns = [f"{low:g}-{high:g}" for low, high in itertools.pairwise(EDGES)]
    table = pd.DataFrame(counts, columns=columns).astype(int)
    table.insert(0, "step", table.index + 1)
    table = table.assign(world=world.name, method=variant.label, learning_rate=rate, draw=draw)
    return table[["world", "method", "learning_rate", "draw", "step", *columns]]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--world", default="rare-hard")
    parser.add_argument(
        "--methods", nargs="+", default=["grpo@2e-4", "pivotal@2e-4"], metavar="NAME@RATE"
    )
    parser.add_argument("--replicates", nargs="+", type=int, default=[300])
    parser.add_argument("--bases", type=Path, default=Path(".cache/bases"))
    args = parser.parse_args()
    tables = [
        rollouts_by_pass_rate(args.world, spelled, draw, args.bases)
        for draw in args.replicates
        for spelled in args.methods
    ]
    args.out.parent.mkdir(parents=True, exist_ok=True)
    replace_text(args.out, pd.concat(tables).to_csv(index=False))
