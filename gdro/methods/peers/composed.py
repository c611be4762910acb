"""A method made of parts of others: the draw of one, the rollouts of another, the advantages of a third.

    GDROController("composed", draw="pivotal", advantages={"pkpo": {"k": 4}})

and in the arena composed:draw=pivotal:advantages.pkpo.k=4. A part is a method's name, or {name: options};
parts that are spelled equally are one object. Every part learns from every batch. It serves to find out which
part of a method has an effect: `composed:draw=pivotal` has pivotal's draw with GRPO's advantages.

Not supported: methods that wait for another batch before a step (`dapo`) and presets of the parts.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from gdro.methods.base import Batch, Method, Prompts, Run, register
from gdro.methods.setup import make_method

MethodPart = str | Mapping[str, Mapping[str, Any]]
FUNCTIONS = {  # what a method overrides that has such a part of its own
    "draw": ["draw"],
    "rollouts": ["allocate", "extend"],
    "advantages": ["advantages"],
    "weights": ["weights"],
}


@register("composed")
class Composed(Method):
    """Parts of registered methods; without any, GRPO.

    Args:
        draw: whose `draw` chooses the prompts.
        rollouts: whose `allocate` and `extend` divide the rollouts; its least number of them (n_min) holds.
        advantages: whose `advantages` are taken.
        weights: whose `weights` multiply them; by default those of the method that `advantages` names.
        groups, rates: what an oracle (`family_even`, `oracle`) that draws is given.
    """

    state = ("draw_part", "rollouts_part", "advantages_part", "weights_part")
    draw_part: Method
    rollouts_part: Method
    advantages_part: Method
    weights_part: Method

    def __init__(
        self,
        draw: MethodPart = "grpo",
        rollouts: MethodPart = "grpo",
        advantages: MethodPart = "grpo",
        weights: MethodPart | None = None,
        groups: Any = None,
        rates: Any = None,
    ) -> None:
        given = {"draw": draw, "rollouts": rollouts, "advantages": advantages}
        made: list[tuple[Any, Method]] = []
        for role, spelling in (given | {"weights": weights or advantages}).items():
            name, options = _read(role, spelling)
            known = [part for other, part in made if other == (name, options)]
            part = known[0] if known else make_method(name, "default", options)
            made.append(((name, options), part))
            if (role != "weights" or weights) and name != "grpo" and not _overrides(part, *FUNCTIONS[role]):
                raise ValueError(
                    f"Composed({role}=…) must name a method with {role} of its own, got {name!r}; "
                    "name it for the part that it has, or 'grpo' here"
                )
            if _overrides(part, "ready"):
                raise ValueError(
                    f"Composed({role}=…) must name a method that steps after each batch, got {name!r}; "
                    "use that method alone"
                )
            setattr(self, f"{role}_part", part)
        for option, value in {"groups": groups, "rates": rates}.items():
            if value is not None and getattr(self.draw_part, option, self) is None:
                setattr(self.draw_part, option, value)
        self.n_min, self.rounds = self.rollouts_part.n_min, self.rollouts_part.rounds
        self.parts = list(dict.fromkeys(getattr(self, name) for name in self.state))

    def start(self, run: Run) -> None:
        super().start(run)
        for part in self.parts:
            part.start(run)

    @property
    def draws(self) -> bool:
        return self.draw_part.draws

    @property
    def moves_rollouts(self) -> bool:
        return self.rollouts_part.moves_rollouts

    @property
    def needs_losses(self) -> bool:
        return any(part.needs_losses for part in self.parts)

    def draw(self, pool: Prompts, size: int, rng: np.random.Generator) -> np.ndarray | None:
        return self.draw_part.draw(pool, size, rng)

    def allocate(self, prompts: Prompts, budget: int, rng: np.random.Generator) -> np.ndarray:
        return self.rollouts_part.allocate(prompts, budget, rng)

    def extend(self, batch: Batch, left: int, rng: np.random.Generator) -> np.ndarray | None:
        return self.rollouts_part.extend(batch, left, rng)

    def weights(self, batch: Batch) -> np.ndarray:
        return self.weights_part.weights(batch)

    def advantages(self, batch: Batch) -> np.ndarray:
        return self.advantages_part.advantages(batch)

    def update(self, batch: Batch) -> None:
        for part in self.parts:
            part.update(batch)

    def report(self) -> dict[str, Any]:
        return {name: value for part in self.parts for name, value in part.report().items()}


def _read(role: str, spelling: MethodPart) -> tuple[str, Mapping[str, Any]]:
    """Name and options of a part."""
    if isinstance(spelling, str):
        return spelling, {}
    if isinstance(spelling, Mapping) and len(spelling) == 1:
        name, options = next(iter(spelling.items()))
        if isinstance(options, Mapping):
            return name, options
    raise ValueError(
        f"Composed({role}=…) must be a method's name or {{name: options}}, got {spelling!r}; name one method"
    )


def _overrides(part: Method, *functions: str) -> bool:
    return any(getattr(type(part), name) is not getattr(Method, name) for name in functions)
