"""Pages and notebooks: their links lead somewhere."""

import re
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = "*.md", "docs/**/*.md", "data/README.md", "notebooks/*.ipynb"
PAGES = sorted(page for folder in FOLDERS for page in ROOT.glob(folder))


def text_of(page):
    """A page's Markdown outside code."""
    if page.suffix == ".ipynb":
        cells = nbformat.read(page, as_version=4).cells
        text = "\n\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    else:
        text = page.read_text("utf-8")
    return re.sub(r"^```.*?^```$|`[^`\n]*`", "", text, flags=re.DOTALL | re.MULTILINE)


def anchors_of(page):
    """The anchors that the repository's host and MyST give a page's headings."""
    heads = re.findall(r"^#+ +(.+)$", text_of(page), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).strip().replace(" ", "-") for head in heads}


def broken_links(page):
    """The links of a page to a file, a folder or a heading that is not there."""
    for target in re.findall(r"\]\(<?([^)>\s]+)>?\)", text_of(page)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        place = (page.parent / path) if path else page
        if not place.exists() or (anchor and anchor not in anchors_of(place)):
            yield target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    assert list(broken_links(page)) == []
