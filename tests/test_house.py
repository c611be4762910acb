"""Rules of the house, held by the source itself: who imports whom, size, types, words."""

import ast
import collections
import importlib
import inspect
import subprocess
from pathlib import Path

import pytest

import gdro

ROOT = Path(gdro.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
MODULES = {
    str(file.relative_to(ROOT).with_suffix("")).replace("/", ".").removesuffix(".__init__"): file
    for file in FILES
}


def test_imports_run_downward():
    """The contracts of pyproject.toml, by import-linter."""
    run = subprocess.run(["lint-imports", "--no-cache"], cwd=ROOT.parent, capture_output=True, text=True)
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


def public_functions(module):
    """Public functions and methods written in a module, with their names."""
    for name, member in vars(module).items():
        if name.startswith("_") or getattr(member, "__module__", None) != module.__name__:
            continue
        if inspect.isfunction(member):
            yield name, member
        elif inspect.isclass(member):
            for method_name, method in vars(member).items():
                function = method.fget if isinstance(method, property) else getattr(method, "func", method)
                inherited = getattr(function, "__module__", None) == "typing"  # a Protocol's __init__
                is_public = method_name == "__init__" or method_name[0] != "_"
                if inspect.isfunction(function) and is_public and not inherited:
                    yield f"{name}.{method_name}", function


@pytest.mark.parametrize("name", MODULES)
def test_public_functions_are_typed(name):
    module = importlib.import_module("gdro" if name == "__init__" else f"gdro.{name}")
    untyped = []
    for function_name, function in public_functions(module):
        signature = inspect.signature(function)
        given = [p for p in signature.parameters.values() if p.name not in ("self", "cls")]
        returns = function_name.endswith("__init__") or signature.return_annotation is not signature.empty
        if any(p.annotation is p.empty for p in given) or not returns:
            untyped.append(function_name)
    assert untyped == []
