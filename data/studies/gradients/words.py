"""Makes the pools of word problems: a base of smol on the training problems of its own replicate.

    python data/studies/gradients/words.py --words FOLDER pools 0 1 2

FOLDER holds local copies of the word problems, as for data/studies/smol/play.py. A pool holds none
of their text. Run it again to go on.
"""

import argparse
import runpy
from pathlib import Path

import torch

from gdro_lab.experiments.parts import make_parts
from gdro_lab.machine import arithmetic
from gdro_lab.microscope.making import PoolChoice, choose_prompts, make_pool
from gdro_lab.microscope.models import load_base

SMOL = Path(__file__).parents[1] / "smol/play.py"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--words", type=Path)
    parser.add_argument("--cache-dir", default=".cache/bases")
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--rollouts", type=int, default=64)
    parser.add_argument("out", type=Path)
    parser.add_argument("replicates", nargs="+", type=int)
    args = parser.parse_args()
    read_profile = runpy.run_path(str(SMOL))["read_profile"]
    torch.set_num_threads(1)  # sums are split by threads
    args.out.mkdir(parents=True, exist_ok=True)
    for replicate in args.replicates:
        path = args.out / f"words-{replicate}.npz"
        if path.is_file():
            continue
        profile = read_profile(args.words, replicate, "base", None)
        parts = make_parts(profile, "base", args.cache_dir)
        model, tokenizer, ends = load_base(parts.source)
        choice = PoolChoice(
            rollouts=args.rollouts,
            max_new_tokens=parts.data.max_completion_tokens,
            ends=ends,
            seed=replicate,
            bfloat16=arithmetic(pretrained=True) == "bfloat16",
        )
        rows = choose_prompts(parts.data.rows, args.prompts, replicate)
        made = {"world": "words", "base": parts.taught[0], "replicate": replicate}
        make_pool(path, model, tokenizer, rows, parts.data.reward, choice, made=made)


if __name__ == "__main__":
    main()
