"""What a run of GRPO wastes, from the rollouts that its trainer has logged; no model, no GPU.

    import gdro.inspect

    rollouts = gdro.inspect.read("output/completions")
    summary = gdro.inspect.summarize(rollouts)
    print(gdro.inspect.page(summary))

`gdro inspect output/completions` does the same.
"""

from gdro.inspect.page import in_short, page
from gdro.inspect.picture import draw
from gdro.inspect.read import read
from gdro.inspect.report import summarize, summarize_groups
from gdro.inspect.table import Groups, Rollouts, form_groups

__all__ = [
    "Groups",
    "Rollouts",
    "draw",
    "form_groups",
    "in_short",
    "page",
    "read",
    "summarize",
    "summarize_groups",
]
