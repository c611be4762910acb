"""Strict papermill, each failure for real: real notebooks, real papermill, real kernels."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import nbformat
import pytest
from click.testing import CliRunner
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from gdro.notebooks import (
    CellExited,
    CellFailed,
    CellSkipped,
    CellTimedOut,
    KernelDied,
    ManifestMissing,
    NotebookError,
    NotebookRefused,
    conform_parameters,
    main,
    parse_value,
    repository_root,
    run_notebook,
)
from gdro.records import read_manifest

PARAMETERS = "steps = 10\nrate: float = 0.5  # a = b\nname = 'a'\nsizes = [1, 2]\nanything = None"
KILL = "import os\nos.kill(os.getpid(), 9)"


def tagged(cell, tag):
    cell.metadata["tags"] = [tag]
    return cell


def book(path, *cells, parameters=PARAMETERS, kernel="python3"):
    """A notebook at `path`: the parameters cell, then `cells` (source text or ready cells)."""
    first = [] if parameters is None else [tagged(new_code_cell(parameters), "parameters")]
    rest = [new_code_cell(cell) if isinstance(cell, str) else cell for cell in cells]
    notebook = new_notebook(cells=first + rest)
    if kernel is not None:
        notebook.metadata.kernelspec = {"name": kernel, "display_name": kernel}
    nbformat.write(notebook, path)
    return path


def manifest_cell(path):
    return f"from gdro.records import write_manifest\nwrite_manifest({str(path)!r}, {{'ok': True}})"


@pytest.fixture
def place(tmp_path):
    """Folder of a test, with a stale manifest, which no failure may leave."""
    (tmp_path / "m.json").write_text('{"stale": true}')
    return tmp_path


def run(place, notebook, parameters=None, **options):
    options = {"manifest": place / "m.json", "cwd": place} | options
    return run_notebook(notebook, place / "out.ipynb", parameters, **options)


def command(place, notebook, *arguments, **options):
    """What `python -m gdro.notebooks` returns and says."""
    return subprocess.run(
        [sys.executable, "-m", "gdro.notebooks", notebook, place / "out.ipynb", *arguments],
        capture_output=True, text=True, timeout=60, check=False, **options,
    )  # fmt: skip


def assert_nothing_whole(place):
    """No OUTPUT, no manifest, and no half-written file."""
    left = sorted(os.listdir(place))
    assert "out.ipynb" not in left
    assert "m.json" not in left
    assert not [name for name in left if name.startswith(".")]


def failed_copy(place):
    """Reason on top of the failed copy, and (source, status) of each code cell."""
    notebook = nbformat.read(place / "out.failed.ipynb", as_version=4)
    assert notebook.metadata.papermill.exception is True
    cells = [c for c in notebook.cells if c.cell_type == "code"]
    return notebook.cells[0].source, [(c.source, c.metadata.papermill.status) for c in cells]


# ---- refused: no kernel is started ------------------------------------------------------------


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"stesp": 1}, r"n.ipynb has no parameter 'stesp'; did you mean 'steps'\? it has: steps, "),
        ({"zzz": 1}, r"no parameter 'zzz'; it has: steps, rate, name, sizes, anything"),
        ({"steps": "10"}, r"'steps' is 10 \(int\) .* got '10' \(str\); pass the notebook's type"),
        ({"steps": 1.0}, r"'steps' is 10 \(int\)"),
        ({"steps": True}, r"'steps' is 10 \(int\) in the notebook and got True \(bool\)"),
        ({"steps": None}, r"got None"),
        ({"rate": "1e-3"}, r"'rate' is 0.5 \(float\)"),
        ({"name": 7}, r"'name' is 'a' \(str\).*on the command line: -p name '\"…\"'"),
        ({"sizes": [1, "b"]}, r"'sizes' is \[1, 2\] \(list\)"),
        ({"anything": Path("x")}, r"PosixPath\), which papermill cannot write"),
        ({"anything": {1: 2}}, r"cannot write"),
    ],
)
def test_wrong_parameters_are_refused(place, parameters, message):
    notebook = book(place / "n.ipynb", "1")
    with pytest.raises(NotebookRefused, match=message):
        run(place, notebook, parameters)
    assert_nothing_whole(place)


def test_right_parameters_take_the_type_of_the_default():
    defaults = {"rate": 0.5, "sizes": (0.1, 0.2), "mixed": [1, "a"], "any": None, "empty": []}
    given = {"rate": 1, "sizes": (1, 2.5), "mixed": ["b", 2.0], "any": {"a": [1]}, "empty": [1]}
    fitted = conform_parameters(given, defaults)
    assert fitted == {**given, "sizes": [1.0, 2.5]}
    assert type(fitted["rate"]) is float
    assert [type(size) for size in fitted["sizes"]] == [float, float]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3), ("-1e-3", -1e-3), ("1e-5", 1e-5), ("None", None), ("null", None),
        ("True", True), ("false", False), ("[1e-3, 2]", [1e-3, 2]), ("{a: 1}", {"a": 1}),
        ("run #3", "run #3"), ('"3"', "3"), ("2026-01-02", "2026-01-02"), ("", ""), ("010", 10),
    ],
)  # fmt: skip
def test_values_of_the_command_line(text, value):
    assert parse_value(text) == value
    assert type(parse_value(text)) is type(value)


def test_broken_yaml_is_refused():
    with pytest.raises(NotebookRefused, match=r"'\[1, 2' cannot be read as YAML; if it is a str"):
        parse_value("[1, 2")


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        (None, "no cell is tagged 'parameters'; tag exactly one"),
        ("import os", r"cell 0 \(parameters\), line 1: wanted `name = literal`"),
        ("a = 1\nb = 2 * a", r"line 2: .*compute 'b' in a later cell"),
        ("a, b = 1, 2", "wanted `name = literal`"),
        ("a = 1\na = 2", "'a' is set twice"),
        ("a = = 1", "not Python"),
    ],
)
def test_a_wrong_parameters_cell_is_refused(place, parameters, message):
    notebook = book(place / "n.ipynb", "1", parameters=parameters)
    with pytest.raises(NotebookRefused, match=message):
        run(place, notebook)
    assert_nothing_whole(place)


def test_two_parameters_cells_or_an_earlier_runs_are_refused(place):
    second = tagged(new_code_cell("steps = 20"), "parameters")
    with pytest.raises(NotebookRefused, match=r"cells \[0, 2\] are tagged 'parameters'"):
        run(place, book(place / "n.ipynb", "1", second))
    text = tagged(new_markdown_cell("steps"), "parameters")
    with pytest.raises(NotebookRefused, match=r"cell 0 .* is a markdown cell"):
        run(place, book(place / "n.ipynb", text, parameters=None))
    injected = tagged(new_code_cell("steps = 20"), "injected-parameters")
    with pytest.raises(NotebookRefused, match="cell 1 holds the injected parameters"):
        run(place, book(place / "n.ipynb", injected))
    assert_nothing_whole(place)


def test_a_wrong_kernel_is_refused(place):
    with pytest.raises(NotebookRefused, match="asks for the kernel None, wanted 'python3'; open"):
        run(place, book(place / "n.ipynb", "1", kernel=None))
    with pytest.raises(NotebookRefused, match=r"asks for the kernel 'julia-1\.9', wanted"):
        run(place, book(place / "n.ipynb", "1", kernel="julia-1.9"))
    with pytest.raises(NotebookRefused, match="'nowhere' is not installed here; run python -m"):
        run(place, book(place / "n.ipynb", "1", kernel="nowhere"), kernel="nowhere")
    assert_nothing_whole(place)


def test_wrong_paths_are_refused(place):
    notebook = book(place / "n.ipynb", "1")
    with pytest.raises(NotebookRefused, match=r"no notebook at .*absent\.ipynb; check the path"):
        run(place, place / "absent.ipynb")
    assert_nothing_whole(place)
    before = notebook.read_bytes()
    (place / "link.ipynb").symlink_to(notebook)
    for same in [notebook, place / "." / "n.ipynb", place / "link.ipynb"]:
        with pytest.raises(NotebookRefused, match="notebook and output are both"):
            run_notebook(notebook, same)
    with pytest.raises(NotebookRefused, match="notebook and manifest are both"):
        run(place, notebook, manifest=notebook)
    assert notebook.read_bytes() == before
    with pytest.raises(NotebookRefused, match=r"does not end in \.ipynb"):
        run_notebook(notebook, place / "out.txt")
    with pytest.raises(NotebookRefused, match="is a folder"):
        run(place, notebook, manifest=place)
    with pytest.raises(NotebookRefused, match="a manifest is required and no path was given"):
        run(place, notebook, manifest=None, require_manifest=True)
    with pytest.raises(NotebookRefused, match=r"cwd .* is not a folder"):
        run(place, notebook, cwd=place / "absent")
    with pytest.raises(NotebookRefused, match=r"cell_timeout is 0\.5; pass whole seconds > 0"):
        run(place, notebook, cell_timeout=0.5)


@pytest.mark.parametrize("text", ["", "not JSON", "[]", "{}", '{"cells": 3, "nbformat": 4}'])
def test_a_file_that_is_no_notebook_is_refused(place, text):
    (place / "n.ipynb").write_text(text)
    with pytest.raises(NotebookRefused):
        run(place, place / "n.ipynb")
    assert_nothing_whole(place)


def test_a_refusal_is_a_value_error_and_leaves_the_earlier_output(place):
    notebook = book(place / "n.ipynb", "1")
    (place / "out.ipynb").write_text("hours of work")
    with pytest.raises(ValueError, match="no parameter"):
        run(place, notebook, {"stesp": 1})
    assert (place / "out.ipynb").read_text() == "hours of work"
    assert not (place / "m.json").exists()
    assert issubclass(NotebookRefused, NotebookError)
    assert issubclass(NotebookError, RuntimeError)


def test_the_root_is_where_pyproject_is(tmp_path, monkeypatch):
    assert (repository_root(__file__) / "gdro" / "notebooks.py").is_file()
    monkeypatch.chdir(tmp_path)
    assert repository_root(tmp_path / "n.ipynb") == tmp_path


# ---- whole ------------------------------------------------------------------------------------


def test_a_whole_run(place, monkeypatch):
    monkeypatch.setenv("GDRO_TEST_MARK", "passed on")
    root = place / "a {root}"  # papermill would look for a parameter called root
    notebook = root / "notebooks" / "n.ipynb"
    notebook.parent.mkdir(parents=True)
    (root / "pyproject.toml").touch()
    book(
        notebook,
        new_markdown_cell("# text"),
        "",
        "# nothing but a comment",
        "import os, json\nmark = os.environ['GDRO_TEST_MARK']\n"
        "print(json.dumps([steps, rate, name, sizes, os.getcwd(), mark]))",
        manifest_cell(root / "m.json"),
    )
    output = root / "runs" / "out.ipynb"
    output.parent.mkdir()
    for stale in ["out.ipynb", "out.failed.ipynb"]:
        (output.parent / stale).write_text("stale")
    given = {"steps": 3, "rate": 1, "name": 'a "b"\n', "sizes": [7]}
    executed = run_notebook(
        notebook, output, given, manifest=root / "m.json", require_manifest=True
    )  # fmt: skip
    saw = json.loads(executed.cells[-2].outputs[0].text)
    assert saw == [3, 1.0, 'a "b"\n', [7], str(root), "passed on"]
    assert type(saw[1]) is float
    assert read_manifest(root / "m.json")["ok"] is True
    assert os.listdir(output.parent) == ["out.ipynb"]
    saved = nbformat.read(output, as_version=4)
    assert saved.metadata.papermill.parameters == given
    assert saved.metadata.papermill.output_path == str(output)
    assert [c.metadata.papermill.status for c in saved.cells] == ["completed"] * 7


# ---- failed: a kernel is started --------------------------------------------------------------

FAILURES = {
    "error": ("1 / 0", CellFailed, "ZeroDivisionError: division by zero; the failed copy has"),
    "kill": (KILL, KernelDied, "the kernel died"),
    "os._exit": ("import os\nos._exit(0)", KernelDied, "the kernel died"),
    "sys.exit": ("import sys\nsys.exit(0)", CellExited, r"the cell called SystemExit\(0\)"),
    "SystemExit": ("raise SystemExit", CellExited, r"the cell called SystemExit\(\)"),
    "exit": ("exit()", CellExited, r"the cell called exit\(\) or quit\(\)"),
    "timeout": ("import time\ntime.sleep(60)", CellTimedOut, "stopped after 2 seconds"),
}


@pytest.mark.slow  # up to 4 s each: ipykernel takes its time to leave after some errors
@pytest.mark.parametrize("kind", FAILURES)
def test_a_failing_cell_fails_the_run(place, kind):
    source, error, message = FAILURES[kind]
    # The manifest is written before the failure: it must go all the same.
    notebook = book(place / "n.ipynb", manifest_cell(place / "m.json"), source, "print('after')")
    (place / "out.ipynb").write_text("an earlier run")
    timeout = 2 if kind == "timeout" else None
    where = rf"^n\.ipynb, cell 2 \(`{source.splitlines()[0]}".replace("()", r"\(\)")
    with pytest.raises(error, match=f"{where}.*{message}") as caught:
        run(place, notebook, {"steps": 3}, cell_timeout=timeout)
    assert type(caught.value) is error
    assert_nothing_whole(place)
    reason, cells = failed_copy(place)
    assert str(caught.value) in reason
    assert cells[-2:] == [(source, "failed"), ("print('after')", "pending")]
    assert [status for _, status in cells[:3]] == ["completed"] * 3


def test_quit_in_the_last_cell_fails_the_run(place):
    notebook = book(place / "n.ipynb", manifest_cell(place / "m.json"), "quit()")
    with pytest.raises(CellExited, match=r"cell 2 \(`quit\(\)`\)"):
        run(place, notebook)
    assert_nothing_whole(place)


@pytest.mark.slow
def test_tags_excuse_nothing(place):
    skipped = tagged(new_code_cell("steps = 0"), "skip-execution")
    with pytest.raises(CellSkipped, match=r"cell 1 \(`steps = 0`\): the cell was not executed"):
        run(place, book(place / "n.ipynb", skipped, manifest_cell(place / "m.json")))
    assert_nothing_whole(place)
    errs = tagged(new_code_cell("1 / 0"), "raises-exception")
    with pytest.raises(CellFailed, match=r"cell 1 \(`1 / 0`\): ZeroDivisionError"):
        run(place, book(place / "n.ipynb", errs, manifest_cell(place / "m.json")))
    assert_nothing_whole(place)
    assert [status for _, status in failed_copy(place)[1][1:]] == ["failed", "completed"]
    leaves = tagged(new_code_cell("raise SystemExit(0)"), "raises-exception")
    with pytest.raises(CellExited, match="cell 1"):
        run(place, book(place / "n.ipynb", leaves, manifest_cell(place / "m.json")))
    assert_nothing_whole(place)


def test_a_whole_run_without_a_whole_manifest_fails(place):
    with pytest.raises(ManifestMissing, match=r"n\.ipynb: every cell ran, but no manifest at .*"):
        run(place, book(place / "n.ipynb", "1"))
    assert_nothing_whole(place)
    cut_short = f"open({str(place / 'm.json')!r}, 'w').write('{{\"ok\": tr')"
    with pytest.raises(ManifestMissing, match="is broken"):
        run(place, book(place / "n.ipynb", cut_short))
    assert_nothing_whole(place)
    reason, cells = failed_copy(place)
    assert "is broken" in reason
    assert cells[-1] == (cut_short, "completed")


@pytest.mark.parametrize("argv", [["/nowhere/python"], [sys.executable, "-c", "1/0"]])
def test_a_kernel_that_does_not_start(place, monkeypatch, argv):
    spec = place / "kernels" / "broken"
    spec.mkdir(parents=True)
    words = {"argv": argv, "display_name": "broken", "language": "python"}
    (spec / "kernel.json").write_text(json.dumps(words))
    monkeypatch.setenv("JUPYTER_PATH", str(place))
    with pytest.raises(KernelDied, match=r"n\.ipynb: the kernel did not start \(.*jupyter console"):
        run(place, book(place / "n.ipynb", "1", kernel="broken"), kernel="broken")
    assert_nothing_whole(place)


def wait_for(condition, seconds=30):
    """True as soon as `condition()` is, False after `seconds`."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.02)
    return False


