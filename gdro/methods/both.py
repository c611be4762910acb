"""Both adversaries at once: Prompt-GDRO weighs or draws the prompts, Rollout-GDRO allots their rollouts.

The paper evaluates each alone and names the two together as open.
"""

from dataclasses import dataclass
from typing import ClassVar

from gdro.methods.base import register
from gdro.methods.prompt_gdro import PromptMethod
from gdro.methods.rollout_gdro import RolloutMethod


@register("both")
@dataclass(eq=False)
class Both(PromptMethod, RolloutMethod):
    """Takes the arguments of `PromptMethod` and of `RolloutMethod`; each game calls the next (super)."""

    presets: ClassVar = {"paper": PromptMethod.presets["paper"] | RolloutMethod.presets["paper"]}
    state = ("prompt", "rollout")
