"""Run notebooks in place and store them with their outputs, the same bytes every time.

    python scripts/store_notebooks.py notebooks/02_prompt_gdro.ipynb …

Sliders are stored as a strip of stills, since without a kernel they cannot be moved.
"""

import sys
import tempfile
from pathlib import Path

import nbformat
import papermill

WIDGET = "application/vnd.jupyter.widget-view+json"


def store(path: Path) -> None:
    """Run a notebook from the present folder and replace it by its executed, normalized self."""
    with tempfile.TemporaryDirectory() as folder:
        executed = papermill.execute_notebook(
            path, Path(folder) / path.name, progress_bar=False, coalesce_streams=True
        )
    for name in ("papermill", "widgets"):
        executed.metadata.pop(name, None)
    for cell in executed.cells:
        for name in ("papermill", "execution"):
            cell.metadata.pop(name, None)
        if not cell.metadata.get("tags", True):  # papermill leaves an empty list
            del cell.metadata["tags"]
        for output in list(cell.get("outputs", [])):
            if output.output_type == "stream" and output.name == "stderr":
                raise SystemExit(f"{path}: a cell warns, which would be stored:\n{output.text}")
            if output.get("data", {}).pop(WIDGET, None) and "image/png" not in output.data:
                cell.outputs.remove(output)  # a progress bar
    executed.metadata.language_info = {"name": "python"}
    nbformat.write(executed, path)


if __name__ == "__main__":
    for given in map(Path, sys.argv[1:]):
        store(given)
        print(f"{given}: {given.stat().st_size / 1e6:.2f} MB")
