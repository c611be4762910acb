"""Notebooks 00 to 04 and 07: what is stored is found again; each opens and closes as promised."""

import json
import re
from pathlib import Path

import nbformat
import papermill
import pytest

ROOT = Path(__file__).parents[2]
TEACHING = (
    "00_grpo_and_gdro",
    "01_difficulty_binning",
    "02_prompt_gdro",
    "03_rollout_gdro",
    "04_toy_games",
    "07_beyond_bins",
)
ALL = sorted([*TEACHING, "05_grpo_training", "06_results"])


def path_of(name):
    return ROOT / "notebooks" / f"{name}.ipynb"


def stored(name):
    return nbformat.read(path_of(name), as_version=4)


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def words_of(notebook):
    return "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")


def texts_of(notebook):
    """What the cells have printed and shown, pictures aside."""
    outputs = [output for cell in code_cells(notebook) for output in cell.outputs]
    data = [output.get("data", {}) for output in outputs]
    # a widget without stills is a progress bar, which is not stored
    kept = [d for d in data if not any("widget" in kind for kind in d) or "image/png" in d]
    shown = [item for d in kept for item in sorted(d.items())]
    printed = "".join(output.get("text", "") for output in outputs)  # in however many pieces
    return printed, [value for kind, value in shown if kind.startswith("text/")]


@pytest.mark.parametrize("name", TEACHING)
def test_shipped_as_executed_and_normalized(name):
    """All cells in order, nothing that differs from run to run or from machine to machine."""
    notebook = stored(name)
    nbformat.validate(notebook)
    cells = code_cells(notebook)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell.outputs]
    assert {o.output_type for o in outputs} <= {"stream", "display_data", "execute_result"}
    assert {o.get("name", "stdout") for o in outputs} == {"stdout"}  # no warnings
    kinds = {kind for output in outputs for kind in output.get("data", {})}
    assert kinds == {"text/plain", "text/html", "image/png"}  # no widget, which needs a kernel
    assert set(notebook.metadata) == {"kernelspec", "language_info"}
    assert {key for cell in notebook.cells for key in cell.metadata} <= {"tags", "jupyter"}
    text = json.dumps([o for o in outputs if "image/png" not in o.get("data", {})])
    assert not re.search(r"/(work|home|root|tmp|Users)/|0x[0-9a-f]{6}", text)


@pytest.mark.slow
@pytest.mark.parametrize("name", TEACHING)
def test_runs_to_the_stored_numbers(name, tmp_path):
    source = stored(name)
    tagged = [cell for cell in source.cells if "parameters" in cell.metadata.get("tags", [])]
    saves = any("figures_dir" in cell.source for cell in tagged)
    parameters = {"figures_dir": str(tmp_path)} if saves else {}
    executed = papermill.execute_notebook(
        path_of(name), tmp_path / "out.ipynb", parameters, progress_bar=False, cwd=ROOT
    )
    assert texts_of(executed) == texts_of(source)


@pytest.mark.parametrize("name", ALL)
def test_a_picture_is_near_the_top_and_the_environment_is_set_first(name):
    cells = stored(name).cells
    sources = "\n".join(cell.source for cell in cells if cell.cell_type == "code")
    assert re.search("^(import|from) .*", sources, re.M)[0].startswith("import gdro_lab")
    if name in TEACHING:
        outputs = [output for cell in cells[:5] for output in cell.get("outputs", [])]
        assert any("image/png" in output.get("data", {}) for output in outputs)
        assert "minutes" in cells[0].source
        assert any("show(roadmap(" in cell.source for cell in cells)  # the map
        assert "**Next:**" in words_of(stored(name))


@pytest.mark.parametrize("name", ALL)
def test_every_question_has_its_answer_and_sources_are_named(name):
    notebook = stored(name)
    words = words_of(notebook)
    marks = re.findall(r"\*\*(Question|Answer)\.\*\*", words)
    assert marks == ["Question", "Answer"] * (len(marks) // 2)
    assert len(marks) >= 6
    assert "## References" in words
    assert words.count("arxiv.org/abs/") >= 2
    assert not any("^*" in text or "^\\*" in text for text in words.split())  # GitHub: write ^{*}
    for link in re.findall(r"\]\(([\w/]+\.(?:py|ipynb))\)", words):
        assert (ROOT / "notebooks" / link).exists(), link


@pytest.mark.parametrize("name", [name for name in TEACHING if name[:2] != "00"])
def test_sliders_have_stills_and_exercises_have_stubs_and_hints(name):
    notebook = stored(name)
    sliders = [cell for cell in code_cells(notebook) if "\nexplore(" in "\n" + cell.source]
    assert sliders
    assert all("image/png" in cell.outputs[-1].data for cell in sliders)
    names = re.findall(r'print\(check\("(\w+)"', "".join(cell.source for cell in notebook.cells))
    printed = "".join(o.get("text", "") for cell in code_cells(notebook) for o in cell.outputs)
    assert printed.count("not written yet") == len(names) >= 3
    words = words_of(notebook)
    assert words.count("<summary>Hint") >= 2
    assert "*Transfer.*" in words
    assert re.search(r"\]\(solutions/\w+\.py\)", words)


@pytest.mark.parametrize("name", ALL)
def test_cells_are_short(name):
    """At most 25 lines of code where it is shown, and 180 words but for formulas and addresses."""
    for cell in stored(name).cells:
        if cell.cell_type == "code" and "hide-input" not in cell.metadata.get("tags", []):
            lines = sum(bool(line.strip()) for line in cell.source.split("\n"))
            assert lines <= 25, cell.source[:60]
        elif cell.cell_type == "markdown":
            text = re.sub(r"\$\$.*?\$\$|\$.*?\$|\]\(.*?\)|`.*?`", "", cell.source, flags=re.S)
            assert sum(bool(re.search("[a-zA-Z]", word)) for word in text.split()) <= 180


def test_no_two_notebooks_define_one_function_and_together_they_are_small():
    """What two notebooks need lives in the package: no function name is defined in two of them."""
    names = []
    for name in TEACHING:
        lines = "\n".join(cell.source for cell in code_cells(stored(name))).split("\n")
        names += {line.split("(")[0] for line in lines if line.startswith(("def ", "class "))}
    assert len(names) == len(set(names))
    assert sum(path_of(name).stat().st_size for name in ALL) < 5_000_000
