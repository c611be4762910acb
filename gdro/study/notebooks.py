"""Strict papermill: a notebook has run whole, or the command fails and says why.

    python -m gdro.study.notebooks notebooks/02_prompt_gdro.ipynb runs/02.ipynb \\
        -p steps 100 -p learning_rate 1e-5 --manifest runs/02.json

papermill 2.7.0 by itself returns success for a misspelt parameter, a missing `parameters` cell,
`sys.exit(0)` and `exit()`. Here each of these is an error and a non-zero exit: 1 if the run failed
(`NotebookError`), 2 if it was refused before any cell ran (`ValueError`).

OUTPUT and the manifest, the JSON file that a notebook's last cell writes (`gdro.study.records`), are
removed before the run and are there after it only if it was whole. While it runs and if it fails,
the notebook is `<output stem>.failed.ipynb`. After a SIGKILL there may be a manifest, but no OUTPUT.
"""

import ast
import contextlib
import json
import logging
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import nbformat
import papermill
import pydantic
from nbclient.exceptions import CellTimeoutError, DeadKernelError

from gdro.core.checks import check_int
from gdro.study.records import read_manifest
from gdro.training.files import replace_text
from gdro.training.lifetime import end_with_parent

OUTPUT_PATIENCE_S = 60  # for a cell's output on a busy machine; papermill's 4 s would be a failure
REASONS: dict[type, str] = {
    CellTimeoutError: "stopped after the time limit; give a longer --timeout",
    DeadKernelError: "the kernel died (killed, out of memory, or os._exit)",
}


class NotebookError(RuntimeError):
    """A notebook did not run whole; the message names it, the cell, and what happened."""


