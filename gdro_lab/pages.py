"""The pages that print claims: their numbers, and the tables with a column `claim`."""

import json
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

PAGES = "README.md", "docs/*.md", "docs/results/*.md", "notebooks/*.ipynb"
NO_CLAIM = "no such claim"
"""Written into a cell whose row names an unknown claim, or one that has no such score."""
NUMBER = re.compile(r"\.\d+ ±\.\d+\*?")
COUNT = re.compile(r"\((\d+)(?=[),])")
"""The number of replicates in a cell, as in "gym-weak (8)" and "gym-weak (6, fresh)"."""
SHARE = re.compile(r" \d+%$")
"""Behind the name of a family: its share of the training prompts."""


def pages_of(root: Path) -> Iterator[Path]:
    for pattern in PAGES:
        yield from sorted(root.glob(pattern))


def prose_of(page: Path) -> str:
    """A page, or the prose of a notebook."""
    text = page.read_text("utf-8")
    if page.suffix == ".md":
        return text
    cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "markdown"]
    return "\n".join("".join(cell["source"]) for cell in cells)


def plain(text: str) -> str:
    """Without what Markdown adds to a number: escapes, bold, spaces that do not break."""
    return text.replace("\\*", "*").replace("**", "").replace("\u00a0", " ")


def _split(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def held_rows(text: str) -> Iterator[tuple[str, list[str]]]:
    """Each row of a table with a column `claim`, and the names of the table's columns."""
    header: list[str] = []
    for line in text.splitlines():
        if not line.startswith("|"):
            header = []
        elif not header:
            header = _split(line)
        elif header[-1] == "claim" and not set(line) <= set("|-: "):
            yield line, header


def filled(text: str, cells: Mapping[tuple[str, str], str], scores: Collection[str]) -> str:
    """The page with its held cells as the rows have them; cells that are right stay untouched."""
    for line, header in list(held_rows(text)):
        old = _split(line)
        claim = old[-1].strip("`")
        count = cells.get((claim, "replicates"), "0")
        new = [COUNT.sub(f"({count}", cell) for cell in old]
        for place, name in enumerate(header[:-1]):
            name = SHARE.sub("", name)
            wanted = cells.get((claim, name))
            if wanted is None and name in scores and old[place] not in ("", "–"):
                wanted = NO_CLAIM
            if wanted is not None and plain(old[place]) != wanted:
                new[place] = wanted.replace("*", "\\*").replace(" ", "\u00a0")
        if new != old:
            text = text.replace(line, f"| {' | '.join(new)} |")
    return text
