"""What a run of GRPO wastes, from the rollouts that its trainer has logged; no model, no GPU.

    import gdro.inspect

    rollouts = gdro.inspect.read("output/completions")
    summary = gdro.inspect.summarize(rollouts)
    print(gdro.inspect.page(summary))

`gdro inspect output/completions` does the same.
"""

import json
from collections.abc import Mapping, Sequence
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
    """Return what `gdro inspect` prints; write the picture at the end.

    Args:
        logs: paths for `read`, which also takes the columns.
        threshold: for `summarize`.
        as_json: the summary as JSON in place of the page.
        out: of the picture; None for none.
        **columns: names of columns.
    """
    summary = summarize(read(*logs, **columns), threshold)
    summary["notes"] += _disagreement(logs[0], summary)
    if out is not None:
        save(summary, out)
    if as_json:
        return json.dumps(summary, indent=2, allow_nan=False)
    return page(summary, str(logs[0]))


def _disagreement(log: Path, summary: Mapping[str, Any]) -> list[str]:
    """A note where the trainer that wrote a log has counted other groups, in `inspect.json`."""
    beside = [place / "inspect.json" for place in (log, *log.parents[:2])]
    found = next((path for path in beside if path.is_file()), None)
    counted = {} if found is None else json.loads(found.read_text(encoding="utf-8"))
    rollouts, silent = (counted.get(name) for name in ("rollouts", "silent"))
    if silent is None or (rollouts, silent) == (summary["rollouts"], summary["silent"]):
        return []
    return [
        f"The trainer itself counted {rollouts:,} rollouts, and equal rewards in {silent:.0%} of "
        f"its groups ({found}): this log does not say which rollouts of later rounds belong "
        "together, or lacks some that were sampled."
    ]
