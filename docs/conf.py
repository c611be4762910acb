"""The site: `make docs` renders pages, stored notebooks and the API reference to build/docs.

The source folder is the repository itself, so that a relative link means the same here and where
the repository is hosted. Nothing is fetched: MathJax comes from a package, fonts are the reader's
own.
"""

import re
import sys
from functools import cache, reduce
from pathlib import Path
from typing import Annotated, get_origin

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

project = "gdro"
author = "The gdro authors"
copyright = author
release = version = re.search(
    r'__version__ = "(.+)"', (ROOT / "gdro/__init__.py").read_text("utf-8")
)[1]

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx-mathjax-offline",
]
root_doc = "docs/index"
include_patterns = [
    "docs/**",
    "notebooks/*.ipynb",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "data/README.md",
    "data/pools/README.md",
    "figures/README.md",
]
include_patterns += ["data/studies/*.md", "data/studies/**/*.md", "benchmarks/**/*.md"]
exclude_patterns = ["docs/_*", "**/.*", "build", ".*", "runs"]
smartquotes = False  # a quotation mark in a docstring is that of a Python string
highlight_language = "none"  # a fence without a language holds shell commands or a formula
default_role = "literal"  # `x` in a docstring is code, as in Markdown

# pages and notebooks
nb_execution_mode = "off"
nb_merge_streams = True
nb_render_markdown_format = "gfm"  # tables that a cell prints as Markdown
myst_enable_extensions = ["amsmath", "attrs_inline", "colon_fence", "dollarmath"]
myst_heading_anchors = 3

# API reference: what needs torch is documented without it
autosummary_generate = True
autodoc_default_options = {"members": True, "show-inheritance": True, "member-order": "bysource"}
autodoc_mock_imports = [
    *("accelerate", "datasets", "huggingface_hub", "pandas", "peft", "psutil", "safetensors"),
    *("tokenizers", "torch", "tqdm", "transformers", "trl", "unsloth", "vllm"),
]
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
napoleon_numpy_docstring = False
add_module_names = False
templates_path = ["_templates"]

html_theme = "furo"
html_title = f"gdro {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_extra_path = ["_extra"]  # index.html, which leads to docs/index.html
html_copy_source = False
html_show_sourcelink = False
copybutton_exclude = ".linenos, .gp, .go"
html_theme_options = {"navigation_with_keys": True}


def as_rst(app, what, name, obj, options, lines):
    """Docstrings hold `code` and **bold**; indented examples become literal blocks."""
    if lines[:1] and lines[0].startswith("Alias for field number"):
        lines.clear()
    text, literal = [], False
    for line in lines:
        indented = line.startswith("    ")
        if indented and not literal and text and not text[-1].strip() and not _in_section(text):
            text += ["::", ""]
            literal = True
        elif line.strip() and not indented:
            literal = False
        text.append(line if literal else _escaped(line))
    lines[:] = text


def as_said(app, what, name, obj, options, lines):
    """Napoleon takes what precedes a colon in a property's first line for its type: undone."""
    for line in [line for line in lines if what == "property" and line.startswith(":type: ")]:
        lines.remove(line)
        lines[0] = f"{line.removeprefix(':type: ')}: {lines[0]}"


def _in_section(text):
    """Whether the indented lines that follow belong to a section such as Args."""
    heads = [line for line in text if line.strip() and not line.startswith(" ")]
    return bool(heads) and bool(
        re.fullmatch(r"(Args|Returns|Raises|Yields|Attributes|Note|Example)s?:", heads[-1])
    )


def _escaped(line):
    marked = r"`+[^`]*`+|\*\*[^*`]+\*\*|(?<!\S)\*\w[^*`]*\*(?!\w)|:\w+:`[^`]*`|^\s*\*+\w+:"
    parts = re.split(f"({marked})", line)
    return "".join(
        p if i % 2 else re.sub(r"[*|]|_\b(?!\w)", r"\\\g<0>", p) for i, p in enumerate(parts)
    )


def with_names(app, what, name, obj, options, signature, returns):
    """Array-likes and checked numbers by their names, in place of what they stand for."""
    return tuple(
        text and reduce(lambda text, alias: text.replace(*alias), _aliases(), text)
        for text in (signature, returns)
    )


@cache
def _aliases():
    """(what Sphinx writes, name) of the annotations that have a name, longest first."""
    from numpy.typing import ArrayLike, DTypeLike
    from sphinx.util.typing import stringify_annotation

    from gdro import checks

    named = {"ArrayLike": ArrayLike, "DTypeLike": DTypeLike}
    named |= {name: kind for name, kind in vars(checks).items() if get_origin(kind) is Annotated}
    pairs = [(stringify_annotation(kind, "smart"), name) for name, kind in named.items()]
    return sorted(pairs, key=lambda pair: -len(pair[0]))


def with_download(app, doctree):
    """A link to the notebook itself under each notebook's title."""
    from docutils import nodes
    from sphinx import addnodes

    page = app.env.docname
    if page.startswith("notebooks/"):
        link = addnodes.download_reference(reftarget=f"/{page}.ipynb", refdoc=page)
        link += nodes.Text("Download this notebook")
        doctree.next_node(nodes.title).parent.insert(1, nodes.paragraph("", "", link))


def as_page(app, docname, source):
    """Titles for the tables of stored runs, which have none; links to folders become text."""
    if docname.startswith(("data/studies/", "benchmarks/")):
        name = docname.removeprefix("data/studies/").removesuffix("/table")
        title = f"# Stored results: {name}\n\n" if docname.endswith("/table") else ""
        source[0] = f"---\norphan: true\n---\n\n{title}{source[0]}"
    here = (ROOT / docname).parent
    source[0] = re.sub(
        r"\[([^]]+)\]\(([^):#]+)\)",
        lambda link: link[1] if (here / link[2]).is_dir() else link[0],
        source[0],
    )


def setup(app):
    from packaging.specifiers import SpecifierSet
    from sphinx.ext.autodoc.mock import _MockObject

    # what stands in for torch and TRL: Tensor | None is an annotation, and no TRL is there to check
    _MockObject.__or__ = _MockObject.__ror__ = lambda self, other: self
    SpecifierSet.contains = lambda self, *args, **named: True
    app.connect("source-read", as_page)
    app.connect("doctree-read", with_download, priority=400)  # before downloads are collected
    app.connect("autodoc-process-signature", with_names)
    app.connect("autodoc-process-docstring", as_rst, priority=400)  # before napoleon
    app.connect("autodoc-process-docstring", as_said, priority=600)  # and after
