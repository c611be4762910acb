"""The methods: one file each, found by the name they are registered under; peers/ has those of other papers.

A method of your own needs no place here: decorate it with `register` before you make the controller.
"""

import runpy
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages

from gdro.methods.base import METHODS, Batch, Method, Prompts, Run, register

for _module in walk_packages(__path__, f"{__name__}."):
    import_module(_module.name)


def register_from(file: str | Path) -> None:
    """Run a Python file that registers methods; ValueError if it calls exit."""
    try:
        runpy.run_path(str(file))
    except SystemExit as error:
        raise ValueError(f"{file} calls exit({error.code}); let it register methods and end") from error


__all__ = ["METHODS", "Batch", "Method", "Prompts", "Run", "register", "register_from"]
