"""Reward functions that do not take the column of uids, which the trainer adds."""

from functools import partial
from inspect import Parameter, signature
from typing import Any

from torch import nn


class WithoutColumn(partial):
    """A reward function that is called without one of the columns.

    It is a partial, so that TRL finds its name, and whether it is asynchronous.
    """

    column: str

    def __call__(self, **columns: Any) -> Any:
        return super().__call__(**{n: value for n, value in columns.items() if n != self.column})


def without_column(function: Any, column: str) -> Any:
    """A reward function or model, which gets a column only where it takes it."""
    if isinstance(function, nn.Module):  # it is given texts
        return function
    try:
        parameters = signature(function).parameters
    except (TypeError, ValueError):  # of builtins
        return function
    takes_all = any(each.kind == Parameter.VAR_KEYWORD for each in parameters.values())
    if takes_all or column in parameters:
        return function
    wrapped = WithoutColumn(function)
    wrapped.column = column
    return wrapped
