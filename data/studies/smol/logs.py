"""What the logs of the word problems say of noise and of groups; run it to print both tables.

    python data/studies/smol/logs.py

WSE (33) and the variance proxy of Rollout-GDRO are over those of four rollouts for every bin, from
the batches after the first epoch: the proxy (28), where every prompt counts once, and as shipped,
where every rollout does. A mixed group has correct and wrong rollouts.
"""

import json
from pathlib import Path
from typing import Any

import pandas as pd

from gdro.metrics import weighted_standard_error
from gdro.theory import variance_proxy

STUDIES = Path(__file__).parents[1]
FIRST_EPOCH = 12
"""Batches."""
EVEN = 4
"""Rollouts of a prompt when all bins have the same."""


def noise(record: list[dict[str, Any]]) -> dict[str, float]:
    """What a run's counts of rollouts do to the noise, over even counts."""
    sigma, q, n = (
        pd.DataFrame([step[name] for step in record[FIRST_EPOCH:]], dtype=float).fillna(0)
        for name in ("deviation", "share", "rollouts")
    )
    n = n.mask(n == 0, EVEN)  # a bin without prompts in the batch
    even = variance_proxy(sigma**2, q, EVEN).sum()
    wse = weighted_standard_error(sigma, q, n).sum()
    return {
        "WSE": wse / weighted_standard_error(sigma, q, EVEN).sum(),
        "proxy, averaging by prompt": variance_proxy(sigma**2, q, n).sum() / even,
        "proxy, averaging by rollout": (q * n * sigma**2 / EVEN**2).to_numpy().sum() / even,
    }


def mixed_groups(logs: list[dict[str, float]]) -> dict[str, float]:
    """Part of a run's groups that are mixed; the first row of TRL's log is of ten batches."""
    of_batches = 1 - pd.DataFrame(logs).frac_reward_zero_std
    return {"mixed groups": of_batches.mean(), "in the first ten batches": of_batches.iloc[0]}


if __name__ == "__main__":
    noises = {}
    mixed = {}
    for file in sorted(STUDIES.glob("smol*/logs/*/*.json")):
        log = json.loads(file.read_text())
        run = f"{file.parent.name}/{file.stem}"
        if log["logs"]:  # the base has none
            mixed[run] = mixed_groups(log["logs"])
        if run.startswith("words/rollout@"):
            noises[run] = noise(log["record"])
    for table in (noises, mixed):
        print(f"{pd.DataFrame(table).T.to_markdown(floatfmt='.3f')}\n")
