"""The page of `gdro inspect` about a training, beside it when it ends.

Axes: P prompts of a plan, G rollout groups of the training.
"""

import json
import logging
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import gdro.inspect
from gdro.controller import Plan
from gdro.rounds import Samples
from gdro.trl.values import has_spread

logger = logging.getLogger(__name__)


class BatchGroups(NamedTuple):
    """The rollout groups of a batch, in plain values."""

    step: int
    """The optimizer step that it serves, from 1, as in TRL's log."""
    uids: list[int | str]
    """(P,)"""
    trials: list[int]
    """Rollouts with a reward, (P,)."""
    hits: list[int]
    """Correct ones among them, (P,)."""
    flat: list[bool]
    """Whether all their rewards are equal, (P,)."""


def groups_of(plan: Plan, samples: Samples, step: int) -> BatchGroups:
    """What came back for each prompt of a plan."""
    scored = samples.scored()
    size = len(plan)
    differs_R = has_spread(scored.rewards_R, scored.group_ids_R)
    return BatchGroups(
        step,
        np.asarray(plan.uids).tolist(),
        np.bincount(scored.group_ids_R, minlength=size).tolist(),
        np.bincount(scored.group_ids_R, scored.correct_R, size).astype(int).tolist(),
        (np.bincount(scored.group_ids_R, differs_R, size) == 0).tolist(),
    )


def write_page(batches: Sequence[BatchGroups], threshold: float, folder: str) -> None:
    """Print the page's summary; write `inspect.json`, and `inspect.png` where matplotlib is there.

    A training does not fail because of it: its weights are not saved yet.

    Args:
        batches: of the training.
        threshold: above which a reward is correct.
        folder: of the training.
    """
    try:
        groups = collect(batches)
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


def collect(batches: Sequence[BatchGroups]) -> gdro.inspect.Groups:
    """The groups of at least two rollouts."""
    uids: list[Any] = [uid for batch in batches for uid in batch.uids]
    number_of = {uid: number for number, uid in enumerate(dict.fromkeys(uids))}
    steps = [batch.step for batch in batches for _ in batch.uids]
    trials_G = np.array([n for batch in batches for n in batch.trials], int)
    groups = gdro.inspect.Groups(
        prompts_G=np.array([number_of[uid] for uid in uids], int),
        steps_G=np.array(steps, int),
        trials_G=trials_G,
        hits_G=np.array([n for batch in batches for n in batch.hits], int),
        is_flat_G=np.array([flat for batch in batches for flat in batch.flat], bool),
        lengths_G=None,
    )
    return groups.take(trials_G > 1)