def sleeper(place):
    """A notebook that leaves its kernel's pid in a file and sleeps."""
    told = f"import os, time\nopen({str(place / 'tmp')!r}, 'w').write(str(os.getpid()))"
    moved = f"os.rename({str(place / 'tmp')!r}, {str(place / 'pid')!r})"
    return book(place / "n.ipynb", manifest_cell(place / "m.json"), f"{told}\n{moved}\ntime.sleep(60)", "1")


def pid_of_kernel(place):
    assert wait_for((place / "pid").exists), "the kernel never came to the cell"
    return int((place / "pid").read_text())


def test_a_kernel_killed_from_outside(place):
    def kill():
        os.kill(pid_of_kernel(place), signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(KernelDied, match=r"cell 2 \(`import os, time`\): the kernel died"):
        run(place, sleeper(place))
    killer.join()
    assert_nothing_whole(place)
    assert [status for _, status in failed_copy(place)[1][-2:]] == ["failed", "pending"]


# ---- the command ------------------------------------------------------------------------------


@pytest.fixture
def invoke(place):
    """`main` in this process, for what needs no process of its own: importing takes seconds."""
    handler = signal.getsignal(signal.SIGTERM)

    def invoke_main(notebook, *arguments):
        words = [notebook, place / "out.ipynb", "--manifest", place / "m.json", *arguments]
        return CliRunner().invoke(main, [str(word) for word in words])

    yield invoke_main
    signal.signal(signal.SIGTERM, handler)


@pytest.mark.slow
def test_the_command_runs_a_notebook_whole(place):
    notebook = book(place / "n.ipynb", "assert rate == -1e-3 and name == '12'", manifest_cell("m.json"))
    arguments = ["-p", "rate", "-1e-3", "-p", "name", '"12"', "--manifest", "m.json"]
    whole = command(place, notebook, *arguments, "--require-manifest", "--cwd", ".", cwd=place)
    assert whole.returncode == 0, whole.stderr
    assert "Executing" in whole.stderr
    assert sorted(os.listdir(place)) == ["m.json", "n.ipynb", "out.ipynb"]
    assert read_manifest(place / "m.json")["ok"] is True


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-p", "stesp", "3"], "n.ipynb has no parameter 'stesp'; did you mean 'steps'? it has: "),
        (["-p", "steps", "3.5"], "n.ipynb: parameter 'steps' is 10 (int) in the notebook and got "),
        (["-p", "steps", "1", "-p", "steps", "2"], "parameter 'steps' is given twice"),
        (["-p", "sizes", "[1, 2"], "'[1, 2' cannot be read as YAML"),
        (["--kernel", "nowhere"], "n.ipynb asks for the kernel 'python3', wanted 'nowhere'"),
        (["--timeout", "0"], "cell_timeout is 0; pass whole seconds > 0"),
    ],
)
def test_the_command_refuses(place, invoke, arguments, message):
    refused = invoke(book(place / "n.ipynb", "1"), *arguments)
    assert refused.exit_code == 2
    assert refused.stderr.startswith(f"gdro.notebooks: {message}")
    assert refused.stderr.count("\n") == 1
    assert_nothing_whole(place)


