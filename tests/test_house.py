"""Rules of the house, held by the source itself: who imports whom, size, types, words."""

import ast
import collections
import subprocess
import sys
from pathlib import Path

import gdro

ROOT = Path(gdro.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
MODULES = {
    str(file.relative_to(ROOT).with_suffix("")).replace("/", ".").removesuffix(".__init__"): file
    for file in FILES
}


def test_imports_run_downward():
    """The contracts of pyproject.toml, by import-linter."""
    command = [Path(sys.executable).with_name("lint-imports"), "--no-cache"]
    run = subprocess.run(command, cwd=ROOT.parent, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout


def public_names(file):
    """Functions, classes and constants at the top of a file."""
    for node in ast.parse(file.read_text("utf-8")).body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        names = [getattr(node, "name", None), *(getattr(target, "id", None) for target in targets)]
        yield from (name for name in names if name and not name.startswith("_") and name != "main")


def test_a_name_has_one_meaning():
    places = collections.defaultdict(set)
    for module, file in MODULES.items():
        for name in public_names(file):
            places[name].add(module)
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


def test_files_and_rooms_are_short():
    rooms = collections.Counter()
    for file in FILES:
        lines, room = len(file.read_text("utf-8").splitlines()), file.parent.relative_to(ROOT)
        assert lines <= 400, f"{file}: split it"
        rooms[str(room)] += lines
    assert {room: lines for room, lines in rooms.items() if lines > 1600} == {}


def public_functions(body):
    """Public functions and methods among the statements of a module or class, with their owners' names."""
    for node in body:
        name = getattr(node, "name", "_")
        if isinstance(node, ast.ClassDef) and name[0] != "_":
            yield from ((f"{name}.{inner}", function) for inner, function in public_functions(node.body))
        elif isinstance(node, ast.FunctionDef) and (name[0] != "_" or name == "__init__"):
            yield name, node


def test_public_functions_are_typed():
    untyped = []
    for module, file in MODULES.items():
        for name, function in public_functions(ast.parse(file.read_text("utf-8")).body):
            given = function.args
            named = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
            bare = [one for one in named if one and not one.annotation and one.arg not in ("self", "cls")]
            if bare or not (function.returns or name.endswith("__init__")):
                untyped.append(f"{module}.{name}")
    assert untyped == []
