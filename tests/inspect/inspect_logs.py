"""Small logs in the schemas of trainers, made by the tests that read them."""

import pandas as pd
from helpers import write_lines

GROUPS = [[1, 0, 1, 0], [0, 0, 0, 0], [1, 1, 1, 1], [0, 0, 0, 1]]
"""Rewards of the rollouts of each prompt of a step."""


def trl_rows(step, groups=GROUPS):
    """Rows of TRL's completions_*.parquet: the rows of a group stand together."""
    return [
        {
            "step": step,
            "prompt": f"What is {p}?",
            "completion": f"I say {step} {p} {i}.",
            "accuracy": float(reward),
            "advantage": 0.0,
        }
        for p, rewards in enumerate(groups)
        for i, reward in enumerate(rewards)
    ]


def write_trl(folder, rows_of_steps):
    """TRL's output folder, with a file for each list of rows."""
    completions = folder / "completions"
    completions.mkdir(parents=True)
    for place, rows in enumerate(rows_of_steps):
        pd.DataFrame(rows).to_parquet(completions / f"completions_{place + 1:05d}.parquet")
    return folder


def verl_rows(step, groups=GROUPS, keyed=True):
    """Rows of verl's {step}.jsonl; verl 0.9 with its v1 trainer writes keys of rollouts, too."""
    rows = []
    for p, rewards in enumerate(groups):
        for i, reward in enumerate(rewards):
            row = {"input": f"user\nWhat is {p}?", "output": f"{p} {i}", "gts": "1"}
            row |= {"score": float(reward), "step": step}
            rows.append(row | ({"uid": f"{step:08x}-a-{p}_{i}_0"} if keyed else {}))
    # balanced by length over the workers, so in no order of the groups
    return rows if keyed else rows[::2] + rows[1::2]


def write_verl(folder, **options):
    for step in (9, 10):
        write_lines(folder / f"{step}.jsonl", verl_rows(step, **options))
    return folder
