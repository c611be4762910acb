"""Strict papermill: a notebook has run whole, or the command fails and says why.

    python -m gdro.notebooks notebooks/02_prompt_gdro.ipynb runs/02.ipynb \\
        -p steps 100 -p learning_rate 1e-5 --manifest runs/02.json

papermill runs the notebook; this module stands at the door. papermill 2.7.0 by itself returns
success for a misspelt parameter, a missing `parameters` cell, `sys.exit(0)` and `exit()` (after
which it goes on with the next cell), and the notebook that it saves for a killed kernel has every
cell marked completed. Here each of these is a `NotebookError` and a non-zero exit.

OUTPUT is there only if its last run was whole; a failed run leaves `<output stem>.failed.ipynb`
beside it. The manifest is the JSON file that a notebook's last cell writes (`gdro.records`): it is
removed before the run, must be there after it, and is removed again if the run failed. A runner
that is itself killed with SIGKILL cannot clean up, so read a manifest only where OUTPUT is too.

Exit codes: 0 whole, 1 the run failed, 2 refused before any cell ran.
"""

import ast
import difflib
import logging
import re
import secrets
import signal
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NoReturn

import click
import nbformat
import papermill
import yaml
from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel
from nbclient.exceptions import CellTimeoutError, DeadKernelError
from papermill.exceptions import PapermillExecutionError
from papermill.iorw import NoDatesSafeLoader

from gdro.records import read_manifest, replace_text

# Output of a cell may reach us late on a busy machine; papermill's 4 s would call that a failure.
OUTPUT_PATIENCE_S = 60
# papermill strips cells with this tag when it runs a notebook again.
MARKER_TAG = "papermill-error-cell-tag"


class NotebookError(RuntimeError):
    """A notebook did not run whole; the message names it, the place, and what to do."""

    exit_code = 1


class NotebookRefused(NotebookError, ValueError):
    """Refused before any cell ran: a wrong path, parameter, kernel or notebook."""

    exit_code = 2


class CellFailed(NotebookError):
    """A cell raised an error."""


class CellExited(CellFailed):
    """A cell asked to leave: `sys.exit`, `SystemExit`, `exit()`, `quit()`."""


class CellTimedOut(CellFailed):
    """A cell took longer than it was given."""


class CellSkipped(CellFailed):
    """A cell that holds code was never executed."""


class KernelDied(NotebookError):
    """The kernel did not start, or ended before the notebook did."""


class ManifestMissing(NotebookError):
    """Every cell ran, and yet there is no readable manifest."""


def run_notebook(
    notebook: str | Path,
    output: str | Path,
    parameters: Mapping[str, Any] | None = None,
    *,
    manifest: str | Path | None = None,
    require_manifest: bool = False,
    cell_timeout: int | None = None,
    kernel: str = "python3",
    cwd: str | Path | None = None,
    progress: bool = False,
    log_output: bool = False,
) -> nbformat.NotebookNode:
    """Run `notebook` with papermill and write the executed notebook to `output`, or raise.

    Args:
        parameters: values for names of the `parameters` cell, each of its default's type.
        manifest: where the notebook's last cell writes its manifest; None if it writes none.
            Like `notebook` and `output`, relative to the caller's working directory.
        require_manifest: refuse to run when `manifest` is None.
        cell_timeout: whole seconds that one cell may take; None for no limit.
        kernel: the kernel that the notebook must ask for.
        cwd: the kernel's working directory; by default `repository_root(notebook)`.
        progress: papermill's progress bar. `log_output`: papermill's log line per cell.

    Raises:
        NotebookError: one of its kinds above. `output` and `manifest` are then not there.
    """
    notebook, output = Path(notebook), Path(output)
    manifest = None if manifest is None else Path(manifest)
    failed = _clear_way(notebook, output, manifest, require_manifest)
    _refuse_timeout(cell_timeout)
    source = _read_notebook(notebook)
    _refuse_kernel(notebook, source, kernel)
    place, defaults = parameter_defaults(source, notebook.name)
    values = conform_parameters(parameters or {}, defaults, notebook.name)
    folder = _working_directory(cwd, notebook)

    output.parent.mkdir(parents=True, exist_ok=True)
    _discard(output)
    _discard(failed)
    partial = output.with_name(f".{output.stem}.{secrets.token_hex(4)}.partial.ipynb")
    watch = _Watch(notebook.name, injected_at=place + 1 if values else None)
    failure: str | None = f"{notebook.name}: the run was interrupted; run it again"
    try:
        executed = _execute(
            notebook, partial, values, watch,
            kernel_name=kernel, language="python", cwd=str(folder),
            execution_timeout=cell_timeout, progress_bar=progress, log_output=log_output,
        )  # fmt: skip
        _require_every_cell(executed, watch)
        _require_manifest(manifest, notebook)
        executed.metadata.papermill.update(input_path=str(notebook), output_path=str(output))
        replace_text(output, nbformat.writes(executed))
        failure = None
    except NotebookError as error:
        failure = str(error)
        raise
    finally:
        if failure is not None:
            _discard(manifest)
            _keep_failed(partial, failed, failure, notebook, watch)
        _discard(partial)
    return executed


