"""Time and memory of the controller, for data sets of 14,100 prompts and of a million.

    python benchmarks/controller.py

plan + observe of method "both", draw of method "pivotal": the fewest milliseconds of processor time
of several calls, and the bytes that the bins hold for each prompt.
"""

import itertools
import sys
import time

import numpy as np

from gdro import GDROController
from gdro.state import Stateful
from gdro.uids import as_uids


def timed(call, *arguments):
    """Milliseconds of a call, and what it gave."""
    start = time.process_time()
    gave = call(*arguments)
    return 1e3 * (time.process_time() - start), gave


def step(controller, uids, rates_P, rng):
    """Milliseconds of plan + observe of a batch of 4 rollouts a prompt."""
    planning, plan = timed(controller.plan, uids)
    ids_R = np.repeat(np.arange(len(uids)), plan.rollouts)
    rewards_R = (rng.random(len(ids_R)) < rates_P[ids_R]).astype(float)
    observing, _ = timed(controller.observe, plan, ids_R, rewards_R)
    return planning + observing


def bytes_held(owner):
    """Bytes of the arrays and dictionaries in an object, and in those that it keeps a state of."""
    held = 0
    for part in vars(owner).values():
        if isinstance(part, np.ndarray):
            held += part.nbytes
        elif isinstance(part, Stateful):
            held += bytes_held(part)
        elif isinstance(part, dict):
            entries = itertools.chain(part.keys(), part.values())
            held += sys.getsizeof(part) + sum(map(sys.getsizeof, entries))
    return held


def main():
    rng = np.random.default_rng(0)
    for known in (14_100, 1_000_000):
        rates_D = rng.random(known)
        trials_D = np.full(known, 20)
        pool = as_uids(np.arange(known))
        hits_D = rng.binomial(trials_D, rates_D)
        both = GDROController("both")
        drawing = GDROController("pivotal")
        for controller in (both, drawing):
            controller.bins.update(pool, hits_D, trials_D)
        print(f"{known:,} prompts, {bytes_held(both.bins) / known:.0f} bytes each")
        for size, steps in ((256, 60), (8192, 4)):
            batches = [rng.choice(known, size, replace=False) for _ in range(steps)]
            fewest = min(step(both, uids, rates_D[uids], rng) for uids in batches)
            print(f"  plan + observe {size:5} × 4{fewest:10.2f} ms")
        fewest = min(timed(drawing.draw, pool, 256)[0] for _ in range(4))
        print(f"  draw 256{fewest:22.2f} ms")


if __name__ == "__main__":
    main()
