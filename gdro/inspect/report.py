"""What a log says, as one JSON object.

Axes: G rollout groups, C classes of pass rates, N numbers of rollouts, F functions of a pass rate.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from gdro.checks import check
from gdro.inspect.difficulty import (
    EDGES,
    PassRates,
    mixed_probability,
    pass_probability,
    share_interval,
)
from gdro.inspect.table import About, Groups, Rollouts, choose_threshold, form_groups

OTHER_N = (2, 4, 8, 16, 32, 64)
OTHER_K = (1, 2, 4, 8, 16, 32, 64)
PARTS = 5  # of the run, whose shares are compared
FEWEST = 100  # groups of which anything is concluded
MOST_LEFT_OUT = 0.1  # of the rows
CLEARLY = 1.2  # times as many mixed groups
OF_TRAINER = About()


def summarize(rollouts: Rollouts, threshold: float | None = None, seed: int = 0) -> dict[str, Any]:
    """Summarize a log: all that the page says of it, as plain JSON values.

    A rollout is correct if its reward is above `threshold`; see `choose_threshold` for None.
    Refusal where no group has two rollouts.
    """
    chosen = choose_threshold(rollouts.rewards_R) if threshold is None else threshold
    if chosen is not None:
        chosen = check("threshold", float(chosen))
    groups = form_groups(rollouts, chosen or 0.0)
    about = replace(
        rollouts.about,
        left_out=rollouts.about.left_out + len(rollouts) - int(groups.trials_G.sum()),
        notes=(*rollouts.about.notes, *_notes_of_rollouts(rollouts, groups, threshold, chosen)),
    )
    return summarize_groups(groups, chosen, about, rollouts.counted_in, seed)


def summarize_groups(
    groups: Groups,
    threshold: float | None,
    about: About = OF_TRAINER,
    counted_in: str = "rollouts",
    seed: int = 0,
) -> dict[str, Any]:
    """As `summarize`, for groups that are counted already, at least one.

    `threshold` is None where it is not known what is correct, `counted_in` as of `Rollouts`.
    """
    sizes = groups.trials_G
    summary: dict[str, Any] = {
        "kind": about.kind,
        "rollouts": int(sizes.sum()),
        "tokens": None,
        "prompts": len(np.unique(groups.prompts_G)) if about.has_prompts else None,
        "steps": len(np.unique(groups.steps_G)) if about.has_steps else None,
        "number_of_groups": len(groups),
        "rollouts_per_group": float(sizes.mean()),
        "threshold": threshold,
        "silent": float(groups.is_flat_G.mean()),
        "silent_interval": share_interval(groups.is_flat_G, groups.prompts_G),
        "needed": _needed(groups, counted_in),
        "withheld": _withheld(groups, about.left_out),
        "notes": list(about.notes),
    }
    if about.unit == "tokens" and groups.lengths_G is not None:
        summary["tokens"] = int(groups.lengths_G.sum())
    if threshold is None:
        return summary | {"groups": None, "pass_rate": None}
    # of all groups, as they were sampled
    during = PassRates(groups.trials_G, groups.hits_G, groups.prompts_G, seed)
    rate = float(groups.hits_G.sum() / sizes.sum())
    if rate in (0, 1):
        summary["notes"].append(
            f"{'All' if rate else 'No'} rewards are above the threshold of {threshold:g}, so "
            "nothing tells prompts apart: check --threshold."
        )
    return summary | {
        "pass_rate": rate,
        "groups": shares_of(groups, np.ones(len(groups))),
        "groups_interval": intervals_of(groups),
        "rollouts_in": shares_of(groups, sizes),
        "length_in": None if groups.lengths_G is None else shares_of(groups, groups.lengths_G),
        "over_the_run": shares_over_the_run(groups) if about.has_steps else [],
        "pass_rates": difficulty_of(groups, seed) if about.has_prompts else None,
        **other_n(during, sizes),
    }


def _needed(groups: Groups, counted_in: str) -> dict[str, Any] | None:
    """Shares of what TRL computes that GRPO's gradient needs: nothing that cannot change it."""
    if groups.computed_G is None or groups.shared_G is None or groups.needed_G is None:
        return None
    computed = float(groups.computed_G.sum()) or 1.0
    return {
        "of": counted_in,
        "share": float(groups.needed_G.sum()) / computed,
        "share_with_beta": float(groups.shared_G.sum()) / computed,
    }


def _withheld(groups: Groups, left_out: int) -> str | None:
    """Why nothing is concluded from these groups, or None."""
    if len(groups) < FEWEST:
        return f"there are fewer than {FEWEST} rollout groups"
    rows = int(groups.trials_G.sum()) + left_out
    if left_out > MOST_LEFT_OUT * rows:
        return f"{left_out / rows:.0%} of the rows were left out"
    return None