def repository_root(notebook: str | Path) -> Path:
    """The nearest folder above `notebook` with a pyproject.toml; else the current directory."""
    for folder in Path(notebook).resolve().parents:
        if (folder / "pyproject.toml").is_file():
            return folder
    return Path.cwd()


# ---- parameters -------------------------------------------------------------------------------


def parameter_defaults(source: nbformat.NotebookNode, name: str = "notebook") -> tuple[int, dict[str, Any]]:
    """Index of the one `parameters` cell, and its names with their literals.

    NotebookRefused if there is none, there are two, or a line is not `name = literal`.
    """
    places = _tagged(source, "parameters")
    if len(places) != 1:
        found = f"cells {places} are" if places else "no cell is"
        raise NotebookRefused(f"{name}: {found} tagged 'parameters'; tag exactly one code cell so")
    old = _tagged(source, "injected-parameters")
    if old:
        raise NotebookRefused(
            f"{name}: cell {old[0]} holds the injected parameters of an earlier run, which would "
            "override the defaults; run the notebook itself, not its output, or delete that cell"
        )
    place = places[0]
    return place, _literals(source.cells[place], f"{name}, cell {place} (parameters)")


def conform_parameters(
    given: Mapping[str, Any], defaults: Mapping[str, Any], name: str = "notebook"
) -> dict[str, Any]:
    """`given` as the notebook will see it: known names, each of its default's type.

    An int for a float becomes one; a default of None takes any plain value.
    """
    return {key: _conform(key, value, defaults, name) for key, value in given.items()}


def parse_value(text: str) -> Any:
    """A value from the command line: None and numbers as papermill's -p reads them, else YAML.

    Text that is no YAML value but a bare string stays as typed, its '#' included.
    """
    if text == "None":
        return None
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue  # not this kind of number: ask the next, then YAML
    try:
        value = yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        raise NotebookRefused(
            f"{text!r} cannot be read as YAML; if it is a string, quote it twice: '\"…\"'"
        ) from error
    bare = isinstance(value, str) and text.lstrip()[0] not in "'\""
    return text if bare or not text.strip() else value


