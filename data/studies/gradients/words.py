"""Makes the pools of word problems: a base of smol on the training problems of its own replicate.

    python data/studies/gradients/words.py --words FOLDER pools 0 1 2

FOLDER holds local copies of the word problems; without it they come from the hub. A pool holds none
of their text. Run it again to go on.
"""

import argparse
from pathlib import Path

import torch

from gdro_lab.experiments.parts import make_parts
from gdro_lab.experiments.profile import Profile, load_profile
from gdro_lab.machine import arithmetic
from gdro_lab.microscope.making import PoolChoice, choose_prompts, make_pool
from gdro_lab.microscope.models import load_base

SMOL = Path(__file__).parents[1] / "smol/smol-words.yaml"
FILES = {
    "asdiv": ["asdiv.jsonl"],
    "gsm8k": ["gsm8k_train.jsonl"],
    "mawps": ["mawps_addsub.jsonl", "mawps_multiarith.jsonl", "mawps_singleop.jsonl"],
    "svamp": ["svamp.jsonl"],
}


def read_profile(words: Path | None, replicate: int) -> Profile:
    """The study's profile on a replicate, with local copies of its problems."""
    profile = load_profile(SMOL).drawn(replicate)
    if words is None:
        return profile
    paths = {name: [str(words / file) for file in files] for name, files in FILES.items()}
    task = profile.task.model_copy(update={"paths": paths})
    return profile.model_copy(update={"task": task})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--words", type=Path)
    parser.add_argument("--cache-dir", default=".cache/bases")
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--rollouts", type=int, default=64)
    parser.add_argument("out", type=Path)
    parser.add_argument("replicates", nargs="+", type=int)
    args = parser.parse_args()
    torch.set_num_threads(1)  # sums are split by threads
    args.out.mkdir(parents=True, exist_ok=True)
    for replicate in args.replicates:
        path = args.out / f"words-{replicate}.npz"
        if path.is_file():
            continue
        profile = read_profile(args.words, replicate)
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
        made = {"world": "words", "base": parts.start, "replicate": replicate}
        make_pool(path, model, tokenizer, rows, parts.data.reward, choice, made=made)


if __name__ == "__main__":
    main()
