"""Progress and k where nothing is learned: pass rates that never change.

    python data/studies/k-progress/simulate.py

150 batches of 32 prompts × 4 rollouts, four seeds; means of the last 75 batches. r should be 0.
"""

import numpy as np
import own_prior  # registers pivotal_own_prior
import pandas as pd

from gdro import GDROController

BATCHES = 150
METHODS = ("pivotal", own_prior.PivotalOwnPrior.name)


def two_kinds(rng: np.random.Generator) -> np.ndarray:
    """Pass rates of easy and hard prompts mixed, as in rare-hard."""
    is_easy_P = rng.random(1000) < 0.87
    return np.where(is_easy_P, rng.beta(6, 0.6, 1000), rng.beta(0.5, 2, 1000))


POPULATIONS = {
    "4,000 prompts, Beta(.25, .9)": lambda rng: rng.beta(0.25, 0.9, 4000),
    "4,000 prompts, Beta(.5, .8)": lambda rng: rng.beta(0.5, 0.8, 4000),
    "1,000 prompts, Beta(.6, 1.5)": lambda rng: rng.beta(0.6, 1.5, 1000),
    "1,000 prompts, 87% Beta(6, .6), 13% Beta(.5, 2)": two_kinds,
}


def last_half(method: str, rate_P: np.ndarray, seed: int) -> tuple[float, float]:
    """Mean progress r and k of a method over the last half of the batches."""
    rng = np.random.default_rng(seed)
    controller = GDROController(method, seed=seed)
    uids = np.arange(len(rate_P))
    seen = []
    for _ in range(BATCHES):
        plan = controller.plan(controller.draw(uids, 32))
        group_ids_R = np.repeat(np.arange(len(plan)), plan.rollouts)
        rate_R = rate_P[np.asarray(plan.uids)[group_ids_R]]
        row = controller.observe(plan, group_ids_R, rng.random(len(rate_R)) < rate_R).row
        seen.append((row["progress"], row["k"]))
    progress, k = np.mean(seen[BATCHES // 2 :], axis=0)
    return progress, k


if __name__ == "__main__":
    rows = []
    for name, draw_rates in POPULATIONS.items():
        for seed in range(4):
            rate_P = draw_rates(np.random.default_rng(seed))
            for method in METHODS:
                progress, k = last_half(method, rate_P, seed)
                rows.append({"pass rates": name, "method": method, "r": progress, "k": k})
    table = pd.DataFrame(rows).groupby(["pass rates", "method"], sort=False).mean().unstack()
    print(table.round(2).to_markdown())
