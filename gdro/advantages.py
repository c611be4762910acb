"""GRPO's advantages. P prompts, R rollouts."""

from typing import Any

import numpy as np

EPSILON = 1e-4  # of (3), as in TRL
ROUNDING = 1e-6  # rewards this near are equal; where all are small, relative to the largest


def preset_options(preset: object) -> dict[str, Any]:
    """Options by which a trainer computes (3): as TRL and verl do, or as printed, in "paper"."""
    is_paper = preset == "paper"
    return {
        "advantage_std": "population" if is_paper else "sample",
        "advantage_clip": 5.0 if is_paper else None,
    }


def flat_groups(rewards_R: np.ndarray, group_ids_R: np.ndarray, num_groups: int) -> np.ndarray:
    """Whether all rewards of each group are equal, (P,); NaN is passed over."""
    low_P = np.full(num_groups, np.inf)
    high_P = np.full(num_groups, -np.inf)
    np.fmin.at(low_P, group_ids_R, rewards_R)
    np.fmax.at(high_P, group_ids_R, rewards_R)
    largest_P = np.maximum(np.abs(low_P), np.abs(high_P))
    return high_P - low_P <= ROUNDING * np.minimum(largest_P, 1.0)


def group_advantages(
    rewards_R: np.ndarray,
    group_ids_R: np.ndarray,
    num_groups: int,
    std: str = "population",
    scale: str = "group",
    clip: float | None = None,
) -> np.ndarray:
    """(3): A_ij = (r_ij − μ_i) / (σ_i + ε) within rollout groups of any sizes, (R,).

    Groups of equal rewards have 0, where a mean that is exact only to rounding would leave 1e-13.

    Args:
        rewards_R: of each rollout.
        group_ids_R: number of its group, from 0.
        num_groups: groups, of which some may have no rollout.
        std: "population" divides the sum of squares by n as (3) prints, "sample" by n − 1 as TRL
            does.
        scale: "group" divides by σ_i, "batch" by the deviation of all rewards, "none" by 1.
        clip: bound on |A|, None for none.
    """
    sizes_P = np.maximum(np.bincount(group_ids_R, minlength=num_groups), 1)  # a group may be empty
    means_P = np.bincount(group_ids_R, rewards_R, num_groups) / sizes_P
    advantages_R = rewards_R - means_P[group_ids_R]
    advantages_R[flat_groups(rewards_R, group_ids_R, num_groups)[group_ids_R]] = 0.0
    freedom = 0 if std == "population" else 1
    if scale == "group":
        squares_P = np.bincount(group_ids_R, advantages_R**2, num_groups)
        sigma_P = np.sqrt(squares_P / np.maximum(sizes_P - freedom, 1))
        advantages_R = advantages_R / (sigma_P[group_ids_R] + EPSILON)
    elif scale == "batch":
        sigma = rewards_R.std(ddof=freedom) if len(rewards_R) > 1 else 0.0
        advantages_R = advantages_R / (sigma + EPSILON)
    return advantages_R if clip is None else np.clip(advantages_R, -clip, clip)
