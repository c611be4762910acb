"""The methods: one file each, found by the name they are registered under.

A method of your own needs no place here: decorate it with `register` before you make the controller.
"""

from importlib import import_module
from pkgutil import iter_modules

from gdro.methods.base import METHODS, Batch, Method, Prompts, Run, register

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")

__all__ = ["METHODS", "Batch", "Method", "Prompts", "Run", "register"]
