"""Notebooks: shipped as executed; of those that teach what is stored is found again."""

import json
import re
from pathlib import Path

import nbformat
import papermill
import pytest

ROOT = Path(__file__).parents[2]
STORED = sorted(path.stem for path in (ROOT / "notebooks").glob("*.ipynb"))
TEACHING = [name for name in STORED if name[:2] not in {"05", "06", "08"}]  # these train


def path_of(name):
    return ROOT / "notebooks" / f"{name}.ipynb"


def stored(name):
    return nbformat.read(path_of(name), as_version=4)


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def texts_of(notebook):
    """What the cells have printed and shown, pictures aside."""
    outputs = [output for cell in code_cells(notebook) for output in cell.outputs]
    data = [output.get("data", {}) for output in outputs]
    # a widget without stills is a progress bar, which is not stored
    kept = [d for d in data if not any("widget" in kind for kind in d) or "image/png" in d]
    shown = [item for d in kept for item in sorted(d.items())]
    printed = "".join(output.get("text", "") for output in outputs)  # in however many pieces
    return printed, [value for kind, value in shown if kind.startswith("text/")]


@pytest.mark.parametrize("name", STORED)
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
    # no widget, which needs a kernel
    assert kinds <= {"text/plain", "text/html", "text/markdown", "image/png"}
    assert set(notebook.metadata) == {"kernelspec", "language_info"}
    assert {key for cell in notebook.cells for key in cell.metadata} <= {"tags", "jupyter"}
    sources = "\n".join(cell.source for cell in cells)
    first = re.findall("^(?:import|from|numerics) *.*", sources, re.M)[:2]
    assert [line.partition("  #")[0] for line in first] == [
        "from gdro_lab import numerics",
        "numerics.fix()",
    ]
    text = json.dumps([o for o in outputs if "image/png" not in o.get("data", {})])
    assert not re.search(r"/(work|home|root|tmp|Users)/|0x[0-9a-f]{6}", text)


@pytest.mark.parametrize("name", TEACHING)
def test_runs_to_the_stored_numbers(name, tmp_path, monkeypatch):
    monkeypatch.delenv("ATEN_CPU_CAPABILITY", raising=False)  # the kernels that the numerics choose
    source = stored(name)
    tagged = [cell for cell in source.cells if "parameters" in cell.metadata.get("tags", [])]
    saves = any("figures_dir" in cell.source for cell in tagged)
    parameters = {"figures_dir": str(tmp_path)} if saves else {}
    executed = papermill.execute_notebook(
        path_of(name), tmp_path / "out.ipynb", parameters, progress_bar=False, cwd=ROOT
    )
    assert texts_of(executed) == texts_of(source)


def test_the_index_of_figures_has_every_file_and_who_draws_it():
    index = (ROOT / "figures" / "README.md").read_text("utf-8")
    rows = dict(re.findall(r"^\| `(\w+)` \| .* \| (.*) \|$", index, re.MULTILINE))
    assert rows.keys() == {path.stem for path in (ROOT / "figures").glob("*.png")}
    assert rows.keys() - {"inspect"} == {path.stem for path in (ROOT / "figures").glob("*.pdf")}
    for figure, drawn_by in rows.items():
        if drawn_by.startswith("notebook "):
            path = next((ROOT / "notebooks").glob(f"{drawn_by[-2:]}_*.ipynb"))
            name = re.sub("(ablation_|map_pass|map_worst).*", r"\1", figure)
            assert f'"{name}' in "".join(cell.source for cell in code_cells(stored(path.stem)))
