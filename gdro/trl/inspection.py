"""The page of `gdro inspect` about a training, beside it when it ends.

Axes: P prompts of a plan, G rollout groups of the training.
"""

import json
import logging
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np

import gdro.inspect
from gdro.advantages import flat_groups
from gdro.controller import Plan
from gdro.inspect import Groups
from gdro.rounds import Samples

logger = logging.getLogger(__name__)
COLUMNS = ("prompts_G", "steps_G", "trials_G", "hits_G", "is_flat_G")


def groups_of(plan: Plan, samples: Samples, step: int) -> Groups:
    """The groups of at least two rollouts that came back for a plan; prompts by their rows.

    `step` is the optimizer step that they serve, from 1, as in TRL's log.
    """
    scored = samples.scored()
    size = len(plan)
    rows_P = np.empty(size, int)
    rows_P[plan.order_P] = plan.prompts.rows_P
    trials_P = np.bincount(scored.group_ids_R, minlength=size)
    groups = Groups(
        prompts_G=rows_P,
        steps_G=np.full(size, step),
        trials_G=trials_P,
        hits_G=np.bincount(scored.group_ids_R, scored.correct_R, size).astype(int),
        is_flat_G=flat_groups(scored.rewards_R, scored.group_ids_R, size),
    )
    return groups.take(trials_P > 1)


def joined(batches: Sequence[Groups]) -> Groups:
    """The groups of several batches."""
    none = {name: np.zeros(0, int) for name in COLUMNS} | {"is_flat_G": np.zeros(0, bool)}
    parts = [none, *map(vars, batches)]
    return Groups(**{name: np.concatenate([part[name] for part in parts]) for name in COLUMNS})


def write_page(batches: Sequence[Groups], threshold: float, folder: str) -> None:
    """Print the page's summary; write `inspect.json`, and `inspect.png` where matplotlib is there.

    A training does not fail because of it: its weights are not saved yet.
    """
    try:
        groups = joined(batches)
        if not len(groups):
            print("inspect: no group has two rollouts with a reward, so there is nothing to say")
            return
        summary = gdro.inspect.summarize_groups(groups, threshold)
        text = json.dumps(summary, indent=2, allow_nan=False)
        (Path(folder) / "inspect.json").write_text(text, encoding="utf-8")
        if find_spec("matplotlib") is not None:
            gdro.inspect.draw(summary).savefig(Path(folder) / "inspect.png", dpi=150)
    except Exception:
        logger.warning("the page of gdro inspect could not be made", exc_info=True)
        return
    print("\n".join(gdro.inspect.in_short(summary)), flush=True)
