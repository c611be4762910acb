"""Rules of the house, held by the source itself: who imports whom, size, types, names."""

import ast
import subprocess
import sys
from pathlib import Path

import gdro

ROOT = Path(gdro.__file__).parents[1]
TREES = {
    str(file.relative_to(ROOT).with_suffix("")).replace("/", "."): ast.parse(file.read_text())
    for package in ("gdro", "gdro_lab")
    for file in sorted((ROOT / package).rglob("*.py"))
}


def test_imports_run_downward():
    """The contracts of pyproject.toml, by import-linter."""
    command = [Path(sys.executable).with_name("lint-imports"), "--no-cache"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout


def public_functions(body, owner=""):
    """Public functions and methods among the statements of a module or class."""
    for node in body:
        name = getattr(node, "name", "_")
        if isinstance(node, ast.ClassDef) and name[0] != "_":
            yield from public_functions(node.body, f"{name}.")
        elif isinstance(node, ast.FunctionDef) and (name[0] != "_" or name == "__init__"):
            yield owner + name, node


OF_TRL = ("GDROTrainer.compute_loss",)  # its signature is that of the class above


def test_public_functions_are_typed():
    untyped = []
    for module, tree in TREES.items():
        for name, function in public_functions(tree.body):
            given = function.args
            named = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
            bare = [one for one in named if one and not one.annotation]
            returns = function.returns or name.endswith("__init__") or name in OF_TRL
            if ({one.arg for one in bare} - {"self", "cls"} and name not in OF_TRL) or not returns:
                untyped.append(f"{module}.{name}")
    assert untyped == []
