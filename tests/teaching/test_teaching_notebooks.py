"""Notebooks 01 to 04 and 07: what is stored, found again by papermill or nbval; bad parameters refused."""

import json
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from conftest import PATIENCE

from gdro.study.notebooks import NotebookError, run_notebook
from gdro.training.records import read_manifest

ROOT = Path(__file__).parents[2]
TEACHING = ("01_difficulty_binning", "02_prompt_gdro", "03_rollout_gdro", "04_toy_games", "07_beyond_bins")
ALL = sorted([*TEACHING, "05_grpo_training", "06_results"])
IN_JUPYTERLAB = {  # with what their default run takes seconds for, taken smaller
    "01_difficulty_binning": {"num_prompts": 60, "num_visits": 90, "replicates": 5},
    "07_beyond_bins": {"family_prompts": 10, "steps": 30, "games": 3, "visits": 10},
}
BASE = {"base_steps": 10, "base_batch": 32}
BAD = [
    ("01_difficulty_binning", {"hysteresis": 1.5}, "DifficultyBins(hysteresis=…) must be a number in"),
    (
        "02_prompt_gdro",
        BASE | {"gamma": 1.5},
        "PromptGDRO(gamma=…) must be a number in [0, 1], got 1.5; choose such a value",
    ),
    (
        "03_rollout_gdro",
        BASE | {"mean_rollouts": 40},
        "(mean_rollouts=…) must be a number in [2, 12], got 40",
    ),
    ("04_toy_games", {"seeds": 0}, "nothing to play"),
    ("07_beyond_bins", {"epsilon": 0.0}, "Pivotal(epsilon=…) must be"),
]

# nbval waits 5 s, fixed, for a cell's last message after the cell is done; a busy machine may take longer
# (https://github.com/computationalmodelling/nbval/issues/231)
NBVAL_PATIENCE = """
def pytest_collection_modifyitems(items):
    for cell in items:
        cell.output_timeout = 120
"""


def path_of(name):
    return ROOT / "notebooks" / f"{name}.ipynb"


@pytest.fixture(params=TEACHING)
def notebook(request):
    return nbformat.read(path_of(request.param), as_version=4)


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def parameters_cell(notebook):
    [cell] = [cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", [])]
    return cell


def test_shipped_as_executed_and_normalized(notebook):
    """`make notebooks` wrote it: all cells in order, nothing that differs from run to run or machine."""
    nbformat.validate(notebook)
    cells = code_cells(notebook)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell.outputs]
    assert {output.output_type for output in outputs} <= {"stream", "display_data", "execute_result"}
    assert {output.get("name", "stdout") for output in outputs} == {"stdout"}  # no warnings
    kinds = {kind for output in outputs for kind in output.get("data", {})}
    assert kinds == {"text/plain", "text/html", "image/png"}  # no widget, which needs a kernel
    assert set(notebook.metadata) == {"kernelspec", "language_info"}
    assert notebook.metadata.kernelspec.name == "python3"
    assert {key for cell in notebook.cells for key in cell.metadata} <= {"tags", "jupyter"}
    text = json.dumps([output for output in outputs if "image/png" not in output.get("data", {})])
    assert not re.search(r"/(work|home|root|tmp|Users)/|0x[0-9a-f]{6}", text)
    assert "perf_counter" not in json.dumps(notebook)  # no timings, which change
    assert {'figures_dir = "figures"', 'manifest = ""'} <= set(parameters_cell(notebook).source.split("\n"))


def test_sliders_have_a_picture_numbers_are_checked_and_formulas_render(notebook):
    cells = code_cells(notebook)
    sliders = [cell for cell in cells if "\nexplore(" in "\n" + cell.source]
    assert sliders
    assert all(any("image/png" in output.data for output in cell.outputs) for cell in sliders)
    assert sum("NBVAL_CHECK_OUTPUT" in cell.source for cell in cells) >= 4
    words = [cell.source for cell in notebook.cells if cell.cell_type == "markdown"]
    assert not any("^*" in text or "^\\*" in text for text in words)  # write ^{*}: GitHub
    assert all(text.count("$$") % 2 == 0 for text in words)


def test_exercises_have_stubs_and_hints_and_no_solution_in_sight(notebook):
    assert not any("solution" in cell.metadata.get("tags", []) for cell in notebook.cells)
    names = re.findall(r'print\(check\("(\w+)"', "".join(cell.source for cell in notebook.cells))
    assert len(names) >= 3
    stored = "".join(output.get("text", "") for cell in code_cells(notebook) for output in cell.outputs)
    assert stored.count("not written yet") == len(names)
    words = words_of(notebook)
    assert words.count("<summary>Hint") >= 2
    assert "*Transfer.*" in words


def words_of(notebook):
    return "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")


