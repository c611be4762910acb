"""The methods: one file each, found by the name they are registered under; peers/ has those of other papers.

A method of your own needs no place here: decorate it with `register` before you make the controller.
"""

from importlib import import_module
from pkgutil import walk_packages

from gdro.methods.base import METHODS, Batch, Method, Prompts, Run, register

for _module in walk_packages(__path__, f"{__name__}."):
    import_module(_module.name)

__all__ = ["METHODS", "Batch", "Method", "Prompts", "Run", "register"]