class _Loader(NoDatesSafeLoader):
    """papermill's YAML loader, which also reads 1e-3 in a list as a number (YAML 1.2)."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+$"),
    list("-+.0123456789"),
)


def _tagged(source: nbformat.NotebookNode, tag: str) -> list[int]:
    return [n for n, cell in enumerate(source.cells) if tag in cell.metadata.get("tags", [])]


def _literals(cell: nbformat.NotebookNode, where: str) -> dict[str, Any]:
    """{name: literal} of a cell that holds nothing but `name = literal` lines."""
    if cell.cell_type != "code":
        raise NotebookRefused(f"{where} is a {cell.cell_type} cell: make it a code cell")
    try:
        statements = ast.parse(cell.source).body
    except SyntaxError as error:
        raise NotebookRefused(f"{where} is not Python ({error}): correct it") from error
    found: dict[str, Any] = {}
    for statement in statements:
        key, literal = _assignment(statement, where)
        if key in found:
            raise NotebookRefused(f"{where}, line {statement.lineno}: {key!r} is set twice")
        found[key] = literal
    return found


def _assignment(statement: ast.stmt, where: str) -> tuple[str, Any]:
    wanted = f"{where}, line {statement.lineno}: wanted `name = literal`, one to a line; "
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        target = statement.targets[0]
    elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
        target = statement.target
    else:
        raise NotebookRefused(wanted + "move anything else to a later cell")
    if not isinstance(target, ast.Name):
        raise NotebookRefused(wanted + "move anything else to a later cell")
    try:
        return target.id, ast.literal_eval(statement.value)  # type: ignore[arg-type]
    except ValueError as error:
        raise NotebookRefused(wanted + f"compute {target.id!r} in a later cell") from error


def _conform(key: str, value: Any, defaults: Mapping[str, Any], name: str) -> Any:
    if key not in defaults:
        near = difflib.get_close_matches(key, defaults, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise NotebookRefused(
            f"{name} has no parameter {key!r}; {hint}it has: {', '.join(defaults) or 'none'}"
        )
    if not _is_plain(value):
        raise NotebookRefused(
            f"{name}: parameter {key!r} got {value!r} ({type(value).__name__}), which papermill "
            "cannot write into a notebook; pass str, bool, int, float, None, list or dict"
        )
    default = defaults[key]
    fitted = _fit(default, value)
    if fitted is _MISFIT:
        raise NotebookRefused(
            f"{name}: parameter {key!r} is {default!r} ({type(default).__name__}) in the notebook "
            f"and got {value!r} ({type(value).__name__}); pass the notebook's type"
            + (f" (on the command line: -p {key} '\"…\"')" if isinstance(default, str) else "")
        )
    return fitted


_MISFIT = object()


def _fit(default: Any, value: Any) -> Any:
    """`value` in the type of `default`, or `_MISFIT`."""
    if default is None:
        return value
    if type(default) is float and type(value) is int:
        return float(value)
    if isinstance(default, list | tuple) and isinstance(value, list | tuple):
        return _fit_items(default, value)
    return value if type(value) is type(default) else _MISFIT


def _fit_items(default: list[Any] | tuple[Any, ...], value: list[Any] | tuple[Any, ...]) -> Any:
    """A list (papermill writes no tuples); of one type, where the default's items are."""
    if len({type(item) for item in default}) != 1:
        return list(value)
    items = [_fit(default[0], item) for item in value]
    return _MISFIT if any(item is _MISFIT for item in items) else items


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(_is_plain(item) for item in value)
    if isinstance(value, dict):
        return all(isinstance(k, str) and _is_plain(item) for k, item in value.items())
    # Exact types: papermill would write an np.int64 or a Path as a string without a word.
    return value is None or type(value) in (bool, int, float, str)


# ---- refusals before the run ------------------------------------------------------------------


def _clear_way(notebook: Path, output: Path, manifest: Path | None, require_manifest: bool) -> Path:
    """Where a failed copy goes, once paths are checked and the stale manifest is gone."""
    failed = output.with_name(f"{output.stem}.failed.ipynb")
    if require_manifest and manifest is None:
        raise NotebookRefused(
            f"{notebook.name}: a manifest is required and no path was given; pass --manifest PATH"
        )
    if output.suffix != ".ipynb":
        raise NotebookRefused(f"output {output} does not end in .ipynb; name a notebook")
    named = {"notebook": notebook, "output": output, "failed copy": failed}
    if manifest is not None:
        named["manifest"] = manifest
    seen: dict[Path, str] = {}
    for role, path in named.items():
        other = seen.setdefault(path.resolve(), role)
        if other != role:
            raise NotebookRefused(f"{other} and {role} are both {path}; give each its own path")
        if path.is_dir():
            raise NotebookRefused(f"{role} {path} is a folder; name a file in it")
    # Before anything else can be refused: an older manifest must not vouch for this run.
    _discard(manifest)
    return failed


def _refuse_timeout(cell_timeout: int | None) -> None:
    if cell_timeout is None or (type(cell_timeout) is int and cell_timeout > 0):
        return
    raise NotebookRefused(f"cell_timeout is {cell_timeout!r}; pass whole seconds > 0, or None")


def _read_notebook(notebook: Path) -> nbformat.NotebookNode:
    if not notebook.is_file():
        raise NotebookRefused(f"no notebook at {notebook}; check the path")
    try:
        source = nbformat.read(notebook, as_version=4)
        nbformat.validate(source)  # read only logs what is invalid
    # nbformat: ValueError for what is no JSON; the next three for JSON of another shape
    except (ValueError, AttributeError, KeyError, TypeError, nbformat.ValidationError) as error:
        raise NotebookRefused(
            f"{notebook} is not a notebook ({_first_line(str(error), 200)}); save it anew from JupyterLab"
        ) from error
    return source


def _refuse_kernel(notebook: Path, source: nbformat.NotebookNode, kernel: str) -> None:
    asked = source.metadata.get("kernelspec", {}).get("name")
    if asked != kernel:
        raise NotebookRefused(
            f"{notebook.name} asks for the kernel {asked!r}, wanted {kernel!r}; open it in "
            f"JupyterLab and choose {kernel}, or set metadata.kernelspec.name"
        )
    try:
        spec = KernelSpecManager().get_kernel_spec(kernel)
    except NoSuchKernel as error:
        raise NotebookRefused(
            f"{notebook.name}: kernel {kernel!r} is not installed here; run "
            f"python -m ipykernel install --sys-prefix --name {kernel}"
        ) from error
    if spec.language != "python":
        raise NotebookRefused(
            f"{notebook.name}: kernel {kernel!r} speaks {spec.language}; choose a Python kernel"
        )