def shares_of(groups: Groups, weights_G: np.ndarray) -> dict[str, float]:
    """Shares of solved, failed and mixed groups, weighted."""
    total = float(weights_G.sum()) or 1.0
    return {kind: float(weights_G[is_G].sum()) / total for kind, is_G in groups.kinds.items()}


def intervals_of(groups: Groups) -> dict[str, tuple[float, float]]:
    """95% intervals of the shares of solved, failed and mixed groups."""
    return {kind: share_interval(is_G, groups.prompts_G) for kind, is_G in groups.kinds.items()}


def shares_over_the_run(groups: Groups) -> list[dict[str, Any]]:
    """The shares in each fifth of the run, of whole steps; none of fewer steps than fifths."""
    steps, place_G = np.unique(groups.steps_G, return_inverse=True)
    if len(steps) < PARTS:
        return []
    part_G = place_G * PARTS // len(steps)
    parts = []
    for number in range(PARTS):
        part = groups.take(part_G == number)
        shares = shares_of(part, np.ones(len(part)))
        first = {"from_step": int(part.steps_G[0])}
        parts.append(first | shares | {"interval": intervals_of(part)})
    return parts


def difficulty_of(groups: Groups, seed: int) -> dict[str, Any]:
    """The distribution of pass rates as each prompt was last sampled, and its pass@k."""
    _, age_P = np.unique(groups.prompts_G[::-1], return_index=True)
    last = groups.take(np.sort(len(groups) - 1 - age_P))  # the newest group of each
    rates = PassRates(last.trials_G, last.hits_G, last.prompts_G, seed)
    class_M = np.digitize(rates.grid_M, EDGES[1:-1])
    in_class_CM = class_M == np.arange(len(EDGES) - 1)[:, None]
    shares_C, share_ends_C2 = rates.mean_of(in_class_CM.astype(float))
    passes_F, pass_ends_F2 = rates.by_number(pass_probability, np.array(OTHER_K))
    names = [str(k) for k in OTHER_K]
    return {
        "edges": list(EDGES),
        "shares": shares_C.tolist(),
        "interval": share_ends_C2.tolist(),
        "pass_at_k": dict(zip(names, passes_F.tolist(), strict=True)),
        "pass_at_k_interval": dict(zip(names, pass_ends_F2.tolist(), strict=True)),
    }


def other_n(rates: PassRates, trials_G: np.ndarray) -> dict[str, Any]:
    """Share of mixed groups at other n, and one that brings more of them per rollout."""
    mixed_N, ends_N2 = rates.by_number(mixed_probability, np.array(OTHER_N))
    names = [str(n) for n in OTHER_N]
    shares = dict(zip(names, mixed_N.tolist(), strict=True))
    ends = dict(zip(names, ends_N2.tolist(), strict=True))
    better = better_n(rates, trials_G)
    return {"mixed_by_n": shares, "mixed_by_n_interval": ends, "better_n": better}


def better_n(rates: PassRates, trials_G: np.ndarray) -> int | None:
    """A number of rollouts that brings clearly more mixed groups for as many rollouts, or None.

    Mixed groups per rollout, (1 - p^n - (1 - p)^n) / n, never rise with n, so only smaller numbers
    are tried, and each must bring a fifth more than the one before: two rollouts bring at most a
    seventh more than four, and their gradient is noisier. None for groups of unequal sizes.
    """
    now = int(trials_G[0])
    if (trials_G != now).any():
        return None
    best = now
    for n in (n for n in reversed(OTHER_N) if n < now):
        above_M = mixed_probability(rates.grid_M, n) / n
        if rates.least_ratio(above_M, mixed_probability(rates.grid_M, best) / best) < CLEARLY:
            break
        best = n
    return best if best < now else None


def _notes_of_rollouts(
    rollouts: Rollouts, groups: Groups, asked: float | None, threshold: float | None
) -> Iterator[str]:
    different = np.unique(rollouts.rewards_R)
    values = f"{len(different)} values from {different[0]:g} to {different[-1]:g}"
    singles = int((np.bincount(rollouts.groups_R) == 1).sum())
    if singles:
        yield (
            f"{singles} groups have a single rollout and are left out. If they belong together, "
            "name the question with --prompt, or the group with --group."
        )
    if rollouts.discarded_R is not None and rollouts.discarded_R.any():
        yield (
            f"{int(rollouts.discarded_R.sum())} rollouts were sampled and discarded: they count in "
            "the groups, not in what is computed."
        )
    if threshold is None:
        yield (
            f"Rewards take {values}, so nothing says which rollouts are correct: name the reward "
            "above which they are with --threshold, or the column that judges the answer with "
            "--reward."
        )
    elif len(different) > 2:
        yield (
            f"Rewards take {values}; a rollout counts as correct above {threshold:g} (--threshold)."
        )
        graded = int((~groups.is_flat_G & ~groups.kinds["mixed"]).sum())
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