def run_notebook(
    notebook: str | Path,
    output: str | Path,
    parameters: Mapping[str, Any] | None = None,
    *,
    texts: Sequence[tuple[str, str]] = (),
    manifest: str | Path | None = None,
    cell_timeout: int | None = None,
    log_output: bool = False,
) -> nbformat.NotebookNode:
    """Run `notebook` with papermill and write the executed notebook to `output`.

    Args:
        parameters: values for names of the `parameters` cell, each of its default's type.
        texts: more of them, from a command line: Python literals or, for a default that is text, the text.
        manifest: where the notebook's last cell writes its manifest; None if it writes none.
        cell_timeout: whole seconds that one cell may take; None for no limit.
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
        raise ValueError(f"notebook, output (.ipynb), failed copy and manifest must differ, got {names}")
    for stale in paths[1:]:
        stale.unlink(missing_ok=True)
    if cell_timeout is not None:
        check_int("cell_timeout", cell_timeout, 1, remedy="give whole seconds")
    try:
        source = nbformat.read(notebook, as_version=4)
        nbformat.validate(source)  # read only logs what is invalid
    except Exception as error:  # nbformat raises what it stumbles over, up to RecursionError
        raise ValueError(f"{notebook} cannot be read as a notebook ({_first_line(error, 200)})") from error
    _, defaults = parameter_defaults(source, notebook.name)
    read = {key: _parse(text, defaults.get(key)) for key, text in texts}
    if len(read) < len(texts):
        raise ValueError(f"parameters must be given once, got {[key for key, _ in texts]}")
    values = conform_parameters({**(parameters or {}), **read}, defaults, notebook.name)
    output.parent.mkdir(parents=True, exist_ok=True)

    where = ""

    def started(cell: nbformat.NotebookNode, cell_index: int) -> None:
        nonlocal where
        where = f", cell `{_first_line(cell.source, 60)}`"

    try:
        executed = papermill.execute_notebook(
            notebook, failed, values, language="python", progress_bar=False,
            stdout_file=sys.stdout if log_output else None,
            execution_timeout=cell_timeout, iopub_timeout=OUTPUT_PATIENCE_S,
            on_cell_execute=started, on_cell_executed=_check_reply,
            extra_arguments=["--log-level=CRITICAL"],  # not what the kernel says when it is shut down
        )  # fmt: skip
        for cell in executed.cells:
            if cell.cell_type == "code" and cell.source.strip() and cell.execution_count is None:
                started(cell, 0)
                raise NotebookError("not executed; use no skip-execution tag")
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
        why = REASONS.get(type(error)) or _first_line(error, 300)
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
    if reply["status"] == "error":
        why = f"{reply['ename']}: {_first_line(reply['evalue'], 200)}"
        raise NotebookError(f"{why}; the failed copy has the traceback")


def parameter_defaults(source: nbformat.NotebookNode, name: str = "notebook") -> tuple[int, dict[str, Any]]:
    """Index of the one `parameters` cell, and its names with their literals."""
    tags = [cell.metadata.get("tags", []) for cell in source.cells]
    places = [place for place, found in enumerate(tags) if "parameters" in found]
    if len(places) != 1 or source.cells[places[0]].cell_type != "code":
        raise ValueError(f"{name}: one code cell must be tagged 'parameters', got cells {places}")
    if any("injected-parameters" in found for found in tags):
        raise ValueError(f"{name} holds the parameters of an earlier run; do not run an output")
    defaults: dict[str, Any] = {}
    try:
        statements: list[Any] = ast.parse(source.cells[places[0]].source).body
        for statement in statements:
            [target] = statement.targets
            if target.id in defaults:
                raise ValueError(f"{target.id!r} is set twice")
            defaults[target.id] = ast.literal_eval(statement.value)
    except (SyntaxError, AttributeError, ValueError) as error:
        raise ValueError(f"{name}: parameters must be lines `name = literal`, got {error}") from error
    return places[0], defaults


def conform_parameters(
    given: Mapping[str, Any], defaults: Mapping[str, Any], name: str = "notebook"
) -> dict[str, Any]:
    """`given` as the notebook will see it: known names, plain values, each of its default's type.

    An int for a float becomes one; a default of None takes any plain value.
    """
    fitted = {}
    for key, value in given.items():
        if key not in defaults:
            raise ValueError(f"{name} has no parameter {key!r}; it has: {', '.join(defaults)}")
        try:  # through JSON, since papermill writes what is not plain as a string
            kind = pydantic.TypeAdapter(_kind(defaults[key]))
            fitted[key] = json.loads(json.dumps(kind.validate_json(json.dumps(value), strict=True)))
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"{name}: parameter {key!r} must be plain and of the type of its default {defaults[key]!r}, "
                f"got {value!r} ({type(value).__name__})"
            ) from error
    return fitted


def _kind(default: Any) -> Any:
    if isinstance(default, list):
        return list[_kind(default[0] if default else None)]  # type: ignore[misc]
    return pydantic.JsonValue if default is None else type(default)


def _parse(text: str, default: Any) -> Any:
    if not isinstance(default, str):
        with contextlib.suppress(ValueError, SyntaxError):
            return ast.literal_eval(text)
    return text


def _first_line(text: object, longest: int) -> str:
    line = str(text).strip().split("\n")[0]
    return line if len(line) <= longest else line[: longest - 1] + "…"


@click.command()
@click.argument("notebook")
@click.argument("output")
@click.option("-p", "--parameter", "pairs", nargs=2, multiple=True, metavar="NAME VALUE")
@click.option("--manifest", help="The JSON file that the notebook's last cell writes.")
@click.option("--timeout", "cell_timeout", type=int, metavar="SECONDS", help="Limit for each cell.")
@click.option("--log-output", is_flag=True, help="Print what the cells print.")
def main(notebook: str, output: str, pairs: tuple[tuple[str, str], ...], **options: Any) -> None:
    """Run NOTEBOOK with papermill and write it to OUTPUT, or fail and say why.

    A parameter's VALUE is a Python literal or, for a parameter that is text, the text.
    """

    def stop(signum: int, frame: object) -> None:
        raise SystemExit(128 + signum)  # so that kernel and manifest are cleaned up

    logging.getLogger("papermill").setLevel(logging.ERROR)  # it warns of what is refused here or is fine
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stop)
    end_with_parent()
    try:
        run_notebook(notebook, output, texts=pairs, **options)
    except (ValueError, OSError, NotebookError) as error:
        click.echo(f"gdro.study.notebooks: {error}", err=True)
        sys.exit(1 if isinstance(error, NotebookError) else 2)


if __name__ == "__main__":
    main()