@pytest.mark.parametrize("name", ALL)
def test_every_question_has_its_answer_and_sources_are_named(name):
    words = words_of(nbformat.read(path_of(name), as_version=4))
    marks = re.findall(r"\*\*(Question|Answer)\.\*\*", words)
    assert marks == ["Question", "Answer"] * (len(marks) // 2)
    assert len(marks) >= 6
    assert "## References" in words
    assert words.count("arxiv.org/abs/") >= 2
    [link] = re.findall(r"\]\((solutions/\w+\.py)\)", words)
    assert (ROOT / "notebooks" / link).exists()


@pytest.mark.parametrize("name", ALL)
def test_cells_are_short(name):
    """At most 25 lines of code, and 150 words but for formulas and addresses."""
    notebook = nbformat.read(path_of(name), as_version=4)
    if name in TEACHING:
        assert any("show(roadmap(" in cell.source for cell in code_cells(notebook))
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert sum(bool(line.strip()) for line in cell.source.split("\n")) <= 25, cell.source[:60]
        else:
            text = re.sub(r"\$\$.*?\$\$|\$.*?\$|\]\(.*?\)", "", cell.source, flags=re.S)
            assert sum(bool(re.search("[a-zA-Z]", word)) for word in text.split()) <= 150, cell.source[:60]


def test_the_notebooks_are_small_together():
    assert sum(path.stat().st_size for path in (ROOT / "notebooks").glob("*.ipynb")) < 5_000_000


@pytest.mark.slow
@pytest.mark.parametrize("name", TEACHING[1:])
def test_runs_strictly_to_the_stored_numbers_and_leaves_manifest_and_figures(name, tmp_path):
    manifest = tmp_path / "manifest.json"
    parameters = {"manifest": str(manifest), "figures_dir": str(tmp_path / "figures")}
    executed = run_notebook(path_of(name), tmp_path / "out.ipynb", parameters, manifest=manifest)
    assert checked_outputs(executed) == checked_outputs(nbformat.read(path_of(name), as_version=4))
    check_figures(manifest)


@pytest.mark.slow
def test_nbval_finds_the_stored_numbers_of_the_first_notebook(tmp_path):
    """The marks in the cells are nbval's, for whoever prefers `pytest --nbval-lax notebooks`."""
    notebook = nbformat.read(path_of(TEACHING[0]), as_version=4)
    cell = parameters_cell(notebook)
    cell.source = cell.source.replace('figures_dir = "figures"', f"figures_dir = {str(tmp_path)!r}")
    nbformat.write(notebook, tmp_path / "copy.ipynb")
    (tmp_path / "conftest.py").write_text(NBVAL_PATIENCE, encoding="utf-8")
    options = f"--nbval-lax --nbval-cell-timeout={PATIENCE} --nbval-kernel-startup-timeout={PATIENCE} -q"
    options += f" -p no:cacheprovider -c /dev/null --rootdir {tmp_path}"
    command = [sys.executable, "-m", "pytest", *options.split(), str(tmp_path / "copy.ipynb")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]


def checked_outputs(notebook):
    """Of each cell whose numbers are quoted: what it has printed, and the texts of what it has shown."""
    found = {}
    for cell in code_cells(notebook):
        if "NBVAL_CHECK_OUTPUT" in cell.source:
            printed = "".join(output.get("text", "") for output in cell.outputs)
            shown = [item for output in cell.outputs for item in output.get("data", {}).items()]
            found[cell.source] = printed, sorted(item for item in shown if item[0].startswith("text/"))
    return found


def check_figures(manifest):
    """The manifest names at least one figure, and each is a picture."""
    figures = [Path(figure).read_bytes() for figure in read_manifest(manifest)["figures"]]
    assert figures
    assert all(content.startswith(b"\x89PNG") and len(content) > 5000 for content in figures)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "parameters", "message"), BAD, ids=lambda value: str(value)[:40])
def test_bad_parameters_are_refused_by_the_notebook(name, parameters, message, tmp_path):
    given = parameters | {"figures_dir": str(tmp_path / "figures")}
    with pytest.raises(NotebookError, match=re.escape(message)):
        run_notebook(path_of(name), tmp_path / "out.ipynb", given)
    assert not (tmp_path / "out.ipynb").exists()


def test_no_notebook_defines_a_function_twice_used():
    """What two notebooks need lives in the package: no function name is defined in two of them."""
    names = []
    for name in TEACHING:
        cells = json.loads(path_of(name).read_text(encoding="utf-8"))["cells"]
        lines = [line for cell in cells if cell["cell_type"] == "code" for line in cell["source"]]
        names += {line.split("(")[0] for line in lines if line.startswith(("def ", "class "))}
    assert len(names) == len(set(names))
