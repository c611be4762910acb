"""What a run of GRPO wastes, from the rollouts that its trainer has logged; no model, no GPU.

    import gdro.inspect

    rollouts = gdro.inspect.read("output/completions")
    summary = gdro.inspect.summarize(rollouts)
    print(gdro.inspect.page(summary))

`gdro inspect output/completions` does the same.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gdro.inspect.page import in_short, page
from gdro.inspect.picture import draw, save
from gdro.inspect.read import read
from gdro.inspect.report import summarize, summarize_groups
from gdro.inspect.table import Groups, Rollouts, form_groups

__all__ = [
    "Groups",
    "Rollouts",
    "draw",
    "form_groups",
    "in_short",
    "inspect_logs",
    "page",
    "read",
    "summarize",
    "summarize_groups",
]


def inspect_logs(
    logs: Sequence[Path],
    threshold: float | None = None,
    as_json: bool = False,
    out: Path | None = None,
    **columns: Any,
) -> str:
    """Return what `gdro inspect` prints; write the picture to `out`."""
    summary = summarize(read(*logs, **columns), threshold)
    if out is not None:
        save(summary, out)
    if as_json:
        return json.dumps(summary, indent=2, allow_nan=False)
    return page(summary, str(logs[0]))
