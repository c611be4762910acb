"""One way to solve the exercises of notebook 00."""

import numpy as np


def grpo_advantages(rewards):
    return (rewards - rewards.mean()) / (rewards.std() + 1e-4)


def mixed_groups(pass_rates, n):
    return (1 - pass_rates**n - (1 - pass_rates) ** n).sum()


def smallest_group(pass_rate, chance):
    n = 2
    while 1 - pass_rate**n - (1 - pass_rate) ** n < chance:
        n += 1
    return n


def learn(method, steps=300, seed=0):
    """Exercise 4: mean pass rate of each kind at the end, hardly ever solved first.

    With both adversaries the half-solved prompts get more answers and the failing ones more
    weight, so these two kinds gain on GRPO.
    """
    from scipy.special import expit, logit

    from gdro import GDROController

    rng = np.random.default_rng(seed)
    z = np.repeat(logit([0.02, 0.5, 0.98]), [16, 16, 64])
    controller = GDROController(method, mean_rollouts=4, seed=seed)
    for _ in range(steps):
        prompts = rng.permutation(96)[:24]
        plan = controller.plan(prompts)
        group_ids = np.repeat(np.arange(24), plan.rollouts)
        p = expit(z[prompts])[group_ids]
        rewards = 1.0 * (rng.random(len(p)) < p)
        batch = controller.observe(plan, group_ids, rewards)
        z[prompts] += 0.1 * np.bincount(group_ids, batch.advantages * (rewards - p), 24)
    return np.array([part.mean() for part in np.split(expit(z), [16, 32])])


# The arguments that `check` draws, such that a wrong function differs in some case.
CASES = {
    "grpo_advantages": lambda rng: (1.0 * rng.integers(0, 2, int(rng.integers(2, 7))),),
    "mixed_groups": lambda rng: (rng.random(5), int(rng.integers(2, 9))),
    "smallest_group": lambda rng: (rng.uniform(0.02, 0.98), rng.uniform(0.1, 0.95)),
}
