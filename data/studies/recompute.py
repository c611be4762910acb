"""Every number that the results quote, from the stored rows alone; nothing is trained.

    python data/studies/recompute.py            # all parts
    python data/studies/recompute.py games peers    # some of them

Differences are paired by draw, with 95% intervals by Student's t. "holm" is over everything in the
folder's table, unless the part says otherwise. Runs are compared at the end of training.
"""

import sys

import arena_parts
import plan_parts
import smol_parts

PARTS = {
    part.__name__: part
    for part in (
        arena_parts.tables,
        arena_parts.peers,
        arena_parts.families,
        arena_parts.rollouts,
        arena_parts.games,
        arena_parts.tuning,
        arena_parts.trl,
        arena_parts.study,
        arena_parts.tokens,
        arena_parts.oracles,
        arena_parts.bank,
        arena_parts.best,
        arena_parts.pooled,
        arena_parts.long,
        plan_parts.confirmed,
        plan_parts.equal_rates,
        plan_parts.replay,
        plan_parts.effects,
        plan_parts.palindromes,
        plan_parts.progress,
        plan_parts.hard,
        smol_parts.smol,
        smol_parts.smol_rollout,
        smol_parts.noise,
    )
}

if __name__ == "__main__":
    names = sys.argv[1:] or list(PARTS)
    unknown = sorted(set(names) - PARTS.keys())
    if unknown:
        raise SystemExit(f"no such part: {', '.join(unknown)}; there are {', '.join(PARTS)}")
    for name, part in PARTS.items():
        if name in names:
            part()
