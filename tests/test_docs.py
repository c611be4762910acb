"""Pages and notebooks: their links lead somewhere, and their tables and commands are true."""

import re
import shlex
from dataclasses import MISSING, fields, is_dataclass

import nbformat
import pytest
from helpers import own_methods
from processes import REPOSITORY as ROOT
from ruamel.yaml import YAML

from gdro import PromptAdversary, RolloutAdversary, find_method
from gdro.trainer import GDROConfig
from gdro_lab.cli import main
from gdro_lab.experiments.blocks import TrainChoice, Variant
from gdro_lab.experiments.profile import load_profile
from gdro_lab.tasks import MathChoice

FOLDERS = "*.md", "docs/**/*.md", "docs/*.ipynb", "data/README.md", "notebooks/*.ipynb"
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


def test_the_table_of_exercises_has_each_one_and_its_solution():
    told = {}
    table = (ROOT / "docs/exercises.md").read_text("utf-8")
    for number, place, solution in re.findall(
        r"^\| \[(\d+)\].* \| (\d) \| .* \| \d+ \| \w+ \| (.*) \|$", table, re.MULTILINE
    ):
        told[number, place] = solution
        for name, path in re.findall(r"`(\w+)`\]\((.*)\)", solution):
            source = (ROOT / "docs" / path).read_text("utf-8")
            assert re.search(rf"^(def|class) {name}\b", source, re.MULTILINE), name
    asked = {}
    for page in ROOT.glob("notebooks/*.ipynb"):
        cells = [cell.source for cell in nbformat.read(page, as_version=4).cells]
        text = "\n".join(cells).partition("## Exercises")[2].partition("\n## ")[0]
        for place, name in re.findall(r"^(\d)\. (?:\*\w+\.\* )?(?:`(\w+)\()?", text, re.MULTILINE):
            asked[page.name[:2], place] = name
    assert told.keys() == asked.keys()
    for exercise, name in asked.items():
        assert f"`{name}`" in told[exercise] or not name, exercise


def options_named_in(page, title):
    """The names in the first column of the first table under a heading."""
    text = (ROOT / "docs" / page).read_text("utf-8").partition(title)[2]
    table = text.partition("\n## ")[0].partition("\n\n**")[0]
    cells = re.findall(r"^\| ((?:`[^`]+`(?:, )?)+) \|", table, re.MULTILINE)
    return {name for names in cells for name in re.findall(r"`([^`]+)`", names)}


def test_the_pages_name_every_option():
    config = options_named_in("trainer.md", "## The options of GDROConfig")
    assert config == GDROConfig.__annotations__.keys()
    variant = options_named_in("your-own-data.md", "## The fields of a variant")
    assert variant == Variant.model_fields.keys()
    task = options_named_in("your-own-data.md", "## The fields of `task`")
    assert task == MathChoice.model_fields.keys() - {"kind"}


def test_the_page_has_the_defaults_of_training_and_the_example():
    text = (ROOT / "docs/your-own-data.md").read_text("utf-8")
    assert (ROOT / "examples/ten_problems.yaml").read_text("utf-8") in text
    table = text.partition("## The fields of `train`")[2].partition("\n## ")[0]
    told = dict(re.findall(r"^\| `(\w+)` \| (.*?) \|", table, re.MULTILINE))
    assert told.pop("per_device_train_batch_size") == "all at once"
    wanted = TrainChoice().model_dump(exclude={"per_device_train_batch_size"})
    yaml = YAML(typ="safe")
    assert {name: yaml.load(value.strip("`")) for name, value in told.items()} == wanted


def test_the_page_of_peers_has_the_defaults_of_every_method():
    told = {}
    text = (ROOT / "docs/peers.md").read_text("utf-8").partition("## Hyperparameters")[2]
    rows = re.findall(r"^\| (`.*?`) \| (.*) \|$", text.partition("\n## ")[0], re.MULTILINE)
    for names, cell in rows:
        defaults = {key: value.strip('"') for key, value in re.findall(r"`(\w+)=([^`{]+)`", cell)}
        for name in re.findall(r"`([^`]+)`", names):
            told.setdefault(name, {}).update(defaults)
    told["pivotal_replay"] |= told["pivotal"]
    kinds = {name: find_method(name) for name in own_methods()}
    kinds |= {"prompt={…}": PromptAdversary, "rollout={…}": RolloutAdversary}
    of_controller = {"num_bins", "n_min", "n_max", "mean_rollouts", "seed"}
    of_controller |= {"prompt", "rollout", "rates"}
    for name, kind in kinds.items():
        options = fields(kind) if is_dataclass(kind) else ()
        options = [one for one in options if one.name not in of_controller]
        # an empty dictionary, which the page writes in braces, is made anew by a factory
        defaults = {one.name: str(one.default) for one in options if one.default is not MISSING}
        assert told.get(name, {}) == defaults, name


def test_commands_on_the_pages_are_taken():
    taken = 0
    for page in PAGES:
        if page.suffix != ".md":
            continue
        text = page.read_text("utf-8")
        blocks = re.findall(r"^```\w*\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
        lines = [line for block in blocks for line in block.splitlines()]
        for line in lines:
            if not line.startswith("gdro "):
                continue
            _, name, *rest = shlex.split(line, comments=True)
            context = main.commands[name].make_context(name, rest)
            profile = context.params.get("profile", "tiny")
            if "/" not in profile and profile.islower():  # not a file, and no PLACEHOLDER
                load_profile(profile)
            taken += 1
    assert taken > 5