def test_the_command_fails_when_a_cell_leaves(place, invoke):
    source, _, message = FAILURES["sys.exit"]
    failed = invoke(book(place / "n.ipynb", manifest_cell(place / "m.json"), source))
    assert failed.exit_code == 1
    assert message.replace("\\", "") in failed.stderr.splitlines()[-1]
    assert_nothing_whole(place)


@pytest.mark.slow
def test_the_command_fails_when_the_kernel_is_killed(place):
    spoken = "print('the cell before')"
    notebook = book(place / "n.ipynb", manifest_cell(place / "m.json"), spoken, KILL)
    failed = command(place, notebook, "--manifest", place / "m.json", "--log-output")
    assert failed.returncode == 1
    last = failed.stderr.splitlines()[-1]
    assert last.startswith("gdro.notebooks: n.ipynb, cell 3 (`import os`): the kernel died")
    printed = failed.stdout + failed.stderr
    assert "the cell before" in printed  # --log-output passes on what cells print, and only that
    assert "Executing Cell" not in printed
    assert "gdro/notebooks.py" not in failed.stderr, "a message, not our traceback"
    assert_nothing_whole(place)


@pytest.mark.slow
def test_a_terminated_command_takes_its_kernel_and_manifest_along(place):
    words = [sys.executable, "-m", "gdro.notebooks", sleeper(place), place / "out.ipynb"]
    runner = subprocess.Popen([*words, "--manifest", place / "m.json"], stderr=subprocess.DEVNULL)
    try:
        kernel = pid_of_kernel(place)
        assert (place / "m.json").exists()
        runner.terminate()
        assert runner.wait(timeout=30) == 128 + signal.SIGTERM
    finally:
        runner.kill()  # nothing to a process that has ended
    assert wait_for(lambda: not Path(f"/proc/{kernel}").exists())
    assert_nothing_whole(place)
    assert "interrupted" in failed_copy(place)[0]