def _working_directory(cwd: str | Path | None, notebook: Path) -> Path:
    folder = repository_root(notebook) if cwd is None else Path(cwd).resolve()
    if not folder.is_dir():
        raise NotebookRefused(f"cwd {cwd} is not a folder; make it, or leave cwd out")
    return folder


# ---- the run ----------------------------------------------------------------------------------


class _Watch:
    """Hangs on nbclient's hooks: knows which cell runs, and stops the run at an exit.

    `injected_at` is where papermill put its own cell; messages count cells, from 0, without it.
    """

    def __init__(self, name: str, injected_at: int | None):
        self.name = name
        self.injected_at = injected_at
        self.cell: nbformat.NotebookNode | None = None
        self.index = -1

    def started(self, cell: nbformat.NotebookNode, cell_index: int) -> None:
        self.cell, self.index = cell, cell_index

    def replied(self, cell: nbformat.NotebookNode, cell_index: int, execute_reply: dict[str, Any]) -> None:
        content = execute_reply["content"]
        # papermill takes SystemExit(0) for success; exit() and quit() are no error at all, only a
        # request in the reply's payload, and the next cells would run on.
        asked = any(item.get("source") == "ask_exit" for item in content.get("payload", []))
        if asked or content.get("ename") == "SystemExit":
            call = "exit() or quit()" if asked else f"SystemExit({content.get('evalue', '')})"
            raise CellExited(
                f"{self.where()}: the cell called {call}; a notebook ends after its last cell: "
                "raise an error that says what is wrong, or use an if"
            )

    def where(self, index: int | None = None, source: str | None = None) -> str:
        """'name, cell 3 (`first line`)'; by default, of the cell that runs."""
        if self.cell is None and index is None:
            return f"{self.name}, before its first cell"
        index = self.index if index is None else index
        source = self.cell.source if source is None and self.cell is not None else source or ""
        if self.injected_at is not None and index >= self.injected_at:
            index -= 1
        return f"{self.name}, cell {index} (`{_first_line(source, 60)}`)"


def _execute(
    notebook: Path, partial: Path, parameters: dict[str, Any], watch: _Watch, **options: Any
) -> nbformat.NotebookNode:
    """papermill's run, with each way that it can fail as a NotebookError."""
    try:
        executed = papermill.execute_notebook(
            _literal(notebook),
            _literal(partial),
            parameters,
            iopub_timeout=OUTPUT_PATIENCE_S,
            on_cell_execute=watch.started,
            on_cell_executed=watch.replied,
            **options,
        )
    except PapermillExecutionError as error:
        watch.cell = None  # with a raises-exception tag, an earlier cell than the last is to blame
        raise CellFailed(
            f"{watch.where(error.cell_index, error.source)}: {error.ename}: "
            f"{_first_line(error.evalue, 300)}; the failed copy has the traceback"
        ) from error
    except CellTimeoutError as error:
        raise CellTimedOut(
            f"{watch.where()}: stopped after {options['execution_timeout'] or OUTPUT_PATIENCE_S} "
            "seconds; give a longer --timeout, or the cell less to do"
        ) from error
    except DeadKernelError as error:
        raise KernelDied(
            f"{watch.where()}: the kernel died (killed, out of memory, or os._exit); "
            "look for the out-of-memory killer in the system log, or give the cell less to do"
        ) from error
    except (RuntimeError, OSError) as error:
        if watch.cell is not None:
            raise
        raise KernelDied(
            f"{watch.name}: the kernel did not start ({error}); try jupyter console "
            f"--kernel {options['kernel_name']}"
        ) from error
    watch.cell = None  # all have ended: what fails from here on is no cell's doing
    return executed


def _literal(path: Path) -> str:
    """An absolute path in which papermill, which calls str.format on it, finds no fields."""
    return str(path.resolve()).replace("{", "{{").replace("}", "}}")


def _require_every_cell(executed: nbformat.NotebookNode, watch: _Watch) -> None:
    for index, cell in enumerate(executed.cells):
        if _holds_code(cell) and cell.execution_count is None:
            raise CellSkipped(
                f"{watch.where(index, cell.source)}: the cell was not executed; delete it or make "
                "it markdown, and use no skip-execution tag"
            )


