"""A method of parts: the draw of one, the rollouts of another, the advantages of a third."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from gdro.checks import short
from gdro.method import Batch, Method, Prompts, Run
from gdro.registry import make_method, register

MethodPart = str | Mapping[str, Mapping[str, Any]]  # a name, or {name: options}
HOOKS = {  # what a method overrides that has such a part of its own
    "draw": ("draw",),
    "rollouts": ("allocate", "extend"),
    "advantages": ("advantages",),
    "weights": ("weights",),
}


@register("composed")
class Composed(Method):
    """Parts of registered methods; without any, GRPO.

        GDROController("composed", draw="pivotal", advantages={"pkpo": {"k": 4}})

    Parts with the same spelling are one object; every part learns from every batch. Methods that
    wait for another batch before a step (`dapo`) or replay kept successes (`pivotal_replay`) are
    refused: the buffer would be lost, and their advantages rely on it. Parts have no presets.

    Args:
        draw: whose `draw` chooses the prompts.
        rollouts: whose `allocate` and `extend` divide the rollouts, and whose n_min is the default.
        advantages: whose `advantages` are taken.
        weights: whose `weights` multiply them; by default those of the one named by `advantages`.
    """

    state = ("draw_part", "rollouts_part", "advantages_part", "weights_part")

    def __init__(
        self,
        draw: MethodPart = "grpo",
        rollouts: MethodPart = "grpo",
        advantages: MethodPart = "grpo",
        weights: MethodPart | None = None,
    ) -> None:
        made: list[tuple[MethodPart, Method]] = []
        self.draw_part = _part("draw", draw, made)
        self.rollouts_part = _part("rollouts", rollouts, made)
        self.advantages_part = _part("advantages", advantages, made)
        if weights is None:  # they go with the advantages, which may have none of their own
            self.weights_part = self.advantages_part
        else:
            self.weights_part = _part("weights", weights, made)
        self.parts = [part for _, part in made]
        self.n_min = self.rollouts_part.n_min

    @property
    def draws(self) -> bool:
        return self.draw_part.draws

    @property
    def moves_rollouts(self) -> bool:
        return self.rollouts_part.moves_rollouts

    @property
    def in_rounds(self) -> bool:
        return self.rollouts_part.in_rounds

    @property
    def needs_losses(self) -> bool:
        return any(part.needs_losses for part in self.parts)

    def start(self, run: Run) -> None:
        for part in self.parts:
            part.begin(run)

    def draw(self, pool: Prompts, size: int, rng: np.random.Generator) -> np.ndarray | None:
        return self.draw_part.draw(pool, size, rng)

    def allocate(self, prompts: Prompts, budget: int, rng: np.random.Generator) -> np.ndarray:
        return self.rollouts_part.allocate(prompts, budget, rng)

    def extend(self, batch: Batch, left: int, rng: np.random.Generator) -> np.ndarray | None:
        return self.rollouts_part.extend(batch, left, rng)

    def update(self, batch: Batch) -> None:
        for part in self.parts:
            part.update(batch)

    def weights(self, batch: Batch) -> np.ndarray:
        return self.weights_part.weights(batch)

    def advantages(self, batch: Batch) -> np.ndarray:
        return self.advantages_part.advantages(batch)

    def report(self) -> dict[str, Any]:
        entries: dict[str, Any] = {}
        for part in self.parts:
            entries |= part.report()
        return entries


def _part(role: str, spelled: MethodPart, made: list[tuple[MethodPart, Method]]) -> Method:
    """The method of a part, checked for its role; the same spelling gives the same object."""
    whole = {spelled: {}} if isinstance(spelled, str) else spelled
    if not isinstance(whole, Mapping) or len(whole) != 1:
        raise ValueError(f"{role} must be a name or {{name: options}}, got {short(spelled)}")
    [(name, options)] = whole.items()
    part = next((part for other, part in made if other == whole), None)
    if part is None:
        part = make_method(name, "default", options)
        made.append((whole, part))
    has_own = any(part.overrides(hook) for hook in HOOKS[role])
    if role == "draw":  # which an option may switch off
        has_own = part.draws
    if name != "grpo" and not has_own:
        raise ValueError(f"{role} must name a method with {role} of its own, got {short(spelled)}")
    if part.waits:
        raise ValueError(f"{role} must name a method that steps after each batch, got {name!r}")
    if part.replays:
        raise ValueError(f"{role} must name a method that replays nothing, got {name!r}")
    return part
