"""Exercises of the notebooks: the right functions, and what hidden cases are made of.

`gdro.teaching.checker.check` compares. A function's arguments are drawn by their names; an exercise is added
by a function in `EXERCISES` and an entry in `ARGUMENTS` for each argument that is new. `EDGES` has, by
exercise, what changes in its edge cases, under the words that describe them.
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
from scipy.stats import beta as beta_law

from gdro import DifficultyBins, PromptGDRO, RolloutGDRO, metrics, theory
from gdro.core import advantages
from gdro.core.bins import move_bins
from gdro.methods import pivotal
from gdro.methods.arms import arm_log_probabilities, best_joint_arms
from gdro.methods.bandit import exp3p_losses as estimated_losses
from gdro.methods.batch import Batch
from gdro.methods.bin_game import debiased
from gdro.toy.maps import paired_gain

Array = np.ndarray


def beta_pass_at_k(successes: Array, trials: Array, k: int) -> Array:
    bins, uids = DifficultyBins(k=k), np.arange(len(trials))
    bins.update(uids, successes, trials)
    return bins.pass_at_k(uids)


def prompt_gdro(
    batch_bins: Array, batch_losses: Array, num_bins: int, eta: float, ema: float, max_weight: float
) -> Array:
    game = PromptGDRO(num_bins, eta=eta, ema=ema, max_weight=max_weight)
    for bins_P, losses_P in zip(batch_bins, batch_losses, strict=True):
        game.update(bins_P, losses_P)
    return game.weights()


def rollout_gdro(
    step_counts: Array, step_variances: Array, arms: Array, mean_rollouts: int, step_size: float, ema: float
) -> tuple[Array, float]:
    game = RolloutGDRO(len(step_counts[0]), arms[0], arms[-1], mean_rollouts, step_size, ema=ema)
    for counts_B, variances_B in zip(step_counts, step_variances, strict=True):
        game.update(counts_B, mean_rollouts * (counts_B > 0), np.where(counts_B > 0, variances_B, np.nan))
    return game.allocate(step_counts[-1]), game.price


def worst_share(losses: Array, shares: Array, alpha: float) -> tuple[float, Array]:
    hardest, q = np.argsort(-losses), np.zeros(len(losses))
    left = 1.0
    for b in hardest:
        q[b] = min(shares[b] / alpha, left)
        left -= q[b]
    return float(q @ losses), q


def holm(p_values: Array) -> Array:
    order, count = np.argsort(p_values), len(p_values)
    adjusted = np.maximum.accumulate(p_values[order] * np.arange(count, 0, -1)).clip(max=1)
    return adjusted[np.argsort(order)]


def mixed_group(alpha: Array, beta: Array, size: int) -> Array:
    j = np.arange(size)[:, None]
    of_total = (alpha + beta + j).prod(axis=0)
    return 1 - ((alpha + j).prod(axis=0) + (beta + j).prod(axis=0)) / of_total


def pivotal_advantages(rewards: Array, group_ids: Array) -> Array:
    hits, trials = np.bincount(group_ids, rewards), np.bincount(group_ids)
    batch: Any = SimpleNamespace(trials_P=trials, hits_P=hits, correct_R=rewards > 0, group_ids_R=group_ids)
    return pivotal.Pivotal().advantages(batch)


def next_k(
    hits: Array, trials: Array, successes: Array, failures: Array, gained: float, expected: float
) -> tuple[int, float, float]:
    visited: Any = SimpleNamespace(hits_P=hits, trials_P=trials, successes_P=successes, failures_P=failures)
    visited.rate_P = (successes + 0.5) / (successes + failures + 1)
    batch: Any = SimpleNamespace(hard_hits=lambda: Batch.hard_hits(visited))
    method = pivotal.Pivotal()
    method.gained, method.expected = gained, expected
    method.update(batch)
    return method.k_now, method.gained, method.expected


def draw_by_clocks(worth: Array, size: int, epsilon: float, clocks: Array) -> Array:
    probabilities = (1 - epsilon) * worth / worth.sum() + epsilon / len(worth)
    return (clocks / probabilities).argsort()[:size]


EXERCISES: dict[str, Callable[..., Any]] = {
    # 01
    "pass_at_k": metrics.pass_at_k,
    "beta_pass_at_k": beta_pass_at_k,
    "move_bins": move_bins,
    "probability_below": lambda successes, trials, level: beta_law.cdf(
        level, successes + 0.5, trials - successes + 0.5
    ),
    # 02
    "soft_worst_case": theory.soft_worst_case,
    "debiased_scores": lambda scores, visits, ema: debiased(scores, visits, ema),
    "prompt_gdro": prompt_gdro,
    "worst_share": lambda losses, shares, alpha_share: worst_share(losses, shares, alpha_share),
    # 03
    "square_root_law": theory.square_root_allocation,
    "joint_choice": lambda values, counts, arms, budget: best_joint_arms(values, counts, arms, budget)[0],
    "arm_strategies": lambda arm_losses, eta, gamma: np.exp(arm_log_probabilities(arm_losses, eta, gamma)),
    "exp3p_losses": lambda loss, arm, probabilities, bonus: estimated_losses(
        [loss], [arm], probabilities[None], bonus
    )[0],
    "rollout_gdro": rollout_gdro,
    "rollouts_at_cost": lambda variances, costs, shares, total_cost: (
        total_cost * np.sqrt(variances / costs) / (shares @ np.sqrt(variances * costs))
    ),
    # 04
    "group_advantages": lambda rewards, group_ids: advantages.group_advantages(
        rewards, group_ids, group_ids.max() + 1
    ),
    "oracle_rollouts": lambda variances, arms, budget: best_joint_arms(
        -variances[:, None] / arms, np.ones(len(variances), int), arms, budget
    )[0],
    "paired_gain": paired_gain,
    "holm": holm,
    # 05
    "clipped_loss": lambda ratios, advantages, mask, low, high: (
        -np.minimum(ratios.T * advantages, ratios.T.clip(1 - low, 1 + high) * advantages).T[mask > 0].mean()
    ),
    "kl_of_completions": lambda logps, ref_logps, mask: np.array(
        [np.mean(np.expm1(gap[m > 0]) - gap[m > 0]) for gap, m in zip(ref_logps - logps, mask, strict=True)]
    ),
    "merged_weight": lambda weight, lora_a, lora_b, lora_alpha: (
        weight + lora_alpha / len(lora_a) * lora_b @ lora_a
    ),
    # 06
    "effective_number": metrics.effective_number,
    "lead_lag": metrics.lead_lag,
    "weighted_standard_error": metrics.weighted_standard_error,
    # 07
    "value_for_two": lambda alpha, beta: pivotal.pivotal_value(alpha, beta, 2),
    "draw_by_clocks": draw_by_clocks,
    "pivotal_advantages": pivotal_advantages,
    "next_k": next_k,
    "mixed_group": mixed_group,
}
ARGUMENTS: dict[str, Any] = {  # the value itself, or a function that draws it
    "arms": np.arange(2, 6),
    "bonus": 0.01,
    "edges": np.arange(1, 5) / 5,
    "group_ids": np.repeat([0, 1, 2], [2, 3, 4]),
    "high": 0.28,
    "lora_alpha": 8.0,
    "low": 0.2,
    "max_weight": 4.0,
    "mean_rollouts": 4,
    "num_bins": 4,
    "size": 3,
    "alpha_share": lambda rng: rng.uniform(0.05, 1),
    "arm": lambda rng: int(rng.integers(4)),
    "budget": lambda rng: int(rng.integers(9, 20)),
    "ema": lambda rng: rng.uniform(0.05, 0.9),
    "eta": lambda rng: 10 ** rng.uniform(-1, 3),
    "hysteresis": lambda rng: rng.choice([0.0, 0.03, 0.1]),
    "k": lambda rng: int(rng.integers(1, 5)),
    "level": lambda rng: rng.uniform(0.05, 0.5),
    "loss": lambda rng: rng.normal(),
    "step_size": lambda rng: rng.uniform(0.3, 2),
    "total_cost": lambda rng: rng.uniform(100, 1000),
    **dict.fromkeys(["epsilon", "gamma"], lambda rng: rng.random()),
    "advantages": lambda rng: rng.normal(size=3),
    "clocks": lambda rng: rng.standard_exponential(6),
    "costs": lambda rng: rng.uniform(20, 200, 4),
    "counts": lambda rng: rng.permutation([1, 1, 2]),
    "current": lambda rng: rng.integers(-1, 5, 6),
    "p_values": lambda rng: rng.beta(0.5, 2, 6),
    "rewards": lambda rng: rng.integers(0, 2, 9).astype(float),
    "rollouts": lambda rng: rng.integers(2, 13, 4),
    "successes": lambda rng: rng.integers(0, 5, 5),
    "failures": lambda rng: rng.integers(0, 9, 5),
    "gained": lambda rng: rng.uniform(-2, 8),
    "expected": lambda rng: rng.uniform(0, 8),
    "hits": lambda rng: rng.integers(0, 5, 5),
    "trials": lambda rng: rng.integers(4, 12, 5),
    "weights": lambda rng: rng.lognormal(size=4),
    "visits": lambda rng: np.array([3, 0, 1, rng.integers(0, 9)]),
    **dict.fromkeys(["alpha", "beta"], lambda rng: rng.gamma(2, 2, 5) + 0.1),
    **dict.fromkeys(["deviations", "losses", "scores", "variances"], lambda rng: rng.random(4)),
    **dict.fromkeys(["estimate", "worth"], lambda rng: rng.random(6)),
    **dict.fromkeys(["probabilities", "shares"], lambda rng: rng.dirichlet(np.ones(4))),
    "arm_losses": lambda rng: 50 * rng.normal(size=(2, 4)),
    "batch_bins": lambda rng: rng.integers(0, 3, (3, 4)),  # of four: one is never visited
    "batch_losses": lambda rng: rng.random((3, 4)),
    "lora_a": lambda rng: rng.normal(size=(2, 3)),
    "lora_b": lambda rng: rng.normal(size=(4, 2)),
    "mask": lambda rng: 1 * (np.arange(4) < rng.integers(1, 5, (3, 1))),  # tokens said
    "ratios": lambda rng: rng.lognormal(0, 0.5, (3, 4)),
    "step_counts": lambda rng: rng.permuted([[3, 2, 1, 1], [0, 2, 4, 1], [2, 1, 2, 2]], axis=1),
    "step_variances": lambda rng: rng.uniform(0.02, 0.25, (3, 4)),
    "values": lambda rng: rng.random((3, 4)),
    "weight": lambda rng: rng.normal(size=(4, 3)),
    **dict.fromkeys(["baseline_S", "values_S"], lambda rng: rng.random((2, 8))),
    **dict.fromkeys(["logps", "ref_logps"], lambda rng: -rng.random((3, 4))),
}
EDGES: dict[str, dict[str, Callable[[dict[str, Any]], dict[str, Any]]]] = {
    "pass_at_k": {"no rollout was wrong": lambda case: {"successes": case["trials"]}},
    "move_bins": {
        "every estimate lies exactly on an edge": lambda case: {
            "estimate": case["edges"][[0, 1, 2, 3, 0, 2]], "hysteresis": 0.0,
        },
    },
    "soft_worst_case": {"η is 1000": lambda case: {"eta": 1000.0}},
    "prompt_gdro": {"scores exceed C": lambda case: {"batch_losses": 50 * case["batch_losses"], "eta": 0.1}},
    "worst_share": {"α is 1, the mean": lambda case: {"alpha_share": 1.0}},
    "square_root_law": {"a bin has no variance": lambda case: {"variances": np.array([0, 0.1, 0.2, 0.25])}},
    "rollout_gdro": {
        "a bin is never seen": lambda case: {"step_counts": np.tile([0, 3, 2, 1], (3, 1))},
    },
    "group_advantages": {
        "some groups have equal rewards": lambda case: {"rewards": 1.0 * (case["group_ids"] == 1)},
    },
    "draw_by_clocks": {"ε is 1: an even draw": lambda case: {"epsilon": 1.0}},
    "pivotal_advantages": {
        "a group has one rollout": lambda case: {"group_ids": np.repeat([0, 1, 2], [1, 4, 4])},
    },
    "next_k": {
        "no prompt was visited before": lambda case: {"successes": np.zeros(5), "failures": np.zeros(5)},
    },
    "effective_number": {
        "a probability is 0": lambda case: {"probabilities": np.array([0.5, 0, 0.25, 0.25])},
    },
}  # fmt: skip
