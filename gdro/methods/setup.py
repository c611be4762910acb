"""Makes a method and the sizes of its run from arguments: presets, defaults, checks."""

import math
from collections.abc import Mapping
from typing import Any

from gdro.core.checks import build, check_choice, check_int, check_number
from gdro.core.limits import MOST_ROLLOUTS
from gdro.methods.base import METHODS, Method
from gdro.methods.batch import Run


def make_method(method: str | Method, preset: str, options: Mapping[str, Any]) -> Method:
    """A method from its name, or the object itself; options override those of the preset."""
    if isinstance(method, Method):
        if hasattr(method, "run"):
            raise ValueError(f"method {method.label!r} serves another controller; make a new one for each")
        if options:
            wanted, names = f"the constructor of {method.label!r}", sorted(options)
            raise ValueError(f"options must be given to {wanted}, got {names} beside it; give them there")
        return method
    check_choice("method", method, tuple(METHODS))
    chosen = dict(METHODS[method].presets.get(preset, {}))
    for name, value in options.items():
        nested = isinstance(chosen.get(name), dict) and isinstance(value, Mapping)
        chosen[name] = {**chosen[name], **value} if nested else value
    return build(f"options of method {method!r}", METHODS[method], chosen)


def make_run(num_bins: int, mean_rollouts: float, n_min: int | None, n_max: int | None, *rest: Any) -> Run:
    """A `Run`; None stands for the default of a bound, and `rest` are the fields that `Run` checks itself."""
    check_number("mean_rollouts", mean_rollouts, 1)
    low = check_int("n_min", min(2, int(mean_rollouts)) if n_min is None else n_min, 1)
    high = min(max(12, math.ceil(3 * mean_rollouts)), MOST_ROLLOUTS) if n_max is None else n_max
    check_int("n_max", high, low, MOST_ROLLOUTS, remedy="raise it, or lower n_min")
    check_number("mean_rollouts", mean_rollouts, low, high, remedy="change it, n_min or n_max")
    return Run(num_bins, mean_rollouts, low, high, *rest)
