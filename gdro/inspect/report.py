"""What a log says, as one JSON object.

Axes: G rollout groups, C classes of pass rates, N numbers of rollouts, F functions of a pass rate.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from gdro.checks import check
from gdro.inspect.difficulty import EDGES, PassRates, mixed_probability, pass_probability
from gdro.inspect.table import Groups, Rollouts, choose_threshold, form_groups

KINDS = ("solved", "failed", "mixed")
OTHER_N = (2, 4, 8, 16, 32, 64)
OTHER_K = (1, 2, 4, 8, 16, 32, 64)
PARTS = 5  # of the run, whose shares are compared


def summarize(
    rollouts: Rollouts,
    threshold: float | None = None,
    seed: int = 0,
) -> dict[str, Any]:
    """Summarize a log: all that the page says of it, as plain JSON values.

    Args:
        rollouts: of the log.
        threshold: a rollout is correct if its reward is greater; see `choose_threshold` for None.
        seed: of the bootstrap.

    Raises:
        Refusal: where no group has two rollouts.
    """
    chosen = choose_threshold(rollouts.rewards_R) if threshold is None else threshold
    chosen = check("threshold", float(chosen))
    groups = form_groups(rollouts, chosen)
    return summarize_groups(
        groups,
        chosen,
        kind=rollouts.kind,
        unit=rollouts.unit,
        has_steps=rollouts.has_steps,
        notes=[*rollouts.notes, *_notes_of_rollouts(rollouts, groups, threshold, chosen)],
        seed=seed,
    )


def summarize_groups(
    groups: Groups,
    threshold: float,
    *,
    kind: str = "TRL",
    unit: str = "tokens",
    has_steps: bool = True,
    notes: Sequence[str] = (),
    seed: int = 0,
) -> dict[str, Any]:
    """As `summarize`, for groups that are counted already.

    Args:
        groups: at least one.
        threshold: above which a reward was correct.
        kind, unit, has_steps, notes: as of `Rollouts`.
        seed: as for `summarize`.
    """
    # of all groups, as they were sampled
    during = PassRates(groups.trials_G, groups.hits_G, groups.prompts_G, seed)
    sizes = groups.trials_G
    tokens = None
    if unit == "tokens" and groups.lengths_G is not None:
        tokens = int(groups.lengths_G.sum())
    return {
        "kind": kind,
        "rollouts": int(sizes.sum()),
        "tokens": tokens,
        "prompts": len(np.unique(groups.prompts_G)),
        "steps": len(np.unique(groups.steps_G)) if has_steps else None,
        "rollouts_per_group": float(sizes.mean()),
        "pass_rate": float(groups.hits_G.sum() / sizes.sum()),
        "threshold": threshold,
        "groups": shares_of(groups, np.ones(len(groups))),
        "rollouts_in": shares_of(groups, sizes),
        "length_in": None if groups.lengths_G is None else shares_of(groups, groups.lengths_G),
        "silent": float(groups.is_flat_G.mean()),
        "over_the_run": shares_over_the_run(groups) if has_steps else [],
        "pass_rates": difficulty_of(groups, seed),
        **other_n(during),
        "notes": [*notes, *_notes_of_groups(groups, threshold)],
    }


def shares_of(groups: Groups, weights_G: np.ndarray) -> dict[str, float]:
    """Shares of solved, failed and mixed groups, weighted."""
    total = float(weights_G.sum()) or 1.0
    masks = (groups.is_solved_G, groups.is_failed_G, groups.is_mixed_G)
    return {
        kind: float(weights_G[mask_G].sum()) / total
        for kind, mask_G in zip(KINDS, masks, strict=True)
    }


def shares_over_the_run(groups: Groups) -> list[dict[str, float]]:
    """The shares in each fifth of the run, by groups."""
    ends = np.linspace(0, len(groups), PARTS + 1).astype(int)
    parts = []
    for start, end in pairwise(ends):
        if start < end:
            part = groups.take(np.arange(start, end))
            parts.append({"from_step": int(part.steps_G[0])} | shares_of(part, np.ones(len(part))))
    return parts


def last_visits(groups: Groups) -> Groups:
    """The newest group of each prompt."""
    _, place_P = np.unique(groups.prompts_G[::-1], return_index=True)
    return groups.take(np.sort(len(groups) - 1 - place_P))


def difficulty_of(groups: Groups, seed: int) -> dict[str, Any]:
    """The distribution of pass rates as each prompt was last sampled, and its pass@k."""
    last = last_visits(groups)
    rates = PassRates(last.trials_G, last.hits_G, last.prompts_G, seed)
    class_M = np.digitize(rates.grid_M, EDGES[1:-1])
    in_class_CM = class_M == np.arange(len(EDGES) - 1)[:, None]
    shares_C, share_ends_C2 = rates.mean_of(in_class_CM.astype(float), np.zeros(len(EDGES) - 1))
    k_F = np.array(OTHER_K)
    passes_F, pass_ends_F2 = rates.mean_of(pass_probability(rates.grid_M, k_F[:, None]), k_F)
    names = [str(k) for k in OTHER_K]
    return {
        "edges": list(EDGES),
        "shares": shares_C.tolist(),
        "interval": share_ends_C2.tolist(),
        "pass_at_k": dict(zip(names, passes_F.tolist(), strict=True)),
        "pass_at_k_interval": dict(zip(names, pass_ends_F2.tolist(), strict=True)),
    }


def other_n(rates: PassRates) -> dict[str, Any]:
    """Share of mixed groups at other n, and rollouts that are sampled for a mixed group."""
    n_N = np.array(OTHER_N)
    mixed_N, ends_N2 = rates.mean_of(mixed_probability(rates.grid_M, n_N[:, None]), n_N)
    names = [str(n) for n in OTHER_N]
    # dynamic sampling samples until enough groups are mixed, so it pays for the others as well
    cost_N = np.divide(n_N, mixed_N, out=np.full(len(n_N), np.nan), where=mixed_N > 0)
    costs = [float(cost) if np.isfinite(cost) else None for cost in cost_N]
    return {
        "mixed_by_n": dict(zip(names, mixed_N.tolist(), strict=True)),
        "mixed_by_n_interval": dict(zip(names, ends_N2.tolist(), strict=True)),
        "rollouts_per_mixed_group": dict(zip(names, costs, strict=True)),
    }


def _notes_of_rollouts(
    rollouts: Rollouts, groups: Groups, asked: float | None, threshold: float
) -> Iterator[str]:
    different = np.unique(rollouts.rewards_R)
    singles = int((np.bincount(rollouts.groups_R) == 1).sum())
    if singles:
        yield f"{singles} groups have a single rollout and are left out."
    if len(different) > 2:
        yield (
            f"Rewards take {len(different)} values from {different[0]:g} to {different[-1]:g}; a "
            f"rollout counts as correct above {threshold:g} (--threshold)."
        )
        graded = int((~groups.is_flat_G & ~groups.is_mixed_G).sum())
        if graded:
            yield (
                f"{graded / len(groups):.0%} of the groups are solved or failed, and yet their "
                "rewards differ: GRPO does train on these."
            )
    elif asked is None and threshold != 0:
        yield (
            f"Rewards are {different[0]:g} or {different[-1]:g}: the larger is taken as correct "
            "(--threshold)."
        )


def _notes_of_groups(groups: Groups, threshold: float) -> Iterator[str]:
    rate = groups.hits_G.sum() / groups.trials_G.sum()
    if rate in (0, 1):
        yield (
            f"{'All' if rate else 'No'} rewards are above the threshold of {threshold:g}, so "
            "nothing tells prompts apart: check --threshold."
        )
