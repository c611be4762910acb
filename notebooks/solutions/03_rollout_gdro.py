"""One way to solve the exercises of notebook 03."""

import numpy as np


def square_root_law(variances, shares, mean_rollouts):
    return mean_rollouts * np.sqrt(variances) / (shares @ np.sqrt(variances))


def joint_choice(values, counts, arms, budget):
    best = {0: (0.0, [])}  # by what was spent: value and arms
    for count, value_N in zip(counts, values, strict=True):
        reached = {}
        for spent, (total, chosen) in best.items():
            for n, value in zip(arms, value_N, strict=True):
                w = spent + count * n
                if w <= budget and (w not in reached or total + value > reached[w][0]):
                    reached[w] = (total + value, [*chosen, n])
        best = reached
    return np.array(best[budget][1])


def arm_strategies(arm_losses, eta, gamma):
    odds = np.exp(-eta * (arm_losses - arm_losses.min(axis=1, keepdims=True)))
    return (1 - gamma) * odds / odds.sum(axis=1, keepdims=True) + gamma / arm_losses.shape[1]


def exp3p_losses(loss, arm, probabilities, bonus):
    estimates = -bonus / probabilities
    estimates[arm] += loss / probabilities[arm]
    return estimates


def rollout_gdro(counts, variances, arms, mean_rollouts, eta, ema):
    num_bins = len(counts[0])
    price = 0.0
    score_B = np.zeros(num_bins)
    visits_B = np.zeros(num_bins)

    def strategies():
        v_B = np.ones(num_bins)
        if score_B.any():
            seen = visits_B > 0
            v_B[seen] = score_B[seen] / (1 - (1 - ema) ** visits_B[seen])
            v_B[~seen] = v_B[seen].mean()
            v_B /= v_B.mean()
        return arm_strategies(v_B[:, None] * mean_rollouts**2 / arms + price * arms, eta, 0.01)

    for counts_B, variances_B in zip(counts, variances, strict=True):
        demand = counts_B @ (strategies() @ arms) / counts_B.sum()
        present = counts_B > 0
        score_B[present] += ema * (variances_B[present] - score_B[present])
        visits_B += present
        price += 0.05 * (demand - mean_rollouts)
    present = counts[-1] > 0
    rollouts_B = np.zeros(num_bins, int)
    count = counts[-1][present]
    values = count[:, None] * np.log(strategies())[present]
    rollouts_B[present] = joint_choice(values, count, arms, mean_rollouts * count.sum())
    return rollouts_B, price


def rollouts_at_cost(variances, costs, shares, total_cost):
    # −v/n² + μ cost = 0, so n ∝ √(v / cost)
    return total_cost * np.sqrt(variances / costs) / (shares @ np.sqrt(variances * costs))


def demand_with_absent_bins(steps=400, batch=24, seed=0):
    """Exercise 7: the demand in each step where a batch holds only some of the bins, (steps,).

    It still comes to the budget on average. In a single step it depends on which bins came, since
    the price moves by α_μ times the difference and cannot follow one batch.
    """
    from gdro import RolloutAdversary

    p_of_bin = np.linspace(0.02, 0.98, 10)
    rng = np.random.default_rng(seed)
    adversary = RolloutAdversary(10, eta=2.0, seed=seed)
    demands = []
    for _ in range(steps):
        counts_B = rng.multinomial(batch, np.full(10, 0.1))
        rollouts_B = adversary.allocate(counts_B)
        variances_B = np.where(counts_B > 0, p_of_bin * (1 - p_of_bin), np.nan)
        demands.append(adversary.update(counts_B, rollouts_B, variances_B))
    return np.array(demands)


def _bin_counts(rng):
    """Prompts of four bins in three batches, (3, 4); one bin may never come."""
    return rng.permuted([[3, 2, 1, 1], [0, 2, 4, 1], [2, 1, 2, 0]], axis=1) * (
        rng.permutation([1, 1, 1, rng.integers(2)])
    )


def _shares(rng):
    return rng.dirichlet(np.ones(4))


def _variances(rng):
    return rng.random(4) * rng.permutation([1, 1, 1, rng.integers(2)])  # one may be 0


# The arguments that `check` draws, such that a wrong function differs in some case.
CASES = {
    "square_root_law": lambda rng: (_variances(rng), _shares(rng), rng.uniform(2, 9)),
    "joint_choice": lambda rng: (
        rng.random((3, 4)),
        rng.permutation([1, 1, 2]),
        np.arange(2, 6),
        int(rng.integers(9, 20)),
    ),
    "arm_strategies": lambda rng: (
        50 * rng.normal(size=(2, 4)),
        10 ** rng.uniform(-1, 3),
        rng.random(),
    ),
    "exp3p_losses": lambda rng: (
        rng.normal(),
        int(rng.integers(4)),
        rng.dirichlet(np.ones(4)),
        rng.random(),
    ),
    "rollout_gdro": lambda rng: (
        _bin_counts(rng),
        rng.uniform(0.02, 0.25, (3, 4)),
        np.arange(2, 6),
        4,
        rng.uniform(0.3, 2),
        rng.uniform(0.05, 0.9),
    ),
    "rollouts_at_cost": lambda rng: (
        rng.random(4),
        rng.uniform(20, 200, 4),
        _shares(rng),
        rng.uniform(100, 1000),
    ),
}
