"""Time and memory of `gdro inspect` on a log of TRL's schema.

    python benchmarks/inspect_log.py --rollouts 1000000

The log is made in a folder that is removed, with prompts of 80 to 100 characters and completions of
about 400. The reading and the summary are timed apart.
"""

import argparse
import resource
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd

import gdro.inspect

GROUPS = 256  # of a step
N = 8  # rollouts of a group
PROMPTS = 50_000
WORDS = " ".join(f"word{n}" for n in range(1000))


def write_log(folder: Path, rollouts: int) -> None:
    """A file for each step, as `log_completions=True` leaves them."""
    rng = np.random.default_rng(0)
    rates = rng.beta(0.3, 0.5, PROMPTS)
    completions = folder / "completions"
    completions.mkdir()
    for step in range(1, max(rollouts // (GROUPS * N), 1) + 1):
        prompts = rng.choice(PROMPTS, GROUPS, replace=False).repeat(N)
        starts = rng.integers(0, 5000, len(prompts))
        table = {
            "step": step,
            "prompt": [f"Question {p}: {WORDS[p % 5000 :][:80]}" for p in prompts],
            "completion": [WORDS[start:][:400] for start in starts],
            "accuracy": (rng.random(len(prompts)) < rates[prompts]).astype(float),
            "advantage": 0.0,
        }
        pd.DataFrame(table).to_parquet(completions / f"completions_{step:05d}.parquet")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rollouts", type=int, default=1_000_000)
    args = parser.parse_args()
    with TemporaryDirectory() as folder:
        write_log(Path(folder), args.rollouts)
        began = time.process_time()
        rollouts = gdro.inspect.read(folder)
        read = time.process_time()
        gdro.inspect.summarize(rollouts)
        ended = time.process_time()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(
        f"{len(rollouts):,} rollouts: {read - began:.0f} processor seconds to read them, "
        f"{ended - read:.0f} for the summary, {peak:.2f} GiB at most"
    )