def _require_manifest(manifest: Path | None, notebook: Path) -> None:
    if manifest is None:
        return
    try:
        read_manifest(manifest)
    except ValueError as error:
        raise ManifestMissing(
            f"{notebook.name}: every cell ran, but {error}. Its last cell must call "
            "gdro.records.write_manifest with this path"
        ) from error


def _first_line(text: str, longest: int) -> str:
    line = text.strip().split("\n")[0]
    return line if len(line) <= longest else line[: longest - 1] + "…"


def _holds_code(cell: nbformat.NotebookNode) -> bool:
    return cell.cell_type == "code" and bool(cell.source.strip())


def _keep_failed(partial: Path, failed: Path, failure: str, notebook: Path, watch: _Watch) -> None:
    """Keep what papermill saved, with the truth about its cells and the reason on top."""
    if not partial.is_file():
        return  # papermill had not got as far as saving
    saved = nbformat.read(partial, as_version=4)
    blamed = None if watch.cell is None else watch.cell.id
    for cell in filter(_holds_code, saved.cells):
        # papermill marks cells that it never came to, or that the kernel died in, as completed.
        if cell.id == blamed or any(item.output_type == "error" for item in cell.outputs):
            cell.metadata.papermill.update(status="failed", exception=True)
        elif cell.execution_count is None:
            cell.metadata.papermill["status"] = "pending"
    banner = nbformat.v4.new_markdown_cell(f"**This run failed.** {failure}")
    banner.metadata["tags"] = [MARKER_TAG]
    saved.cells.insert(0, banner)
    saved.metadata.papermill.update(input_path=str(notebook), output_path=str(failed), exception=True)
    replace_text(failed, nbformat.writes(saved))


def _discard(path: Path | None) -> None:
    if path is not None:
        path.unlink(missing_ok=True)


# ---- the command ------------------------------------------------------------------------------


def _parse_pairs(pairs: Iterable[tuple[str, str]]) -> dict[str, Any]:
    parameters: dict[str, Any] = {}
    for name, text in pairs:
        if name in parameters:
            raise NotebookRefused(f"parameter {name!r} is given twice; give it once")
        parameters[name] = parse_value(text)
    return parameters


def _terminate(signum: int, frame: object) -> NoReturn:
    """A batch system's SIGTERM as an exception, so that kernel and manifest are cleaned up."""
    raise SystemExit(128 + signum)


def _cells_own_words(record: logging.LogRecord) -> bool:
    """Whether a log line is what a cell printed, and not papermill's word on cells or a picture."""
    line = record.getMessage().strip()
    return bool(line) and not line.startswith(("Executing Cell", "Ending Cell", "<IPython", "<Figure"))


@click.command()
@click.argument("notebook", type=click.Path(path_type=Path))
@click.argument("output", type=click.Path(path_type=Path))
@click.option("-p", "--parameter", "pairs", nargs=2, multiple=True, metavar="NAME VALUE",
              help="A parameter and its value, read as YAML; repeat for more.")  # fmt: skip
@click.option("--manifest", type=click.Path(path_type=Path),
              help="The JSON file that the notebook's last cell writes.")  # fmt: skip
@click.option("--require-manifest", is_flag=True, help="Refuse to run without --manifest.")
@click.option("--timeout", type=int, metavar="SECONDS", help="Limit for each cell.")
@click.option("--kernel", default="python3", show_default=True)
@click.option("--cwd", type=click.Path(path_type=Path), help="Default: the repository root.")
@click.option("--log-output", is_flag=True, help="Print what the cells print; no progress bar.")
def main(
    notebook: Path,
    output: Path,
    pairs: tuple[tuple[str, str], ...],
    manifest: Path | None,
    require_manifest: bool,
    timeout: int | None,
    kernel: str,
    cwd: Path | None,
    log_output: bool,
) -> None:
    """Run NOTEBOOK with papermill and write it to OUTPUT, or fail and say why."""
    signal.signal(signal.SIGTERM, _terminate)
    if log_output:
        logging.basicConfig(level=logging.INFO, format="%(message)s")
        logging.getLogger().handlers[0].addFilter(_cells_own_words)
    try:
        _clear_way(notebook, output, manifest, require_manifest)
        run_notebook(
            notebook, output, _parse_pairs(pairs),
            manifest=manifest, require_manifest=require_manifest, cell_timeout=timeout,
            kernel=kernel, cwd=cwd, progress=not log_output, log_output=log_output,
        )  # fmt: skip
    except NotebookError as error:
        click.echo(f"gdro.notebooks: {error}", err=True)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
