"""A method of parts: the draw of one, the rollouts of another, the advantages of a third."""

from collections.abc import Mapping
from typing import Any

from gdro.method import Batch, Method, Run
from gdro.registry import make_method, register

MethodPart = str | Mapping[str, Mapping[str, Any]]  # a name, or {name: options}
FUNCTIONS = {  # what a method overrides that has such a part of its own
    "draw": ["draw"],
    "rollouts": ["allocate", "extend"],
    "advantages": ["advantages"],
    "weights": ["weights"],
}


@register("composed")
class Composed(Method):
    """Parts of registered methods; without any, GRPO.

        GDROController("composed", draw="pivotal", advantages={"pkpo": {"k": 4}})

    Parts that are spelled equally are one object; every part learns from every batch. Not
    supported: methods that wait for another batch before a step (`dapo`) and presets of the parts.

    Args:
        draw: whose `draw` chooses the prompts.
        rollouts: whose `allocate` and `extend` divide the rollouts, and whose n_min is the default.
        advantages: whose `advantages` are taken.
        weights: whose `weights` multiply them; by default those of the one named by `advantages`.
        groups, rates: options of an oracle that draws, `family_even` or `oracle`.
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
        given = {"draw": draw, "rollouts": rollouts, "advantages": advantages, "weights": weights}
        made: list[tuple[Any, Method]] = []
        for role, spelling in given.items():
            wanted = spelling or advantages
            ((name, options),) = ({wanted: {}} if isinstance(wanted, str) else wanted).items()
            known = [part for other, part in made if other == (name, options)]
            part = known[0] if known else make_method(name, "default", options)
            made.append(((name, options), part))
            own = not spelling or name == "grpo" or _overrides(part, *FUNCTIONS[role])
            if not own or _overrides(part, "ready"):
                wanted = f"a method with {role} of its own that steps after each batch"
                raise ValueError(f"{role} must name {wanted}, got {name!r}")
            setattr(self, f"{role}_part", part)
            for function in FUNCTIONS[role]:
                setattr(self, function, getattr(part, function))
        for name, value in {"groups": groups, "rates": rates}.items():
            if value is not None and getattr(self.draw_part, name, self) is None:
                setattr(self.draw_part, name, value)
        self.n_min, self.rounds = self.rollouts_part.n_min, self.rollouts_part.rounds
        self.parts = list(dict.fromkeys(getattr(self, name) for name in self.state))

    def start(self, run: Run) -> None:
        for part in self.parts:
            part.run = run
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

    def update(self, batch: Batch) -> None:
        for part in self.parts:
            part.update(batch)

    def report(self) -> dict[str, Any]:
        return {name: value for part in self.parts for name, value in part.report().items()}


def _overrides(part: Method, *functions: str) -> bool:
    return any(getattr(type(part), name) is not getattr(Method, name) for name in functions)
