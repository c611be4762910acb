"""Exercises of the notebooks: the right functions, and what hidden cases are made of.

`gdro.teaching.lessons.check` compares. A function's arguments are drawn by their names; an exercise is
added by a function in `EXERCISES` and an entry in `ARGUMENTS` for each argument that is new.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from gdro import DifficultyBins, PromptGDRO, metrics, theory
from gdro.core.bins import move_bins
from gdro.methods import base, pivotal
from gdro.methods.arms import arm_log_probabilities, best_joint_arms
from gdro.methods.arms import exp3p_losses as estimated_losses
from gdro.methods.prompt_gdro import debiased
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


def baselines(rewards: Array, group_ids: Array, past: Array, rate: Array) -> Array:
    known, size = np.bincount(group_ids, rewards) + past * rate, np.bincount(group_ids) + past
    return (known[group_ids] - rewards) / (size[group_ids] - 1)


def draw_by_clocks(worth: Array, size: int, epsilon: float, clocks: Array) -> Array:
    probabilities = (1 - epsilon) * worth / worth.sum() + epsilon / len(worth)
    return (clocks / probabilities).argsort()[:size]


EXERCISES: dict[str, Callable[..., Any]] = {
    # 01
    "pass_at_k": metrics.pass_at_k,
    "beta_pass_at_k": beta_pass_at_k,
    "move_bins": move_bins,
    # 02
    "soft_worst_case": theory.soft_worst_case,
    "debiased_scores": lambda scores, visits, ema: debiased(scores, visits, ema),
    "prompt_gdro": prompt_gdro,
    # 03
    "square_root_law": theory.square_root_allocation,
    "joint_choice": lambda values, counts, arms, budget: best_joint_arms(values, counts, arms, budget)[0],
    "arm_strategies": lambda arm_losses, eta, gamma: np.exp(arm_log_probabilities(arm_losses, eta, gamma)),
    "exp3p_losses": lambda loss, arm, probabilities, bonus: estimated_losses(
        [loss], [arm], probabilities[None], bonus
    )[0],
    # 04
    "group_advantages": lambda rewards, group_ids: base.group_advantages(
        rewards, group_ids, group_ids.max() + 1
    ),
    "oracle_rollouts": lambda variances, arms, budget: best_joint_arms(
        -variances[:, None] / arms, np.ones(len(variances), int), arms, budget
    )[0],
    "paired_gain": paired_gain,
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
    "baselines": baselines,
    "draw_by_clocks": draw_by_clocks,
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
    "arm": lambda rng: int(rng.integers(4)),
    "budget": lambda rng: int(rng.integers(9, 20)),
    "ema": lambda rng: rng.uniform(0.05, 0.9),
    "eta": lambda rng: 10 ** rng.uniform(-1, 3),
    "hysteresis": lambda rng: rng.choice([0.0, 0.03, 0.1]),
    "k": lambda rng: int(rng.integers(1, 5)),
    "loss": lambda rng: rng.normal(),
    **dict.fromkeys(["epsilon", "gamma"], lambda rng: rng.random()),
    "advantages": lambda rng: rng.normal(size=3),
    "clocks": lambda rng: rng.standard_exponential(6),
    "counts": lambda rng: rng.permutation([1, 1, 2]),
    "current": lambda rng: rng.integers(-1, 5, 6),
    "past": lambda rng: rng.uniform(0, 4, 3),
    "rate": lambda rng: rng.random(3),
    "rewards": lambda rng: rng.integers(0, 2, 9).astype(float),
    "rollouts": lambda rng: rng.integers(2, 13, 4),
    "successes": lambda rng: rng.integers(0, 5, 5),
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
    "values": lambda rng: rng.random((3, 4)),
    "weight": lambda rng: rng.normal(size=(4, 3)),
    **dict.fromkeys(["baseline_S", "values_S"], lambda rng: rng.random((2, 8))),
    **dict.fromkeys(["logps", "ref_logps"], lambda rng: -rng.random((3, 4))),
}
