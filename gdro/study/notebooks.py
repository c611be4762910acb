"""Strict papermill: a notebook runs completely, or the run fails and says why.

papermill 2.7.0 by itself reports success for a misspelled parameter, for `sys.exit(0)` and for `exit()`. Here
each of these is an error: `ValueError` before any cell has run, `NotebookError` afterwards.

The output and the manifest, the JSON file that a notebook's last cell writes (`gdro.training.records`), are
removed before the run and exist after it only if it was complete. During the run, and after a failure, the
notebook is `<output stem>.failed.ipynb`. As in Jupyter, a failing `!command` or thread does not fail a cell.
"""

import ast
import contextlib
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import nbformat
import papermill
from nbclient.exceptions import DeadKernelError

from gdro.training.files import replace_text
from gdro.training.records import read_manifest

OUTPUT_PATIENCE_S = 60  # for a cell's output on a busy machine; papermill's 4 s would be a failure


class NotebookError(RuntimeError):
    """A notebook did not run completely; the message names it, the cell, and what happened."""


def run_notebook(
    notebook: str | Path,
    output: str | Path,
    parameters: Mapping[str, Any] | None = None,
    *,
    manifest: str | Path | None = None,
    log_output: bool = False,
) -> nbformat.NotebookNode:
    """Run `notebook` with papermill and write the executed notebook to `output`.

    Args:
        parameters: values for names of the `parameters` cell, see `fit_parameters`.
        manifest: where the notebook's last cell writes its manifest; None if it writes none.
        log_output: print what the cells print.

    Raises:
        ValueError, OSError: a wrong path, parameter or notebook; no cell ran.
        NotebookError: the run failed. In either case `output` and `manifest` are not there.
    """
    notebook, output = Path(notebook), Path(output)
    failed = output.with_suffix(".failed.ipynb")
    paths = [notebook, output, failed, *([Path(manifest)] if manifest else [])]
    if len({path.resolve() for path in paths}) < len(paths) or output.suffix != ".ipynb":
        names = ", ".join(map(str, paths))
        wanted = "notebook, output (.ipynb), failed copy and manifest must be different files"
        raise ValueError(f"{wanted}, got {names}; choose another output or manifest")
    for stale in paths[1:]:
        stale.unlink(missing_ok=True)
    values = fit_parameters(notebook, parameters or {})
    output.parent.mkdir(parents=True, exist_ok=True)

    where = ""

    def started(cell: nbformat.NotebookNode, cell_index: int) -> None:
        nonlocal where
        where = f", cell `{_first_line(cell.source, 60)}`"

    try:
        executed = papermill.execute_notebook(
            notebook, failed, values, language="python", progress_bar=False,
            stdout_file=sys.stdout if log_output else None,
            iopub_timeout=OUTPUT_PATIENCE_S, on_cell_execute=started, on_cell_executed=_check_reply,
            extra_arguments=["--log-level=CRITICAL"],  # not what the kernel says when it is shut down
        )  # fmt: skip
        where = ""  # all have ended: what fails from here on is no cell's doing
        if manifest:
            read_manifest(manifest)
        executed.metadata.papermill["output_path"] = str(output)
        replace_text(output, nbformat.writes(executed))
    except BaseException as error:
        if manifest:
            Path(manifest).unlink(missing_ok=True)
        if not isinstance(error, Exception):  # interrupted
            raise
        why = _first_line(error, 300)
        if isinstance(error, DeadKernelError):
            why = "the kernel died (killed, out of memory, or os._exit)"
        raise NotebookError(f"{notebook.name}{where}: {why}") from error
    failed.unlink()
    return executed


def _check_reply(cell: nbformat.NotebookNode, cell_index: int, execute_reply: dict[str, Any]) -> None:
    """Refuse, as nbclient's hook, a cell that failed or ended the kernel, whatever its tags say."""
    reply = execute_reply["content"]
    # papermill takes SystemExit(0) for success; exit() and quit() are no error at all, only a
    # request in the reply's payload, and the next cells would run
    asked = any(item.get("source") == "ask_exit" for item in reply.get("payload", []))
    if asked or reply.get("ename") == "SystemExit":
        raise NotebookError("the cell called exit(), quit() or sys.exit(); raise an error, or use an if")
    # of a failing %run only the output tells
    failures = [reply, *cell.outputs] if reply["status"] == "error" else cell.outputs
    for reply in (found for found in failures if "ename" in found):
        why = f"{reply['ename']}: {_first_line(reply['evalue'], 200)}"
        raise NotebookError(f"{why}; the failed copy has the traceback")


def fit_parameters(notebook: Path, given: Mapping[str, Any]) -> dict[str, Any]:
    """The values of known parameters, each of its default's type; ValueError for anything else.

    A text is read as a Python literal where the default is no text, since a command line has texts alone. An
    int is accepted for a float, and anything for a default of None.
    """
    try:
        source = nbformat.read(notebook, as_version=4)
        nbformat.validate(source)  # reading alone only logs what is invalid
        # not papermill.inspect_notebook, which drops a line whose comment holds a "="
        tagged = [cell.source for cell in source.cells if "parameters" in cell.metadata.get("tags", [])]
        statements: list[Any] = ast.parse("\n".join(tagged)).body
        defaults = {line.targets[0].id: ast.literal_eval(line.value) for line in statements}
    except Exception as error:  # nbformat raises what it stumbles over, up to RecursionError
        why = _first_line(error, 200)
        wanted = "as a notebook whose `parameters` cell has lines `name = literal`"
        raise ValueError(f"{notebook} cannot be read {wanted} ({why}); correct it") from error
    fitted = {}
    for name, value in given.items():
        if name not in defaults:
            raise ValueError(f"{notebook.name} has no parameter {name!r}; it has: {', '.join(defaults)}")
        default = defaults[name]
        if isinstance(value, str) and not isinstance(default, str):
            with contextlib.suppress(ValueError, SyntaxError):
                value = ast.literal_eval(value)
        if type(default) is float and type(value) is int:
            value = float(value)
        infinite = isinstance(value, float) and not math.isfinite(value)
        if infinite or (default is not None and type(value) is not type(default)):
            wanted = "finite" if infinite else f"of the type of its default {default!r}"
            raise ValueError(
                f"{notebook.name}: parameter {name!r} must be {wanted}, got {value!r}; change it"
            )
        fitted[name] = value
    return fitted


def _first_line(text: object, longest: int) -> str:
    line = str(text).strip().split("\n")[0]
    return line if len(line) <= longest else line[: longest - 1] + "…"
