"""The base class of all methods, and their registry. A method overrides the functions that it is about.

    @register("failures")
    class Failures(Method):
        def allocate(self, prompts, budget, rng):
            return 1.1 - prompts.rate_P        # rollouts in proportion to the failure rate

The controller then guarantees the exact budget, the bounds on rollouts, finite numbers, determinism, and that
results do not depend on the order of the batch: a method sees prompts in the order of their uid keys.
What it is given is in `gdro.methods.batch`. Axes: P the prompts of the object at hand, R rollouts.
"""

from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

import numpy as np

from gdro.core.arrays import resized
from gdro.core.saved import Saved
from gdro.methods.batch import Batch, Prompts, Run


class Method(Saved):
    """A rule for using rollouts. Every function has a neutral default, which together are GRPO.

    Arguments of the functions are read-only. What a method learns must be kept in attributes that `state`
    names, arrays with a row for each prompt in `by_prompt` too (see `gdro.core.saved.Saved`). These are saved
    in checkpoints, and restored where a step fails half-way.
    """

    name: ClassVar[str] = ""
    run: Run  # of the controller that the method serves, set before `start`
    n_min: int | None = None  # replaces the controller's default bound on a prompt's rollouts
    rounds: bool = False  # whether `allocate` may leave budget for `extend`
    presets: ClassVar[dict[str, dict[str, Any]]] = {}  # options by the name of a preset

    @property
    def label(self) -> str:
        """The registered name, or that of the class."""
        return self.name or type(self).__name__

    def start(self, run: Run) -> None:
        """Called once by the controller, before anything else; makes the state."""

    # Derived, so that a method which overrides `draw` or `allocate` cannot forget to declare it.

    @property
    def draws(self) -> bool:
        """Whether the method chooses the prompts."""
        return type(self).draw is not Method.draw

    @property
    def moves_rollouts(self) -> bool:
        """Whether prompts may get unequal numbers of rollouts."""
        return type(self).allocate is not Method.allocate

    @property
    def needs_losses(self) -> bool:
        """Whether `observe` should be given the surrogate losses (6); without them they are −A_ij."""
        return False

    def draw(self, pool: Prompts, size: int, rng: np.random.Generator) -> np.ndarray | None:
        """Positions in `pool` of the next prompts, (size,); None leaves the order to the trainer."""
        return None

    def allocate(self, prompts: Prompts, budget: int, rng: np.random.Generator) -> np.ndarray:
        """Rollouts of each prompt, (P,) numbers ≥ 0: the controller scales and rounds them to the budget."""
        return np.full(len(prompts), budget / len(prompts))

    def extend(self, batch: Batch, left: int, rng: np.random.Generator) -> np.ndarray | None:
        """Further rollouts within the step, (P,) integers with a sum of at most `left`; None to stop."""
        return None

    def weights(self, batch: Batch) -> np.ndarray:
        """Factor on each prompt's advantages, (P,)."""
        return np.ones(len(batch))

    def advantages(self, batch: Batch) -> np.ndarray:
        """Advantage of each rollout before it is weighted, (R,)."""
        return batch.group_advantages_R

    def ready(self, batch: Batch) -> bool:
        """Whether to take the optimizer step now; False adds this batch's rollouts to those of the next."""
        return True

    def update(self, batch: Batch) -> None:
        """Learn from what came back."""

    def report(self) -> dict[str, Any]:
        """Entries for the record's row: "weight", "probability", "price", "demand", or names of your own."""
        return {}

    def at_least(self, array: np.ndarray, rows_P: np.ndarray) -> np.ndarray:
        """`array` with zeros added up to the largest of the rows, so that these can index it."""
        missing = int(rows_P.max(initial=-1)) + 1 - len(array)
        return array if missing <= 0 else resized(array, len(array) + max(missing, len(array) // 2))


METHODS: dict[str, type[Method]] = {}
AnyMethod = TypeVar("AnyMethod", bound=type[Method])


def register(name: str) -> Callable[[AnyMethod], AnyMethod]:
    """Class decorator that puts a `Method` into the registry under `name`.

    Defining a class again, as in a notebook cell, replaces it; a method of this package can only be replaced
    by importing its own module again.
    """
    if not isinstance(name, str) or not name:
        raise TypeError(f"register takes a name, got {name!r}; write @register('mine')")

    def add(method: AnyMethod) -> AnyMethod:
        if not (isinstance(method, type) and issubclass(method, Method)):
            raise TypeError(f"register({name!r}) decorates a subclass of Method, got {method!r}; derive one")
        known = METHODS.get(name, method)
        ours = known.__module__.startswith("gdro.") and known.__module__ != method.__module__
        if ours or known.__qualname__ != method.__qualname__:
            taken = f"is taken by {known.__module__}.{known.__qualname__}"
            raise ValueError(f"method name {name!r} {taken}; choose another name")
        method.name, METHODS[name] = name, method
        return method

    return add
