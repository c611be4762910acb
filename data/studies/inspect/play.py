"""Runs whose rollouts are kept, group by group, to hold `gdro inspect`'s forecasts to.

    python data/studies/inspect/play.py FOLDER --worlds rare-hard

Each run is one of the arena's: same task, base and settings, but
fewer steps. A file is a run: a row for each
rollout group of each step, with its prompt, its rollouts and how many of them are correct.
"""

import argparse
import itertools
from pathlib import Path

from gdro_lab import numerics

numerics.fix()  # before torch and numpy are imported

import pandas as pd
from transformers import AutoModelForCausalLM, AutoTokenizer

from gdro.files import replace_text
from gdro_lab import loop
from gdro_lab.experiments.loop_runs import draw_base
from gdro_lab.experiments.oracles import loop_controller
from gdro_lab.experiments.profile import Profile
from gdro_lab.experiments.spelling import read_spelling, slug_of

RATES = {"rare-hard": 2e-4, "gym-weak": 1e-4}
METHODS = ("grpo", "pivotal", "rollout_prompts", "rollout", "both")


def play(name: str, spelled: str, draw: int, seed: int, steps: int, bases: Path) -> pd.DataFrame:
    """Train one run of a draw's task and base; a row for each rollout group."""
    profile = Profile(
        name="inspect", backend="loop", worlds=[name], methods=[spelled], seeds=[seed]
    )
    [world] = profile.drawn_worlds
    variant = read_spelling(spelled)
    prompts, mean_rollouts = profile.batch_shape(variant)
    task, base = draw_base(world, draw, bases)
    model = AutoModelForCausalLM.from_pretrained(base)
    controller = loop_controller(variant, mean_rollouts, seed)
    kept = []
    observe = controller.observe

    def observe_and_keep(plan, group_ids, rewards, **more):
        groups = pd.DataFrame({"group": group_ids, "correct": more["correct"]}).groupby("group")
        counts = groups["correct"].agg(["size", "sum"]).astype(int)
        counts.insert(0, "prompt", pd.Series(plan.uids)[counts.index])
        kept.append(counts.assign(step=len(kept) + 1))
        return observe(plan, group_ids, rewards, **more)

    controller.observe = observe_and_keep
    loop.train(
        model,
        AutoTokenizer.from_pretrained(base),
        task.train,
        task.reward,
        controller,
        steps=steps,
        prompts=prompts,
        stream=world.spec.n_train == 0,
        learning_rate=RATES[name],
        max_new_tokens=task.max_completion_tokens,
        seed=seed,
    )
    table = pd.concat(kept).rename(columns={"size": "rollouts", "sum": "correct"})
    return table[["step", "prompt", "rollouts", "correct"]]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--worlds", nargs="+", default=list(RATES), choices=list(RATES))
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--draws", nargs="+", type=int, default=[0], help="of task and base")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], help="of trainings")
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--bases", type=Path, default=Path(".cache/bases"))
    args = parser.parse_args()
    arms = itertools.product(args.draws, args.seeds, args.worlds, args.methods)
    for draw, seed, world, spelled in arms:
        file = args.folder / f"{world}_{slug_of(spelled)}_draw{draw}_seed{seed}.csv"
        if not file.exists():
            table = play(world, spelled, draw, seed, args.steps, args.bases)
            args.folder.mkdir(parents=True, exist_ok=True)
            replace_text(file, table.to_csv(index=False))
            print(file, flush=True)
