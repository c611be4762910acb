"""Strict papermill, each failure for real: real notebooks, real papermill, real kernels."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import pytest
from click.testing import CliRunner
from conftest import PATIENCE
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from gdro.cli import main
from gdro.study.notebooks import NotebookError, fit_parameters, run_notebook
from gdro.training.records import read_manifest

PARAMETERS = "steps = 10\nrate = 0.5  # a = b\nname = 'a'\nsizes = [1, 2]\nanything = None"


def tagged(cell, tag):
    cell.metadata["tags"] = [tag]
    return cell


def book(path, *cells, parameters=PARAMETERS, kernel="python3"):
    """A notebook at `path`: the parameters cell, then `cells` (source text or ready cells)."""
    first = [] if parameters is None else [tagged(new_code_cell(parameters), "parameters")]
    rest = [new_code_cell(cell) if isinstance(cell, str) else cell for cell in cells]
    notebook = new_notebook(cells=first + rest)
    notebook.metadata.kernelspec = {"name": kernel, "display_name": kernel, "language": "python"}
    nbformat.write(notebook, path)
    return path


def manifest_cell(path):
    return f"from gdro.training.records import write_manifest\nwrite_manifest({str(path)!r}, {{'ok': True}})"


@pytest.fixture
def place(tmp_path):
    """Folder of a test, with a stale manifest, which no failure may leave."""
    (tmp_path / "m.json").write_text('{"stale": true}')
    return tmp_path


def run(place, notebook, parameters=None, **options):
    return run_notebook(notebook, place / "out.ipynb", parameters, **{"manifest": place / "m.json"} | options)


def command(*arguments, **options):
    """What `gdro notebook` returns and says."""
    words = [sys.executable, "-m", "gdro", "notebook", *arguments]
    return subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE, check=False, **options)


def assert_nothing_whole(place):
    """No OUTPUT, no manifest, and no half-written file."""
    left = sorted(os.listdir(place))
    assert "out.ipynb" not in left
    assert "m.json" not in left
    assert not [name for name in left if name.startswith(".")]


DEEP = '{"cells": ' + "[" * 9000 + "]" * 9000 + ', "nbformat": 4, "nbformat_minor": 5, "metadata": {}}'
NOT_READ = r"n\.ipynb cannot be read as a notebook"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"values": {"stesp": 1}}, r"n.ipynb has no parameter 'stesp'; it has: steps, rate, name, sizes"),
        ({"values": {"steps": "ten"}}, r"'steps' must be of the type of its default 10, got 'ten'"),
        ({"values": {"steps": 1.0}}, r"'steps' must be .* got 1.0"),
        ({"values": {"steps": True}}, r"'steps' must be .* got True"),
        ({"values": {"steps": None}}, r"got None"),
        ({"values": {"rate": "high"}}, r"'rate' must be .* 0.5, got 'high'"),
        ({"values": {"rate": float("inf")}}, r"'rate' must be .* got inf"),
        ({"values": {"name": 7}}, r"'name' must be .* 'a', got 7"),
        ({"values": {"a": 1}, "parameters": None}, "n.ipynb has no parameter 'a'"),
        ({"parameters": "a = 1\nb = 2 * a"}, "`name = literal`.*malformed node"),
        *(({"text": text}, NOT_READ) for text in ("", "not JSON", "[]", "{}", '{"cells": 3}', DEEP)),
    ],
)
def test_refused_without_a_trace_of_an_earlier_run(place, change, message):
    cells, parameters = change.pop("cells", ["1"]), change.pop("parameters", PARAMETERS)
    notebook = book(place / "n.ipynb", *cells, parameters=parameters)
    if "text" in change:
        notebook.write_text(change.pop("text"))
    (place / "out.ipynb").write_text("an earlier run")
    with pytest.raises(ValueError, match=message):
        run(place, notebook, change.pop("values", None), **change)
    assert_nothing_whole(place)


def test_parameters_take_the_type_of_the_default(place):
    given = {"rate": 1, "sizes": "[1, 2.5]", "anything": {"a": [1]}, "steps": "3", "name": "3"}
    fitted = fit_parameters(book(place / "n.ipynb"), given)
    assert fitted == given | {"sizes": [1, 2.5], "steps": 3}
    assert type(fitted["rate"]) is float


def test_wrong_paths_are_refused(place):
    notebook = book(place / "n.ipynb", "1")
    before = notebook.read_bytes()
    (place / "link.ipynb").symlink_to(notebook)
    out, link = place / "out.ipynb", place / "link.ipynb"
    for paths in [(notebook,), (link,), (out, notebook), (place / "out.txt",)]:
        with pytest.raises(ValueError, match=r"notebook, output \(.ipynb\), failed copy and manifest must"):
            run_notebook(notebook, paths[0], manifest=paths[-1] if len(paths) > 1 else None)
    assert notebook.read_bytes() == before
    with pytest.raises(OSError, match=str(place)):
        run(place, notebook, manifest=place)
    with pytest.raises(ValueError, match=r"absent\.ipynb cannot be read as a notebook"):
        run(place, place / "absent.ipynb")
    assert_nothing_whole(place)


def test_a_whole_run(place):
    """Through the command, which prints nothing of its own, with parameters as texts."""
    output, stale = place / "runs" / "out.ipynb", place / "runs" / "out.failed.ipynb"
    notebook = book(
        place / "n.ipynb",
        new_markdown_cell("# text"),
        "",
        "# nothing but a comment",
        "import os, json\nprint(json.dumps([steps, rate, name, sizes, anything, os.getcwd()]))",
        manifest_cell(place / "m.json"),
    )
    output.parent.mkdir()
    output.write_text("stale")
    stale.write_text("stale")
    texts = {"rate": "-1e-3", "name": "12", "sizes": "[7]", "anything": "run #3"}
    arguments = [word for pair in texts.items() for word in ("-p", *pair)]
    whole = command(notebook, output, *arguments, "--manifest", "m.json", cwd=place)
    assert (whole.returncode, whole.stdout + whole.stderr) == (0, "")
    assert read_manifest(place / "m.json")["ok"] is True
    assert os.listdir(output.parent) == ["out.ipynb"]
    saved = nbformat.read(output, as_version=4)
    assert json.loads(saved.cells[-2].outputs[0].text) == [10, -1e-3, "12", [7], "run #3", str(place)]
    assert saved.metadata.papermill.output_path == str(output)
    assert [c.metadata.papermill.status for c in saved.cells] == ["completed"] * 7


@pytest.mark.slow  # up to 4 s each: ipykernel takes its time to leave after some errors
@pytest.mark.parametrize(
    ("source", "message", "tag"),
    [
        ("import os\nos._exit(0)", "the kernel died", "none"),
        ("%nosuchmagic", "UsageError", "none"),
        ("get_ipython().run_cell('1 / 0')", "ZeroDivisionError", "none"),  # as %run does
        ("exit()", "the cell called", "none"),
        ("1 / 0", "ZeroDivisionError: division by zero; the failed copy has", "raises-exception"),
        ("raise SystemExit(0)", "the cell called", "raises-exception"),
    ],
)
def test_a_failing_cell_fails_the_run(place, source, message, tag):
    # The manifest is written before the failure: it must go all the same.
    written = f"open({str(place / 'm.json')!r}, 'w').write('')"
    cells = written, tagged(new_code_cell(source), tag), "print('after')"
    notebook = book(place / "n.ipynb", *cells)
    (place / "out.ipynb").write_text("an earlier run")
    where = re.escape(f"n.ipynb, cell `{source.splitlines()[0]}`: ")
    with pytest.raises(NotebookError, match=f"^{where}.*{message}"):
        run(place, notebook, {"steps": 3})
    assert_nothing_whole(place)
    failed = nbformat.read(place / "out.failed.ipynb", as_version=4)
    assert failed.cells[-1].source == cells[-1]
    assert failed.cells[-1].execution_count is None


def test_a_whole_run_without_a_whole_manifest_fails(place):
    with pytest.raises(NotebookError, match=r"^n\.ipynb: no manifest at "):
        run(place, book(place / "n.ipynb", "1"))
    assert_nothing_whole(place)
    cut_short = f"open({str(place / 'm.json')!r}, 'w').write('{{\"ok\": tr')"
    with pytest.raises(NotebookError, match="is broken"):
        run(place, book(place / "n.ipynb", cut_short))
    assert_nothing_whole(place)


@pytest.mark.parametrize("argv", [None, [sys.executable, "-c", "1/0"]])
def test_a_kernel_that_is_not_there_or_does_not_start(place, monkeypatch, argv):
    spec = place / "kernels" / "broken"
    spec.mkdir(parents=True)
    if argv is not None:
        words = {"argv": argv, "display_name": "broken", "language": "python"}
        (spec / "kernel.json").write_text(json.dumps(words))
    monkeypatch.setenv("JUPYTER_PATH", str(place))
    with pytest.raises(NotebookError, match=r"^n\.ipynb: .*(No such kernel|Kernel died)"):
        run(place, book(place / "n.ipynb", "1", kernel="broken"))
    assert_nothing_whole(place)


def wait_for(condition):
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("-p stesp 3", "n.ipynb has no parameter 'stesp'; it has: "),
        ("-p sizes [1,2", "n.ipynb: parameter 'sizes' must be of the type of its default"),
    ],
)
def test_the_command_refuses(place, monkeypatch, words, message):
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # in this process: importing takes seconds
    paths = [book(place / "n.ipynb", "1"), place / "out.ipynb", "--manifest", place / "m.json"]
    refused = CliRunner().invoke(main, ["notebook", *map(str, paths), *words.split()])
    assert refused.exit_code == 2
    assert refused.stderr.startswith(f"gdro notebook: {message}")
    assert refused.stderr.count("\n") == 1
    assert_nothing_whole(place)


@pytest.mark.slow
def test_a_terminated_command_takes_its_kernel_and_manifest_along(place):
    """By SIGHUP; test_pipeline sends SIGTERM."""
    pid = f"import os, time\nopen({str(place / 'tmp')!r}, 'w').write(str(os.getpid()))"
    moved = f"os.rename({str(place / 'tmp')!r}, {str(place / 'pid')!r})\ntime.sleep(600)"
    notebook = book(place / "n.ipynb", manifest_cell(place / "m.json"), f"{pid}\n{moved}", "1")
    words = [sys.executable, "-m", "gdro", "notebook", notebook, place / "out.ipynb"]
    runner = subprocess.Popen([*words, "--manifest", place / "m.json"], stderr=subprocess.DEVNULL)
    try:
        wait_for(lambda: (place / "pid").exists() or runner.poll() is not None)
        kernel = int((place / "pid").read_text())
        assert (place / "m.json").exists()
        runner.send_signal(signal.SIGHUP)
        assert runner.wait(timeout=PATIENCE) == 128 + signal.SIGHUP
    finally:
        runner.kill()  # nothing to a process that has ended
    wait_for(lambda: not Path(f"/proc/{kernel}").exists())
    assert_nothing_whole(place)
